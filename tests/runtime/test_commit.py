"""The commit protocol: whatever step a commit ends at, the next worker goes on and nothing is lost, doubled or
wrong."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock import (
    ChangelogError,
    DeadLetter,
    FencedError,
    IncompatibleStateError,
    Processor,
    ProductionError,
    Record,
    Topology,
    key_value_store,
)
from penstock.changelog import version_counter
from penstock.errors import LogError
from penstock.log import Commit, Log
from penstock.plugins.changelogs.memory import MemoryChangelog
from penstock.plugins.engine.task.locations import open_log, resolve
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs import memory
from penstock.program.nodes import TaskId
from penstock.record import TopicPartition
from penstock.settings.application import Application

from ..rotation import examples
from .faults import FAULTS, INPUTS, STEPS, Crash, application, new_log, new_worker, produce, produced, stores

RECORDS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from(["v", "w", "commit"]), st.integers(0, 40)), max_size=5
)
BATCHES = st.lists(st.tuples(RECORDS, RECORDS, st.integers(0, 12)), min_size=1, max_size=4)
"""For each batch: what was produced to each topic before it, and by how much the clock went on."""

Batches = list[tuple[list[tuple[str, str, int]], list[tuple[str, str, int]], int]]
IDLE = 5
IDLE_TIME = "5ms"
Runner = Callable[[dict[TopicPartition, int], int], TaskReport]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


def fresh(directory: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=directory))


def run_all(log: Log, batches: Batches, run: Runner) -> None:
    wall = 0
    for first, second, later in batches:
        produce(log, "a", first)
        produce(log, "b", second)
        wall += later
        run(dict(log.end_offsets(INPUTS)), wall)


def undisturbed(directory: Path, batches: Batches, **options: Any) -> tuple[Any, Any]:
    log = new_log()
    worker = new_worker(application(fresh(directory), **options), log)
    run_all(log, batches, worker.run_batch)
    result = produced(log), stores(worker)
    worker.close()
    return result


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(BATCHES, st.data())
def test_a_crash_at_any_step_changes_nothing(directory: Path, batches: Batches, data: st.DataObject) -> None:
    backends = data.draw(st.sampled_from([("faulty", "faulty"), ("faulty", "faulty-too")]))
    FAULTS.clear()
    expected = undisturbed(directory, batches, backends=backends)
    log = new_log()
    app = application(fresh(directory), backends=backends)
    worker = new_worker(app, log)

    def until_done(ends: dict[TopicPartition, int], wall: int) -> TaskReport:
        nonlocal worker
        for step, after in data.draw(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=3)):
            FAULTS.plan(step, after)
        while True:
            try:
                return worker.run_batch(ends, wall)
            except Crash:
                if data.draw(st.booleans()):
                    worker = new_worker(app, log)

    run_all(log, batches, until_done)
    FAULTS.clear()
    worker.run_batch({}, 0)  # opens it, if the last commit's end was lost
    assert (produced(log), stores(worker)) == expected
    worker.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(RECORDS, RECORDS, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=4))
@example([], [("x", "v", 0), ("x", "v", 0)], [(0, 1, False)])  # the log got more while the task waited
def test_how_input_is_cut_into_batches_and_who_runs_them_is_no_difference(
    directory: Path,
    first: list[tuple[str, str, int]],
    second: list[tuple[str, str, int]],
    cuts: list[tuple[int, int, bool]],
) -> None:
    expected = undisturbed(directory, [(first, second, 0), ([], [], IDLE)])
    log = new_log()
    app = application(fresh(directory), max_task_idle=IDLE_TIME)
    workers = [new_worker(app, log) for _ in range(2)]
    produce(log, "a", first)
    produce(log, "b", second)
    last = dict(log.end_offsets(INPUTS))
    ends = dict.fromkeys(INPUTS, 0)
    for more_a, more_b, which in cuts:
        ends = {each: min(last[each], ends[each] + more) for each, more in zip(INPUTS, (more_a, more_b), strict=True)}
        workers[which].run_batch(ends, 0)
    workers[0].run_batch(last, 0)
    # What one input has more than the other is taken once it has waited long enough.
    workers[0].run_batch(last, IDLE)
    assert (produced(log), stores(workers[0])) == expected
    for worker in workers:
        worker.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(30))
@given(RECORDS, RECORDS, st.integers(1, 60))
@example([("x", "v", 9), ("y", "v", 9)], [("x", "v", 1), ("x", "v", 2), ("x", "v", 3)], 1)
def test_batches_that_end_by_time_answer_as_one_does(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: list[tuple[str, str, int]],
    second: list[tuple[str, str, int]],
    fetch_bytes: int,
) -> None:
    monkeypatch.setattr(memory, "_FETCH_STEP", 1)
    expected = undisturbed(directory, [(first, second, 0), ([], [], IDLE)])
    log = new_log()
    worker = new_worker(application(fresh(directory), max_task_idle=IDLE_TIME, fetch_bytes=fetch_bytes), log)
    produce(log, "a", first)
    produce(log, "b", second)
    ends = dict(log.end_offsets(INPUTS))
    for wall in (0, IDLE):
        while worker.try_batch(ends, wall, seconds=0.0).records_in:
            task = worker.task
            assert task is not None
            assert task.inputs.are_empty() or not task.wants(), "what waits for records to be fetched is not kept"
    assert (produced(log), stores(worker)) == expected
    worker.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[tuple[Application, Log]]:
    """The parts that a user has, one of them faulty."""
    app = application(
        tmp_path, backends=("lmdb", "lmdb"), log="local:log", changelog="directory:changelog", user={"tokens": True}
    )
    log = open_log(app.settings)
    new_log(log)
    yield app, log
    log.close()


@pytest.mark.parametrize("step", STEPS)
def test_local_log_lmdb_and_directory_too(
    on_disk: tuple[Application, Log], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, log = on_disk
    worker = new_worker(app, log)
    produce(log, "a", [("x", "1", 1), ("y", "2", 2)])
    worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    produce(log, "a", [("x", "3", 3), ("z", "4", 4)])
    when, what = step.split()
    assert worker._state is not None and worker._committer is not None
    target, name = {
        "delta": (worker._state, "append_delta"), "commit": (worker._committer, "commit"),
        "write": (worker._state, "apply"),
    }[what]  # fmt: skip
    original = getattr(target, name)

    def fail(*arguments: Any) -> None:
        if when == "after":
            original(*arguments)
        raise Crash(step)

    with monkeypatch.context() as patch:
        patch.setattr(type(target), name, lambda self, *arguments: fail(*arguments))
        with pytest.raises(Crash):
            worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    successor = new_worker(app, log)
    successor.run_batch(dict(log.end_offsets(INPUTS)), 0)
    rows = [(key, *str(value).split()) for key, value, _ in produced(log) if key is not None]
    answers = [row for row in rows if row[1] != "flushed"]
    assert [row[:2] for row in answers] == [("x", "1"), ("y", "2"), ("x", "3"), ("z", "4")]
    # The token of each answer was drawn by chance; the store has the one that was given out last.
    tokens = {key: token for key, _, token in answers}
    assert stores(successor) == {"counts": {"x": 1, "y": 1, "z": 1}, "tokens": tokens}
    successor.close()


# ---------------------------------------------------------------- one after the other


def test_a_worker_that_was_overtaken_opens_the_task_again(directory: Path) -> None:
    log = new_log()
    app = application(fresh(directory))
    first, second = new_worker(app, log), new_worker(app, log)
    for number, worker in enumerate([first, second, first, first, second], 1):
        produce(log, "a", [("x", "v", number)])
        worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    answers = [(value, time) for key, value, time in produced(log) if value and value.startswith("v")]
    assert answers == [("v 1", 1), ("v 1", 2), ("v 2", 3), ("v 3", 4), ("v 4", 5)]
    assert stores(second)["counts"] == {"x": 4}  # the first record was flushed, and forgotten
    first.close()
    second.close()


@pytest.mark.parametrize(("is_overtaken", "expected"), [(True, FencedError), (False, ChangelogError)])
def test_a_successor_may_have_deleted_what_a_worker_appends_to(
    directory: Path, is_overtaken: bool, expected: type[Exception]
) -> None:
    """Its successor has no need of those files. If there is none, somebody else has deleted them."""
    log, place = new_log(), fresh(directory)
    app = application(place, changelog=f"directory:{place / 'changelog'}")
    first, second = new_worker(app, log), new_worker(app, log)
    for number in range(2):
        produce(log, "a", [("x", "v", number)])
        first.run_batch(dict(log.end_offsets(INPUTS)), 0)
    if is_overtaken:
        second.run_batch(dict(log.end_offsets(INPUTS)), 0)
    for each in (place / "changelog").rglob("*.delta"):
        each.unlink()
    produce(log, "a", [("x", "v", 2)])
    with pytest.raises(expected, match="cannot append delta"):
        first.try_batch(dict(log.end_offsets(INPUTS)), 0, is_current=True)
    assert not first.is_open
    first.close()
    second.close()


class Sleeping(Processor):
    """Calls what `wake` holds, once, while it processes."""

    wake: list[Callable[[], Any]] = []

    def process(self, record: Record) -> None:
        self.context.get_store("counts").put(record.key, record.value)
        self.context.forward(record)
        if self.wake:
            self.wake.pop()()


def test_a_worker_that_slept_through_its_successors_commit_changes_nothing(directory: Path) -> None:
    log = new_log()
    base = application(fresh(directory))
    topology = Topology().add_source("first", "a").add_source("second", "b")
    topology.add_processor("p", Sleeping, ["first", "second"], stores=[base.program.stores["counts"]]).add_sink(
        "out", "out", "p"
    )
    app = Application(
        "app", topology, changelog=base.settings.changelog, data_dir=base.settings.data_dir, log="memory:"
    )
    sleeper, successor = new_worker(app, log), new_worker(app, log)
    produce(log, "a", [("x", "1", 1), ("y", "2", 2)])
    ends = dict(log.end_offsets(INPUTS))
    reports: list[TaskReport] = []
    Sleeping.wake.append(lambda: reports.append(successor.run_batch(ends, 0)))
    with pytest.raises(FencedError):
        sleeper.run_batch(ends, 0)
    assert produced(log) == [("x", "1", 1), ("y", "2", 2)]
    assert stores(successor)["counts"] == {"x": "1", "y": "2"}
    # Awake again, it is told what was done, and does nothing twice.
    report = sleeper.run_batch(ends, 0)
    assert (report.positions, report.version, report.records_in) == (reports[0].positions, reports[0].version, 0)
    assert len(produced(log)) == 2
    sleeper.close()
    successor.close()


def test_a_batch_that_is_tried_again_does_nothing_twice(directory: Path) -> None:
    log = new_log()
    worker = new_worker(application(fresh(directory)), log)
    produce(log, "a", [("x", "v", 1)])
    ends = dict(log.end_offsets(INPUTS))
    first = worker.run_batch(ends, 9)
    again = worker.run_batch(ends, 9)
    assert (again.version, again.positions, again.commits, again.records_in) == (first.version, first.positions, 0, 0)
    worker.close()


# ---------------------------------------------------------------- what is refused


def test_a_log_without_the_commit_that_spark_knows_is_refused(directory: Path) -> None:
    app = application(fresh(directory))
    worker = new_worker(app, new_log())
    known = Commit(dict.fromkeys(INPUTS, 3), "000000000001-abcd")
    with pytest.raises(
        IncompatibleStateError,
        match=r"application 'app', task 0_0: Spark's checkpoint knows a commit .* but the log has none",
    ):
        worker.run_batch({}, 0, known)
    log = new_log()
    worker = new_worker(app, log)
    worker.run_batch({}, 0)
    with pytest.raises(IncompatibleStateError, match=r"a-0 0 < 3.*is older than one that was made before"):
        worker.run_batch({}, 0, known)
    worker.close()


def test_a_commit_that_is_newer_than_spark_knows_is_fine(directory: Path) -> None:
    log = new_log()
    worker = new_worker(application(fresh(directory)), log)
    old = worker.run_batch({}, 0)
    produce(log, "a", [("x", "v", 1)])
    new = worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    assert version_counter(new.version) == version_counter(old.version) + 1
    for known in (old, new):
        worker.run_batch({}, 0, Commit(known.positions, known.version))
    worker.close()


def test_an_input_that_was_added_is_read_from_its_start(directory: Path) -> None:
    log = new_log()
    app = application(fresh(directory))
    new_worker(app, log).run_batch({}, 0)
    log.create_topic("c", 1)
    more = Topology().add_source("s", "a", "b", "c").add_processor("p", Sleeping, "s").add_sink("out", "out", "p")
    added = TopicPartition("c", 0)
    TaskWorker(
        Application("app", more, log="memory:", data_dir=str(directory)),
        TaskId(0, 0),
        [*INPUTS, added],
        log,
        resources=ProcessResources(),
    ).run_batch({}, 0)
    assert log.committed("app", [added]) == {added: 0}


def test_state_that_the_changelog_lost_is_never_empty_state(directory: Path) -> None:
    log = new_log()
    app = application(fresh(directory))
    worker = new_worker(app, log)
    produce(log, "a", [("x", "v", 1)])
    worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    worker.destroy()
    MemoryChangelog.forget(resolve(app.settings, app.settings.changelog.partition(":")[2]))
    with pytest.raises(ChangelogError, match="missing"):
        new_worker(app, log).run_batch({}, 0)
    assert log.committed("app", INPUTS) == {INPUTS[0]: 1, INPUTS[1]: 0}


def test_a_lost_local_copy_is_restored(directory: Path) -> None:
    log = new_log()
    app = application(fresh(directory))
    worker = new_worker(app, log)
    for number in range(3):
        produce(log, "a", [(f"x{number}", "v", 1)])
        worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    expected = stores(worker)
    worker.destroy()
    other = new_worker(app, log)
    report = other.run_batch({}, 0)
    assert stores(other) == expected
    assert report.restored >= 3
    other.close()


def test_a_dead_letter_topic_that_is_not_there_is_named_and_nothing_is_lost(directory: Path) -> None:
    class Raising(Processor):
        def process(self, record: Record) -> None:
            raise ValueError("no")

    log = new_log()
    topology = (
        Topology().add_source("first", "a").add_source("second", "b").add_processor("p", Raising, ["first", "second"])
    )
    settings: dict[str, Any] = {
        "log": "memory:",
        "data_dir": str(fresh(directory)),
        "processing_handler": DeadLetter("dead"),
    }
    worker = new_worker(Application("app", topology, **settings), log)
    produce(log, "a", [("x", "1", 1)])
    with pytest.raises(ProductionError, match="'dead'"):
        worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    log.create_topic("dead", 1)
    worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    assert produced(log, "dead") == [("x", "1", 1)]
    worker.close()


# ---------------------------------------------------------------- when there is a commit


def commits(log: Log, app: Application) -> Commit | None:
    return log.open_committer(app.id, "0_0", INPUTS).committed


def test_nothing_changed_is_no_commit_and_a_moved_position_is_one_without_a_delta(directory: Path) -> None:
    log = new_log()
    topology = Topology().add_source("first", "a").add_source("second", "b").add_sink("out", "out", ["first", "second"])
    app = Application("app", topology, log="memory:", data_dir=str(fresh(directory)))
    worker = new_worker(app, log)
    opened = worker.run_batch({}, 0)
    assert opened.commits == 0
    produce(log, "a", [("x", "v", 1)])
    moved = worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    assert (moved.commits, moved.version) == (1, opened.version)
    assert worker.run_batch(dict(log.end_offsets(INPUTS)), 0).commits == 0
    worker.close()


def test_many_bytes_make_several_commits(directory: Path) -> None:
    log = new_log()
    app = application(fresh(directory), commit_bytes=20_000)
    worker = new_worker(app, log)
    produce(log, "a", [(f"key{number}", "v" * 20, 1) for number in range(10_000)])
    report = worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    assert report.commits >= 4
    assert report.records_in == 10_000
    worker.close()


class Keeps(Processor):
    """Puts each record into the store `kept`."""

    def process(self, record: Record) -> None:
        self.context.get_store("kept").put(record.key, record.value)


def test_many_pages_make_several_commits(tmp_path: Path) -> None:
    """LMDB holds copies of all pages that a write changes: many, where a large store changes everywhere."""
    log = new_log()
    topology = Topology().add_source("first", "a", key_serde="str", value_serde="str")
    topology.add_processor("keep", Keeps, "first", stores=[key_value_store("kept", value_serde="str")])
    app = Application("app", topology, data_dir=str(tmp_path), store_backend="lmdb", commit_bytes=2_000_000)
    worker = TaskWorker(app, TaskId(0, 0), [TopicPartition("a", 0)], log, resources=ProcessResources())
    commits = []
    for value in ("v", "w"):
        produce(log, "a", [(f"key{number * 7919 % 40_000}", value * 40, 1) for number in range(40_000)])
        commits.append(worker.run_batch(dict(log.end_offsets([TopicPartition("a", 0)])), 0).commits)
    assert commits[0] == 1  # the store has no pages yet
    assert commits[1] >= 2
    worker.close()


def test_a_commit_that_was_asked_for_is_made_at_once(directory: Path) -> None:
    log = new_log()
    worker = new_worker(application(fresh(directory)), log)
    produce(log, "a", [("x", "commit", 1), ("x", "v", 1), ("x", "commit", 1), ("x", "v", 1)])
    assert worker.run_batch(dict(log.end_offsets(INPUTS)), 0).commits == 3
    worker.close()


def test_latest_starts_at_the_end_and_stays_there(directory: Path) -> None:
    log = new_log()
    produce(log, "a", [("x", "old", 1)])
    topology = (
        Topology()
        .add_source("first", "a", offset_reset="latest")
        .add_source("second", "b")
        .add_sink("out", "out", ["first", "second"])
    )
    app = Application("app", topology, log="memory:", data_dir=str(fresh(directory)))
    new_worker(app, log).run_batch({}, 0)
    produce(log, "a", [("x", "new", 1)])
    new_worker(app, log).run_batch(dict(log.end_offsets(INPUTS)), 0)
    assert [value for _, value, _ in produced(log)] == ["new"]


def test_a_task_starts_where_it_was_told_to(directory: Path) -> None:
    log = new_log()
    produce(log, "a", [("x", f"a{number}", 1) for number in range(4)])
    produce(log, "b", [("x", f"b{number}", 1) for number in range(4)])
    app = application(fresh(directory))
    worker = new_worker(app, log)
    worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    log.set_positions("app", {INPUTS[0]: 3})
    log.delete_topic("out")
    log.create_topic("out", 1)
    # The worker that had the state finds its commit gone, and starts with none.
    report = worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    assert report.positions == {INPUTS[0]: 4, INPUTS[1]: 4}
    answers = [str(value).split() for key, value, _ in produced(log) if key is not None]
    assert [value for value, _ in answers if value != "flushed"] == ["a3", "b0", "b1", "b2", "b3"]
    assert [count for value, count in answers if value == "a3"] == ["1"]
    worker.close()


def test_nothing_continues_from_memory_after_a_commit_whose_outcome_is_unknown(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log()
    worker = new_worker(application(fresh(directory)), log)
    worker.run_batch({}, 0)
    task, commits, committer = worker.task, worker._commits, worker._committer
    assert task is not None and commits is not None and committer is not None
    original = committer.commit

    def unanswered(*arguments: Any) -> None:
        original(*arguments)
        raise LogError("no answer")

    monkeypatch.setattr(committer, "commit", unanswered)
    produce(log, "a", [("x", "1", 1)])
    with pytest.raises(LogError, match="no answer"):
        worker.run_batch(dict(log.end_offsets(INPUTS)), 0)
    assert not worker.is_open
    with pytest.raises(AssertionError, match="unknown"):
        commits.take(task)
    # The next opening reads from the log that the commit was made, and does nothing again.
    before = produced(log)
    assert worker.run_batch(dict(log.end_offsets(INPUTS)), 0).records_in == 0
    assert produced(log) == before != []
    worker.close()
