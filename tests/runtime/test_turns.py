"""Turns of a task loop: bounded by time, with commits between them, and without what takes long."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, Record, Topology, key_value_store
from penstock.log import Log
from penstock.plugins.engine.task import locations
from penstock.plugins.engine.task.local_state import refill
from penstock.plugins.engine.task.loop import task_loop as loop_module
from penstock.plugins.engine.task.loop.continuous_worker import ContinuousWorker
from penstock.plugins.engine.task.loop.task_loop import Alarm, TaskLoop
from penstock.plugins.engine.task.loop.threads import Turnstile
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.logs import memory
from penstock.plugins.logs.memory import MemoryLog
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.application import Application
from penstock.world import World

from ..rotation import examples
from ..waiting import wait_until
from .faults import produced
from .hand_world import HandWorld
from .test_task_loop import looping, turn_until

Tasks = dict[str, tuple[TopicPartition, ...]]


class LoopByHand:
    """A loop with a world that the test moves."""

    def __init__(self, directory: Path, topology: Topology, count: int, number: int = 0, **given: Any) -> None:
        self.log, self.time = MemoryLog(), HandWorld()
        self.log.create_topic("in", count)
        self.log.create_topic("out", 1)
        self.tasks: Tasks = {f"{number}_{each}": (TopicPartition("in", each),) for each in range(count)}
        self.application = Application(
            "app", topology, log="memory:", changelog=f"memory:{directory}", data_dir=str(directory), key_serde="str",
            value_serde="str", **given,
        )  # fmt: skip
        self.resources = ProcessResources(self.time.world)
        self.make_loop()

    def make_loop(self) -> None:
        self.loop = TaskLoop(self.application, self.tasks, self.log, self.resources, self.time.now_ms)

    def put(self, partition: int, *values: str) -> None:
        count = len(values)
        texts: list[bytes | None] = [value.encode() for value in values]
        self.log.append(OutputBatch("in", [b"k"] * count, texts, [1] * count, None, [[partition]] * count))

    def open_all(self) -> None:
        self.loop.run(self.tasks, {})
        while self.loop.open_tasks < len(self.tasks):
            self.loop.turn(0)
            self.time.run_threads()

    def close(self) -> None:
        self.time.run_threads()
        self.loop.close(commit=False)
        self.resources.close()


@contextmanager
def world(directory: Path, topology: Topology, count: int, **given: Any) -> Iterator[LoopByHand]:
    made = LoopByHand(directory, topology, count, **given)
    try:
        yield made
    finally:
        made.close()


def queued(loop: TaskLoop) -> int:
    """Return how many records wait in the tasks of a loop."""
    return sum(task.queued() for task in loop._tasks.values())


class Takes(Processor):
    """A record takes as many ms as its value says."""

    time: HandWorld
    longest = 0.0

    def process(self, record: Record) -> None:
        self.take(int(record.value) / 1000)
        self.context.forward(record)

    def take(self, seconds: float) -> None:
        type(self).longest = max(type(self).longest, seconds)
        type(self).time.pass_by(seconds)


def takes(processor: type[Processor] = Takes) -> Topology:
    return Topology().add_source("in", "in").add_processor("takes", processor, "in").add_sink("out", "out", "takes")


class Lateness:
    """How long after they were due commits began: a commit is due at its place in the interval, once there is work.

    That of a task that is behind is due later: not before it was seen not to be due.
    """

    def __init__(self, each: LoopByHand) -> None:
        self.worst = 0.0
        self._not_due: dict[str, float] = {}
        self._since: dict[str, float] = {}
        for name, task in each.loop._tasks.items():
            self._watch(each, name, task)

    def _watch(self, each: LoopByHand, name: str, task: Any) -> None:
        begin, work, commit_due, time = task.begin_commit, task.work, task.commit_due, each.time

        def noting_work(*arguments: Any) -> Any:
            before = time.now
            done = work(*arguments)
            if done:
                self._since.setdefault(name, before)
            return done

        def noting_due() -> float:
            due: float = commit_due()
            if due > time.now:
                self._not_due[name] = time.now
            return due

        def noting_begin() -> Any:
            if (since := self._since.pop(name, None)) is not None:
                self.worst = max(self.worst, time.now - max(since, task._due, self._not_due.get(name, 0.0)))
            return begin()

        task.work, task.begin_commit, task.commit_due = noting_work, noting_begin, noting_due


DURATIONS = st.lists(st.sampled_from([0, 1, 3, 20, 150, 3_000]), max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@example([[3_000, 150, 3_000], [150, 150, 3_000]], "1s")
@given(st.lists(DURATIONS, min_size=1, max_size=16), st.sampled_from(["20ms", "100ms", "1s"]))
def test_a_commit_that_is_due_waits_for_one_record_and_a_moment(
    tmp_path: Path, durations: list[list[int]], interval: str
) -> None:
    with world(tmp_path, takes(), len(durations), commit_interval=interval) as each:
        Takes.time, Takes.longest = each.time, 0.0
        each.open_all()
        lateness = Lateness(each)
        for partition, of_task in enumerate(durations):
            each.put(partition, *map(str, of_task)) if of_task else None
        total = sum(map(len, durations))
        for _ in range(2_000):
            if len(produced(each.log)) == total:
                break
            before = each.time.now
            each.loop.turn(0)
            assert each.time.now - before <= Takes.longest + 0.05, "a turn"
            each.time.run_threads()
            if each.time.now == before:
                each.time.pass_by(0.01)
        assert len(produced(each.log)) == total and not each.loop.take_failures()
        assert lateness.worst <= Takes.longest + 0.2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(st.sampled_from([0, 1, 5, 20, 60, 400]), st.sampled_from(["20ms", "100ms", "1s"]))
def test_commits_of_a_task_that_is_behind_are_few(tmp_path: Path, takes_ms: int, interval: str) -> None:
    """Each commit takes `takes_ms`: a hundredth of the time, while more than a quarter of what was done waits."""
    with world(tmp_path, takes(), 1, commit_interval=interval) as each:
        Takes.time = each.time
        each.open_all()
        task = each.loop._tasks["0_0"]
        wanted = int(interval.removesuffix("ms")) / 1000 if interval.endswith("ms") else 1.0
        apart = max(wanted, min(takes_ms / 10, 5.0))
        each.put(0, *["5"] * 800)
        begun: list[tuple[float, int]] = []
        begin: Callable[[], Any] = task.begin_commit

        def noting_begin() -> Any:
            begun.append((each.time.now, task.queued()))
            return begin()

        task.begin_commit = noting_begin  # type: ignore[method-assign]
        for _ in range(5_000):
            if len(produced(each.log)) == 800:
                break
            before = each.time.now
            each.loop.turn(0)
            if task.is_committing:
                each.time.pass_by(takes_ms / 1000)
            elif each.time.now == before:
                each.time.pass_by(0.01)
            each.time.run_threads()
        assert len(produced(each.log)) == 800 and not each.loop.take_failures()
        for (earlier, before), (at, waiting) in pairwise(begun[1:]):
            # A place in the interval moves a commit by up to half of it.
            assert at - earlier <= apart + wanted / 2 + 0.2
            done = before - waiting
            if 4 * waiting > done:
                assert at - earlier >= apart - wanted / 2
            else:
                assert done - 4 * waiting <= 5 * (1.5 * wanted + 0.2) / 0.005, "most is done, so it is committed"
        assert each.time.now - begun[-1][0] <= takes_ms / 1000 + 0.06, "the end does not wait for its second"


@pytest.mark.parametrize("is_slow", [False, True], ids=["fast", "slow"])
def test_few_records_of_a_backlog_wait_outside_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """What can be processed is polled as it is needed, also where a turn ends before every task had its part."""
    monkeypatch.setattr(loop_module, "_MOST_POLLED", 100)
    monkeypatch.setattr(loop_module, "_FEWEST_POLLED", 4)
    monkeypatch.setattr(loop_module, "_CHUNK", 20)
    with world(tmp_path, takes(), 3, commit_interval="1h") as each:
        Takes.time, Takes.longest = each.time, 0.0
        each.open_all()
        for partition in range(3):
            each.put(partition, *["5" if is_slow else "0"] * 400)
        worst = done = 0
        for _ in range(2_000):
            if done == 1_200:
                break
            done += each.loop.turn(0)
            each.time.run_threads()
            worst = max(worst, queued(each.loop))
        assert done == 1_200
        assert 0 < worst <= 100 + 3 * 20


def test_no_task_starves_beside_slow_ones(tmp_path: Path) -> None:
    with world(tmp_path, takes(), 4, commit_interval="1h") as each:
        Takes.time, Takes.longest = each.time, 0.0
        each.open_all()
        for partition in range(4):
            each.put(partition, *["100"] * 20)
        processed: list[int] = []
        for _ in range(40):
            each.loop.turn(0)
            each.time.run_threads()
            processed = [task.task.records_in for task in each.loop._tasks.values() if task.task is not None]
        assert max(processed) - min(processed) <= 1 and sum(processed) == 40


class Rings(Takes):
    """Has a punctuator of the wall clock that takes very long."""

    rung = 0

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10s", self.ring, WALL_CLOCK_TIME)

    def ring(self, now: int) -> None:
        Rings.rung += 1
        Rings.at_ring(self.context.task_id)
        self.take(200.0)

    at_ring: Callable[[str], None]


def test_everything_is_committed_before_a_punctuator_that_may_take_long(tmp_path: Path) -> None:
    with world(tmp_path, takes(Rings), 2, commit_interval="1h") as each:
        Rings.time, Rings.longest, Rings.rung = each.time, 0.0, 0
        each.open_all()
        uncommitted: list[str] = []

        def note(ringing: str) -> None:
            tasks = each.loop._tasks.items()
            uncommitted.extend(name for name, task in tasks if task.has_uncommitted)

        Rings.at_ring = staticmethod(note)
        for rounds in range(1, 4):
            for partition in range(2):
                each.put(partition, "1")
            for _ in range(10):
                each.loop.turn(0)
                each.time.run_threads()
            each.put(0, "1")
            each.put(1, "1")
            each.time.pass_by(11.0)
            for _ in range(20):
                each.loop.turn(0)
                each.time.run_threads()
                if Rings.rung >= 2 * rounds:
                    break
            assert Rings.rung >= 2 * rounds
        assert not uncommitted, "at the time of a call"
        assert not each.loop.take_failures()


class Jumps(Takes):
    """Has punctuators of the stream time, each of which takes a while."""

    def init(self, context: Any) -> None:
        super().init(context)
        for number in range(8):
            context.schedule("1s", lambda now: self.take(0.1), STREAM_TIME, name=f"number {number}")


def test_due_commits_come_between_two_punctuators(tmp_path: Path) -> None:
    with world(tmp_path, takes(Jumps), 2, commit_interval="100ms") as each:
        Jumps.time, Jumps.longest = each.time, 0.0
        each.open_all()
        lateness = Lateness(each)
        for _ in range(3):
            each.put(0, "1")
            each.put(1, "1")
            for _ in range(30):
                before = each.time.now
                each.loop.turn(0)
                assert each.time.now - before <= Jumps.longest + 0.05
                each.time.run_threads()
                if each.time.now == before:
                    each.time.pass_by(0.01)
        assert lateness.worst <= Jumps.longest + 0.2
        assert len(produced(each.log)) == 6 and each.time.now > 1.5


# ---------------------------------------------------------------------- what other threads do


def test_tasks_work_while_another_one_is_restored(tmp_path: Path) -> None:
    with world(tmp_path, takes(), 2, commit_interval="0ms") as each:
        Takes.time = each.time
        each.loop.run(["0_0"], {})
        while not each.loop.open_tasks:
            each.loop.turn(0)
            each.time.run_threads()
        each.loop.run(["0_1"], {})
        each.loop.turn(0)
        each.time.run_threads("penstock-fences")
        each.loop.turn(0)
        assert [call.pool for call in each.time.calls] == ["penstock-restores"]
        each.put(0, "1")
        each.put(1, "1")
        for _ in range(3):
            each.loop.turn(0)
            each.time.run_threads("penstock-commits")
        assert len(produced(each.log)) == 1 and each.loop.open_tasks == 1
        each.time.run_threads()
        for _ in range(5):
            each.loop.turn(0)
            each.time.run_threads()
        assert len(produced(each.log)) == 2


class Fill(Processor):
    """Fills a read-only store; each record waits, from the second time on that it comes."""

    gate: threading.Event
    reached: threading.Event
    seen: set[Any]

    def process(self, record: Record) -> None:
        if record.key in Fill.seen:
            Fill.reached.set()
            assert Fill.gate.wait(60)
        Fill.seen.add(record.key)
        self.context.get_store("rates").put(record.key, record.value)


class Plain(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


TEXTS: dict[str, Any] = {"key_serde": "str", "value_serde": "str"}


def rates() -> Topology:
    return (
        Topology()
        .add_source("in", "in", **TEXTS)
        .add_read_only_store(key_value_store("rates", **TEXTS), "rates-source", "rates", "fill", Fill, **TEXTS)
        .add_processor("plain", Plain, "in", stores=["rates"])
        .add_sink("out", "out", "plain", **TEXTS)
    )


@contextmanager
def refilling(tmp_path: Path) -> Iterator[tuple[TaskLoop, Log]]:
    """A loop with two tasks, of which the first one is filling its read-only store again, and is held up."""
    Fill.gate, Fill.reached, Fill.seen = threading.Event(), threading.Event(), set()
    log = MemoryLog()
    for topic, partitions in {"in": 2, "rates": 2, "out": 1}.items():
        log.create_topic(topic, partitions)
    tasks: Tasks = {f"0_{each}": (TopicPartition("in", each), TopicPartition("rates", each)) for each in range(2)}
    log.append(OutputBatch("rates", [b"a", b"b"], [b"1", b"2"], [1, 2], None, [[0], [0]]))

    def of(host: str) -> Application:
        return Application(
            "app", rates(), log="memory:", changelog="directory:changelog", data_dir=str(tmp_path),
            state_dir=str(tmp_path / host), commit_interval="0ms",
        )  # fmt: skip

    with looping(of("first"), log, tasks) as loop:
        turn_until(loop, lambda: Fill.seen == {"a", "b"} and not loop._writing)
        loop.commit_all()
    try:
        with looping(of("second"), log, tasks) as loop:
            turn_until(loop, Fill.reached.is_set)
            yield loop, log
    finally:
        Fill.gate.set()


def test_a_refill_lets_others_restore_after_each_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_FETCH_BYTES", 1)
    monkeypatch.setattr(memory, "_FETCH_STEP", 1)
    Fill.gate, Fill.reached, Fill.seen = threading.Event(), threading.Event(), set()
    Fill.gate.set()
    log = MemoryLog()
    for topic in ("in", "rates", "out"):
        log.create_topic(topic, 1)
    for number in range(5):
        log.append(OutputBatch("rates", [b"same"], [b"%d" % number], [number]))
    tasks: Tasks = {"0_0": (TopicPartition("in", 0), TopicPartition("rates", 0))}

    def of(host: str) -> Application:
        return Application(
            "app", rates(), log="memory:", changelog="directory:changelog", data_dir=str(tmp_path),
            state_dir=str(tmp_path / host), commit_interval="0ms",
        )  # fmt: skip

    with looping(of("first"), log, tasks) as loop:
        turn_until(loop, lambda: Fill.seen == {"same"} and not loop._writing)
        loop.commit_all()
    pauses: list[None] = []
    with looping(of("second"), log, tasks) as loop:
        loop._preparing._turnstile.let_others_in = lambda: pauses.append(None)  # type: ignore[method-assign]
        turn_until(loop, lambda: loop.open_tasks == 1)
    assert len(pauses) >= 5, "not only after each write: a store of few keys is small, however much is read"


def test_a_refill_holds_up_no_other_task_and_counts_as_progress(tmp_path: Path) -> None:
    with refilling(tmp_path) as (loop, log):
        log.append(OutputBatch("in", [b"k"], [b"other"], [1], None, [[1]]))
        turn_until(loop, lambda: [value for _, value, _ in produced(log)] == ["other"])
        assert loop.open_tasks == 1
        Fill.gate.set()
        turn_until(loop, lambda: loop.open_tasks == 2)
        assert not loop.take_failures()


def test_a_loop_that_is_closed_ends_a_refill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    changes = refill.Refill.changes

    def noting(self: refill.Refill, *arguments: Any) -> Iterator[Any]:
        try:
            yield from changes(self, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(refill.Refill, "changes", noting)
    with refilling(tmp_path) as (loop, _):
        restoring = loop._tasks["0_0"]
        closing = threading.Thread(target=loop.close, kwargs={"commit": False})
        closing.start()
        wait_until(lambda: not loop._preparing, "the loop is being closed")
        assert closing.is_alive() and restoring.committer is not None, "it waits for the task that is being opened"
        Fill.gate.set()
        closing.join(60)
        assert ended.is_set() and restoring.committer is None
        assert "0_0" not in loop._tasks or not restoring.is_open


def test_a_commit_under_way_is_awaited_before_its_task_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    log.create_topic("in", 1)
    log.create_topic("out", 1)
    topology = Topology().add_source("in", "in").add_processor("plain", Plain, "in").add_sink("out", "out", "plain")
    of = Application("app", topology, log="memory:", changelog="memory:", data_dir=str(tmp_path), commit_interval="0ms")
    tasks: Tasks = {"0_0": (TopicPartition("in", 0),)}
    resources = ProcessResources()
    loop = TaskLoop(of, tasks, log, resources, lambda: 0)
    loop.run(tasks, {})
    turn_until(loop, lambda: loop.open_tasks == 1)
    loop.commit_all()
    committer = loop._tasks["0_0"].committer
    assert committer is not None
    order: list[str] = []
    begun, gate, commit, close = threading.Event(), threading.Event(), committer.commit, committer.close

    def slow(*arguments: Any) -> None:
        begun.set()
        assert gate.wait(60)
        commit(*arguments)
        order.append("committed")

    def noting_close() -> None:
        order.append("closed")
        close()

    monkeypatch.setattr(committer, "commit", slow)
    monkeypatch.setattr(committer, "close", noting_close)
    log.append(OutputBatch("in", [b"k"], [b"v"], [1]))
    turn_until(loop, begun.is_set)
    closing = threading.Thread(target=loop.close, kwargs={"commit": False})
    closing.start()
    wait_until(lambda: not loop._writing, "the loop is being closed")
    gate.set()
    closing.join(60)
    assert order == ["committed", "closed"]
    resources.close()


def test_what_is_restored_stands_still_when_it_makes_no_step(tmp_path: Path) -> None:
    with world(tmp_path, takes(), 2) as each:
        Takes.time = each.time
        each.loop.run(["0_0"], {})
        each.loop.turn(0)
        each.time.pass_by(1_000)
        assert each.loop.still()[0] == 0.0, "waiting for the log ends by itself"
        each.time.run_threads("penstock-fences")
        each.loop.turn(0)
        stretch = each.loop._tasks["0_0"].opening
        assert stretch is not None
        for _ in range(3):
            stretch.moved()
            assert each.loop.still()[0] == 0.0
            each.time.pass_by(200)
            assert each.loop.still() == (200.0, "the restoring of task 0_0")
            with stretch.waiting():
                each.time.pass_by(200)
                assert each.loop.still()[0] == 0.0, "others have their turn"


def test_a_global_store_is_filled_in_another_thread_and_read_on_in_portions(tmp_path: Path) -> None:
    class Keep(Processor):
        def process(self, record: Record) -> None:
            self.context.get_store("names").put(record.key, record.value)

    class LookUp(Takes):
        def process(self, record: Record) -> None:
            self.context.forward(record.with_value(self.context.get_store("names").get("k")))

    topology = (
        Topology()
        .add_global_store(key_value_store("names", **TEXTS), "names-source", "names", "keep", Keep, **TEXTS)
        .add_source("in", "in")
        .add_processor("look-up", LookUp, "in")
        .add_sink("out", "out", "look-up")
    )
    with world(tmp_path, topology, 1, number=1, commit_interval="0ms") as each:
        each.log.create_topic("names", 1)
        each.log.append(OutputBatch("names", [b"k"], [b"first"], [1]))
        each.loop.run(each.tasks, {})
        for _ in range(3):
            each.loop.turn(0)
        assert "penstock-rest" in {call.pool for call in each.time.calls} and not each.loop._preparing
        each.time.pass_by(200)
        assert each.loop.still() == (200.0, "the filling of the global stores")
        each.open_all()
        each.put(0, "1")
        wanted = ["first"]
        for news in (b"second", b"third"):
            for _ in range(3):
                each.loop.turn(0)
                each.time.run_threads()
            assert [value for _, value, _ in produced(each.log)] == wanted
            each.log.append(OutputBatch("names", [b"k"], [news], [2]))
            each.time.pass_by(1.0)
            each.loop.turn(0)
            each.put(0, "1")
            wanted.append(news.decode())
        assert each.loop.still()[0] == 0.0


def test_a_filling_that_a_close_has_ended_is_done_by_the_next_loop(tmp_path: Path) -> None:
    reached, gate = threading.Event(), threading.Event()

    class Keep(Processor):
        def process(self, record: Record) -> None:
            reached.set()
            assert gate.wait(60)
            self.context.get_store("names").put(record.key, record.value)

    topology = (
        Topology()
        .add_global_store(key_value_store("names", **TEXTS), "names-source", "names", "keep", Keep, **TEXTS)
        .add_source("in", "in")
        .add_processor("plain", Plain, "in")
        .add_sink("out", "out", "plain")
    )
    log, resources = MemoryLog(), ProcessResources()
    for topic in ("in", "names", "out"):
        log.create_topic(topic, 1)
    log.append(OutputBatch("names", [b"k"], [b"v"], [1]))
    of = Application("app", topology, log="memory:", changelog="memory:", data_dir=str(tmp_path))
    tasks: Tasks = {"1_0": (TopicPartition("in", 0),)}
    first = TaskLoop(of, tasks, log, resources, lambda: 0)
    first.run(tasks, {})
    turn_until(first, reached.is_set)
    threading.Timer(0.05, gate.set).start()
    first.close(commit=False)
    second = TaskLoop(of, tasks, log, resources, lambda: 0)
    second.run(tasks, {})
    turn_until(second, lambda: second.open_tasks == 1)
    assert resources.globals_of(of).stores["names"].get("k") == "v"  # type: ignore[attr-defined]
    second.close(commit=False)
    resources.close()


# ---------------------------------------------------------------------- parts


def test_an_alarm_ends_what_takes_too_long_and_nothing_else() -> None:
    alarm, ended = Alarm(World()), threading.Event()
    alarm.begin(ended.set, 0.0)
    wait_until(ended.is_set, "the alarm")
    assert alarm.end() and not alarm.end()
    alarm.begin(lambda: None, float("inf"))
    assert not alarm.end()
    alarm.close()


def test_threads_pass_a_turnstile_in_the_order_in_which_they_came() -> None:
    turnstile, order = Turnstile(1), []
    turnstile.enter()

    def work(number: int) -> None:
        turnstile.enter()
        order.append(number)
        turnstile.leave()

    threads = []
    for number in range(5):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        threads.append(thread)
        wait_until(lambda: len(turnstile._waiting) == len(threads), "it waits")
    turnstile.let_others_in()
    assert order == list(range(5))
    turnstile.leave()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("waits", [False, True], ids=["slow", "waits for another input"])
def test_what_waits_in_a_host_is_bounded_by_a_setting_and_nothing_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Eight tasks, each of which stays below the limit of a single input."""
    monkeypatch.setattr(loop_module, "_MOST_POLLED", 40)
    monkeypatch.setattr(loop_module, "_FEWEST_POLLED", 4)
    tasks, most, size = 8, 400_000, 1_000
    topology = takes()
    if waits:
        topology = Topology().add_source("in", "in").add_source("other", "other")
        topology = topology.add_processor("takes", Takes, ["in", "other"]).add_sink("out", "out", "takes")
    given = {"commit_interval": "0ms", "input_buffer_max_bytes": most, "max_task_idle": "1d" if waits else "0ms"}
    with world(tmp_path, topology, tasks, **given) as each:
        if waits:
            each.log.create_topic("other", tasks)
            each.loop.close(commit=False)
            each.tasks.update(
                {name: (*inputs, TopicPartition("other", inputs[0].partition)) for name, inputs in each.tasks.items()}
            )
            each.make_loop()
        Takes.time = each.time
        each.open_all()
        for _ in range(12):
            for partition in range(tasks):
                each.put(partition, *[f"{1 if waits else 60}{' ' * size}"] * 10)
        worst = 0
        for turn in range(4_000):
            if len(produced(each.log)) == tasks * 120 or (waits and turn == 200):
                break
            each.loop.turn(0)
            each.time.run_threads()
            worst = max(worst, queued(each.loop) * size)
        assert most // 2 < worst < 2 * most
        if waits:
            assert not produced(each.log)
            for partition in range(tasks):
                texts: list[bytes | None] = [b"1"]
                each.log.append(OutputBatch("other", [b"k"], texts, [10], None, [[partition]]))
            for _ in range(4_000):
                if len(produced(each.log)) == tasks * 121:
                    break
                each.loop.turn(0)
                each.time.run_threads()
                each.time.pass_by(3_600.0 if len(produced(each.log)) == tasks * 120 else 0.01)
            assert len(produced(each.log)) >= tasks * 120


