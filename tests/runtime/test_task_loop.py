"""Tasks that poll, process and commit on their own: they do what batches do, and disturb each other in nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import (
    ChangelogError,
    FencedError,
    OffsetOutOfRangeError,
    ProcessingError,
    Processor,
    Record,
    RetryAfter,
    StaleStoreError,
    Topology,
)
from penstock.log import Commit, Log
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.engine.task.loop import task_loop as loop_module
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_runner import is_taken_over
from penstock.plugins.logs.memory import MemoryLog, _MemoryCommitter
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.application import Application

from ..rotation import examples
from ..spark import apps
from .faults import FAULTS, INPUTS, STEPS, Crash, application, new_log, new_worker, produce, produced, stores
from .test_commit import BATCHES, Batches, directory, fresh, undisturbed  # noqa: F401

TASK = "0_0"


@contextmanager
def looping(
    of: Application, log: Log, tasks: dict[str, tuple[TopicPartition, ...]], clock: Callable[[], int] = lambda: 0
) -> Iterator[TaskLoop]:
    """A loop of another process with these tasks."""
    resources = ProcessResources()
    loop = TaskLoop(of, tasks, log, resources, clock)
    loop.run(tasks, {})
    try:
        yield loop
    finally:
        loop.close(commit=False)
        resources.close()


def turn_until(loop: TaskLoop, condition: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if condition():
            return
        loop.turn(0.001)
    raise AssertionError("it did not come to that")


def without_wall_clock(outputs: list[Any]) -> list[Any]:
    """Within a batch punctuators of the wall clock come last; here they come when they are due."""
    return [each for each in outputs if not each[1].startswith("wall")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(25))
@given(BATCHES, st.data())
def test_a_crash_at_any_step_changes_nothing(
    directory: Path,  # noqa: F811
    batches: Batches,
    data: st.DataObject,
) -> None:
    FAULTS.clear()
    outputs, content = undisturbed(directory, batches)
    log, of, wall = new_log(), application(fresh(directory), commit_interval="0ms"), 0

    def run_to(ends: dict[TopicPartition, int]) -> bool:
        """Run until all is read; return whether nothing failed."""
        with looping(of, log, {TASK: INPUTS}, lambda: wall) as loop:
            for _ in range(data.draw(st.integers(0, 4))):
                loop.turn(0)
            loop.process_to({TASK: ends})
            failures = loop.take_failures()
            assert all(isinstance(each.error, Crash) for each in failures)
            return not failures

    for first, second, later in batches:
        produce(log, "a", first)
        produce(log, "b", second)
        wall += later
        for step, after in data.draw(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=3)):
            FAULTS.plan(step, after)
        while not run_to(dict(log.end_offsets(INPUTS))):
            pass
    FAULTS.clear()
    worker = new_worker(of, log)
    worker.run_batch({}, wall)
    assert without_wall_clock(produced(log)) == without_wall_clock(outputs)
    assert stores(worker) == content
    worker.close()


class Failing(Processor):
    """Fails at the value "bad" until it is tried for the third time."""

    tries = 0

    def process(self, record: Record) -> None:
        if record.value == "bad":
            Failing.tries += 1
            if Failing.tries < 3:
                raise ValueError("bad")
        self.context.forward(record)


def two_tasks(tmp_path: Path, **given: Any) -> tuple[Application, MemoryLog, dict[str, tuple[TopicPartition, ...]]]:
    log = MemoryLog()
    log.create_topic("in", 2)
    log.create_topic("out", 1)
    topology = Topology().add_source("in", "in").add_processor("fail", Failing, "in").add_sink("out", "out", "fail")
    of = Application("app", topology, log="memory:", changelog="memory:", data_dir=str(tmp_path), **given)
    return of, log, {f"0_{each}": (TopicPartition("in", each),) for each in range(2)}


def put(log: Log, partition: int, *values: str) -> None:
    texts: list[bytes | None] = [value.encode() for value in values]
    count = len(values)
    log.append(OutputBatch("in", [b"k"] * count, texts, [1] * count, None, [[partition]] * count))


def values(log: Log) -> list[str | None]:
    return [value for _, value, _ in produced(log)]


def test_a_retry_stalls_only_its_own_task(tmp_path: Path) -> None:
    Failing.tries = 0
    of, log, tasks = two_tasks(tmp_path, processing_handler=lambda failure: RetryAfter("50ms"), commit_interval="0ms")
    with looping(of, log, tasks) as loop:
        put(log, 0, "bad")
        turn_until(loop, lambda: Failing.tries == 1)
        put(log, 1, "good")
        turn_until(loop, lambda: values(log) == ["good"])
        assert Failing.tries < 3
        turn_until(loop, lambda: values(log) == ["good", "bad"])
        assert Failing.tries == 3 and not loop.take_failures()


def test_a_task_that_waits_before_a_retry_repeats_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, without another attempt."""
    Failing.tries, commits = 0, list[Commit]()
    of, log, tasks = two_tasks(tmp_path, processing_handler=lambda failure: RetryAfter("1h"), commit_interval="0ms")
    commit = _MemoryCommitter.commit

    def note(self: _MemoryCommitter, made: Commit, outputs: Sequence[OutputBatch]) -> None:
        commit(self, made, outputs)
        commits.append(made)

    monkeypatch.setattr(_MemoryCommitter, "commit", note)
    del tasks["0_1"]
    with looping(of, log, tasks) as loop:
        put(log, 0, "bad")
        turn_until(loop, lambda: Failing.tries == 1 and loop.open_tasks == 0)
        [first] = commits
        commits.clear()
        monkeypatch.setattr(_MemoryCommitter, "expires", lambda self: self.committed is not None and not commits)
        turn_until(loop, lambda: bool(commits) and not loop._preparing)
        for _ in range(5):
            loop.turn(0)
        assert commits == [first] and Failing.tries == 1 and loop.open_tasks == 0 and not loop.take_failures()


