"""Positions that a broker has forgotten: an application is not started from the beginning, and goes on with its
state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from penstock import Topology
from penstock.errors import IncompatibleStateError
from penstock.plugins.engine.program.from_state import FromStatePlan, go_on, plan_from_state
from penstock.plugins.engine.program.plan import plan
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.reset import to_earliest
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..bad_input.world import says
from ..rotation import of_today
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
        found = plan_from_state(shop.application, log, options.get("destination"), options.get("topics"))
        go_on(shop.application, log, found, lambda: None)
        return found


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
    found = recover(shop)
    assert ([str(each.task) for each in found.recoveries], found.kept) == (["0_0"], 1)
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
        "The setting `offset_out_of_range` does not help here", "the last one of task 0_0",
        f"`penstock reset --from-state --topic {shop.orders} --to-earliest`",
    )  # fmt: skip
    with pytest.raises(IncompatibleStateError, match="has offsets 0 to 0, and position . is proven"):
        recover(shop)
    (recovery,) = recover(shop, destination=to_earliest, topics=[shop.orders]).recoveries
    assert dict(recovery.then) == {recovery.lost[0]: 0} and recovery.commit is not None
    shop.run()


def test_no_setting_loses_the_last_commit(broker: KafkaBroker, tmp_path: Path) -> None:
    """The changelog proves the one before it: to go on with that is for the operator to say."""
    shop = make(broker, tmp_path)
    shop.sell(("ann", 1_000))
    shop.run()
    make_again(shop)
    before = shop.sold()
    shop.sell(("ann", 1), ("ann", 1))
    shop.application = shop.application.with_settings(offset_out_of_range="earliest")
    with pytest.raises(IncompatibleStateError, match="`offset_out_of_range` does not help here: .*task 0_0"):
        shop.run()
    with shop.log() as log:
        refusal = plan(shop.application, log).refusal
    assert refusal is not None and "does not help" in refusal
    recover(shop, destination=to_earliest, topics=[shop.orders])
    shop.run()
    assert shop.sold()[len(before) :] == [("ann", "5"), ("ann", "6")]


@pytest.mark.parametrize(("policy", "sold"), [("earliest", ["2", "3"]), ("latest", [])])
@pytest.mark.parametrize("changelog", of_today(["directory:changelog", "topic:"], 2))
def test_a_setting_says_where_the_new_topic_is_read_from(
    broker: KafkaBroker, tmp_path: Path, policy: str, sold: list[str], changelog: str
) -> None:
    """Where it loses no state, and as the plan has said."""
    shop = Shop(broker.bootstrap, tmp_path, changelog=changelog)
    stateless = Topology().add_source("orders", shop.orders).add_sink("out", shop.totals, "orders")
    shop.use(stateless)
    shop.sell(("ann", 1))
    shop.run()
    with shop.log() as log:
        prepare(shop.application, log)
    make_again(shop)
    shop.sell(("ann", 2), ("ann", 3))
    with shop.log() as log:
        refusal = plan(shop.application, log).refusal
    assert refusal is not None and refusal.endswith("set `offset_out_of_range` to earliest or latest")
    shop.use(stateless, offset_out_of_range=policy)
    with shop.log() as log:
        planned = plan(shop.application, log)
    assert planned.refusal is None
    offset = 0 if policy == "earliest" else 2
    says(planned.left_to_the_start[0], f"task 0_0: topic {shop.orders!r}", f"from {shop.orders}-0 offset {offset} ")
    shop.run()
    assert [value for _, value in shop.sold()] == ["1", *sold]


def test_a_changelog_in_the_log_cannot_go_on_in_a_new_topic(broker: KafkaBroker, tmp_path: Path) -> None:
    """Nothing says which version its state is: the start is refused, whatever the setting, and none is advised."""
    shop = make(broker, tmp_path, changelog="topic:")
    make_again(shop)
    for policy in ("fail", "earliest"):
        with pytest.raises(IncompatibleStateError) as caught:
            shop.run(offset_out_of_range=policy)
        says(
            caught.value, f"topic {shop.orders!r} was deleted and made again", "its state cannot be kept",
            "The setting `offset_out_of_range` does not help here",
        )  # fmt: skip
    with shop.log() as log:
        refusal = plan(shop.application, log).refusal
    assert refusal is not None and "does not help here" in refusal
