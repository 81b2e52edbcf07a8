"""Topics that are missing, go away, or grow: each error names the topic and says what to do, and nothing hangs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from penstock.errors import IncompatibleStateError, ProductionError, TopologyError, UnknownTopicError
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..bad_input.world import says
from ..waiting import wait_until
from .shop import Shop, drain


def grow(broker: KafkaBroker, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()


def test_missing_at_the_start(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path, create=False)
    with pytest.raises(TopologyError) as caught:
        shop.run()
    says(caught.value, f"no topic '{shop.orders}' (source 'orders')", "penstock topics create")
    with shop.log() as log:
        log.create_topic(shop.orders, 1)
        with pytest.raises(TopologyError) as caught:
            shop.run()
        says(caught.value, f"no topic '{shop.totals}' (sink 'totals-out')", "penstock topics create")
        log.create_topic(shop.totals, 1)
    shop.sell(("ann", 1))
    shop.is_exact()


def test_chosen_at_run_time(broker: KafkaBroker, tmp_path: Path) -> None:
    chosen = ["nowhere"]
    shop = Shop(broker.bootstrap, tmp_path, sink=lambda record, metadata: chosen[0])
    shop.sell(("ann", 1))
    with shop.worker() as (log, worker):
        with pytest.raises(ProductionError) as caught:
            drain(log, worker)
        says(caught.value, "cannot produce", "topic 'nowhere' does not exist", "penstock topics create nowhere")
        assert not shop.position(log)
        chosen[0] = shop.totals
        drain(log, worker)
    shop.is_exact()


def test_source_deleted_while_running(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path)
    shop.sell(("ann", 1))
    with shop.worker() as (log, worker):
        drain(log, worker)
        shop.sell(("ann", 2))
        ends = log.end_offsets(worker.partitions)
        with shop.log() as other:
            other.delete_topic(shop.orders)
        log._topics._counted_at = 0.0  # what it knows of topics is old, as it is two seconds later
        for doing in (lambda: worker.run_batch(ends, 0), lambda: log.end_offsets(worker.partitions)):
            with pytest.raises(UnknownTopicError) as caught:
                doing()
            says(caught.value, f"topic '{shop.orders}' does not exist", f"penstock topics create {shop.orders}")
        assert shop.sold(log) == [("ann", "1")]
    with pytest.raises(TopologyError, match=f"no topic '{shop.orders}'"):
        shop.run()


def test_sink_deleted_while_running(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path, task_timeout="5m")
    shop.sell(("ann", 1))
    with shop.worker() as (log, worker):
        drain(log, worker)
        shop.sell(("ann", 2))
        ends = log.end_offsets(worker.partitions)
        with shop.log() as other:
            other.delete_topic(shop.totals)
        began = time.monotonic()
        with pytest.raises(ProductionError) as caught:
            worker.run_batch(ends, 0)
        assert time.monotonic() - began < 60
        says(caught.value, f"topic '{shop.totals}' does not exist", "was it deleted?", "start again")
        wait_until(lambda: shop.position(log) == 1)
        log.create_topic(shop.totals, 1)
        drain(log, worker)
        assert shop.sold(log) == [("ann", "3")]


def test_source_grows_under_state(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path)
    shop.sell(("ann", 1))
    with shop.worker() as (log, worker):
        drain(log, worker)
        grow(broker, shop.orders, 3)
        # What runs goes on with what it knows; the runner looks every few seconds and prepares again.
        wait_until(lambda: log.topics()[shop.orders].partitions == 3)
        drain(log, worker)
    with pytest.raises(IncompatibleStateError) as caught:
        shop.run()
    says(caught.value, f"'{shop.orders}' had 1 partitions and has 3", "another application id", "penstock reset")
    assert shop.sold() == [("ann", "1")]


def test_source_grows_before_the_first_run(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path)
    grow(broker, shop.orders, 2)
    shop.sell(("ann", 1), ("bob", 2), ("cat", 3))
    shop.is_exact()