def test_a_task_that_fails_is_closed_and_the_others_go_on(tmp_path: Path) -> None:
    Failing.tries = 0
    of, log, tasks = two_tasks(tmp_path, commit_interval="0ms")
    with looping(of, log, tasks) as loop:
        put(log, 0, "before", "bad", "after")
        turn_until(loop, lambda: loop.open_tasks == 1 and Failing.tries == 1)
        put(log, 1, "good")
        turn_until(loop, lambda: "good" in values(log))
        [failed] = loop.take_failures()
        assert failed.task_id == "0_0" and isinstance(failed.error, ProcessingError)
        assert "after" not in values(log)


def test_commits_come_by_the_interval_when_asked_for_and_at_the_end(tmp_path: Path) -> None:
    of, log, tasks = two_tasks(tmp_path, commit_interval="1h")
    with looping(of, log, tasks) as loop:
        turn_until(loop, lambda: loop.open_tasks == 2)
        put(log, 0, "first")
        turn_until(loop, lambda: values(log) == ["first"])  # nothing was committed lately, so it is due at once
        put(log, 0, "second")
        for _ in range(20):
            loop.turn(0.001)
        assert values(log) == ["first"]
        loop.commit_all()
        assert values(log) == ["first", "second"]
        reports = loop.take_reports()
        assert sum(each.records_in for each in reports) == 2
        assert sum(each.commits for each in reports) == 2
        assert [each.opened for each in reports if each.opened] == ["first", "first"]
        assert not loop.take_reports()


def test_a_commit_that_the_log_would_forget_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of, log, tasks = two_tasks(tmp_path, commit_interval="0ms")
    with looping(of, log, tasks) as loop:
        turn_until(loop, lambda: loop.open_tasks == 2)
        loop.commit_all()
        committer = loop._tasks["0_1"].committer
        assert committer is not None
        committed, commit = list[Commit](), committer.commit

        def note(made: Commit, outputs: Sequence[OutputBatch]) -> None:
            committed.append(made)
            commit(made, outputs)

        monkeypatch.setattr(committer, "commit", note)
        for _ in range(5):
            loop.turn(0)
        assert not committed
        monkeypatch.setattr(committer, "expires", lambda: not committed)
        turn_until(loop, lambda: bool(committed) and not loop._writing)
        for _ in range(5):
            loop.turn(0)
        assert [each.positions for each in committed] == [{TopicPartition("in", 1): 0}]
        assert not loop.take_failures()


