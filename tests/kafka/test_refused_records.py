"""Records that a topic does not take: the error names the topic and what to do, nothing of the commit counts, handlers
are asked."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Processor, ProductionError, Record, TopicPartition, Topology, skip
from penstock.errors import RecordRefusedError
from penstock.log import Commit
from penstock.plugins.logs.kafka import committers
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch

from ..bad_input.world import says
from .names import fresh_name
from .shop import Shop, contents, drain

LONG = "b" * 400


def test_too_large(broker: KafkaBroker, tmp_path: Path) -> None:
    shop = Shop(broker.bootstrap, tmp_path, config={"max.message.bytes": "300"})
    shop.sell(("ann", 1), (LONG, 7), ("ann", 2))
    with shop.worker() as (log, worker):
        for _ in range(2):
            with pytest.raises(ProductionError) as caught:
                drain(log, worker)
            says(caught.value, f"topic '{shop.totals}'", "make records smaller", "'max.message.bytes' (300)")
            assert not shop.position(log)
            assert shop.sold(log) == []


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_skipped_when_too_large(broker: KafkaBroker, tmp_path: Path, guarantee: str) -> None:
    """Small records beside it go through, though together they are larger than the topic takes at once."""
    shop = Shop(
        broker.bootstrap,
        tmp_path,
        config={"max.message.bytes": "300"},
        production_handler=skip,
        processing_guarantee=guarantee,
    )
    shop.sell(*[("ann", 1)] * 30, (LONG, 7), *[("cat", 2)] * 30)
    reports = shop.run()
    assert sum(report.dropped for report in reports) == 1
    shop.expected = [each for each in shop.expected if each[0] != LONG]
    # What was sent before the refusal may be there twice, at least once.
    found = shop.sold()
    assert (sorted(found) if guarantee == "exactly_once" else sorted(set(found))) == sorted(shop.expected)


def test_many_small_ones_at_once(broker: KafkaBroker) -> None:
    log, topic = KafkaLog(broker.bootstrap), fresh_name("small")
    log.create_topic(topic, 1, {"max.message.bytes": "300"})
    values = [b"%d" % number for number in range(200)]
    log.append(OutputBatch(topic, [b"k"] * 200, list(values), [1] * 200))
    assert [value for _, value in contents(log, topic)] == values
    with pytest.raises(RecordRefusedError, match=f"topic '{topic}'.*max.message.bytes"):
        log.append(OutputBatch(topic, [b"k"], [b"x" * 400], [1]))
    log.append(OutputBatch(topic, [b"k"], [b"afterwards"], [1]))
    assert contents(log, topic)[-1] == (b"k", b"afterwards")
    log.close()


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_the_refused_record_is_named_each_time(
    broker: KafkaBroker, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is among others.

    The transaction may report that it failed, and other records that they were given up, before the refusal arrives.
    """
    # A busy broker may take longer to abort, and then the committer would be closed.
    monkeypatch.setattr(committers, "_ABORT_SECONDS", 60.0)
    log = KafkaLog(broker.bootstrap, {"processing.guarantee": guarantee})
    topic, application = fresh_name("small"), fresh_name("application")
    log.create_topic(topic, 1, {"max.message.bytes": "300"})
    # From here on, batches are small enough.
    with pytest.raises(RecordRefusedError):
        log.append(OutputBatch(topic, [b"k"], [b"x" * 400], [1]))
    partition = TopicPartition(topic, 0)
    committer = log.open_committer(application, "0_0", [partition])

    def outputs(count: int, *larger: int) -> list[OutputBatch]:
        values: list[bytes | None] = [b"x" * (400 if number in larger else 4) for number in range(count)]
        return [OutputBatch(topic, [b"k"] * count, values, [1] * count)]

    for number in range(2):
        for where in (0, 100, 199):
            with pytest.raises(ProductionError) as caught:
                committer.send(outputs(200))
                committer.commit(Commit({partition: 1}, f"v{number}"), outputs(200, where))
            says(caught.value, f"topic '{topic}'", "a record of 401 bytes", "'max.message.bytes' (300)")
        assert committer.is_current()
    committer.commit(Commit({partition: 1}, "good"), outputs(1))
    assert log.committed(application, [partition]) == {partition: 1}
    if guarantee == "exactly_once":
        assert len(contents(log, topic)) == 1
    committer.close()
    log.close()


class WithoutKey(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_key(None) if record.value == "2" else record)


class Stamped(Processor):
    """Gives records the present time, and that of the value 2 one beside it, in ms: brokers know no other clock."""

    def __init__(self, by: int) -> None:
        self.by = by

    def process(self, record: Record) -> None:
        now = round(time.time() * 1000)
        self.context.forward(record._replace(timestamp=now + (self.by if record.value == "2" else 0)))


DAY = 86_400_000


def elsewhere(topic: str, record: Record, count: int) -> int:
    return 7


@pytest.mark.parametrize(
    ("config", "processor", "sink", "message"),
    [
        ({"cleanup.policy": "compact"}, WithoutKey, {}, "cleanup.policy=compact) takes no record without a key"),
        ({}, WithoutKey, {"partitioner": elsewhere}, "its partitioner chose 7"),
        ({}, partial(Stamped, 5 * DAY), {}, "raise the topic's 'message.timestamp.after.max.ms' (3600000)"),
        (
            {"message.timestamp.before.max.ms": f"{DAY}"}, partial(Stamped, -5 * DAY), {},
            f"'message.timestamp.after.max.ms' (3600000) or 'message.timestamp.before.max.ms' ({DAY})",
        ),
    ],
    ids=["no key", "wrong partition", "too late", "too early"],
)  # fmt: skip
def test_refused(
    broker: KafkaBroker, tmp_path: Path, config: dict[str, str], processor: Any, sink: dict[str, Any], message: str
) -> None:
    shop = Shop(broker.bootstrap, tmp_path, config=config)
    topology = (
        Topology()
        .add_source("orders", shop.orders)
        .add_processor("changes", processor, "orders")
        .add_sink("out", shop.totals, "changes", **sink)
    )
    shop.use(topology)
    shop.sell(("ann", 1), ("ann", 2), ("ann", 3))
    with shop.worker() as (log, worker):
        with pytest.raises(ProductionError) as caught:
            drain(log, worker)
        says(caught.value, f"topic '{shop.totals}'", message)
        assert not shop.position(log)
        assert shop.sold(log) == []
    if not sink:
        shop.run(production_handler=skip)
        assert shop.sold() == [("ann", "1"), ("ann", "3")]