class Quick(Takes):
    def take(self, seconds: float) -> None:
        super().take(seconds / 5)


def test_tasks_of_a_repartition_topic_commit_seldom_while_its_writers_are_behind(tmp_path: Path) -> None:
    """Their input comes in portions, with the others' commits; between these they have less and less to process."""
    topology = takes().add_repartition("again", "takes").add_processor("more", Quick, "again")
    topology.add_sink("late", "out", "more")
    with world(tmp_path, topology, 1, commit_interval="20ms") as each:
        Takes.time = each.time
        each.log.create_topic("app-again-repartition", 1)
        each.tasks["1_0"] = (TopicPartition("app-again-repartition", 0),)
        each.loop.close()
        each.make_loop()
        each.open_all()
        first, second = each.loop._tasks["0_0"], each.loop._tasks["1_0"]
        assert (first.upstream, second.upstream) == ([], [first])
        begun = Counter[str]()

        def count_commits(task: ContinuousWorker) -> None:
            begin = task.begin_commit

            def counting() -> Any:
                begun[str(task.id)] += 1
                return begin()

            task.begin_commit = counting  # type: ignore[method-assign]

        count_commits(first)
        count_commits(second)
        each.put(0, *["5"] * 2_000)
        for _ in range(20_000):
            if len(produced(each.log)) == 4_000:
                break
            before = each.time.now
            each.loop.turn(0)
            if first.is_committing or second.is_committing or each.time.now == before:
                each.time.pass_by(0.01)
            each.time.run_threads()
        assert len(produced(each.log)) == 4_000 and not each.loop.take_failures()
        assert begun["1_0"] <= begun["0_0"] + 5
