"""ApplicationEngine without Spark and without a process: the tasks of one slot, on a local log."""

from __future__ import annotations

import math
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import WALL_CLOCK_TIME, LogError, Processor, Record, RetryAfter, RuntimeUnavailableError, Topology
from penstock.clock import ManualClock
from penstock.log import Commit, TaskCommitter
from penstock.plugins.engine.host import application_engine as application_module
from penstock.plugins.engine.host.application_engine import ApplicationEngine
from penstock.plugins.engine.host.reports import Meter, Observed, SlotMessage, SlotPlan, TaskResult
from penstock.plugins.engine.host.slot_engine import HostInfo, SlotCargo, SlotRequest
from penstock.plugins.engine.program import preparation as preparation_module
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.local.committer import LocalCommitter
from penstock.plugins.spark.worker import saved_after
from penstock.plugins.state.copies.companions import HostStandbys
from penstock.plugins.testing.contracts.child import answer, forked
from penstock.record import OutputBatch, TopicPartition
from penstock.stores.lmdb.backend import LmdbBackend
from tests.small_disk import small_disk
from tests.spark import apps
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until


@dataclass
class World:
    """An application, its log, and engines that run it as the host of slot 0."""

    surroundings: Surroundings
    topology: Topology
    settings: Mapping[str, Any] = field(default_factory=dict)
    outside: penstock.World = field(default_factory=penstock.World)
    clock_ms: int = 0

    def __post_init__(self) -> None:
        self.prepared = prepare(
            self.surroundings.application("app", self.topology, **self.settings), self.surroundings.log
        )
        self.stack = ExitStack()
        self.tasks = self.prepared.tasks()

    def engine(self, reason: str = "first") -> ApplicationEngine:
        cargo = SlotCargo(
            ApplicationEngine, self.prepared.application, self.tasks, "/nowhere", 30, companions=(HostStandbys,)
        )
        made = cargo.engine(HostInfo("token", 0, "", reason, Meter(), self.outside))
        assert isinstance(made, ApplicationEngine)
        self.stack.callback(made.close)
        return made

    def batch(
        self, engine: ApplicationEngine, *tasks: str, globals_of: str = "", **changes: Any
    ) -> dict[str, TaskResult]:
        """Run a batch with these tasks (or none) up to the ends of their topics, and return the results by task."""
        log = self.surroundings.log
        ends = {task: log.end_offsets(self.tasks[task]) for task in tasks}
        global_ends = log.end_offsets([TopicPartition(globals_of, 0)]) if globals_of else {}
        ids = {globals_of: log.topic(globals_of).id} if globals_of else {}
        message = engine.handle(SlotRequest(SlotPlan(0, "", self.clock_ms, ends, global_ends, ids, **changes), {}, "e"))
        assert isinstance(message, SlotMessage)
        again = SlotMessage.from_json(message.to_json())
        assert (again.slot, again.executor, again.failure) == (0, "e", None)
        return {result.task_id: result for result in message.results}

    def outputs(self) -> dict[str | None, list[str | None]]:
        return self.surroundings.values_by_key("out")


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    with ExitStack() as stack:

        def make(
            topology: Topology, partitions: int = 2, outside: penstock.World | None = None, **settings: Any
        ) -> World:
            surroundings = stack.enter_context(Surroundings(tmp_path / "data"))
            surroundings.create(**{"in": partitions, "out": 1, "table": 1})
            made = World(surroundings, topology, settings, outside or penstock.World())
            stack.enter_context(made.stack)
            return made

        yield make


class Stopwatch:
    """A world whose stopwatch a test moves."""

    def __init__(self) -> None:
        self._now = 1000.0
        self.world = penstock.World(seconds=lambda: self._now)

    def pass_by(self, seconds: float) -> None:
        self._now += seconds


def put(world: World, partition: int, *values: str, key: str = "k") -> None:
    world.surroundings.put("in", [(f"{key}{partition}", value, 1) for value in values], partition)


