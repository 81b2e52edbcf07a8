"""BatchPlanner: when a batch runs and how far it reads; laws over random lags, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Commit, ManualClock, OutputBatch, RuntimeUnavailableError, TopicPartition
from penstock.plugins.engine.host.reports import SlotPlan
from penstock.plugins.engine.run.planning.control import Control, ControlFile, OwnOrders, PlannedApplication
from penstock.plugins.engine.run.planning.planner import RENEWAL_SECONDS, BatchPlanner, Offset, _limit
from penstock.plugins.engine.task.fronts import Fronts
from penstock.plugins.logs.memory import MemoryLog

KNOWN = {"0": [1_000, 0], "1": [1_000, 0]}
"""How far everything in front of sub-topologies is read that have nothing in front of them."""
IN = TopicPartition("in", 0)
INTERNAL = TopicPartition("app-r", 0)


class Stage:
    """A planner beside a log in memory; waits are counted and not waited."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock(1_000)
        self.log = MemoryLog(f"{directory}", {})
        self.log.create_topic("in", 1)
        self.log.create_topic("app-r", 1, internal=True)
        self.control = ControlFile(directory)
        self.control.write(Control())
        self.plan = PlannedApplication(
            "app", {"0_0": [("in", 0)], "1_0": [("app-r", 0)]}, ["app-r"], {}, [], 2, None, 1_000,
            str(directory),
        )  # fmt: skip
        self.waits: list[float] = []
        self.seconds = 0.0
        self.planner = self.new_planner()
        self.commit("0_0", IN, 0)
        self.commit("1_0", INTERNAL, 0)

    def new_planner(self, **changes: object) -> BatchPlanner:
        plan = replace(self.plan, **changes)  # type: ignore[arg-type]
        return BatchPlanner(plan, self.log, self.clock, self.waits.append, lambda: self.seconds, self.control)

    def put(self, topic: str, count: int) -> None:
        self.log.append(OutputBatch(topic, [b"k"] * count, [b"v"] * count, [0] * count))

    def commit(self, task: str, partition: TopicPartition, position: int) -> None:
        committer = self.log.open_committer("app", task, [partition])
        committer.commit(Commit({partition: position}, f"{position:012d}-x"), [])
        committer.close()

    def started(self) -> Offset:
        """The offset after the first batch, which always runs, and opens every task."""
        offset = self.planner.next(self.planner.first(), None)
        self.order()
        return offset

    def order(self, **changes: object) -> None:
        """Write a control file, of a runner whose tasks are open."""
        self.control.write(Control(**{"unopened": [], **changes}))  # type: ignore[arg-type]


def plans(planner: BatchPlanner, end: Offset) -> list[SlotPlan]:
    return planner.plans(end)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_the_first_batch_always_runs_and_then_none_without_reason(stage: Stage) -> None:
    first = stage.started()
    assert first == {
        "seq": 1,
        "clock_ms": 1_000,
        "step": -1,
        "ends": {"in": {"0": 0}, "app-r": {"0": 0}},
        "fronts": KNOWN,
    }
    assert stage.planner.next(first, None) is first


def test_a_position_below_its_end_makes_a_batch(stage: Stage) -> None:
    first = stage.started()
    stage.put("in", 5)
    second = stage.planner.next(first, None)
    assert (second["seq"], second["ends"]["in"]) == (2, {"0": 5})
    stage.commit("0_0", IN, 5)
    assert stage.planner.next(second, None) is second


def test_a_batch_that_moved_nothing_is_repeated_but_not_at_once(stage: Stage) -> None:
    stage.put("in", 5)
    offset = stage.started()
    for _ in range(8):
        offset = stage.planner.next(offset, None)
    assert offset["seq"] == 9
    assert stage.waits == sorted(stage.waits)
    assert stage.waits[-1] == 0.5
    stage.commit("0_0", IN, 2)
    stage.planner.next(offset, None)
    assert len(stage.waits) == 8


