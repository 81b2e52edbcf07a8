"""One of three brokers is frozen until the others remove it, and then killed: what runs goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import TopicPartition
from penstock.plugins.testing.kafka_broker import KafkaCluster

from ..rotation import by_turns
from ..waiting import wait_until
from .shop import Shop

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("test_broker_removed")]

CUSTOMERS = [f"customer {number}" for number in range(24)]


@by_turns(0, 3)
def test_a_run_outlives_a_broker_that_leaves(tmp_path: Path) -> None:
    """librdkafka gives up the connections to a broker that the others list no more, and the requests on them."""
    with KafkaCluster(3) as cluster, ExitStack() as stack:
        first, _, leaves = cluster.brokers
        shop = Shop(
            first.bootstrap,  # librdkafka keeps the connections to brokers that it was given
            tmp_path,
            partitions=6,
            engine="embedded",
            commit_interval="50ms",
            changelog="topic:",
            clients={"socket.timeout.ms": "8000"},  # so long a request to a frozen broker waits; a minute by default
        )
        running = stack.enter_context(shop.application.start("continuous"))
        log = stack.enter_context(shop.log())
        asking = Asking(stack)
        partitions = [TopicPartition(shop.orders, number) for number in range(6)]

        def sell_and_wait(amount: int) -> None:
            shop.sell(*[(customer, amount) for customer in CUSTOMERS])
            wait_until(
                lambda: running.state == "failed" or len(shop.sold(log)) == len(shop.expected), "all orders count", 120
            )
            assert running.state != "failed", running.error

        sell_and_wait(1)
        asking.ask(log.topics)
        asking.ask(lambda: log.topic_ids([shop.orders, shop.totals]))
        asking.ask(lambda: dict(log.topic(shop.orders).config))
        asking.ask(lambda: log.end_offsets(partitions))
        asking.ask(lambda: log.committed(shop.id, partitions))
        leaves.freeze()
        wait_until(lambda: leaves.node_id not in first.known_brokers(), "the others have removed the broker")
        sell_and_wait(2)
        leaves.kill()
        sell_and_wait(3)
        asking.end()
        cluster.start()
        sell_and_wait(4)
        assert sorted(shop.sold(log)) == sorted(shop.expected)


class Asking:
    """Asks what drivers and tools ask all the time, each question in a thread of its own, until `end`."""

    def __init__(self, stack: ExitStack) -> None:
        self._ended = threading.Event()
        self._threads = stack.enter_context(ThreadPoolExecutor())
        self._asked: list[Future[None]] = []
        stack.callback(self._ended.set)

    def ask(self, question: Callable[[], object]) -> None:
        """Ask a question again and again."""

        def again() -> None:
            while not self._ended.wait(0.05):
                question()

        self._asked.append(self._threads.submit(again))

    def end(self) -> None:
        """Ask no more. Raises what a question raised."""
        self._ended.set()
        for each in self._asked:
            each.result()
