"""A host that froze before it took the fence of a task, and wakes after the application was changed, opens nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock import FencedError, Log
from penstock.plugins.engine.program.check import drop_stores
from penstock.plugins.engine.program.preparation import Prepared, check_program, prepare
from penstock.plugins.engine.program.reset import plan_reset, reset, to_earliest
from penstock.plugins.engine.program.saved_program import read_note
from penstock.plugins.engine.task.epoch import EpochCheck, begin_epoch, current_epoch, of_epoch
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer.changelog_move import move_changelog

from ..bad_input.world import Total, World, totals
from ..leases import brief_lease
from ..waiting import wait_until


def check_lease() -> None:
    """Hold the lease."""


def move(world: World, log: Log) -> None:
    before = f"directory:{world.changelog}"
    world.change(changelog=f"directory:{world.directory / 'elsewhere'}")
    move_changelog(check_program(world.application, log), log, before, check_lease)


def move_files(world: World, log: Log) -> None:
    shutil.copytree(world.changelog, world.directory / "elsewhere")
    world.change(changelog=f"directory:{world.directory / 'elsewhere'}")
    prepare(world.application, log)


def start_over(world: World, log: Log) -> None:
    reset(world.application, log, plan_reset(world.application, log, to_earliest), check_lease)


def read_one_topic_more(world: World, log: Log) -> None:
    log.create_topic("more", world.partitions)
    more = totals().add_source("more", "more").add_processor("also", Total, "more")
    world.change(more.connect("also", "totals").add_sink("also-out", "totals-by-customer", "also"))
    for worker in _workers(prepare(world.application, log), log):
        worker.run_batch(log.end_offsets(worker.partitions), 0)
        worker.close()


def drop(world: World, log: Log) -> None:
    drop_stores(world.application, log, brief_lease(log, "shop"), ["totals"])


def _workers(prepared: Prepared, log: Log) -> list[TaskWorker]:
    resources = ProcessResources()
    tasks = prepared.assignment.tasks.items()
    return [TaskWorker(prepared.application, task, inputs, log, resources=resources) for task, inputs in tasks]


@pytest.mark.parametrize("change", [move, move_files, start_over, read_one_topic_more, drop])
def test_a_host_that_wakes_after_a_change_opens_nothing(world: World, change: Callable[[World, Log], None]) -> None:
    world.run()
    with world.open() as log:
        prepared = prepare(world.application, log)
        tasks = prepared.assignment.tasks.items()
        late = _workers(prepared, log)
        change(world, log)
        world.produce("orders", ("ann", "1"), ("bob", "1"), ("dan", "1"))
        before = [log.last_commit("shop", str(task), inputs) for task, inputs in tasks]
        for worker in late:
            with pytest.raises(FencedError, match=r"'shop', task 0_\d: this process is of an earlier epoch: "):
                worker.run_batch(log.end_offsets(worker.partitions), 0)
            worker.close()
        assert [log.last_commit("shop", str(task), inputs) for task, inputs in tasks] == before
    world.forget_state()
    world.run()
    begun_anew = change is drop
    assert dict(row for rows in world.contents().stores.values() for row in rows) == (
        {"ann": 1, "bob": 1, "dan": 1} if begun_anew else {"ann": 17, "bob": 8, "dan": 2}
    )


def test_a_start_that_changes_nothing_leaves_the_hosts_alone(world: World) -> None:
    world.run()
    with world.open() as log:
        early = _workers(prepare(world.application, log), log)
        prepare(world.application, log)
        for worker in early:
            worker.run_batch({}, 0)
            worker.close()


class _SlowLog(MemoryLog):
    """Answers questions for notes when it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.let_on = threading.Semaphore(0)
        self.asked = 0

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        self.asked += 1
        assert self.let_on.acquire(timeout=60)
        return super().get_meta(application_id, key)


class _CountingLock:
    """A lock that counts how often it was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = 0

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_threads_share_a_read_that_begins_after_their_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    log, check, lock = _SlowLog(), EpochCheck(), _CountingLock()
    monkeypatch.setattr(check, "_lock", lock)
    application = of_epoch(world.application, begin_epoch("shop", log))
    with ThreadPoolExecutor(9) as threads:
        early = threads.submit(check.check, application, log, "0_0")
        wait_until(lambda: log.asked == 1)
        later = [threads.submit(check.check, application, log, f"0_{number}") for number in range(1, 9)]
        wait_until(lambda: lock.asked == 9)
        log.let_on.release()
        early.result(60)  # a read that began before the change answers no call but the first one
        begin_epoch("shop", log)
        log.let_on.release()
        assert all(isinstance(each.exception(60), FencedError) for each in later)
    assert log.asked == 2


def test_a_start_that_was_frozen_until_its_lease_was_lost_leaves_the_program_of_its_successor(world: World) -> None:
    def lost() -> None:
        raise FencedError("the lease was lost")

    world.run()
    world.create("more")
    world.change(totals().add_source("more", "more").add_sink("more-out", "totals-by-customer", "more"))
    with world.open() as log:
        before = read_note("shop", log), current_epoch("shop", log)
        with pytest.raises(FencedError, match="the lease was lost"):
            prepare(world.application, log, lost)
        assert (read_note("shop", log), current_epoch("shop", log)) == before
