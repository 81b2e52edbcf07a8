"""RenewalPlanner and Beats: when a batch of the continuous mode runs, and which hosts seem to be dead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import ManualClock, OutputBatch
from penstock.plugins.engine.host.claims import SlotLayout
from penstock.plugins.engine.host.reports import SILENT, STUCK, STUCK_SECONDS, HostStatus, SlotMessage, SlotPlan
from penstock.plugins.engine.run.planning.control import Control, ControlFile, PlannedApplication
from penstock.plugins.engine.run.planning.planner import Offset
from penstock.plugins.engine.run.planning.renewals import RENEWAL_SECONDS, RenewalPlanner
from penstock.plugins.engine.task import own_topics
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.spark.watching import MISSING_SECONDS, Beats, Stops
from penstock.record import TopicPartition
from penstock.support.repeats import Repeats


class Stage:
    """A planner whose waits are counted and not waited."""

    def __init__(self, directory: Path) -> None:
        self.control = ControlFile(directory)
        self.order()
        tasks = {f"0_{each}": [("in", each)] for each in range(3)}
        plan = PlannedApplication("app", tasks, [], {}, [], 2, None, 1_000, str(directory), is_continuous=True)
        self.seconds = 0.0
        self.planner = RenewalPlanner(plan, ManualClock(5), lambda seconds: None, lambda: self.seconds)
        self.at = self.planner.first()

    def order(self, **changes: object) -> None:
        self.control.write(replace(Control(), **changes))  # type: ignore[arg-type]

    def next(self) -> Offset | None:
        """The next batch, if there is one."""
        before, self.at = self.at, self.planner.next(self.at, None)
        return None if self.at == before else self.at

    def plans(self, offset: Offset) -> list[SlotPlan]:
        return self.planner.plans(offset)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_batch_runs_at_the_start_and_then_now_and_then(stage: Stage) -> None:
    first = stage.next()
    assert first is not None
    assert [sorted(each.ends) for each in stage.plans(first)] == [["0_0", "0_2"], ["0_1"]]
    assert {each.clock_ms for each in stage.plans(first)} == {5}
    stage.seconds = RENEWAL_SECONDS - 0.1
    assert stage.next() is None
    stage.seconds = RENEWAL_SECONDS
    assert stage.next() is not None
    assert stage.next() is None


def test_a_batch_runs_when_the_runner_asks_for_one(stage: Stage) -> None:
    stage.next()
    stage.order(renewal=1, suspects={"1": SILENT}, owners={"0": "executor"})
    asked = stage.next()
    assert asked is not None and stage.next() is None
    assert [each.suspect for each in stage.plans(asked)] == ["", SILENT]
    assert [each.owner for each in stage.plans(asked)] == ["executor", ""]


def test_a_batch_runs_at_once_when_a_slot_moves(stage: Stage) -> None:
    """Also before the second batch, where the first plan could name no owner."""
    stage.next()
    for owner in ("executor", "other"):
        stage.order(owners={"0": owner})
        assert stage.next() is None, "the slot has an owner, who ran the last batch"
        stage.order()
        moved = stage.next()
        assert moved is not None and stage.next() is None
        assert [each.owner for each in stage.plans(moved)] == ["", ""]


def test_a_plan_says_whether_every_task_is_open(stage: Stage) -> None:
    for renewal, unopened in enumerate((None, ["0_0"], [])):
        stage.order(renewal=renewal, unopened=unopened)
        planned = stage.next()
        assert planned is not None
        assert {each.is_settled for each in stage.plans(planned)} == {unopened == []}


def test_renewals_follow_the_batches_of_the_other_mode(stage: Stage) -> None:
    batch = {"seq": 7, "clock_ms": 5, "step": 3, "ends": {"in": {"0": 9}}, "settled_in": "elsewhere"}
    assert [sorted(each.ends) for each in stage.plans(batch)] == [["0_0", "0_2"], ["0_1"]]
    stage.at = batch
    after = stage.next()
    assert after is not None and after["seq"] == 8


def test_a_batch_runs_when_a_slot_moves(stage: Stage) -> None:
    stage.order(owners={"0": "one", "1": "one"})
    stage.next()
    stage.order(owners={"0": "one"})
    moved = stage.next()
    assert moved is not None and [each.owner for each in stage.plans(moved)] == ["one", ""]
    assert stage.next() is None


def test_the_last_batch_lets_the_hosts_stop(stage: Stage) -> None:
    stage.next()
    stage.order(stopping=True)
    last = stage.next()
    assert last is not None and all(each.stopping for each in stage.plans(last))
    assert stage.next() is None


def test_hosts_are_asked_to_stop_until_the_run_ends(stage: Stage) -> None:
    stage.order(owners={"0": "one", "1": "gone"})
    stage.next()
    stage.order(owners={"0": "one", "1": "gone"}, stopping=True)
    stage.next()
    stage.seconds += 1.0
    again = stage.next()
    assert again is not None and [each.owner for each in stage.plans(again)] == ["one", "gone"]
    assert all(each.stopping for each in stage.plans(again))
    # The owner of the second slot is gone: any other may say that nothing runs there.
    stage.order(owners={"0": "one"}, stopping=True)
    moved = stage.next()
    assert moved is not None and [each.owner for each in stage.plans(moved)] == ["one", ""]


def test_a_run_is_at_rest_once_each_slot_has_said_so_or_the_lease_of_its_host_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [5.0]
    stops = Stops("app", 2, 60.0, lambda: now[0])
    stops.note([SlotMessage(0, "e", stopped=True)])
    assert not stops.are_over()
    stops.begin()
    stops.note([SlotMessage(0, "e"), SlotMessage(1, "e", elsewhere="other")])
    stops.note([SlotMessage(0, "e", stopped=True), SlotMessage(1, "e", elsewhere="other")])
    assert not stops.are_over()
    stops.note([SlotMessage(0, "e", elsewhere="other"), SlotMessage(1, "other", stopped=True)])
    assert stops.are_over() and not caplog.records
    stops = Stops("app", 2, 60.0, lambda: now[0])
    stops.begin()
    stops.note([SlotMessage(0, "e", stopped=True)])
    now[0] += 59.0
    stops.begin()
    assert not stops.are_over()
    now[0] += 1.0
    assert stops.are_over() and stops.are_over()
    [record] = caplog.records
    assert "slot 1" in record.getMessage() and "60 s" in record.getMessage()


def test_nothing_runs_if_it_stops_before_the_first_batch(stage: Stage) -> None:
    stage.order(stopping=True)
    assert stage.next() is None


HEARTBEATS = TopicPartition(own_topics.HEARTBEATS.of("app"), 0)


class Watch:
    """Beats over a log in memory, and the hosts that send some."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log = MemoryLog()
        self.is_host: Callable[[SlotMessage], bool] = lambda message: True
        self.beats = Beats(
            self.log,
            "app",
            SlotLayout("run", 2),
            Repeats(lambda: 0),
            lambda: self.now,
            is_host=lambda message: self.is_host(message),
        )
        self.beats.start()

    def send(self, slot: int, stuck: float = 0.0, run: str = "run", token: str = "") -> None:
        host = HostStatus(token, slot, 1) if token else None
        self.append(slot, SlotMessage(slot, "e", run=run, stuck_seconds=stuck, host=host).to_json())

    def append(self, slot: int, text: str) -> None:
        self.log.append(OutputBatch(own_topics.HEARTBEATS.of("app"), [b"%d" % slot], [text.encode()], [0]))

    def after(self, seconds: float) -> dict[str, str] | None:
        self.now += seconds
        self.beats.poll()
        return self.beats.suspects(range(2))


