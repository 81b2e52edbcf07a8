"""Slots: what the driver concludes from the reports of the hosts."""

from __future__ import annotations

from penstock.plugins.hosts.loss import Loss
from penstock.plugins.hosts.reports import SlotMessage, TaskResult
from penstock.plugins.hosts.status import HostStatus
from penstock.plugins.runtime.report import TaskReport
from penstock.plugins.spark.progress import RunSummary
from penstock.plugins.spark.slots import Slots


def message(host: str, opened: str = "first", executor: str = "one", losses: str = "") -> SlotMessage:
    """What slot 0 reports of a batch of task 0_0."""
    report = TaskReport("0_0", "v", {}, 0, opened=opened)
    lost = [Loss(f"host {each} has ended", ord(each)) for each in losses]
    return SlotMessage(
        0, executor, results=[TaskResult("0_0", report)], host=HostStatus(host, 0, ord(host)), losses=lost
    )


def take(slots: Slots, summary: RunSummary, message: SlotMessage) -> None:
    """Note a message, and count its reports as a run does."""
    for report in slots.take(message)[0]:
        summary.add(report)


def test_a_lost_host_is_counted_once_and_is_why_its_tasks_are_opened_again() -> None:
    slots, summary = Slots({0: ["0_0", "0_1"]}), RunSummary("app")
    take(slots, summary, message("a"))
    take(slots, summary, message("a", ""))
    assert (slots.lost, summary.openings) == (0, {"first": 1})
    assert slots.unopened() == ["0_1"]
    # A worker met the loss in a batch, another one found a new host, and one lost two.
    take(slots, summary, message("b", "host lost", losses="a"))
    take(slots, summary, message("c"))
    take(slots, summary, message("e", "host lost", losses="cd"))
    assert (slots.lost, summary.openings) == (4, {"first": 1, "host lost": 3})


def test_a_new_host_of_another_executor_is_a_move_and_no_loss() -> None:
    slots, summary = Slots({0: ["0_0"]}), RunSummary("app")
    take(slots, summary, message("a"))
    slots.move([0])
    take(slots, summary, message("b", executor="two"))
    assert (slots.lost, summary.openings) == (0, {"first": 1, "moved": 1})
    take(slots, summary, SlotMessage(0, "three", elsewhere="two"))
    assert slots.executors == {0: "two"}


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