def test_batches_that_moved_nothing_may_be_any_number(stage: Stage) -> None:
    """2.0**1024 is too large for a float: the exponent stays small."""
    stage.put("in", 5)
    offset = stage.started()
    for _ in range(1_100):
        offset = stage.planner.next(offset, None)
    assert offset["seq"] == 1_101
    assert stage.waits[-1] == 0.5
    stage.planner._idle_batches = 10**9
    stage.planner.next(offset, None)
    assert stage.waits[-1] == 0.5


def test_a_tick_that_is_due_makes_a_batch_and_not_more_often_than_the_interval(stage: Stage) -> None:
    first = stage.started()
    stage.order(next_tick=1_500)
    stage.clock.advance("600ms")
    assert stage.planner.next(first, None) is first, "due, but the last batch was less than an interval ago"
    stage.clock.advance("400ms")
    second = stage.planner.next(first, None)
    assert (second["seq"], second["clock_ms"]) == (2, 2_000)
    stage.order(next_tick=10_000)
    stage.clock.advance("5s")
    assert stage.planner.next(second, None) is second


class MarkersOnTheirWay(MemoryLog):
    """Like Kafka just after a commit: for a while the ends that can be read are before it."""

    held_back: int = 0
    """How many times somebody may still ask for stable ends before they are up to date."""

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        ends = super().end_offsets(partitions)
        if not stable:
            return ends
        if not self.held_back:
            return ends
        self.held_back -= 1
        return {each: end - 3 if each == INTERNAL and end >= 3 else end for each, end in ends.items()}


@pytest.mark.parametrize("held_back", [1, 2, 5])
def test_records_on_their_way_are_waited_for(stage: Stage, held_back: int) -> None:
    """A drain must not end before what was committed to an internal topic can be read, whenever the marker lands."""
    stage.log.__class__ = MarkersOnTheirWay
    offset = stage.planner.next(stage.planner.first(), None)
    stage.planner.drain_only()
    stage.put("app-r", 3)
    stage.log.held_back = held_back  # type: ignore[attr-defined]
    following = stage.planner.next(offset, None)
    assert following is not offset
    assert following["ends"]["app-r"] == {"0": 3}


def test_records_that_never_come_make_a_batch(stage: Stage) -> None:
    """It opens the tasks, which ends the transactions of those that crashed."""
    stage.log.__class__ = MarkersOnTheirWay
    offset = stage.planner.next(stage.planner.first(), None)
    stage.put("app-r", 3)
    stage.log.held_back = 1_000_000  # type: ignore[attr-defined]
    assert stage.planner.next(offset, None)["seq"] == 2
    assert sum(stage.waits) >= 1.0


def test_a_batch_runs_at_once_after_the_clock_was_set_back(stage: Stage) -> None:
    """When punctuators are due was said by the clock before; tasks have it said anew."""
    offset = stage.started()
    stage.order(next_tick=5_000)
    assert stage.planner.next(offset, None) is offset
    stage.order(next_tick=5_000, clock_ms=900)
    offset = stage.planner.next(offset, None)
    assert (offset["seq"], offset["clock_ms"]) == (2, 900)
    assert stage.planner.next(offset, None) is offset
    stage.order(clock_ms=800)
    assert stage.planner.next(offset, None) is offset, "nothing waits for a time"


def test_a_quiet_application_runs_a_batch_in_time_for_the_leases_of_hosts(stage: Stage) -> None:
    offset = stage.started()
    stage.seconds += 2 * RENEWAL_SECONDS
    assert stage.planner.next(offset, None) is offset, "it counts from the batch's end"
    stage.seconds += RENEWAL_SECONDS - 1
    assert stage.planner.next(offset, None) is offset
    stage.seconds += 1
    offset = stage.planner.next(offset, None)
    assert (offset["seq"], offset["ends"]) == (2, {})
    assert stage.planner.next(offset, None) is offset
    stage.seconds += RENEWAL_SECONDS
    stage.order(stopping=True)
    assert stage.planner.next(offset, None) is offset
    stage.order(step=-1, clock_ms=5)
    assert stage.planner.next(offset, None) is offset, "a test's steps run nothing in between"


