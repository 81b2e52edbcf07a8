"""Branches of the engine that histories do not reach; those that they cannot reach are in `unreached.toml`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ROOMS = {
    "commit": ["plugins/engine/task/commit.py", "plugins/engine/task/report.py"],
    "opening": [
        "plugins/engine/task/logged_task.py",
        "plugins/engine/task/positions.py",
        "plugins/engine/task/topic_ids.py",
        "plugins/engine/task/process_resources.py",
    ],
    "restoring": ["plugins/engine/task/local_state/*.py", "plugins/changelogs/*.py"],
    "hand-over": ["plugins/engine/task/task_runner.py", "plugins/engine/task/task_worker.py"],
    "loop": ["plugins/engine/task/loop/*.py"],
}
"""The files of each room; those of `restoring` and `loop` have cleaning, too."""
LISTED = Path(__file__).with_name("unreached.toml")
WHOLE = "*"
"""In place of a branch: every branch of a function, which no history calls."""


class Branch(NamedTuple):
    """A way from one line of a function to another one, by their text."""

    file: str
    function: str
    line: str
    to: str

    def __str__(self) -> str:
        return f"{self.file}: {self.function}: {self.line}" + (f" -> {self.to}" if self.to else "")


class Reached(NamedTuple):
    """The branches that histories have reached, and those that they have not."""

    reached: set[str]
    missed: list[Branch]


def reached_by(run: Callable[[], object]) -> Reached:
    """Return which branches of all rooms are reached while `run` runs, in this thread and its greenlets."""
    import coverage

    files = [str(ROOT / pattern) for patterns in ROOMS.values() for pattern in patterns]
    measured = coverage.Coverage(
        branch=True, include=files, concurrency=["greenlet"], data_file=None, config_file=False, messages=False
    )
    with measured.collect():
        run()
    with TemporaryDirectory() as directory:
        measured.json_report(outfile=str(Path(directory) / "report.json"))
        found = json.loads((Path(directory) / "report.json").read_text())["files"]
    reached, missed = set[str](), list[Branch]()
    for file, of_file in sorted(found.items()):
        path = Path(file).absolute().relative_to(ROOT).as_posix()
        lines = (ROOT / path).read_text().splitlines()
        for function, of_function in of_file["functions"].items():
            if not function:  # the module itself, which was imported before
                continue
            if of_function["executed_lines"]:
                named = _named(path, function, lines)
                reached.add(str(Branch(path, function, WHOLE, "")))
                reached.update(str(each) for each in named(of_function["executed_branches"]))
                missed += named(of_function["missing_branches"])
            elif of_function["missing_lines"]:
                missed.append(Branch(path, function, WHOLE, ""))
    return Reached(reached - {str(each) for each in missed}, missed)


def _named(path: str, function: str, lines: list[str]) -> Callable[[list[list[int]]], list[Branch]]:
    def text(line: int) -> str:
        return lines[line - 1].strip() if line > 0 else "the end"

    return lambda arcs: [Branch(path, function, text(line), text(to)) for line, to in arcs]


def listed(kind: str = "reason") -> Mapping[str, str]:
    """Return the branches that no history can reach, each with the reason; "rare": those that few histories reach."""
    given = tomllib.loads(LISTED.read_text())
    return {branch: each["why"] for each in given[kind] for branch in each["branches"]}


def report(found: Reached, known: Mapping[str, str], rare: Collection[str] = ()) -> Iterator[str]:
    """Yield what is wrong: branches that were missed and are not listed, and those that are listed and were reached.

    Those that are `rare` may be reached or not.
    """
    for room, of_room in _by_room(found.missed).items():
        unlisted = [str(each) for each in of_room if str(each) not in known and str(each) not in rare]
        for each in dict.fromkeys(unlisted):
            yield f"{room}: not reached, and not listed: {each}"
    for branch in known:
        if branch in found.reached:
            yield f"listed in {LISTED.name} as one that cannot be reached, and reached: {branch}"


def unknown(found: Reached, known: Mapping[str, str]) -> list[str]:
    """Return the branches that are listed, and that the source does not have, of files of which a line was run."""
    there = found.reached | {str(each) for each in found.missed}
    files = {branch.partition(": ")[0] for branch in there}
    functions = {f"{each.file}: {each.function}" for each in found.missed if each.line == WHOLE}
    return [
        branch
        for branch in known
        if branch.partition(": ")[0] in files
        and branch not in there
        and not any(branch.startswith(f"{function}: ") for function in functions)
    ]


def _by_room(missed: list[Branch]) -> dict[str, list[Branch]]:
    found: dict[str, list[Branch]] = {}
    for room, patterns in ROOMS.items():
        found[room] = [each for each in missed if any(Path(each.file).match(pattern) for pattern in patterns)]
    return found


def counts_of_missed(found: Reached) -> dict[str, int]:
    """Return how many branches of each room were missed."""
    return {room: len(of_room) for room, of_room in _by_room(found.missed).items()}
