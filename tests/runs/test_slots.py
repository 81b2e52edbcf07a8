"""Slots: what the driver concludes from the reports of the hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.plugins.engine.host.reports import HostStatus, Loss, SlotMessage, TaskFailure, TaskResult
from penstock.plugins.engine.run.slots import Slots
from penstock.plugins.engine.task.report import DetailedCounts, TaskReport


def message(host: str, opened: str = "first", executor: str = "one", losses: str = "") -> SlotMessage:
    """What slot 0 reports of a batch of task 0_0."""
    report = TaskReport("0_0", "v", {}, 0, openings={opened: 1} if opened else {})
    lost = [Loss(f"host {each} has ended", ord(each)) for each in losses]
    return SlotMessage(
        0, executor, results=[TaskResult("0_0", report)], host=HostStatus(host, 0, ord(host)), losses=lost
    )


class Run:
    """The counts of a run."""

    counts = DetailedCounts()


def take(slots: Slots, run: Run, message: SlotMessage) -> None:
    """Note a message, and count its reports as a run does."""
    run.counts = sum(slots.take(message)[0], run.counts)


def test_a_lost_host_is_counted_once_and_is_why_its_tasks_are_opened_again() -> None:
    slots, run = Slots({0: ["0_0", "0_1"]}), Run()
    take(slots, run, message("a"))
    take(slots, run, message("a", ""))
    assert (slots.lost, run.counts.openings) == (0, {"first": 1})
    assert slots.unopened() == ["0_1"]
    # A worker met the loss in a batch, another one found a new host, and one lost two.
    take(slots, run, message("b", "host lost", losses="a"))
    take(slots, run, message("c"))
    take(slots, run, message("e", "host lost", losses="cd"))
    assert (slots.lost, run.counts.openings) == (4, {"first": 1, "host lost": 3})


def test_a_new_host_of_another_executor_is_a_move_and_no_loss() -> None:
    slots, run = Slots({0: ["0_0"]}), Run()
    take(slots, run, message("a"))
    slots.move([0])
    take(slots, run, message("b", executor="two"))
    assert (slots.lost, run.counts.openings) == (0, {"first": 1, "moved": 1})
    take(slots, run, SlotMessage(0, "three", elsewhere="two"))
    assert slots.executors == {0: "two"}
    for _ in range(2):
        slots.move([0], {0})
    take(slots, run, message("c", executor="one"))
    assert slots.lost == 1, "it ended with its executor"


def test_a_heartbeat_from_before_the_end_of_a_host_is_no_other_host() -> None:
    slots = Slots({0: ["0_0"]})

    def say(token: str, process: int, *losses: Loss) -> None:
        slots.take(SlotMessage(0, "e", host=HostStatus(token, 0, process), losses=list(losses)))

    say("first", 1)
    say("second", 2, Loss("the first has ended", 1))
    say("first", 1)
    say("second", 2)
    assert slots.lost == 1 and slots.hosts[0].token == "second"
    say("third", 3)
    say("third", 3, Loss("the second has ended", 2))
    assert slots.lost == 2


def test_a_loss_that_several_workers_meet_is_counted_and_told_once() -> None:
    slots, killed = Slots({0: ["0_0"]}), Loss("host a (process 7) was killed", 7)
    told = []

    def say(token: str, process: int, *losses: Loss) -> None:
        message = SlotMessage.from_json(
            SlotMessage(0, "e", host=HostStatus(token, 0, process), losses=list(losses)).to_json()
        )
        slots.take(message)
        told.extend(slots.take_losses())

    say("a", 7)
    say("b", 8)
    say("b", 8, killed)
    # Each of Spark's workers has a connection of its own to the host that was killed.
    say("b", 8, killed)
    say("b", 8, killed)
    assert (slots.lost, told) == (1, ["host a (process 7) was killed"])
    # Of hosts that never listened nobody knows the process.
    say("b", 8, Loss("did not start", 0), Loss("did not start", 0))
    assert (slots.lost, len(told)) == (3, 3)


def test_only_a_batch_says_which_host_has_a_slot() -> None:
    slots = Slots({0: ["0_0", "0_1"]})

    def say(token: str, task: str = "", *, executor: str = "e", is_heartbeat: bool = True) -> int:
        results = [TaskResult(task, TaskReport(task, "v", {}, 0, records_in=1))] if task else []
        message = SlotMessage(0, executor, results=results, host=HostStatus(token, 0, ord(token)))
        return len(slots.take(message, is_heartbeat=is_heartbeat)[0])

    assert say("a", "0_0") == 1  # its first batch has not ended yet
    say("a", is_heartbeat=False)
    assert (slots.hosts[0].token, slots.unopened()) == ("a", ["0_1"])
    # The executor was lost; on another one the slot has a host, and the first goes on.
    slots.move([0])
    say("a", "0_0")
    assert (slots.unopened(), slots.hosts) == (["0_0", "0_1"], {})
    assert say("b", "0_0", executor="f") == 1
    say("b", executor="f", is_heartbeat=False)
    assert say("a", "0_1") == 1, "what it did before counts"
    assert (slots.hosts[0].token, slots.unopened(), slots.lost, slots.executors) == ("b", ["0_1"], 0, {0: "f"})
    assert not slots.is_host(SlotMessage(0, "e", host=HostStatus("a", 0, 1)))
    # A successor's heartbeats come before the batch that starts it has ended.
    say("c", "0_1", executor="f")
    assert (slots.hosts[0].token, slots.lost) == ("b", 0)
    say("c", executor="f", is_heartbeat=False)
    assert (slots.hosts[0].token, slots.unopened(), slots.lost) == ("c", ["0_0"], 1)


def test_a_slot_may_come_back_to_the_host_that_it_left() -> None:
    slots = Slots({0: ["0_0"]})
    at_a = SlotMessage(0, "e", results=[TaskResult("0_0", TaskReport("0_0", "v", {}, 0))], host=HostStatus("a", 0, 1))
    slots.take(at_a)
    slots.move([0])
    assert not slots.is_host(at_a)
    slots.take(at_a)
    assert slots.is_host(at_a) and (slots.hosts[0].token, slots.unopened(), slots.lost) == ("a", [], 0)


def test_errors_of_a_host_with_a_successor_are_left_out() -> None:
    slots = Slots({0: ["0_0"]})
    failed = TaskResult("0_0", failure=TaskFailure("0_0", "FencedError", "taken over", ""))
    for token in "ab":
        slots.take(SlotMessage(0, "e", host=HostStatus(token, 0, ord(token))), is_heartbeat=False)
    for token, failures in (("a", 0), ("b", 1), ("c", 1)):
        message = SlotMessage(0, "e", results=[failed], host=HostStatus(token, 0, ord(token)))
        assert len(slots.take(message, is_heartbeat=True)[1]) == failures, token


def test_what_a_host_did_in_a_batch_that_was_cut_off_counts_once() -> None:
    """It tells again of batches until it knows that the driver has heard of them."""
    slots = Slots({0: ["0_0"]})

    def result(records: int) -> list[TaskResult]:
        return [TaskResult("0_0", TaskReport("0_0", "v", {}, 0, records_in=records))]

    def say(number: int, records: int, kept: Mapping[int, Sequence[TaskResult]]) -> int:
        sent = SlotMessage(0, "e", results=result(records), host=HostStatus("a", 0, 1), number=number, kept=kept)
        return sum(report.records_in for report in slots.take(SlotMessage.from_json(sent.to_json()))[0])

    assert say(1, 5, {}) == 5
    assert say(4, 1, {1: result(5), 2: result(70), 3: result(300)}) == 371
    assert say(5, 2, {4: result(1)}) == 2