def test_stopping_plans_nothing(stage: Stage) -> None:
    stage.put("in", 5)
    stage.order(stopping=True)
    start = stage.planner.first()
    assert stage.planner.next(start, None) is start


def test_orders_that_are_gone_are_an_error(stage: Stage, tmp_path: Path) -> None:
    """If something cleans the temporary directory, no batch would be planned for ever, without a word."""
    offset = stage.started()
    stage.put("in", 5)
    (tmp_path / "control").unlink()
    with pytest.raises(RuntimeUnavailableError, match="TMPDIR of the driver name a directory that nothing cleans"):
        stage.planner.next(offset, None)


def test_orders_in_memory(stage: Stage) -> None:
    orders = OwnOrders()
    planner = BatchPlanner(stage.plan, stage.log, stage.clock, stage.waits.append, lambda: stage.seconds, orders)
    offset = planner.next(planner.first(), None)
    orders.write(Control(unopened=[], step=1))
    assert orders.has_changed()
    offset = planner.next(offset, None)
    assert offset["step"] == 1 and not orders.has_changed()
    assert planner.next(offset, None) is offset and orders.read_drained() == 1
    orders.write(Control(stopping=True, step=2))
    assert planner.next(offset, None) is offset


def test_draining_stops_at_what_was_there_but_not_in_topics_of_our_own(stage: Stage) -> None:
    stage.put("in", 5)
    stage.planner.drain_only()
    stage.put("in", 5)
    first = stage.started()
    assert first["ends"]["in"] == {"0": 5}
    stage.commit("0_0", IN, 5)
    stage.put("app-r", 3)
    second = stage.planner.next(first, None)
    assert second["ends"] == {"app-r": {"0": 3}}
    stage.commit("1_0", INTERNAL, 3)
    assert stage.planner.next(second, None) is second


def test_steps_run_at_the_clock_that_is_given_and_are_answered(stage: Stage) -> None:
    stage.control.write(Control(clock_ms=77, step=0, next_tick=0))
    first = stage.planner.next(stage.planner.first(), None)
    assert (first["clock_ms"], first["step"]) == (77, 0)
    assert stage.control.read_drained() == -1
    assert stage.planner.next(first, None) is first, "ticks are the step's business"
    assert stage.control.read_drained() == 0
    stage.order(clock_ms=99, step=1)
    second = stage.planner.next(first, None)
    assert (second["clock_ms"], second["step"]) == (99, 1)


def test_only_tasks_with_work_are_planned_with_all_their_partitions(stage: Stage) -> None:
    stage.log.create_topic("other", 1)
    planner = stage.new_planner(tasks={"0_0": [("in", 0), ("other", 0)], "1_0": [("app-r", 0)]})
    first = planner.next(planner.first(), None)
    stage.order()
    stage.put("in", 5)
    second = planner.next(first, None)
    assert second["ends"] == {"in": {"0": 5}, "other": {"0": 0}}
    assert planner.latest()["ends"] == second["ends"]
    slots = plans(planner, second)
    assert [dict(each.ends) for each in slots] == [{"0_0": {IN: 5, TopicPartition("other", 0): 0}}, {}]


def test_a_plan_says_where_tasks_begin_that_were_not_open_or_have_not_committed(stage: Stage) -> None:
    """Of other tasks Spark knows the last commit, and so the lag."""
    new = TopicPartition("new", 0)
    stage.log.create_topic("new", 1)
    planner = stage.new_planner(tasks={"0_0": [("in", 0)], "1_0": [("app-r", 0)], "2_0": [("new", 0)]})
    stage.commit("0_0", IN, 2)
    stage.put("in", 5)
    stage.put("new", 4)
    first = planner.next(planner.first(), None)
    assert first["starts"] == {"in": {"0": 2}, "new": {"0": 0}}
    assert [each.starts for each in plans(planner, first)] == [{IN: 2, new: 0}, {}]
    stage.order()
    second = planner.next(first, None)
    assert second["starts"] == {"new": {"0": 0}} and second["ends"] == {"in": {"0": 5}, "new": {"0": 4}}
    stage.commit("2_0", new, 1)
    assert "starts" not in planner.next(second, None)


