"""Topics that were just created: not every broker lists them at once, so a second look decides that one is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock import LogError, OutputBatch, TopicPartition, run
from penstock.errors import TopologyError, UnknownTopicError
from penstock.plugins.logs.kafka import topics
from penstock.plugins.logs.kafka.admin import Admin
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .clients import QUIET, make_topic
from .names import fresh_name
from .shop import Shop

pytestmark = pytest.mark.broker


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often lists of topics lack a topic that is there, by its name: as those of a broker that is late."""
    missing: dict[str, int] = {}
    listed = topics.KafkaTopics.counts

    def counts(self: topics.KafkaTopics, *, fresh: bool = False) -> Mapping[str, int]:
        found = dict(listed(self, fresh=fresh))
        for name in [name for name, left in missing.items() if left and name in found]:
            missing[name] -= fresh
            del found[name]
        self._counts = found
        return found

    monkeypatch.setattr(topics.KafkaTopics, "counts", counts)
    monkeypatch.setattr(topics, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(KafkaLog, "settle_seconds", 0.01)
    return missing


def test_a_list_that_lacks_a_new_topic_is_read_again(broker: KafkaBroker, late: dict[str, int]) -> None:
    name = fresh_name("new")
    make_topic(broker.bootstrap, name)
    partition = TopicPartition(name, 0)
    uses: list[Callable[[KafkaLog], object]] = [
        lambda log: log.append(OutputBatch(name, [b"k"], [b"v"], [1])),
        lambda log: log.end_offsets([partition]),
        lambda log: log.fetch(partition, 0, 1, 1 << 10),
        lambda log: log.open_committer(name, "0_0", [partition]).close(),
    ]
    for use in uses:
        with closing(KafkaLog(broker.bootstrap)) as log:
            late[name] = 1
            use(log)
            assert late[name] == 0, "the list lacked it"
    with closing(KafkaLog(broker.bootstrap)) as log:
        late[name] = 2
        with pytest.raises(UnknownTopicError, match=name):
            log.end_offsets([partition])


def test_a_start_looks_again(broker: KafkaBroker, tmp_path: Path, late: dict[str, int]) -> None:
    shop = Shop(broker.bootstrap, tmp_path, engine="embedded")
    for topic in (shop.orders, shop.totals):
        late[topic] = 1
        run(shop.application)
        assert late[topic] == 0, "the list lacked it"
    late[shop.totals] = 10
    with pytest.raises(TopologyError, match=f"no topic '{shop.totals}'"):
        run(shop.application)


@pytest.mark.parametrize("said", ["All brokers are currently fenced.", "only 0 broker(s) are registered."])
def test_a_topic_is_created_when_a_broker_is_registered(
    broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A controller that starts, or was frozen for seconds, has none, and says what it says of too few of them."""
    refusals = [KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, said))] * 2
    ask = Admin.one

    def one(self: Admin, *arguments: Any) -> Any:
        if arguments[1] is AdminClient.create_topics and refusals:
            raise refusals.pop()
        return ask(self, *arguments)

    monkeypatch.setattr(Admin, "one", one)
    name = fresh_name("new")
    with closing(KafkaLog(broker.bootstrap)) as log:
        log.create_topic(name, 2)
        assert not refusals and log.topic(name).partitions == 2
    many = KafkaLog(broker.bootstrap, {"replication.factor": "7"})
    with closing(many), pytest.raises(LogError, match="set `replication_factor` to at most the number of brokers"):
        many.create_topic(fresh_name("new"), 1)


def test_notes_of_two_drivers_at_once(broker: KafkaBroker, late: dict[str, int]) -> None:
    """Both create the topic of notes, and the broker that the second one asks does not list it yet."""
    name = fresh_name("app")
    with closing(KafkaLog(broker.bootstrap)) as first, closing(KafkaLog(broker.bootstrap)) as second:
        first.put_meta(name, "first", b"1")
        late[f"{name}-penstock-notes"] = 3
        second.put_meta(name, "second", b"2")
        assert (first.get_meta(name, "second"), second.get_meta(name, "first")) == (b"2", b"1")


def test_a_topic_is_created_when_every_broker_lists_it(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the broker were two, of which the second one hears of the topic later."""
    name, asked = fresh_name("new"), []
    with closing(KafkaLog(broker.bootstrap, {"task.timeout.ms": "20000"})) as log:
        listed = log._topics._admin.list_topics

        def with_two(doing: str) -> object:
            found = listed(doing)
            [first] = found.brokers.values()
            found.brokers = {1: first, 2: first}
            return found

        def at(address: str) -> AdminClient:
            asked.append(address)
            if len(asked) == 2:  # one that lists no topic
                return _Late({"bootstrap.servers": address, **QUIET})
            return AdminClient({"bootstrap.servers": address, **QUIET})

        monkeypatch.setattr(log._topics._admin, "list_topics", with_two)
        monkeypatch.setattr(log._clients, "admin_at", at)
        log.create_topic(name, 2)
        assert asked == [broker.bootstrap] * 4
        with pytest.raises(LogError, match="exists"):
            log.create_topic(name, 2)


class _Late(AdminClient):
    def list_topics(self, *given: Any, **options: Any) -> Any:
        found = super().list_topics(*given, **options)
        found.topics = {}
        return found
