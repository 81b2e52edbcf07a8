"""A worker that was frozen between its commit and its upkeep, and wakes up long after its successor took the task
over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Application
from penstock.clock import Clock, SystemClock
from penstock.log import Log, TaskCommitter
from penstock.plugins.engine.task.locations import open_deltas
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.nodes import TaskId
from penstock.record import TopicPartition
from penstock.world import World

from .faults import INPUTS, FaultyCommitter, application, new_log, produce, stores

_DAY_MS = 24 * 60 * 60 * 1000
_LARGE = "x" * 900_000
"""Five of these make a snapshot due."""


class _Later(Clock):
    """The machine's clock, some days ahead. `frozen` is called once, when a worker asks for the time in its upkeep."""

    def __init__(self, days: int) -> None:
        self._ahead_ms = days * _DAY_MS
        self.frozen: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        frozen, self.frozen = self.frozen, lambda: None
        frozen()
        return SystemClock().now_ms() + self._ahead_ms


def _worker(of: Application, log: Log, clock: Clock) -> TaskWorker:
    return TaskWorker(
        of, TaskId(0, 0), INPUTS, log, resources=ProcessResources(World(clock=clock, sleep=lambda seconds: None))
    )


class _BlindCommitter(FaultyCommitter):
    """Sees no successor until its next commit is refused: as on Kafka, where the fence shows in a commit only."""

    def is_current(self) -> bool:
        return True


class _BlindLog(MemoryLog):
    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return _BlindCommitter(super().open_committer(application_id, task_id, partitions))


@pytest.mark.parametrize("meanwhile", ["taken over", "taken over unseen", "reset"])
def test_it_deletes_nothing_that_its_successor_needs(tmp_path: Path, meanwhile: str) -> None:
    unseen = meanwhile == "taken over unseen"
    log = new_log(_BlindLog() if unseen else MemoryLog())

    def on(host: str) -> Application:
        return application(tmp_path / host, backends=("lmdb", "lmdb"), changelog=f"directory:{tmp_path / 'changelog'}")

    def run(worker: TaskWorker, value: str) -> None:
        produce(log, "a", [("key", value, 1)])
        worker.run_batch(dict(log.end_offsets(INPUTS)), 0)

    open_ones: list[TaskWorker] = []
    expected: list[Any] = []

    def succeed() -> None:
        successor_application = on("two")
        if meanwhile == "reset":
            log.set_positions("app", log.end_offsets(INPUTS))
            open_deltas(successor_application.settings, "app", "0_0").destroy()
        successor = _worker(successor_application, log, _Later(1))
        open_ones.append(successor)
        for number in range(2 if meanwhile == "reset" else 8):
            run(successor, f"{number}{_LARGE}")
        expected.append(stores(successor))

    before = _worker(on("one"), log, _Later(0))
    for number in range(4):
        run(before, str(number))
    before.close()
    # Opened again, it looks at the changelog's files after this batch.
    clock = _Later(2)
    frozen = _worker(on("one"), log, clock)
    frozen.prepare(0)
    frozen.restore()  # which notes the time, too
    clock.frozen = succeed
    run(frozen, "last")
    changelog = tmp_path / "changelog" / "app" / "0_0"
    mended = any(path.name.startswith(f"{5:012d}-") for path in changelog.glob("*.snapshot"))
    assert mended == unseen, "it writes a snapshot where it finds its chain broken, unless it knows of a successor"
    third = _worker(on("three"), log, _Later(3))
    third.run_batch({}, 0)
    assert [stores(third)] == expected
    for each in (frozen, *open_ones, third):
        each.close()