def test_every_slot_gets_a_plan_even_without_work(stage: Stage) -> None:
    planner = stage.new_planner(parallelism=5, globals=["table"])
    end: Offset = {
        "seq": 3, "clock_ms": 5, "step": -1, "ends": {"in": {"0": 9}, "gone": {"0": 1}},
        "globals": {"table": {"0": 2, "1": 4}}, "topics": {"table": "id"}, "owners": {"3": "host-1"},
    }  # fmt: skip
    table = {TopicPartition("table", 0): 2, TopicPartition("table", 1): 4}
    assert plans(planner, end) == [
        SlotPlan(
            number,
            "host-1" if number == 3 else "",
            5,
            {"0_0": {IN: 9}} if number == 0 else {},
            table,
            {"table": "id"},
            seconds=30.0,
            restore_seconds=1.0,
        )
        for number in range(5)
    ]


def test_how_long_a_batch_waits_for_restores(stage: Stage) -> None:
    """Where no batch may follow, to their end; else until others have their next batch."""
    end: Offset = {"seq": 3, "clock_ms": 5, "step": -1, "ends": {}}
    planner = stage.new_planner(interval_ms=10_000)
    assert planner.plans(end)[0].restore_seconds == 10.0
    assert planner.plans({**end, "step": 1})[0].restore_seconds is None
    planner.drain_only()
    assert planner.plans(end)[0].restore_seconds is None


def test_plans_are_a_function_of_the_offset_alone(stage: Stage) -> None:
    """Spark repeats a batch whose end it has logged, in another process."""
    stage.put("in", 5)
    stage.order(owners={"0": "host-1"}, unopened=["1_0"])
    end = json.loads(json.dumps(stage.planner.next(stage.planner.first(), 3)))
    before = stage.planner.plans(end)
    stage.put("in", 7)
    stage.order(owners={"0": "host-2"}, unopened=None)
    stage.planner.next(end, None)
    assert stage.planner.plans(end) == before == stage.new_planner().plans(end)
    assert [each.owner for each in plans(stage.planner, end)] == ["host-1", ""]
    assert [dict(each.ends) for each in plans(stage.planner, end)] == [{"0_0": {IN: 3}}, {"1_0": {INTERNAL: 0}}]


def test_batches_follow_those_of_the_continuous_mode(stage: Stage) -> None:
    renewal = {"seq": 7, "clock_ms": 5, "owners": {"0": "e"}, "suspects": {}, "stopping": True, "settled_in": ""}
    stage.put("in", 3)
    after = stage.planner.next(renewal, None)
    assert (after["seq"], after["step"]) == (8, -1)
    assert plans(stage.planner, after)[0].ends["0_0"][IN] == 3
    # The last one was logged, and not run before the stop.
    assert [(dict(each.ends), each.is_settled) for each in plans(stage.new_planner(), renewal)] == [({}, False)] * 2


def test_a_plan_says_that_every_task_is_open_where_this_run_has_seen_it(stage: Stage) -> None:
    first = stage.planner.next(stage.planner.first(), None)
    assert [each.is_settled for each in plans(stage.planner, first)] == [False, False]
    stage.order(unopened=[])
    stage.put("in", 1)
    second = stage.planner.next(first, None)
    assert [each.is_settled for each in plans(stage.planner, second)] == [True, True]
    # Spark repeats a batch of an earlier run, whose hosts are gone.
    assert [each.is_settled for each in plans(stage.new_planner(control="elsewhere"), second)] == [False, False]
    stage.order(unopened=["1_0"])
    third = stage.planner.next(second, None)
    assert [each.is_settled for each in plans(stage.planner, third)] == [False, False]