def test_the_tasks_of_a_slot_share_its_time(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    stopwatch = Stopwatch()
    shares: list[float] = []
    run = TaskWorker.try_batch

    def noted(self: TaskWorker, *arguments: Any, **options: Any) -> TaskReport:
        shares.append(options["seconds"])
        stopwatch.pass_by(4.0)
        return run(self, *arguments, **options)

    monkeypatch.setattr(TaskWorker, "try_batch", noted)
    world = make_world(apps.count(), partitions=3, outside=stopwatch.world)
    engine = world.engine()
    world.batch(engine, "0_0", "0_1", "0_2", seconds=30.0)
    assert shares == [10.0, 13.0, 22.0], "what one does not need is for the others"
    world.batch(engine, "0_0", "0_1", "0_2", seconds=3.0)
    assert shares[3:] == [1.0, 0.1, 0.1], "each reads something"
    world.batch(engine, "0_0", seconds=None)
    assert shares[6:] == [math.inf]


def test_reports_are_kept_until_spark_has_them(make_world: MakeWorld) -> None:
    world = make_world(apps.count())
    engine = world.engine()
    saved: dict[str, list[Any]] = {}

    def batch(*values: str, arrives: bool = True) -> dict[int, int]:
        """Return how many records the message has, and those of earlier ones, by the number of their message."""
        put(world, 0, *values)
        ends = {"0_0": world.surroundings.log.end_offsets(world.tasks["0_0"])}
        token, number = saved.get("heard", ("", 0))
        sent = engine.handle(SlotRequest(SlotPlan(0, "", 0, ends), {}, "e", (token, number)))
        message = SlotMessage.from_json(sent.to_json())
        if arrives:
            saved.update(saved_after(saved, message))
        every = {**message.kept, message.number: message.results}
        return {each: sum(one.report.records_in for one in found if one.report) for each, found in every.items()}

    assert batch("a", "b") == {1: 2}
    assert batch("c", arrives=False) == {2: 1}
    # Another executor may have ended that batch for Spark: it left the slot to this one, and knew nothing of its work.
    saved.update(saved_after(saved, SlotMessage(0, "other", elsewhere="e")))
    assert batch("d", arrives=False) == {2: 1, 3: 1}
    assert batch() == {2: 1, 3: 1, 4: 0}
    assert batch("e") == {5: 1}
    saved["heard"] = ["another host", 9]
    assert batch() == {5: 1, 6: 0}, "the driver counts it once"
    saved.clear()
    assert batch() == {5: 1, 6: 0, 7: 0}, "a new checkpoint"
    put(world, 0, "f")
    ends = {"0_0": world.surroundings.log.end_offsets(world.tasks["0_0"])}
    told = [engine.handle(SlotRequest(SlotPlan(0, "", 0, ends), {}, "e")) for engine in [world.engine()] * 2]
    assert [each.kept for each in told] == [{}, {}], "every message arrives there"


def test_what_a_waiting_task_has_not_read_is_lag() -> None:
    """One that is being restored, or tries a failed record again later, has no report."""
    partition = TopicPartition("in", 0)
    plan = SlotPlan(0, "", 0, {"0_0": {partition: 30}}, left=5)
    known = {"0_0": Commit({partition: 10}, "v")}
    read = TaskResult("0_0", TaskReport("0_0", "v", {partition: 20}, 0))
    assert Observed.of(SlotMessage(0, "e", results=[TaskResult("0_0")]), plan, known).lag == 25
    assert Observed.of(SlotMessage(0, "e", elsewhere="other"), plan, known).lag == 25
    assert Observed.of(SlotMessage(0, "e", results=[read]), plan, known).lag == 15
    assert Observed.of(SlotMessage(0, "e", kept={1: [read]}), plan, known).lag == 15
    # Of one that has never committed only the plan says where it begins.
    plan = replace(plan, starts={partition: 4})
    assert Observed.of(SlotMessage(0, "e", results=[TaskResult("0_0")]), plan, {}).lag == 31
    assert Observed.of(SlotMessage(0, "e", results=[read]), plan, {}).lag == 15


def test_a_host_says_how_many_entries_the_stores_of_its_open_tasks_have(make_world: MakeWorld) -> None:
    world = make_world(apps.count())
    engine = world.engine()

    def rows(*tasks: str) -> int | None:
        ends = {task: world.surroundings.log.end_offsets(world.tasks[task]) for task in tasks}
        message = engine.handle(SlotRequest(plan := SlotPlan(0, "", 0, ends), {}, "e"))
        again = SlotMessage.from_json(message.to_json())
        assert again.state_rows == message.state_rows == Observed.of(message, plan, {}).state_rows
        return message.state_rows

    assert rows() is None, "no task is open"
    put(world, 0, "a", "b")
    put(world, 1, "a")
    put(world, 1, "a", key="other")
    assert rows("0_1") == 2
    assert rows("0_0") == 3 == rows(), "of tasks that had no work, too"


def test_entries_are_counted_seldom_where_that_takes_long(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopwatch, count = Stopwatch(), LmdbBackend.approximate_count

    def slow(self: LmdbBackend, store: str) -> int:
        stopwatch.pass_by(1.0)
        return count(self, store)

    monkeypatch.setattr(LmdbBackend, "approximate_count", slow)
    world = make_world(apps.count(), outside=stopwatch.world)
    engine = world.engine()
    found: list[int | None] = []
    for number, seconds in enumerate((0.0, 190.0, 20.0)):
        stopwatch.pass_by(seconds)
        put(world, 0, "a", key=f"{number}-")
        world.batch(engine, "0_0")
        found.append(engine._tasks["0_0"].state_rows)
    assert found == [0, 0, 3], "once when the task is opened, and again after more than 200 s"


def opened(results: Mapping[str, TaskResult]) -> dict[str, str]:
    return {task: result.report.opened for task, result in results.items() if result.report is not None}


# ---------------------------------------------------------------------- opening


def test_tasks_are_opened_side_by_side_and_stay_open(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(apps.count(), partitions=4)
    engine = world.engine()
    # Each opening waits for the others: one after the other they would not get further.
    meeting, open_committer = threading.Barrier(4, timeout=30), engine._log.open_committer

    def open_together(*args: Any) -> TaskCommitter:
        meeting.wait()
        return open_committer(*args)

    monkeypatch.setattr(engine._log, "open_committer", open_together)
    for partition in range(4):
        put(world, partition, "a")
    assert opened(world.batch(engine, *world.tasks)) == dict.fromkeys(world.tasks, "first")
    assert opened(world.batch(engine, *world.tasks)) == dict.fromkeys(world.tasks, "")
    assert world.outputs() == {f"k{partition}": ["1"] for partition in range(4)}


def test_why_a_task_is_opened(make_world: MakeWorld) -> None:
    world = make_world(apps.count(apps.Poisoned))
    engine = world.engine("host lost")
    assert opened(world.batch(engine, "0_0")) == {"0_0": "host lost"}
    # Only what the plan names is opened.
    assert opened(world.batch(engine, "0_1")) == {"0_1": "host lost"}
    put(world, 0, "poison")
    failed = world.batch(engine, "0_0", "0_1")["0_0"].failure
    assert failed is not None
    other = world.engine("moved")
    assert opened(world.batch(other, "0_1")) == {"0_1": "moved"}
    results = world.batch(engine, "0_1")
    assert opened(results) == {"0_1": "taken over"}


def test_of_many_tasks_that_are_opened_one_fails_and_is_opened_later(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(apps.count(), partitions=4)
    engine = world.engine()
    open_committer = engine._log.open_committer

    def open_some(application_id: str, task_id: str, partitions: Any) -> TaskCommitter:
        if task_id == "0_2":
            raise LogError("the broker is away")
        return open_committer(application_id, task_id, partitions)

    for partition in range(4):
        put(world, partition, "a")
    with monkeypatch.context() as patched:
        patched.setattr(engine._log, "open_committer", open_some)
        results = world.batch(engine, *world.tasks)
    failure = results.pop("0_2").failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("LogError", "application 'app', task 0_2: the broker is away")
    assert opened(results) == {"0_0": "first", "0_1": "first", "0_3": "first"}
    assert opened(world.batch(engine, *world.tasks)) == {"0_0": "", "0_1": "", "0_2": "failed", "0_3": ""}
    assert world.outputs() == {f"k{partition}": ["1"] for partition in range(4)}


# ---------------------------------------------------------------------- tasks that fail


def test_a_task_that_fails_does_not_hold_up_its_neighbours(make_world: MakeWorld) -> None:
    world = make_world(apps.count(apps.Poisoned), partitions=3)
    engine = world.engine()
    for partition, value in enumerate(["a", "poison", "c"]):
        put(world, partition, value)
    results = world.batch(engine, *world.tasks)
    failure = results["0_1"].failure
    assert failure is not None
    assert failure.kind == "ProcessingError"
    assert failure.message.startswith("application 'app', task 0_1, node 'count', at topic 'in' partition 1 offset 0")
    assert "in process" in failure.trace
    assert world.outputs() == {"k0": ["1"], "k2": ["1"]}
    assert opened(world.batch(engine, "0_0", "0_2")) == {"0_0": "", "0_2": ""}


class Fails(apps.Count):
    """Fails at the value "flaky" for as long as the file is there."""

    def __init__(self, flag: str) -> None:
        self.flag = Path(flag)

    def process(self, record: Record) -> None:
        if record.value == "flaky" and self.flag.exists():
            raise ValueError("not yet")
        super().process(record)


def again_in_an_hour(failure: Any) -> RetryAfter:
    return RetryAfter("1h")


def test_a_retry_stalls_its_own_task_only(make_world: MakeWorld, tmp_path: Path) -> None:
    stopwatch = Stopwatch()
    flag = tmp_path / "flag"
    flag.touch()
    world = make_world(
        apps.count(partial(Fails, str(flag))), processing_handler=again_in_an_hour, outside=stopwatch.world
    )
    engine = world.engine()
    put(world, 0, "a", "flaky", "b")
    put(world, 1, "a")
    # The batch does not wait: neither for the drain of a run nor for the neighbour.
    results = world.batch(engine, "0_0", "0_1")
    assert results["0_0"] == TaskResult("0_0")
    assert world.outputs() == {"k1": ["1"]}
    flag.unlink()
    put(world, 1, "b")
    stopwatch.pass_by(3599.0)
    assert world.batch(engine, "0_0", "0_1")["0_0"] == TaskResult("0_0")
    assert world.outputs() == {"k1": ["1", "2"]}, "and nothing of the waiting task"
    stopwatch.pass_by(2.0)
    assert opened(world.batch(engine, "0_0", "0_1")) == {"0_0": "retry", "0_1": ""}
    assert world.outputs() == {"k1": ["1", "2"], "k0": ["1", "2", "3"]}


class FillsUnless(apps.Fill):
    def __init__(self, flag: str) -> None:
        self.flag = Path(flag)

    def process(self, record: Record) -> None:
        if self.flag.exists():
            raise ValueError("not yet")
        super().process(record)


def test_a_retry_of_a_global_store_does_not_hold_up_the_batch(make_world: MakeWorld, tmp_path: Path) -> None:
    stopwatch = Stopwatch()
    flag = tmp_path / "flag"
    flag.touch()
    topology = apps.look_up(partial(FillsUnless, str(flag)))
    world = make_world(topology, processing_handler=again_in_an_hour, outside=stopwatch.world)
    world.surroundings.put("table", [("k0", "found", 0)], 0)
    put(world, 0, "?")
    engine = world.engine()
    for _ in range(2):
        results = world.batch(engine, *world.tasks, globals_of="table")
        assert list(results.values()) == [TaskResult(task) for task in world.tasks]
        flag.unlink(missing_ok=True)
        stopwatch.pass_by(1801.0)
    results = world.batch(engine, *world.tasks, globals_of="table")
    assert len(results) == 2
    assert all(result.report is not None for result in results.values())
    assert world.outputs() == {"k0": ["found"]}


def test_local_state_that_is_removed_with_its_global_stores_is_made_again(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = make_world(apps.look_up(), state_dir=str(tmp_path / "state"))
    world.surroundings.put("table", [("k0", "found", 0)], 0)
    put(world, 0, "?")
    engine = world.engine()
    world.batch(engine, *world.tasks, globals_of="table")
    shutil.rmtree(tmp_path / "state")
    world.surroundings.put("table", [("k0", "again", 0)], 0)
    put(world, 0, "?")
    results = world.batch(engine, *world.tasks, globals_of="table")
    assert all(result.report is not None for result in results.values())
    assert world.outputs() == {"k0": ["found", "again"]}


def test_too_many_open_files_name_the_limit_and_cost_nothing(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the check before the opening has counted too few."""
    monkeypatch.setattr(application_module, "check_open_files_of_process", lambda *_: None)
    world = make_world(apps.count(), partitions=40)
    for partition in range(40):
        put(world, partition, "a")

    def child(connection: Connection) -> None:
        world.surroundings = Surroundings(world.surroundings.directory)
        used = set(map(int, os.listdir("/dev/fd")))
        limit = [number for number in range(max(used) + 100) if number not in used][60]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        results = world.batch(world.engine(), *world.tasks)
        failures = [result.failure for result in results.values() if result.failure is not None]
        connection.send((limit, len(results), [(each.kind, each.message) for each in failures]))

    world.surroundings.log.close()
    with forked(child) as connection:
        limit, count, failures = answer(connection)
    assert count == 40
    assert 0 < len(failures) < 40, "as many tasks run as can"
    for _, message in failures:
        assert f"too many open files: the limit of this process is {limit}" in message
    world.surroundings = world.stack.enter_context(Surroundings(world.surroundings.directory))
    results = world.batch(world.engine(), *world.tasks)
    assert all(result.report is not None for result in results.values())
    assert world.outputs() == {f"k{partition}": ["1"] for partition in range(40)}


class Pads(apps.Count):
    def process(self, record: Record) -> None:
        self.counts.put(record.key, "x" * 300_000)
        self.context.forward(record)


def test_a_full_disk_fails_its_task_and_the_next_batch_continues(make_world: MakeWorld, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 1024) as disk:
        world = make_world(apps.count(Pads), state_dir=str(disk))
        world.surroundings.put("in", [(f"{number}", "v", 1) for number in range(8)], 0)
        engine = world.engine()
        failure = world.batch(engine, "0_0", "0_1")["0_0"].failure
        assert failure is not None
        assert str(disk) in failure.message
        assert "the disk is full" in failure.message
    # From here on it is a directory of a larger disk.
    results = world.batch(engine, "0_0", "0_1")
    assert opened(results)["0_0"] == "failed"
    assert world.outputs() == {f"{number}": ["v"] for number in range(8)}


# ---------------------------------------------------------------------- tasks without work in the plan


class Rings(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10s", lambda now: context.forward(Record(context.task_id, str(now), now)), WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        return None


def test_due_punctuators_run_without_a_plan_and_others_do_not(make_world: MakeWorld) -> None:
    world = make_world(Topology().add_source("in", "in").add_processor("r", Rings, "in").add_sink("out", "out", "r"))
    engine = world.engine()
    assert set(world.batch(engine, "0_0")) == {"0_0"}
    world.clock_ms = 9_999
    assert world.batch(engine) == {}
    world.clock_ms = 10_000
    assert set(world.batch(engine)) == {"0_0"}, "and not the task that is not open"
    assert world.outputs() == {"0_0": ["10000"]}
    assert world.batch(engine) == {}


def test_a_commit_that_expires_is_repeated(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(apps.count())
    engine = world.engine()
    put(world, 0, "a")
    world.batch(engine, "0_0", "0_1")
    committer = engine._tasks["0_0"].committer
    assert committer is not None
    assert world.batch(engine) == {}
    monkeypatch.setattr(committer, "expires", lambda: True)
    result = world.batch(engine)["0_0"]
    assert result.report is not None
    assert (result.report.commits, result.report.records_in) == (1, 0)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[Commit]:
    """The commits of the local log; from the first one on that a test takes away, each is old until it is repeated."""
    made: list[Commit] = []
    commit = LocalCommitter.commit

    def note(self: LocalCommitter, this: Commit, outputs: Sequence[OutputBatch]) -> None:
        commit(self, this, outputs)
        made.append(this)

    monkeypatch.setattr(LocalCommitter, "commit", note)
    monkeypatch.setattr(LocalCommitter, "expires", lambda self: self.committed is not None and not made)
    return made


def test_a_task_that_waits_before_a_retry_repeats_its_commit(
    make_world: MakeWorld, tmp_path: Path, commits: list[Commit]
) -> None:
    """Once, without another attempt, while it waits; and when it is opened for an attempt."""
    stopwatch = Stopwatch()
    flag = tmp_path / "flag"
    flag.touch()
    topology = apps.count(partial(Fails, str(flag)))
    world = make_world(topology, 1, processing_handler=again_in_an_hour, outside=stopwatch.world)
    engine = world.engine()
    put(world, 0, "flaky")
    world.batch(engine, "0_0")
    [first] = commits
    commits.clear()
    flag.unlink()
    for _ in range(3):
        assert world.batch(engine, "0_0") in ({"0_0": TaskResult("0_0")}, {})
        assert world.batch(engine) in ({"0_0": TaskResult("0_0")}, {})
    assert commits == [first] and world.outputs() == {}
    flag.touch()
    stopwatch.pass_by(3601.0)
    commits.clear()
    world.batch(engine, "0_0")
    assert commits == [first] and world.outputs() == {}


def test_tasks_that_wait_for_a_global_store_repeat_their_commits(
    make_world: MakeWorld, tmp_path: Path, commits: list[Commit]
) -> None:
    flag = tmp_path / "flag"
    topology = apps.look_up(partial(FillsUnless, str(flag)))
    world = make_world(topology, 1, processing_handler=again_in_an_hour, outside=Stopwatch().world)
    engine = world.engine()
    world.batch(engine, *world.tasks, globals_of="table")
    flag.touch()
    world.surroundings.put("table", [("k0", "found", 0)], 0)
    assert world.batch(engine, *world.tasks, globals_of="table") == {"1_0": TaskResult("1_0")}
    before = commits[-1]
    commits.clear()
    for _ in range(3):
        assert world.batch(engine, *world.tasks, globals_of="table") == {"1_0": TaskResult("1_0")}
    assert commits == [before]


def test_a_limit_of_open_files_that_is_too_low_is_met_before_anything_is_opened(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(apps.count(), partitions=9)
    engine = world.engine()
    monkeypatch.setattr(preparation_module, "open_files_limit", lambda: (60, 60))
    with pytest.raises(
        RuntimeUnavailableError, match=r"9 tasks in one task host need at least \d+ open files, and none"
    ):
        world.batch(engine, *world.tasks)
    assert not any(task.is_open for task in engine._tasks.values())
    monkeypatch.undo()
    results = world.batch(engine, *world.tasks)
    assert all(result.report is not None for result in results.values())


def old_state(world: World, task: str) -> Path:
    """Return a task's local state, as an application leaves it that has been stopped for years."""
    directory = Path(world.prepared.application.settings.data_dir) / "state" / "app" / task
    directory.mkdir(parents=True)
    lock = directory.with_name(f"{task}.lock")
    lock.touch()
    os.utime(lock, (0, 0))
    return directory


def test_local_state_stays_until_every_task_is_open_somewhere(make_world: MakeWorld) -> None:
    world = make_world(apps.count(), state_dir="state", state_cleanup_delay="0ms")
    neighbours = old_state(world, "0_1")
    for _ in range(2):
        engine = world.engine()
        world.batch(engine, "0_0", is_settled=False)
        assert neighbours.is_dir()
    engine = world.engine()
    world.batch(engine, "0_0", is_settled=True)
    assert not neighbours.exists()
    assert old_state(world, "0_1").is_dir()


def test_a_batch_without_work_says_that_local_state_is_in_use(make_world: MakeWorld) -> None:
    world = make_world(apps.count(), state_dir="state")
    clock = ManualClock(int(time.time() * 1000))
    world.outside = penstock.World(clock=clock)
    engine = world.engine()
    lock = Path(world.prepared.application.settings.data_dir) / "state" / "app" / "0_0.lock"
    world.batch(engine, "0_0")
    os.utime(lock, (0, 0))
    clock.advance("61s")
    world.batch(engine)
    assert lock.stat().st_mtime == clock.now_ms() / 1000


def test_the_host_keeps_the_standbys_that_its_plan_names(make_world: MakeWorld) -> None:
    """They give way to the tasks themselves, in a host of this machine too."""
    world = make_world(apps.count(), partitions=3)
    for partition in range(3):
        put(world, partition, "v")
    world.batch(world.engine(), "0_0", "0_1", "0_2")
    world.stack.close()
    shutil.rmtree(world.surroundings.directory / "state")
    state, keeper = world.surroundings.directory / "state" / "app", world.engine()
    world.batch(keeper, "0_0", standbys=["0_1"])
    wait_until(lambda: (state / "0_1" / "lmdb").exists())
    assert not (state / "0_2").exists()
    world.batch(keeper, "0_0", standbys=["0_2"])
    wait_until(lambda: (state / "0_2" / "lmdb").exists())
    found = world.batch(world.engine(), "0_1", "0_2")
    assert all(each.report is not None for each in found.values())
