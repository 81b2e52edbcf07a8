"""Deleted offsets: a start is refused, and a reset goes on with the state and processes no more again than it says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from penstock import TopicPartition

from ..lost_commits import lose_commits
from .app import ORDERS, PINGS, REFUNDS, REPARTITION, TOTALS
from .driver import TARGET
from .programs import ID, PROGRAMS
from .topics import partitions

if TYPE_CHECKING:
    from .faults import Strike
    from .harness import Harness


def lose_offsets(harness: Harness, strike: Strike) -> str | None:
    """Delete the application's offsets while it is stopped; start it with its checkpoint and local state, and without;
    then reset it.

    A topic changelog has no way on but from the beginning: there the offsets are put back, as from a backup.
    """
    # In the middle of the work: the last commit of a task proves itself by nothing.
    harness.feeder.pause()
    harness.stop()
    before = {
        each: offset or 0 for each, offset in harness.log.committed(ID, partitions(PROGRAMS["processor"].read)).items()
    }
    backup = _backup(harness) if harness.options.changelog == "topic" else None
    if harness.brokers:
        _asked(harness, lambda admin: admin.delete_consumer_groups([ID]))
    else:
        lose_commits(harness.log, ID)
    harness.expect_refusal(harness.driver.host, "after the offsets were deleted")
    harness.expect_refusal(
        f"without-{strike.seed}", "after the offsets were deleted, without checkpoint and local state"
    )
    # Nothing says how far a task without stores was: the operator knows.
    known = [
        f"{PINGS}:{each.partition}={before[each]}" for each in partitions({PINGS: PROGRAMS["processor"].read[PINGS]})
    ]
    options = [option for each in known for option in ("--to-offsets", each)]
    done = harness.driver.command("reset", TARGET, "--from-state", *options, "--yes", "--json")
    if backup is not None:
        if done.returncode == 0:
            harness.problems.append(f"a reset from the state of a topic changelog was not refused: {done.stdout}")
        _restore(harness, backup)
        return "refused twice; the offsets were put back"
    if done.returncode != 0:
        harness.fail(f"penstock reset --from-state: exit code {done.returncode}: {done.stderr.strip()}")
    again = 0
    harness.again = harness.again or Counter()
    for task in json.loads(done.stdout)["tasks"]:
        for at in task["positions"]:
            partition = TopicPartition(at["topic"], at["partition"])
            again += expect_again(harness, task["task"], partition, at["then"], before[partition])
    return f"refused twice; the reset said that it may process {again} again"


def expect_again(harness: Harness, task: str, partition: TopicPartition, then: int, before: int) -> int:
    """Note which inputs a task may process again, when it goes back in one partition; return how many."""
    if partition.topic in (ORDERS, REFUNDS, PINGS):
        numbers = [f"{partition}-{offset}" for offset in range(then, before)]
    else:
        assert partition.topic == REPARTITION
        harness.reader.read()
        rows = [row.value.split(" ") for row in harness.reader.outputs if row.topic == TOTALS]
        done = {int(row[1]): row[2] for row in rows if row[0] == task and row[2] != "report"}
        numbers = [done[each] for each in sorted(done)[-(before - then) :]] if then < before else []
    assert harness.again is not None
    harness.again.update(numbers)
    return len(numbers)


def _backup(harness: Harness) -> Any:
    return _asked(harness, lambda admin: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(ID)]))


def _restore(harness: Harness, backup: Any) -> None:
    """Put committed offsets back, with their metadata."""
    _asked(harness, lambda admin: admin.alter_consumer_group_offsets([backup]))


def _asked(harness: Harness, question: Callable[[AdminClient], Any]) -> Any:
    """Return the broker's answer about the application's group. The client has to live until it is there."""
    assert harness.kafka is not None
    admin = AdminClient({"bootstrap.servers": harness.kafka.bootstrap})
    return question(admin)[ID].result(60)