def test_tasks_that_no_host_has_open_make_a_batch(stage: Stage) -> None:
    offset = stage.started()
    stage.order(unopened=["1_0", "gone"])
    offset = stage.planner.next(offset, None)
    assert (offset["seq"], offset["ends"]) == (2, {"app-r": {"0": 0}})
    assert stage.planner.next(offset, None) is offset, "the runner has not read the batch's reports yet"
    stage.put("in", 1)
    offset = stage.planner.next(offset, None)
    assert offset["ends"] == {"in": {"0": 1}}
    stage.commit("0_0", IN, 1)
    stage.seconds += 1.0
    offset = stage.planner.next(offset, None)
    assert (offset["seq"], offset["ends"]) == (4, {"app-r": {"0": 0}}), "it is still not open"
    stage.order(unopened=None)
    offset = stage.planner.next(offset, None)
    assert offset["ends"] == {"in": {"0": 1}, "app-r": {"0": 0}}, "another list counts at once"
    stage.order()
    assert stage.planner.next(offset, None) is offset


def test_tasks_of_the_first_batch_are_not_opened_twice_by_a_list_that_is_older(stage: Stage) -> None:
    first = stage.planner.next(stage.planner.first(), None)
    stage.seconds += 30.0
    assert stage.planner.next(first, None) is first
    stage.seconds += 1.0
    assert stage.planner.next(first, None)["seq"] == 2


def test_a_slot_that_loses_its_owner_makes_a_batch_and_one_that_gets_its_first_none(stage: Stage) -> None:
    offset = stage.started()
    stage.order(owners={"0": "host-1", "1": "host-1"})
    assert stage.planner.next(offset, None) is offset
    stage.put("in", 1)
    offset = stage.planner.next(offset, None)
    assert [each.owner for each in plans(stage.planner, offset)] == ["host-1", "host-1"]
    stage.commit("0_0", IN, 1)
    assert stage.planner.next(offset, None) is offset
    stage.order(owners={"1": "host-1"})
    offset = stage.planner.next(offset, None)
    assert [each.owner for each in plans(stage.planner, offset)] == ["", "host-1"]
    assert stage.planner.next(offset, None) is offset


def test_under_a_limit_tasks_without_a_share_wait(stage: Stage) -> None:
    offset = stage.started()
    stage.put("in", 100)
    stage.put("app-r", 1)
    ends = [stage.planner.next({**offset, "seq": seq}, 1)["ends"] for seq in range(2)]
    assert sorted(map(sorted, ends)) == [["app-r"], ["in"]]


def test_a_plan_says_how_long_tasks_may_read_and_a_limit_how_many_records(stage: Stage) -> None:
    stage.put("in", 20_000)
    offset = stage.started()
    assert offset["ends"]["in"] == {"0": 20_000}
    assert {each.seconds for each in plans(stage.planner, offset)} == {30.0}
    stage.commit("0_0", IN, 1_000)
    assert stage.planner.next(offset, None)["ends"]["in"] == {"0": 20_000}, "what is left is for the next batch"
    assert stage.planner.next(offset, 7)["ends"]["in"] == {"0": 1_007}
    stage.order(step=1, clock_ms=5)
    offset = stage.planner.next(offset, None)
    assert offset["ends"]["in"] == {"0": 20_000}
    assert {each.seconds for each in plans(stage.planner, offset)} == {None}, "a test's step reads everything"


def test_a_backlog_is_read_without_pauses_between_the_batches_of_a_long_interval(stage: Stage) -> None:
    planner = stage.new_planner(interval_ms=60_000)
    assert {each.seconds for each in plans(planner, planner.next(planner.first(), None))} == {120.0}


def test_draining_in_batches_of_limited_size_ends_with_everything_read(stage: Stage) -> None:
    stage.put("in", 2_000)
    stage.planner.drain_only()
    offset, position, batches = stage.started(), 0, 0
    while True:
        position = min(position + 300, 2_000)  # tasks had no time for more
        stage.commit("0_0", IN, position)
        following = stage.planner.next(offset, None)
        if following is offset:
            break
        offset, batches = following, batches + 1
    assert position == 2_000
    assert batches == 6


