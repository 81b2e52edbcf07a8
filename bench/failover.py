"""What a failover takes: of an embedded application, of an executor of a Spark cluster, and of the peer."""

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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock import Log, TaskId, run
from penstock.plugins.engine.host.executor_identity import executor_id
from penstock.plugins.engine.run.slots import slot
from penstock.plugins.testing.kafka_broker import KafkaBroker
from tests.spark.standalone import Standalone, java_options, spark_home
from tests.waiting import wait_until

from .peer import PEER, peer_command
from .restore import ENTRIES, add, filled, load, opened_log, rounded, send, wait
from .restore_app import ID, application
from .result import Table

EMBEDDED, CLUSTER, KAFKA_STREAMS = "embedded", "cluster", "kafka-streams"
_MACHINES = ("127.0.0.1", "127.0.0.2")
_SESSION_SECONDS = (3, 45)
"""The peer's `session.timeout.ms`: the silence after which a driver suspects a task host, and the peer's default."""
_SETTLE_SECONDS = 5.0
_PATIENCE = 600.0


def failover(
    entries: int = ENTRIES,
    tasks: Sequence[int] = (8,),
    rounds: int = 1,
    changelog: str = "",
    cases: Sequence[str] = (EMBEDDED, CLUSTER, KAFKA_STREAMS),
) -> Table:
    """Kill what runs a task; measure until its first new output, with and without a standby of its state.

    `embedded`: `tasks` have the `entries`, and an application that waits on another machine takes over. On Kafka it
    is killed between two commits, and inside one, whose transaction is open then. `cluster`: one of two executors with
    a task each is killed, with all else on its machine; its task has all `entries`.
    `kafka-streams`: one task, one of two instances is killed. `noticed_seconds`: until the waiting application has
    the lease, the driver gives the slot away, or the other instance gets the task. `takeover_seconds`: from then on.
    """
    made: list[dict[str, Any]] = []
    kinds = [changelog] if changelog else ["directory:changes", "topic:"]
    if EMBEDDED in cases:
        for kind in kinds:
            for number in tasks:
                for row in _embedded(kind, entries, number, rounds):
                    add(made, row)
    if CLUSTER in cases:
        for kind in kinds:
            for row in _cluster(kind, entries, rounds):
                add(made, row)
    if KAFKA_STREAMS in cases:
        for row in _peer(entries, rounds):
            add(made, row)
    return Table("failover", made)


def _row(case: str, changelog: str, tasks: int, entries: int, standby: int, found: dict[str, Any]) -> dict[str, Any]:
    row = {"name": "failover", "case": case, "changelog": changelog, "tasks": tasks, "entries": entries}
    return row | {"standby": standby} | rounded(found)


def _found(killed: float, noticed: float, written: float, everywhere: float) -> dict[str, float]:
    """Return the seconds of one failover from the times at which something happened."""
    return {
        "noticed_seconds": noticed - killed,
        "takeover_seconds": written - noticed,
        "all_tasks_seconds": everywhere - noticed,
        "first_output_seconds": written - killed,
    }


# ---------------------------------------------------------------------- embedded


def _embedded(changelog: str, entries: int, tasks: int, rounds: int) -> Iterator[dict[str, Any]]:
    with filled(changelog, entries, tasks) as (settings, directory):
        for _ in range(rounds):
            for is_inside in (False, True) if settings["log"].startswith("kafka:") else (False,):
                for copies in (0, 1):
                    found = _kill_application(settings, directory, copies, tasks, entries, is_inside=is_inside)
                    yield _row(EMBEDDED + ", in a commit" * is_inside, changelog, tasks, entries, copies, found)


def _kill_application(
    settings: dict[str, Any], directory: Path, copies: int, tasks: int, entries: int, *, is_inside: bool
) -> dict[str, float]:
    shutil.rmtree(directory / "elsewhere", ignore_errors=True)
    with ExitStack() as stack:
        noted = stack.enter_context(tempfile.NamedTemporaryFile("r"))
        given = {**settings, "copies": noted.name}
        dies = directory / "dies"
        dies.unlink(missing_ok=True)
        log = stack.enter_context(opened_log(settings))
        first = stack.enter_context(_app("follow", {**given, "dies": str(dies)} if is_inside else given))
        assert first.stdout is not None
        first.stdout.readline()  # it has the lease
        waiting = stack.enter_context(
            _app("follow", {**given, "state_dir": "elsewhere", "num_standby_replicas": copies})
        )
        assert waiting.stdout is not None
        before = send(log, tasks)
        wait(log, before)
        if copies:
            _wait_for_copies(Path(noted.name), entries)
        before = send(log, tasks)
        wait(log, before)
        if is_inside:
            dies.touch()
            before = send(log, tasks)
            first.wait(_PATIENCE)
            killed = time.time()
        else:
            os.kill(first.pid, signal.SIGKILL)
            killed = time.time()
            before = send(log, tasks)
        has_lease = json.loads(waiting.stdout.readline())["at"]
        wait(log, before, some=True)
        some = time.time()
        wait(log, before)
        return _found(killed, has_lease, some, time.time())


def _wait_for_copies(noted: Path, entries: int, task: str = "") -> None:
    """Wait until the standbys, or that of one task, have written so many entries, and a while longer."""

    def written() -> int:
        most: dict[str, int] = {}
        for line in noted.read_text().splitlines():
            name, _, number = line.partition(" ")
            if task in ("", name):
                most[name] = max(most.get(name, 0), int(number or 0))
        return sum(most.values())

    wait_until(lambda: written() >= entries, "the copies have all entries", _PATIENCE)
    time.sleep(_SETTLE_SECONDS)