def test_hosts_without_heartbeats_are_suspects() -> None:
    watch = Watch()
    assert watch.after(100) is None  # no batch has started any
    watch.beats.note_batch()
    watch.send(0)
    watch.send(1)
    assert watch.after(1) is None
    watch.send(0)
    assert watch.after(MISSING_SECONDS) is None
    watch.send(0)
    watch.send(1, run="another run")
    assert watch.after(0.6) == {"1": SILENT}
    watch.send(0)
    assert watch.after(0.6) is None  # it was just said
    assert watch.after(6) is None  # the batch that was asked for may still run
    watch.beats.note_batch()
    watch.send(0)
    watch.send(1)
    assert watch.after(6) is None
    watch.send(0)
    assert watch.after(MISSING_SECONDS + 0.6) == {"1": SILENT}


def test_a_host_whose_tasks_make_no_turn_is_a_suspect() -> None:
    watch = Watch()
    watch.beats.note_batch()
    watch.send(0, stuck=STUCK_SECONDS - 1)
    watch.send(1, stuck=STUCK_SECONDS + 1)
    assert watch.after(1) == {"1": f"{STUCK} 0"}
    watch.beats.note_batch()
    assert watch.after(1) is None  # that heartbeat may be of a host that was replaced


def test_what_hosts_said_before_the_end_of_a_batch_is_read_at_the_next_poll() -> None:
    watch = Watch()
    assert not watch.beats.poll()
    watch.send(0)
    assert not watch.beats.poll()  # it is not time yet
    watch.beats.note_batch()
    assert [message.slot for message in watch.beats.poll()] == [0]


def test_heartbeats_that_the_log_has_deleted_are_left_out() -> None:
    """The driver was frozen for longer than the topic keeps them."""
    watch = Watch()
    watch.beats.note_batch()
    for slot in (0, 1):
        watch.send(slot)
    watch.log.purge(HEARTBEATS, 2)
    watch.send(0)
    assert watch.after(MISSING_SECONDS + 0.6) == {"1": SILENT}


def test_heartbeats_go_on_in_a_topic_that_was_made_again() -> None:
    watch = Watch()
    watch.beats.note_batch()
    for slot in (0, 1):
        watch.send(slot)
    assert watch.after(1) is None
    watch.log.delete_topic(HEARTBEATS.topic)
    own_topics.HEARTBEATS.make("app", watch.log)
    watch.send(0)
    assert watch.after(MISSING_SECONDS + 0.6) == {"1": SILENT}


def test_messages_of_another_form_are_no_heartbeats() -> None:
    watch = Watch()
    watch.beats.note_batch()
    good = SlotMessage(0, "e", run="run").to_json()
    for text in ("no JSON", "[]", "7", '{"slot": 1, "run": "run"}', good.replace('"results":[]', '"results":[1]')):
        watch.append(1, text)
    watch.send(0)
    assert watch.after(MISSING_SECONDS + 0.6) == {"1": SILENT}


def test_heartbeats_of_another_process_do_not_hide_that_a_host_is_dead() -> None:
    watch = Watch()
    watch.is_host = lambda message: message.host is None or message.host.token == "real"
    watch.beats.note_batch()
    watch.send(0)
    watch.send(1, token="real")
    assert watch.after(1) is None
    watch.send(0)
    watch.send(1, token="zombie")
    assert watch.after(MISSING_SECONDS + 0.6) == {"1": SILENT}
