"""Queries are answered while the log is asked whether what they read is the last version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, Commit, OutputBatch, StoreUnavailableError, TopicPartition, Topology, key_value_store
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import state_directory
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.queries.copies import Bounds, NotHere, Snapshot, WouldWait, at_once
from penstock.plugins.state.queries.local_copies import LocalCopies
from penstock.plugins.state.queries.queries import Queries
from penstock.stores.memory import MemoryBackend
from penstock.world import World

from ..spark import apps
from ..waiting import wait_until

IN = TopicPartition("in", 0)
RECENT = key_value_store("recent", ttl="10m", key_serde="str")


class SlowLog(MemoryLog):
    """A log that says what the last commit is when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        self.asked += 1
        assert self.answers.wait(60)
        return super().last_commit(application_id, task_id, partitions)


class Bench:
    """A task that counts, and the copies of its store; `now` is the time of queries in seconds."""

    def __init__(self, directory: Path, log: SlowLog) -> None:
        settings: dict[str, Any] = {"log": "memory:x", "changelog": "topic:", "data_dir": str(directory)}
        topology = (
            Topology()
            .add_source("in", "in")
            .add_processor("count", apps.Count, "in", stores=[key_value_store("counts", key_serde="str"), RECENT])
        )
        prepared = prepare(Application("app", topology, **settings), log)
        self.log, self.now = log, 0.0
        self.resources = ProcessResources()
        [(task, inputs)] = prepared.assignment.tasks.items()
        self.worker = TaskWorker(prepared.application, task, inputs, log, resources=self.resources)
        self.world = World(seconds=lambda: self.now)
        self.queries = Queries(prepared.application, log, lambda stored: LocalCopies(stored, log, self.world))
        copies = self.queries.copies_of(0)
        assert isinstance(copies, LocalCopies)
        self.copies = copies

    def count(self) -> None:
        self.log.append(OutputBatch("in", [b"k"], [b"v"], [1]))
        self.worker.run_batch(self.log.end_offsets([IN]), 0)

    def ask(self, bounds: Bounds | None = None, store: str = "counts") -> int:
        """Return the number of the version that answers: within `bounds`, or at once."""
        task = self.copies.task(0, "0_0")

        def number() -> int:
            with closing(self.copies.snapshot(task, store, bounds or Bounds())) as found:
                return found.counter

        return at_once(number) if bounds is None else number()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    log = SlowLog()
    log.create_topic("in", 1)
    made = Bench(tmp_path, log)
    made.count()
    yield made
    log.answers.set()
    made.queries.close()
    made.worker.close()
    made.resources.close()


def test_the_log_is_asked_while_its_last_answer_still_counts(bench: Bench) -> None:
    bench.ask(Bounds())
    before = bench.log.asked
    bench.log.answers.clear()
    bench.now = 1.5
    first = bench.ask()
    bench.count()
    assert bench.ask() == first + 1
    wait_until(lambda: bench.log.asked == before + 1)
    bench.now = 1.9
    assert bench.ask() == first + 1 and bench.log.asked == before + 1
    bench.log.answers.set()
    wait_until(lambda: not bench.copies.ahead.running)
    bench.now = 3.0
    assert bench.ask() == first + 1, "the answer is of 1.5 s"
    bench.now = 9.0
    with pytest.raises(WouldWait):
        bench.ask()


def test_a_store_with_a_ttl_is_read_at_once_behind_a_commit(bench: Bench) -> None:
    """The log is not asked by each query for the clock of the commit, by which entries expire."""
    bench.ask(Bounds())
    first = bench.ask(store="recent")
    bench.log.answers.clear()
    bench.count()
    assert bench.ask(store="recent") == first + 1


def test_notes_are_read_before_they_are_too_old(bench: Bench) -> None:
    """Which tasks there are, and whether the application was resharded."""
    bench.ask(Bounds())
    for bench.now in (0.6, 1.5, 2.4):  # without a look between, the last two are too late
        assert at_once(lambda: bench.queries.copies_of(0)) is bench.copies
        assert list(at_once(lambda: bench.copies.tasks(0))) == ["0_0"]
        wait_until(lambda: not bench.copies.ahead.running | bench.queries.ahead.running)
    bench.now = 9.0
    with pytest.raises(WouldWait):
        at_once(lambda: bench.queries.copies_of(0))
    with pytest.raises(WouldWait):
        at_once(lambda: bench.copies.tasks(0))


def test_a_version_that_is_on_its_way_here_does_not_stop_queries(bench: Bench) -> None:
    """The log has a commit before the copy has it: until then the answer before counts, for its two seconds."""
    bench.ask(Bounds())
    version = bench.ask()
    with _commit_without_copy(bench):
        bench.now = 1.5
        assert bench.ask() == version
        wait_until(lambda: not bench.copies.ahead.running)
        assert bench.ask() == version, "the look of 0 s counts"
        bench.now = 2.1
        with pytest.raises(WouldWait):
            bench.ask()
        with pytest.raises(StoreUnavailableError, match="the log has a later one"):
            bench.ask(Bounds(wait=0.0))
    assert bench.ask(Bounds()) == version + 1


@contextmanager
def _commit_without_copy(bench: Bench) -> Iterator[None]:
    """Commit once more, with the copy here as it was before until the end of the block."""
    state = bench.worker._state
    assert state is not None
    apply: Callable[..., None] = state.apply
    late: list[Any] = []
    state.apply = lambda *given: late.append(given)  # type: ignore[method-assign]
    bench.count()
    yield
    state.apply = apply  # type: ignore[method-assign]
    for given in late:
        apply(*given)


def test_a_task_of_another_machine_is_looked_for_now_and_then(bench: Bench, tmp_path: Path) -> None:
    """A key that is forwarded costs no look at the disk, but its task may move here."""
    own, counter = tmp_path / "own", bench.ask(Bounds())
    bench.copies = LocalCopies(bench.queries.application.with_settings(state_dir=str(own)), bench.log, bench.world)
    with pytest.raises(StoreUnavailableError):
        bench.ask(Bounds(wait=0))
    for bench.now in (0.1, 0.4):
        with pytest.raises(NotHere) as caught:
            bench.ask()
        assert caught.value.task == "0_0"
        own.unlink(missing_ok=True)
        own.symlink_to(state_directory(bench.queries.application.settings))
    bench.now = 0.6
    assert bench.ask() == counter
    own.unlink()
    bench.now = 1.2
    with pytest.raises(NotHere):
        bench.ask()
    own.symlink_to(state_directory(bench.queries.application.settings))
    with pytest.raises(NotHere):
        bench.ask()
    assert bench.ask(Bounds()) == counter, "a query that may wait looks each time"
    assert bench.ask() == counter
    bench.copies.close()


def test_the_first_commit_of_an_earlier_penstock_comes_while_the_log_is_asked(bench: Bench) -> None:
    """Its name has no incarnation. The copy that was read has no version yet."""
    task = bench.copies.task(0, "0_0")
    kept = task.layouts.now["counts"]
    found = Snapshot(task.id, None, kept, None, None, MemoryBackend.ephemeral(kept.tables("counts")))
    commit = Commit({IN: 1}, "000000000000-1a2b3c4d_00c0ffee", b"")
    bench.log.last_commit = lambda *_: commit  # type: ignore[method-assign]
    assert bench.copies._confirmed(task, found).commit is None