class Counting(MemoryLog):
    """Counts the partitions that are asked for."""

    asked: int

    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        self.asked += len(partitions)
        return super().committed(application_id, partitions)

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        if not stable:
            self.asked += len(partitions)
        return super().end_offsets(partitions)


def test_positions_are_asked_for_only_where_something_can_have_moved(stage: Stage) -> None:
    offset = stage.started()
    stage.planner.next(offset, None)
    stage.log.__class__ = Counting
    stage.log.asked = 0  # type: ignore[attr-defined]
    assert stage.planner.next(offset, None) is offset
    assert stage.log.asked == 0  # type: ignore[attr-defined]
    stage.put("in", 5)
    offset = stage.planner.next(offset, None)
    assert stage.log.asked == 1  # type: ignore[attr-defined]
    stage.commit("0_0", IN, 5)
    stage.log.asked = 0  # type: ignore[attr-defined]
    stage.planner.next(offset, None)
    assert stage.log.asked == 2, "what was behind, and the internal topic, which may have got records"  # type: ignore[attr-defined]
    stage.planner.next(offset, None)
    assert stage.log.asked == 2  # type: ignore[attr-defined]


def test_a_position_that_went_back_is_seen_after_a_while(stage: Stage) -> None:
    stage.put("in", 5)
    stage.commit("0_0", IN, 5)
    offset = stage.started()
    stage.log.set_positions("app", {IN: 2, INTERNAL: 0})
    assert stage.planner.next(offset, None) is offset
    stage.seconds += 31.0
    assert stage.planner.next(offset, None)["ends"] == {"in": {"0": 5}}


def test_topics_of_global_stores_are_planned_as_they_are_before_each_batch(stage: Stage) -> None:
    planner = stage.new_planner(globals=["table"])
    assert "globals" not in planner.next(planner.first(), None), "the task that misses it says so"
    ids = []
    for partitions in (2, 3):
        stage.log.create_topic("table", partitions)
        offset = stage.new_planner(globals=["table"]).next(planner.first(), None)
        assert offset["globals"]["table"] == dict.fromkeys(map(str, range(partitions)), 0)
        ids.append(offset["topics"]["table"])
        stage.log.delete_topic("table")
    assert ids[0] and ids[1] and ids[0] != ids[1]


def test_the_plan_survives_its_file(stage: Stage) -> None:
    stage.plan.write()
    read = PlannedApplication.read(stage.plan.control)
    assert {task: [tuple(each) for each in partitions] for task, partitions in read.tasks.items()} == stage.plan.tasks
    assert replace(read, tasks={}) == replace(stage.plan, tasks={})


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 5_000)), min_size=1, max_size=8),
    st.integers(1, 2_000),
    st.integers(0, 100),
)
def test_a_limit_is_kept_used_up_and_never_moves_an_end_back(sizes: list[tuple[int, int]], most: int, seq: int) -> None:
    partitions = [TopicPartition("t", number) for number in range(len(sizes))]
    positions = {each: position for each, (position, _) in zip(partitions, sizes, strict=True)}
    ends = {each: position + lag for each, (position, lag) in zip(partitions, sizes, strict=True)}
    behind = {each: positions[each] for each in partitions if positions[each] < ends[each]}
    planned = positions | _limit(behind, ends, most, seq)
    assert all(positions[each] <= planned[each] <= ends[each] for each in partitions)
    read = sum(planned[each] - positions[each] for each in partitions)
    lag = sum(ends[each] - positions[each] for each in partitions)
    assert read <= most
    assert read >= min(most, lag) - len(partitions), "rounding may leave a record a partition for the next batch"
    assert read > 0 or not lag


@given(st.integers(1, 6), st.integers(1, 3))
def test_under_a_limit_everybody_gets_a_turn(count: int, most: int) -> None:
    partitions = [TopicPartition("t", number) for number in range(count)]
    positions = dict.fromkeys(partitions, 0)
    ends = {each: 10 if each.partition else 1_000_000 for each in partitions}
    for seq in range(200 * count):
        behind = {each: at for each, at in positions.items() if at < ends[each]}
        positions = {**positions, **_limit(behind, ends, most, seq)} if behind else positions
    assert all(positions[each] == 10 for each in partitions if each.partition)


