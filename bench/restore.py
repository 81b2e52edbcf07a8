"""Restoring state: the rate for one task and for several, and what a failover takes with and without a standby."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from penstock import Log, OutputBatch, Settings, TopicPartition, run
from penstock.plugins.runtime.locations import open_log
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
            with _filled(kind, entries, number) as (settings, directory):
                for hosts in [processes[0]] * rounds if number == 1 else [*processes] * rounds:
                    shutil.rmtree(directory / "elsewhere", ignore_errors=True)
                    options = {**settings, "state_dir": "elsewhere", "processes": hosts}
                    row: dict[str, Any] = {"name": "restore", "from": kind, "tasks": number, "processes": hosts}
                    row |= _rounded(json.loads(_app("restored", options)))
                    _add(made, {**row, "entries_per_s": round(row["entries"] / row["seconds"])})
                if kind.startswith("topic") and peer_is_there():
                    for row in _peer(settings, directory, number, rounds):
                        _add(made, row)
    return Table("restore", made)


def _add(made: list[dict[str, Any]], row: dict[str, Any]) -> None:
    made.append(row)
    print(", ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr, flush=True)


def failover(entries: int = ENTRIES, tasks: Sequence[int] = (8,), rounds: int = 1, changelog: str = "") -> Table:
    """Kill an embedded application; measure until a waiting one of another machine has its first new output.

    `lease_seconds`: until the waiting one has the lease of the killed one. `takeover_seconds`: from then on.
    """
    made = []
    for kind in [changelog] if changelog else ["directory:changes", "topic:"]:
        for number in tasks:
            with _filled(kind, entries, number) as (settings, directory):
                for _ in range(rounds):
                    made += [
                        {"name": "failover", "changelog": kind, "tasks": number, "entries": entries, "standby": copies}
                        | _rounded(_failover(settings, directory, copies, number))
                        for copies in (0, 1)
                    ]
    return Table("failover", made)


def _failover(settings: dict[str, Any], directory: Path, copies: int, tasks: int) -> dict[str, Any]:
    shutil.rmtree(directory / "elsewhere", ignore_errors=True)
    other = {**settings, "state_dir": "elsewhere", "num_standby_replicas": copies}
    with ExitStack() as stack:
        log = stack.enter_context(closing(open_log(Settings(**_of_log(settings)))))
        first = stack.enter_context(_following(settings))
        assert first.stdout is not None
        first.stdout.readline()  # it has the lease
        waiting = stack.enter_context(_following(other))
        assert waiting.stdout is not None
        before = _send(log, tasks)
        _wait(log, before)
        if copies:
            deadline = time.monotonic() + 300
            while len(list((directory / "elsewhere" / ID).glob("*/incarnation"))) < tasks:
                assert time.monotonic() < deadline, "no copies within 300 s"
                time.sleep(0.1)
            time.sleep(_SETTLE_SECONDS)
        before = _send(log, tasks)
        _wait(log, before)
        os.kill(first.pid, signal.SIGKILL)
        killed = time.time()
        before = _send(log, tasks)
        has_lease = json.loads(waiting.stdout.readline())["at"]
        _wait(log, before, some=True)
        some = time.time()
        _wait(log, before)
        return {
            "lease_seconds": has_lease - killed,
            "takeover_seconds": some - has_lease,
            "all_tasks_seconds": time.time() - has_lease,
            "first_output_seconds": some - killed,
        }


_SETTLE_SECONDS = 30.0
"""How long a standby has for its first copies."""


def _peer(settings: dict[str, Any], directory: Path, tasks: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Let the peer read the same topic into a store; yield rows of its restores on an empty machine."""
    bootstrap, state = settings["log"].removeprefix("kafka:"), directory / "peer"
    made = peer_command(bootstrap, "table", f"{ID}-in", "exactly_once", {"application.id": f"{ID}-peer"})
    command = [each.replace("{out}", f"{ID}-out").replace("{dir}", str(state)) for each in made]
    with closing(open_log(Settings(**_of_log(settings)))) as log:
        for number in range(rounds + 1):
            shutil.rmtree(state, ignore_errors=True)
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
                _wait(log, _send(log, tasks))
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
def _filled(changelog: str, entries: int, tasks: int) -> Iterator[tuple[dict[str, Any], Path]]:
    """Run the application on entries; yield its settings, and its directory."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        settings: dict[str, Any] = {"data_dir": str(directory), "log": "local:log", "changelog": changelog}
        if changelog.startswith("topic"):
            settings["log"] = f"kafka:{stack.enter_context(KafkaBroker()).bootstrap}"
        with closing(open_log(Settings(**_of_log(settings)))) as log:
            for topic in ("in", "out"):
                log.create_topic(f"{ID}-{topic}", tasks)
            for first in range(0, entries, _PORTION):
                keys = [b"user%08d" % number for number in range(first, min(first + _PORTION, entries))]
                log.append(OutputBatch(f"{ID}-in", list[bytes | None](keys), [b"x" * 100] * len(keys), [1] * len(keys)))
        run(application(**settings))
        yield settings, directory


def _of_log(settings: dict[str, Any]) -> dict[str, str]:
    return {name: settings[name] for name in ("data_dir", "log")}


def _send(log: Log, tasks: int) -> Mapping[TopicPartition, int]:
    """Write a record to each partition that is passed on; return the ends of the outputs before."""
    outputs = [TopicPartition(f"{ID}-out", number) for number in range(tasks)]
    before = log.end_offsets(outputs)
    partitions: list[Sequence[int] | None] = [(number,) for number in range(tasks)]
    log.append(OutputBatch(f"{ID}-in", [b"user"] * tasks, [b"news"] * tasks, [2] * tasks, partitions=partitions))
    return before


def _wait(log: Log, before: Mapping[TopicPartition, int], *, some: bool = False) -> None:
    """Wait until as many records were written since as there are tasks, or the first one."""
    deadline, found, at = time.monotonic() + 300, 0, dict(before)
    while found < (1 if some else len(before)):
        assert time.monotonic() < deadline, "no output within 300 s"
        for partition, end in log.end_offsets(list(before)).items():
            while at[partition] < end:
                batches = log.fetch(partition, at[partition], end, 1 << 20)
                found += sum(len(batch.keys) for batch in batches)
                at[partition] = batches[-1].next_offset if batches else end
        time.sleep(0.005)


def _app(verb: str, settings: dict[str, Any]) -> str:
    command = [sys.executable, "-m", "bench.restore_app", verb, json.dumps(settings)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@contextmanager
def _following(settings: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.restore_app", "follow", json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _rounded(found: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