@given(st.integers(1, 3_600_000), st.integers(1, 9))
def test_tasks_commit_one_after_the_other_each_about_an_interval_after_its_last(interval_ms: int, count: int) -> None:
    log, seconds = MemoryLog(), interval_ms / 1000
    log.create_topic("in", count)
    log.create_topic("out", 1)
    topology = Topology().add_source("in", "in").add_processor("fail", Failing, "in").add_sink("out", "out", "fail")
    of = Application("app", topology, log="memory:", changelog="memory:", commit_interval=f"{interval_ms}ms")
    tasks: dict[str, tuple[TopicPartition, ...]] = {f"0_{each}": (TopicPartition("in", each),) for each in range(count)}
    with looping(of, log, tasks) as loop:
        for number, name in enumerate(tasks):
            task, before = loop._tasks[name], perf_counter()
            task.prepare(0)
            task.open(0)
            task.begin_commit()
            task._is_dirty = True
            due, after = task.commit_due(), perf_counter()
            assert before + 0.49 * seconds <= due <= after + 1.51 * seconds
            place = (due / seconds - number / count + 0.5) % 1.0
            assert place == pytest.approx(0.5, abs=1e-3)


def test_a_task_that_was_taken_over_says_so_and_runs_again_when_told(tmp_path: Path) -> None:
    of, log, tasks = two_tasks(tmp_path, commit_interval="0ms")
    with looping(of, log, tasks) as loop:
        turn_until(loop, lambda: loop.open_tasks == 2)
        other = log.open_committer("app", "0_0", tasks["0_0"])
        assert other.committed is not None
        other.commit(other.committed, [])
        put(log, 0, "value")
        turn_until(loop, lambda: loop.open_tasks == 1)
        [failed] = loop.take_failures()
        assert isinstance(failed.error, FencedError)
        # Nobody takes it from the other process, until the driver says that it is to run here.
        assert not loop._open_at and not values(log)
        loop.run(tasks, {})
        turn_until(loop, lambda: values(log) == ["value"])
        assert not loop.take_failures()


def test_a_task_whose_local_state_was_removed_runs_again_when_told(tmp_path: Path) -> None:
    log = MemoryLog()
    for topic in ("in", "out"):
        log.create_topic(topic, 1)
    of = Application(
        "app", apps.count(), log="memory:", changelog="directory:changelog", data_dir=str(tmp_path),
        state_dir=str(tmp_path / "state"), commit_interval="0ms",
    )  # fmt: skip
    tasks: dict[str, tuple[TopicPartition, ...]] = {"0_0": (TopicPartition("in", 0),)}
    with looping(of, log, tasks) as loop:
        put(log, 0, "a")
        turn_until(loop, lambda: values(log) == ["1"] and not loop._writing)
        shutil.rmtree(tmp_path / "state")
        put(log, 0, "b")
        turn_until(loop, lambda: loop.open_tasks == 0)
        [failed] = loop.take_failures()
        assert isinstance(failed.error, StaleStoreError) and is_taken_over(failed.error)
        loop.run(tasks, {})
        turn_until(loop, lambda: loop.open_tasks == 1)
        put(log, 0, "c")
        turn_until(loop, lambda: values(log) == ["1", "2", "3"])
        assert not loop.take_failures()


def test_run_leaves_tasks_alone_that_are_open_or_wait(tmp_path: Path) -> None:
    Failing.tries = 0
    of, log, tasks = two_tasks(tmp_path, processing_handler=lambda failure: RetryAfter("1h"), commit_interval="0ms")
    with looping(of, log, tasks) as loop:
        put(log, 0, "bad")
        turn_until(loop, lambda: Failing.tries == 1 and loop.open_tasks == 1)
        for _ in range(3):
            loop.run(tasks, {})
            loop.turn(0)
        assert Failing.tries == 1 and loop.open_tasks == 1 and not loop._preparing


