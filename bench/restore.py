"""Restoring state: the rate for one task and for several."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from penstock import Log, OutputBatch, Settings, TopicPartition, run
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .peer import PEER, peer_command, peer_is_there
from .restore_app import ID, application
from .result import Table

ENTRIES = 1_000_000
_PORTION = 20_000


def restore(
    entries: int = ENTRIES,
    tasks: Sequence[int] = (1, 8),
    rounds: int = 3,
    changelog: str = "",
    processes: Sequence[int] = (0, 2),
) -> Table:
    """Restore `entries` in all, in so many tasks, from a directory and from topics of a broker, on an empty machine.

    `processes`: as the setting; several are measured where there are several tasks. `cores`: processor seconds of these
    processes, a second of restoring. `peak_mb`: of the first process. Each line is printed when it is measured.
    """
    kinds = [changelog] if changelog else ["directory:changes", "topic:"]
    made: list[dict[str, Any]] = []
    for kind in kinds:
        for number in tasks:
            with filled(kind, entries, number) as (settings, directory):
                for hosts in [processes[0]] * rounds if number == 1 else [*processes] * rounds:
                    shutil.rmtree(directory / "elsewhere", ignore_errors=True)
                    options = {**settings, "state_dir": "elsewhere", "processes": hosts}
                    row: dict[str, Any] = {"name": "restore", "from": kind, "tasks": number, "processes": hosts}
                    row |= rounded(json.loads(_app("restored", options)))
                    add(made, {**row, "entries_per_s": round(row["entries"] / row["seconds"])})
                if kind.startswith("topic") and peer_is_there():
                    for row in _peer(settings, directory, number, rounds):
                        add(made, row)
    return Table("restore", made)


def add(made: list[dict[str, Any]], row: dict[str, Any]) -> None:
    made.append(row)
    print(", ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr, flush=True)


def _peer(settings: dict[str, Any], directory: Path, tasks: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Let the peer read the same topic into a store; yield rows of its restores on an empty machine."""
    bootstrap, state = settings["log"].removeprefix("kafka:"), directory / "peer"
    made = peer_command(bootstrap, "table", f"{ID}-in", "exactly_once", {"application.id": f"{ID}-peer"})
    command = [each.replace("{out}", f"{ID}-out").replace("{dir}", str(state)) for each in made]
    with opened_log(settings) as log:
        for number in range(rounds + 1):
            shutil.rmtree(state, ignore_errors=True)
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                wait(log, send(log, tasks))
                process.terminate()
                lines = [line.split() for line in process.communicate()[0].splitlines()]
            if number == 0:
                continue  # it has filled its store
            begins, ends = ([line for line in lines if line[0] == each] for each in ("start", "end"))
            seconds = (max(int(line[1]) for line in ends) - min(int(line[1]) for line in begins)) / 1e9
            entries = sum(int(line[2]) for line in ends)
            row = {"name": "restore", "from": PEER, "tasks": tasks, "entries": entries, "seconds": round(seconds, 3)}
            yield {**row, "entries_per_s": round(entries / seconds)}


@contextmanager
def filled(changelog: str, entries: int, tasks: int) -> Iterator[tuple[dict[str, Any], Path]]:
    """Run the application on entries; yield its settings, and its directory."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        settings: dict[str, Any] = {"data_dir": str(directory), "log": "local:log", "changelog": changelog}
        if changelog.startswith("topic"):
            settings["log"] = f"kafka:{stack.enter_context(KafkaBroker()).bootstrap}"
        load(settings, entries, tasks)
        run(application(**settings))
        yield settings, directory


def load(settings: dict[str, Any], entries: int, tasks: int, partition: int | None = None) -> None:
    """Make the topics, and write a record for each entry; all to one partition if it is given."""
    with opened_log(settings) as log:
        for topic in ("in", "out"):
            log.create_topic(f"{ID}-{topic}", tasks)
        for first in range(0, entries, _PORTION):
            keys: list[bytes | None] = [b"user%08d" % each for each in range(first, min(first + _PORTION, entries))]
            number = len(keys)
            where: list[Sequence[int] | None] | None = None if partition is None else [(partition,)] * number
            log.append(OutputBatch(f"{ID}-in", keys, [b"x" * 100] * number, [1] * number, partitions=where))


def opened_log(settings: dict[str, Any]) -> closing[Log]:
    return closing(open_log(Settings(**{name: settings[name] for name in ("data_dir", "log")})))


def send(log: Log, tasks: int) -> Mapping[TopicPartition, int]:
    """Write a record to each partition that is passed on; return the ends of the outputs before."""
    outputs = [TopicPartition(f"{ID}-out", number) for number in range(tasks)]
    before = log.end_offsets(outputs)
    partitions: list[Sequence[int] | None] = [(number,) for number in range(tasks)]
    keys: list[bytes | None] = [_key(number) for number in range(tasks)]
    log.append(OutputBatch(f"{ID}-in", keys, [b"news"] * tasks, [2] * tasks, partitions=partitions))
    return before


def _key(task: int) -> bytes:
    return b"task%d" % task


def wait(log: Log, before: Mapping[TopicPartition, int], *, some: bool = False, task: int | None = None) -> None:
    """Wait until all tasks have passed on what `send` wrote, or `some` have, or one `task`."""
    deadline, missing, at = time.monotonic() + 300, {_key(each) for each in range(len(before))}, dict(before)
    enough = len(missing) - 1 if some else 0
    if task is not None:
        missing = {_key(task)}
    while len(missing) > enough:
        assert time.monotonic() < deadline, "no output within 300 s"
        for partition, end in log.end_offsets(list(before)).items():
            while at[partition] < end:
                batches = log.fetch(partition, at[partition], end, 1 << 20)
                for batch in batches:
                    missing.difference_update(key for key in batch.keys if key is not None)
                at[partition] = batches[-1].next_offset if batches else end
        time.sleep(0.005)


def _app(verb: str, settings: dict[str, Any]) -> str:
    command = [sys.executable, "-m", "bench.restore_app", verb, json.dumps(settings)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def rounded(found: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