# ---------------------------------------------------------------------- cluster


def _cluster(changelog: str, entries: int, rounds: int) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        broker = stack.enter_context(KafkaBroker(heap="1g", jvm_options=()))
        settings = {"data_dir": str(directory), "log": f"kafka:{broker.bootstrap}", "changelog": changelog}
        load(settings, entries, 2, partition=0)
        run(application(**settings))
        for _ in range(rounds):
            for copies in (0, 1):
                shutil.rmtree(directory / "machines", ignore_errors=True)
                given = {**settings, "num_standby_replicas": copies, "state_dir": "machines/${MACHINE}"}
                found = _kill_executor(given, directory, copies, entries)
                yield _row(CLUSTER, changelog, 2, entries, copies, found)


def _kill_executor(settings: dict[str, Any], directory: Path, copies: int, entries: int) -> dict[str, float]:
    with ExitStack() as stack:
        stack.enter_context(_of_spark())
        java = java_options()
        stack.enter_context(patch.dict(os.environ, SPARK_HOME=str(spark_home()), MACHINE="driver"))
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        cluster = stack.enter_context(Standalone(work, java))
        cluster.add_workers(*_MACHINES)
        noted, said = work / "copies", work / "said"
        noted.touch()
        spark = {
            "master": cluster.master, "spark.executor.memory": "512m", "spark.driver.host": _MACHINES[0],
            "spark.executor.extraJavaOptions": java, "spark.driver.extraJavaOptions": java, "spark.cores.max": "4",
            "spark.executor.cores": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }  # fmt: skip
        log = stack.enter_context(opened_log(settings))
        output = stack.enter_context(said.open("w"))
        stack.enter_context(_app("drive", {**settings, "engine": "spark", "copies": str(noted)}, spark, stdout=output))
        wait(log, send(log, 2))
        if copies:
            _wait_for_copies(noted, entries, "0_0")
        wait(log, send(log, 2))
        claim = log.get_meta(ID, f"slot-{slot(TaskId(0, 0), 2)}")
        assert claim is not None
        cluster.lose(executor_id(json.loads(claim)["executor"]))
        killed = time.time()
        before = send(log, 2)
        wait(log, before, task=0)
        written = time.time()
        wait(log, before)
        everywhere = time.time()
        [noticed] = [float(line.split()[0]) for line in said.read_text().splitlines() if "executor lost" in line]
        return _found(killed, noticed, written, everywhere)


@contextmanager
def _of_spark() -> Iterator[None]:
    """Let each JVM start as that of a local session does: without a SPARK_HOME from outside."""
    with patch.dict(os.environ):
        os.environ.pop("SPARK_HOME", None)
        yield


# ---------------------------------------------------------------------- the peer


def _peer(entries: int, rounds: int) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        broker = stack.enter_context(KafkaBroker(heap="1g", jvm_options=()))
        settings = {"data_dir": str(directory), "log": f"kafka:{broker.bootstrap}"}
        load(settings, entries, 1)
        states = [directory / "one", directory / "two"]
        with opened_log(settings) as log:
            for seconds in _SESSION_SECONDS * rounds:
                for copies in (0, 1):
                    shutil.rmtree(states[1], ignore_errors=True)
                    found = _kill_instance(broker.bootstrap, log, directory, states, copies, seconds, entries)
                    states.reverse()  # the one that took over has the state now
                    yield _row(f"{PEER}, session {seconds} s", "topic:", 1, entries, copies, found)


def _kill_instance(
    bootstrap: str, log: Log, directory: Path, states: Sequence[Path], copies: int, seconds: int, entries: int
) -> dict[str, float]:
    said = directory / "said"
    with ExitStack() as stack:
        first = stack.enter_context(_instance(bootstrap, states[0], directory / "first", copies, seconds))
        wait(log, send(log, 1))
        stack.enter_context(_instance(bootstrap, states[1], said, copies, seconds))
        if copies:
            wait_until(lambda: _copied(said) >= entries, "the standby has all entries", _PATIENCE)
        else:
            wait_until(lambda: "RUNNING" in said.read_text(), "the second instance runs", _PATIENCE)
        time.sleep(_SETTLE_SECONDS)
        wait(log, send(log, 1))
        first.kill()
        killed = time.time()
        wait(log, send(log, 1))
        written = time.time()
        lines = [line.split() for line in said.read_text().splitlines()]
        noticed = next(at for at in (int(line[1]) / 1000 for line in lines if line[0] == "REBALANCING") if at > killed)
        return _found(killed, noticed, written, written)


def _copied(said: Path) -> int:
    """Return how far the standby has read its changelog."""
    lines = [line.split() for line in said.read_text().splitlines()]
    return max((int(line[2]) for line in lines if line[0] == "standby" and len(line) == 3), default=0)


@contextmanager
def _instance(
    bootstrap: str, state: Path, said: Path, copies: int, session_seconds: int
) -> Iterator[subprocess.Popen[bytes]]:
    settings = {
        "application.id": f"{ID}-peer",
        "num.standby.replicas": str(copies),
        "num.stream.threads": "1",
        "session.timeout.ms": str(1000 * session_seconds),
        "heartbeat.interval.ms": str(min(3_000, 1000 * session_seconds // 3)),
    }
    made = peer_command(bootstrap, "table", f"{ID}-in", "exactly_once", settings)
    command = [each.replace("{out}", f"{ID}-out").replace("{dir}", str(state)) for each in made]
    with said.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def _app(verb: str, *given: Mapping[str, Any], stdout: Any = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.restore_app", verb, *map(json.dumps, given)]
    with subprocess.Popen(command, stdout=stdout, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
