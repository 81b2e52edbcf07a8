"""Slots: what the driver concludes from the reports of the hosts."""

from __future__ import annotations

import pytest

from penstock.plugins.hosts.reports import SlotMessage, TaskResult
from penstock.plugins.hosts.status import HostStatus
from penstock.plugins.runtime.report import TaskReport
from penstock.plugins.spark.progress import RunSummary
from penstock.plugins.spark.slots import Slots


def message(host: str, opened: str = "first", executor: str = "one", losses: list[str] | None = None) -> SlotMessage:
    """What slot 0 reports of a batch of task 0_0."""
    report = TaskReport("0_0", "v", {}, 0, opened=opened)
    return SlotMessage(
        0, executor, results=[TaskResult("0_0", report)], host=HostStatus(host, 0, 7), losses=losses or []
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
    take(slots, summary, message("b", "host lost", losses=["host a has ended"]))
    take(slots, summary, message("c"))
    take(slots, summary, message("e", "host lost", losses=["host c has ended", "host d has ended"]))
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

    def say(token: str, *losses: str, is_heartbeat: bool = False) -> None:
        message = SlotMessage(0, "e", host=HostStatus(token, 0, 1), losses=list(losses))
        slots.take(message, is_heartbeat=is_heartbeat)

    say("first")
    say("second", "the first has ended")
    say("first", is_heartbeat=True)
    say("second", is_heartbeat=True)
    assert slots.lost == 1 and slots.hosts[0].token == "second"
    say("third", is_heartbeat=True)
    say("third", "the second has ended")
    assert slots.lost == 2


@pytest.mark.xfail(strict=True, reason="issue 26, row 15: one kill counts as two lost workers")
def test_a_loss_that_several_workers_meet_is_counted_and_told_once() -> None:
    from penstock.plugins.hosts.loss import Loss

    slots, killed = Slots({0: ["0_0"]}), Loss("host a (process 7) was killed", 7)
    told = []

    def say(token: str, process: int, *losses: Loss, is_heartbeat: bool = False) -> None:
        message = SlotMessage.from_json(
            SlotMessage(0, "e", host=HostStatus(token, 0, process), losses=list(losses)).to_json()
        )
        slots.take(message, is_heartbeat=is_heartbeat)
        told.extend(slots.take_losses())

    say("a", 7)
    say("b", 8, is_heartbeat=True)
    say("b", 8, killed)
    # Each of Spark's workers has a connection of its own to the host that was killed.
    say("b", 8, killed, is_heartbeat=True)
    say("b", 8, killed)
    assert (slots.lost, told) == (1, ["host a (process 7) was killed"])
    # Of hosts that never listened nobody knows the process.
    say("b", 8, Loss("did not start", 0), Loss("did not start", 0))
    assert (slots.lost, len(told)) == (3, 3)