@pytest.mark.parametrize(("is_overtaken", "expected"), [(True, FencedError), (False, ChangelogError)])
def test_a_successor_may_have_deleted_what_a_task_appends_to(
    tmp_path: Path, is_overtaken: bool, expected: type[Exception]
) -> None:
    log = new_log()
    of = application(tmp_path, commit_interval="0ms", changelog=f"directory:{tmp_path / 'changelog'}")
    with looping(of, log, {TASK: INPUTS}) as loop:
        for number in range(1, 3):
            produce(log, "a", [("x", "v", number)])
            turn_until(loop, lambda number=number: len(produced(log)) >= number and not loop._writing)  # type: ignore[misc]
        if is_overtaken:
            other = log.open_committer("app", TASK, INPUTS)
            assert other.committed is not None
            other.commit(other.committed, [])
        for each in (tmp_path / "changelog").rglob("*.delta"):
            each.unlink()
        produce(log, "a", [("x", "v", 3)])
        turn_until(loop, lambda: loop.open_tasks == 0)
        [failed] = loop.take_failures()
        assert type(failed.error) is expected
        assert "cannot append delta" in str(failed.error)


@pytest.mark.parametrize("policy", ["earliest", "fail"])
def test_records_that_are_gone(tmp_path: Path, policy: str) -> None:
    of, log, tasks = two_tasks(tmp_path, commit_interval="0ms", offset_out_of_range=policy)
    with looping(of, log, tasks) as loop:
        put(log, 0, "one")
        turn_until(loop, lambda: values(log) == ["one"])
    put(log, 0, "two", "three")
    log.purge(TopicPartition("in", 0), 2)
    with looping(of, log, tasks) as loop:
        if policy == "earliest":
            turn_until(loop, lambda: values(log) == ["one", "three"])
        else:
            turn_until(loop, lambda: loop.open_tasks == 1 and not loop._open_at and not loop._preparing)
            [failed] = loop.take_failures()
            assert isinstance(failed.error, OffsetOutOfRangeError)


@pytest.mark.parametrize(("name", "limit", "padding"), [("_MOST_QUEUED", 10, 0), ("_MOST_QUEUED_BYTES", 11_000, 1_000)])
def test_an_input_that_waits_for_another_is_not_read_without_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int, padding: int
) -> None:
    monkeypatch.setattr(loop_module, name, limit)
    monkeypatch.setattr(loop_module, "_MOST_POLLED", 4)
    monkeypatch.setattr(loop_module, "_FEWEST_POLLED", 4)
    FAULTS.clear()
    log, of, wall = new_log(), application(tmp_path, max_task_idle="1s", commit_interval="0ms"), 0
    # A batch of the log has four of them.
    for number in range(40):
        produce(log, "a", [("k", f"{number}{' ' * padding}", number)])
    with looping(of, log, {TASK: INPUTS}, lambda: wall) as loop:
        turn_until(loop, lambda: loop.open_tasks == 1)
        for _ in range(100):
            loop.turn(0)
        task = loop._tasks[TASK]
        assert 10 < task.queued(INPUTS[0]) < 20 and not produced(log)
        wall = 2_000
        turn_until(loop, lambda: sum(each[1][0].isdigit() for each in produced(log) if each[1]) == 40)


@pytest.mark.parametrize(("interval", "expected"), [("100ms", 0.25), ("250ms", 0.25), ("1s", 1.0)])
def test_a_changelog_that_is_too_slow_for_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, interval: str, expected: float
) -> None:
    """Tasks commit as seldom as it takes, and a line says so: a process that is frozen may measure any time."""
    monkeypatch.setattr(DirectoryChangelog, "least_commit_interval", lambda self: 0.25)
    log = MemoryLog()
    for topic in ("in", "out"):
        log.create_topic(topic, 1)
    of = Application(
        "app", apps.count(), log="memory:", changelog="directory:changelog", data_dir=str(tmp_path),
        commit_interval=interval,
    )  # fmt: skip
    with looping(of, log, {"0_0": (TopicPartition("in", 0),)}) as loop:
        turn_until(loop, lambda: loop.open_tasks == 1)
        assert loop._tasks["0_0"].interval == expected
    warned = [each for each in caplog.messages if "tasks commit every 250 ms, and not every 100 ms" in each]
    assert len(warned) == (interval == "100ms")
