"""Positions that a broker has forgotten: an application is not started from the beginning, and goes on with its
state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from penstock.errors import IncompatibleStateError
from penstock.plugins.applications.from_state import FromStatePlan, go_on, plan_from_state
from penstock.plugins.applications.preparation import prepare
from penstock.plugins.applications.reset import to_earliest
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..bad_input.world import says
from ..waiting import wait_until
from .shop import Shop


def make(broker: KafkaBroker, directory: Path, **settings: Any) -> Shop:
    """A shop that has run twice."""
    shop = Shop(broker.bootstrap, directory, **{"changelog": "directory:changelog", **settings})
    shop.sell(("ann", 1), ("bob", 2))
    shop.run()
    shop.sell(("ann", 3))
    shop.run()
    with shop.log() as log:
        prepare(shop.application, log)
    return shop


def forget(broker: KafkaBroker, shop: Shop) -> None:
    """Delete the group, as happens by itself to one that is not used for `offsets.retention.minutes`."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups([shop.id])[shop.id].result()


def recover(shop: Shop, **options: Any) -> FromStatePlan:
    with shop.log() as log:
        plan = plan_from_state(shop.application, log, options.get("destination"), options.get("topics"))
        go_on(shop.application, log, plan, lambda: None)
        return plan


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_group_that_was_deleted(broker: KafkaBroker, tmp_path: Path, guarantee: str) -> None:
    shop = make(broker, tmp_path, partitions=2, processing_guarantee=guarantee)
    forget(broker, shop)
    with pytest.raises(IncompatibleStateError) as caught:
        shop.run()
    says(caught.value, f"task 0_0 in {shop.orders}-0; task 0_1 in {shop.orders}-1: ", "offsets.retention.minutes")
    before = shop.sold()
    assert sorted(str(each.task) for each in recover(shop).recoveries) == ["0_0", "0_1"]
    shop.run()
    again = shop.sold()
    # What each task did after the commit that is proven it did again, to the same totals.
    assert set(again) == set(before) and len(again) <= len(before) + 3
    shop.sell(("ann", 10), ("bob", 10))
    shop.run()
    assert set(shop.sold()) - set(again) == {("ann", "14"), ("bob", "12")}


def test_the_notes_are_gone_too(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = make(broker, tmp_path)
    forget(broker, shop)
    with shop.log() as log:
        log.delete_topic(f"{shop.id}-penstock-notes")
        wait_until(lambda: f"{shop.id}-penstock-notes" not in log.topics())
    with pytest.raises(IncompatibleStateError, match="its changelog proves one"):
        shop.run()
    assert [each.commit is not None for each in recover(shop).recoveries] == [True]
    shop.run()


def test_offsets_of_one_partition_that_were_deleted(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = make(broker, tmp_path, partitions=2)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    offsets = [
        ConsumerGroupTopicPartitions(
            shop.id, [KafkaPartition(shop.orders, 0, 0, metadata='{"penstock":1,"position":null}')]
        )
    ]
    admin.alter_consumer_group_offsets(offsets)[shop.id].result()
    with pytest.raises(IncompatibleStateError, match=f"gone: task 0_0 in {shop.orders}-0: "):
        shop.run()
    plan = recover(shop)
    assert ([str(each.task) for each in plan.recoveries], plan.kept) == (["0_0"], 1)
    shop.run()


def make_again(shop: Shop) -> None:
    with shop.log() as log:
        log.delete_topic(shop.orders)
        wait_until(lambda: shop.orders not in log.topics())
        log.create_topic(shop.orders, shop.partitions)
        wait_until(lambda: shop.position(log) is None)


def test_the_only_topic_was_deleted_and_made_again(broker: KafkaBroker, tmp_path: Path) -> None:
    """Its positions go with it, and nothing else is left of the group."""
    shop = make(broker, tmp_path)
    make_again(shop)
    with pytest.raises(IncompatibleStateError) as caught:
        shop.run()
    says(
        caught.value, f"gone: task 0_0 in {shop.orders}-0: topic {shop.orders!r} was deleted and made again",
        "set `offset_out_of_range` to earliest or latest", "penstock reset --from-state",
    )  # fmt: skip
    with pytest.raises(IncompatibleStateError, match="has offsets 0 to 0, and position . is proven"):
        recover(shop)
    (recovery,) = recover(shop, destination=to_earliest, topics=[shop.orders]).recoveries
    assert dict(recovery.then) == {recovery.lost[0]: 0} and recovery.commit is not None
    shop.run()


@pytest.mark.parametrize(("policy", "sold"), [("earliest", [("ann", "5"), ("ann", "6")]), ("latest", [])])
def test_a_setting_says_where_the_new_topic_is_read_from(
    broker: KafkaBroker, tmp_path: Path, policy: str, sold: list[tuple[str, str]]
) -> None:
    """The state is that of the newest commit that the changelog proves: the one before the last."""
    shop = make(broker, tmp_path)
    shop.sell(("ann", 1_000))
    shop.run()
    make_again(shop)
    before = shop.sold()
    shop.sell(("ann", 1), ("ann", 1))
    shop.run(offset_out_of_range=policy)
    assert shop.sold()[len(before) :] == sold
    shop.sell(("bob", 1))
    shop.run()
    assert shop.sold()[len(before) + len(sold) :] == [("bob", "3")]


def test_a_changelog_in_the_log_cannot_go_on_in_a_new_topic(broker: KafkaBroker, tmp_path: Path) -> None:
    """Nothing says which version its state is: the start is refused, whatever the setting."""
    shop = make(broker, tmp_path, changelog="topic:")
    make_again(shop)
    with pytest.raises(IncompatibleStateError) as caught:
        shop.run(offset_out_of_range="earliest")
    says(caught.value, f"topic {shop.orders!r} was deleted and made again", "its state cannot be kept")
