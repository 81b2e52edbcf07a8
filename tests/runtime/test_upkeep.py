"""Snapshots of the continuous mode: they are written beside the record path, each of one committed version."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from penstock import ChangelogError, TaskId
from penstock.hooks import registry
from penstock.log import Commit, Log
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.loop import continuous_worker as worker_module
from penstock.plugins.engine.task.loop import task_loop as loop_module
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.child import answer, forked
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.application import Application
from penstock.settings.settings import Settings
from penstock.stores.memory import MemoryBackend

from ..spark import apps
from .faults import produced
from .test_task_loop import looping, turn_until

TASKS: dict[str, tuple[TopicPartition, ...]] = {"0_0": (TopicPartition("in", 0),)}
KEYS = 1_500


class Gate:
    """Holds snapshots up in the middle of their rows, and notes them."""

    def __init__(self) -> None:
        self.reached, self.free = threading.Event(), threading.Event()
        self.begun: list[str] = []
        self.written: list[str] = []
        self.in_middle: Any = self.wait

    def wait(self) -> None:
        self.reached.set()
        assert self.free.wait(60)

    def rows(self, changes: Iterable[tuple[str, bytes, bytes]]) -> Iterator[tuple[str, bytes, bytes]]:
        for number, row in enumerate(changes):
            if number == 10:
                self.in_middle()
            yield row


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    snapshot = DirectoryChangelog.snapshot

    def held(self: DirectoryChangelog, version: str, changes: Any, commit: Commit | None = None) -> None:
        gate.begun.append(version)
        snapshot(self, version, gate.rows(changes), commit)
        gate.written.append(version)

    monkeypatch.setattr(DirectoryChangelog, "snapshot", held)
    monkeypatch.setattr(DirectoryChangelog, "wants_snapshot", lambda self: True)
    monkeypatch.setattr(worker_module, "_UPKEEP_SECONDS", 0.0)
    monkeypatch.setattr(loop_module, "_TURN_SECONDS", 60.0)  # a commit has all records of a `put`
    return gate


def application(directory: Path, changelog: Path, backend: str = "lmdb", **settings: Any) -> Application:
    given = {"log": "memory:", "commit_interval": "0ms", "changelog_grace": "0ms", **settings}
    return Application(
        "app", apps.count(), changelog=f"directory:{changelog}", data_dir=str(directory), store_backend=backend, **given
    )


def topics(log: Log) -> Log:
    log.create_topic("in", 1)
    log.create_topic("out", 1)
    return log


def put(log: Log, count: int) -> None:
    keys: list[bytes | None] = [b"%05d" % (number % KEYS) for number in range(count)]
    log.append(OutputBatch("in", keys, [b"v"] * count, [1] * count))


def counts(loop: TaskLoop) -> dict[str, int]:
    task = loop._tasks["0_0"].task
    assert task is not None
    return dict(task.stores["counts"].all())  # type: ignore[attr-defined]


def restored(tmp_path: Path, name: str, log: Log) -> dict[str, int]:
    """What a host without local state has."""
    with looping(application(tmp_path / name, tmp_path / "changelog"), log, TASKS) as loop:
        turn_until(loop, lambda: loop.open_tasks == 1)
        return counts(loop)


@pytest.mark.parametrize("backend", ["lmdb", "memory"])
def test_records_do_not_wait_for_a_snapshot_of_their_task(tmp_path: Path, gate: Gate, backend: str) -> None:
    log = topics(MemoryLog())
    with looping(application(tmp_path / "host", tmp_path / "changelog", backend), log, TASKS) as loop:
        put(log, KEYS)
        turn_until(loop, gate.reached.is_set)
        # It is held up in the middle of its rows; ten times over, everything changes.
        for rounds in range(2, 12):
            put(log, KEYS)
            turn_until(loop, lambda: len(produced(log)) == rounds * KEYS)  # noqa: B023
        commits = loop._tasks["0_0"]._commits
        assert commits is not None and len(gate.begun) == 1 and not gate.written
        gate.free.set()
        turn_until(loop, lambda: bool(gate.written))
        gate.in_middle = lambda: None
        [version] = gate.begun[:1]
        put(log, 1)
        turn_until(loop, lambda: len(gate.written) > 2)
        assert not loop.take_failures()
        last = counts(loop)
    assert restored(tmp_path, "other", log) == last == {f"{key:05d}": 12 if key == 0 else 11 for key in range(KEYS)}
    assert version not in gate.written[1:]


def test_a_snapshot_is_of_one_version(tmp_path: Path, gate: Gate) -> None:
    log = topics(MemoryLog())
    with looping(application(tmp_path / "host", tmp_path / "changelog"), log, TASKS) as loop:
        put(log, KEYS)
        turn_until(loop, gate.reached.is_set)
        for rounds in range(2, 5):
            put(log, KEYS)
            turn_until(loop, lambda: len(produced(log)) == rounds * KEYS)  # noqa: B023
        gate.free.set()
        turn_until(loop, lambda: bool(gate.written))
        content: dict[bytes, bytes] = {}
        changelog = DirectoryChangelog(str(tmp_path / "changelog"), "app", "0_0")
        for changes, _ in changelog.restore(gate.written[0], None).steps:
            content.update(changes.get("counts", ()))  # type: ignore[arg-type]
    assert len(content) == KEYS and len(set(content.values())) == 1


def test_a_task_that_is_closed_ends_its_snapshot(tmp_path: Path, gate: Gate) -> None:
    log = topics(MemoryLog())
    with looping(application(tmp_path / "host", tmp_path / "changelog"), log, TASKS) as loop:
        put(log, KEYS)
        turn_until(loop, gate.reached.is_set)
        steps = loop._upkeeps._steps
        threading.Timer(0.05, gate.free.set).start()
    assert all(step.done() and step.exception() is None for *_, step in steps.values())
    assert gate.begun and not gate.written
    assert not [file.name for file in (tmp_path / "changelog").rglob("*") if file.suffix in (".tmp", ".snapshot")]
    assert len(restored(tmp_path, "other", log)) == KEYS


@pytest.mark.parametrize("backend", ["lmdb", "memory"])
def test_a_snapshot_that_cannot_be_written_is_a_warning_and_is_tried_again_later(
    tmp_path: Path, gate: Gate, backend: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    gate.in_middle = fail
    log = topics(MemoryLog())
    with looping(application(tmp_path / "host", tmp_path / "changelog", backend), log, TASKS) as loop:
        put(log, KEYS)
        turn_until(loop, lambda: "tried again" in caplog.text)
        assert "task 0_0: a snapshot of version" in caplog.text and "No space left" in caplog.text
        put(log, KEYS)
        turn_until(loop, lambda: set(counts(loop).values()) == {2})
        loop.commit_all()
        assert not loop.take_failures() and len(gate.begun) == 1, "once in a minute"

        gate.in_middle = lambda: None
        task = loop._tasks["0_0"]
        assert task._state is not None
        monkeypatch.setattr(task._state.upkeep, "_rests_until", 0.0)  # the minute has passed
        turn_until(loop, lambda: bool(gate.written))
    assert set(restored(tmp_path, "other", log).values()) == {2}


def test_in_batches_and_in_cleaning_a_failure_is_a_warning_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise ChangelogError("changelog X: Permission denied")

    monkeypatch.setattr(DirectoryChangelog, "wants_snapshot", lambda self: True)
    monkeypatch.setattr(DirectoryChangelog, "clean", refuse)
    log = topics(MemoryLog())
    given = application(tmp_path / "host", tmp_path / "changelog")
    put(log, KEYS)
    worker = TaskWorker(given, TaskId(0, 0), TASKS["0_0"], log, resources=ProcessResources())
    worker.run_batch({TASKS["0_0"][0]: KEYS}, 0)
    assert "history that is not needed cannot be deleted: changelog X: Permission denied" in caplog.text
    worker.close()


def test_a_task_whose_backend_has_no_views_rests_while_its_snapshot_is_written(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Plain(MemoryBackend):
        def view(self, stores: object) -> None:  # type: ignore[override]
            return None

    load = registry().load
    monkeypatch.setattr(registry(), "load", lambda kind, name: Plain if name == "memory" else load(kind, name))
    log = topics(MemoryLog())
    with looping(application(tmp_path / "host", tmp_path / "changelog", "memory"), log, TASKS) as loop:
        put(log, KEYS)
        turn_until(loop, gate.reached.is_set)
        before = produced(log)
        put(log, 1)
        for _ in range(5):
            assert loop.turn(0) == 0, "the turn does not wait for the snapshot, and the task rests"
        loop.commit_all()
        assert loop._tasks["0_0"].rests and produced(log) == before and not gate.written
        gate.free.set()
        turn_until(loop, lambda: bool(gate.written) and len(produced(log)) == len(before) + 1)
        gate.in_middle = lambda: None
    assert len(restored(tmp_path, "other", log)) == KEYS


def test_a_host_that_is_killed_in_a_snapshot_leaves_the_one_before(tmp_path: Path, gate: Gate) -> None:
    directory = str(tmp_path / "data")
    settings: dict[str, Any] = {"log": "local:log", "data_dir": directory}

    def host(connection: Connection) -> None:
        gate.in_middle = lambda: None
        log = open_log(Settings(**settings))
        of = Application(
            "app", apps.count(), changelog=f"directory:{tmp_path / 'changelog'}", commit_interval="0ms",
            changelog_grace="0ms", store_backend="lmdb", **settings,
        )  # fmt: skip
        with looping(of, log, TASKS) as loop:
            turn_until(loop, lambda: bool(gate.written))
            gate.in_middle = lambda: os.kill(os.getpid(), signal.SIGKILL)
            connection.send(gate.written[-1])
            while True:
                loop.turn()

    log = open_log(Settings(**settings))
    topics(log)
    put(log, KEYS)
    log.close()
    with forked(host) as connection:
        before = answer(connection)
        log = open_log(Settings(**settings))
        put(log, KEYS)
        # The connection ends with the host.
        with pytest.raises(EOFError):
            connection.recv()
        files = [file.name for file in (tmp_path / "changelog").rglob("*")]
        snapshots = [name for name in files if name.endswith(".snapshot")]
        assert f"{before}.snapshot" in snapshots and any(name.endswith(".tmp") for name in files)
        found = restored(tmp_path, "other", log)
        assert set(found.values()) == {2} and len(found) == KEYS
        log.close()