BEHIND = {"0": [], "1": [0]}
"""Sub-topology 1 reads what 0 writes."""


def test_what_is_in_front_is_read_once_the_batch_before_has_read_it(stage: Stage) -> None:
    planner = stage.new_planner(upstream=BEHIND, holding=[0])
    offset = planner.next(planner.first(), None)
    stage.order()
    found = [offset["fronts"]]
    for read in 3, 3, 8, 9:  # of 3, 6, 9 and 9 records
        stage.put("in", 3 if read < 9 else 0)
        stage.clock.advance("1s")
        offset = planner.next(offset, None)
        found.append(offset["fronts"])
        stage.commit("0_0", IN, read)
    stage.put("app-r", 1)
    found.append(planner.next(offset, None)["fronts"])
    assert [each["0"] for each in found] == [[1_000, 0], [2_000, 0], [3_000, 0], [4_000, 0], [5_000, 0], [5_000, 0]]
    # At first nothing is known. What was there at 3,000 is read at 5,000; what was there then, in the last batch.
    assert [each["1"] for each in found] == [[0, 0], [1_000, 0], [2_000, 3], [2_000, 3], [3_000, 8], [5_000, 9]]


def test_a_drain_ends_when_all_have_read_what_tasks_in_front_do_at_its_time(stage: Stage) -> None:
    planner = stage.new_planner(upstream=BEHIND)
    planner.drain_only()
    first = planner.next(planner.first(), None)
    stage.order()
    second = planner.next(first, None)
    assert [each["fronts"]["1"] for each in (first, second)] == [[0, 0], [1_000, 0, 1]], "the last one"
    assert planner.next(second, None) is second


def test_a_task_that_may_not_read_all_has_not_read_what_is_in_front_of_it(stage: Stage) -> None:
    stage.put("in", 5)
    offset = stage.planner.next(stage.planner.first(), 2)
    assert offset["fronts"] == {**KNOWN, "0_0": [-1]}
    fronts = [plan.front_of(task) for plan, task in zip(plans(stage.planner, offset), ("0_0", "1_0"), strict=True)]
    assert [front.time for front in fronts] == [-1, 1_000]


def test_a_sub_topology_that_stands_still_or_is_paused_holds_nobody(stage: Stage) -> None:
    for paused in ([0], []):
        planner = stage.new_planner(upstream=BEHIND)
        stage.put("in", 1)
        offset = planner.next(planner.first(), None)
        stage.order(paused=paused)
        began = stage.clock.now_ms()
        for _ in range(40):
            if offset["fronts"]["1"][0] >= began:
                break
            stage.clock.advance("5s")
            stage.seconds += RENEWAL_SECONDS + 1
            offset = planner.next(offset, None)
        assert offset["fronts"]["1"][0] >= began
        assert (stage.clock.now_ms() - began >= 60_000) == (not paused)


def test_a_sub_topology_without_tasks_is_in_front_of_nobody(stage: Stage) -> None:
    """Its pattern matches no topic yet."""
    planner = stage.new_planner(upstream=BEHIND, tasks={"1_0": [("app-r", 0)]})
    assert planner.next(planner.first(), None)["fronts"] == {"1": [1_000, 0]}


@pytest.mark.parametrize("clock", [10_000, 10_000_000])
def test_what_is_never_called_in_front_holds_nobody_although_records_are_read(clock: int) -> None:
    """A schedule whose callback is gone stays due. The clock is set back meanwhile, or not."""
    fronts = Fronts({0: [], 1: [0]}, {0: [IN], 1: [INTERNAL]}, [0])
    fronts.look(clock, {IN: 5, INTERNAL: 0}, {IN: 0}, busy=[0])
    for number in range(1, 80):
        fronts.look(10_000 + 1_000 * number, {IN: 5 + number, INTERNAL: 0}, {IN: 5 + number}, busy=[0])
    assert fronts.fronts[1].time == clock
