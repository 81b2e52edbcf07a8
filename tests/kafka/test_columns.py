"""Messages by column: the compiled way and the one in Python give the same records, errors and reports."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import compiled
from penstock.plugins.logs.kafka import columns
from penstock.plugins.logs.kafka.clients import Clients
from penstock.plugins.logs.kafka.columns import DeliveryFailure, Taken, cut
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.kafka.producing import Outbox
from penstock.plugins.logs.kafka.reading import PartitionReader, read_whole
from penstock.plugins.logs.kafka.transactions import Transactions
from penstock.plugins.testing.kafka.process import free_ports
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, RecordBatch, TopicPartition

from ..rotation import examples
from ..waiting import wait_until
from .names import fresh_name
from .ways import COMPILED, WAYS, going

NOWHERE = "127.0.0.1:9"
PARTITIONS = 3
Row = tuple[bytes | None, bytes | None, int, tuple[Any, ...]]
needs_compiled = pytest.mark.skipif(COMPILED is None, reason="no C compiler")

some_bytes = st.one_of(st.none(), st.just(b""), st.binary(max_size=6), st.just(b"large" * 20_000))
some_headers = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "ä"]), st.one_of(st.none(), st.just(b""), st.binary(max_size=4))),
    max_size=3,
).map(tuple)
some_partitions = st.one_of(
    st.none(), st.sampled_from([(), (0,), (2,), (0, 1), (2, 2)]), st.lists(st.integers(0, PARTITIONS - 1), max_size=2)
)


@st.composite
def batches(draw: st.DrawFn, topic: str) -> OutputBatch:
    """Draw a batch, whose key and partition say which record it is where the partition is librdkafka's choice."""
    count = draw(st.integers(1, 12))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    return OutputBatch(
        topic,
        column(some_bytes),
        column(some_bytes),
        column(st.sampled_from([0, 1, 1_700_000_000_000, 1 << 45])),
        column(some_headers) if draw(st.booleans()) else None,
        column(some_partitions) if draw(st.booleans()) else None,
    )


@pytest.fixture
def way(request: pytest.FixtureRequest) -> str:
    """A way of a parameter; tests without it have both."""
    return str(getattr(request, "param", WAYS[-1]))


@pytest.fixture(scope="module")
def topic(broker: KafkaBroker) -> str:
    topic = fresh_name("columns")
    limits = dict.fromkeys(("message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), str((1 << 63) - 1))
    with closing(KafkaLog(broker.bootstrap)) as log:
        log.create_topic(topic, PARTITIONS, limits)
    return topic


def rows_of(batch: RecordBatch) -> list[tuple[Any, ...]]:
    headers = batch.headers or [()] * len(batch)
    return list(zip(batch.offsets, batch.keys, batch.values, batch.timestamps, headers, strict=True))


def read(log: KafkaLog, partition: TopicPartition, start: int, ends: list[int]) -> list[tuple[Any, ...]]:
    """Read up to each end in turn; the reader keeps what it has read beyond it."""
    rows: list[tuple[Any, ...]] = []
    with closing(PartitionReader(log._clients, log._clients.reader("columns"), partition, start)) as reader:
        for end in ends:
            for batch in read_whole(reader, end):
                assert batch.headers is None or any(batch.headers)
                assert [*batch.offsets] == sorted(batch.offsets)
                rows += rows_of(batch)
            assert reader.next == max(end, start)
            reader.has_more()
    return rows


@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_same_records(broker: KafkaBroker, topic: str, data: st.DataObject) -> None:
    """With gaps: some transactions are aborted, and each leaves a marker."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    with closing(KafkaLog(broker.bootstrap)) as log:
        starts = log.end_offsets(partitions, stable=False)
        expected: list[OutputBatch] = []
        for way in data.draw(st.lists(st.sampled_from(WAYS), min_size=1, max_size=3)):
            with going(way):
                transactions = Transactions(log._clients, lambda topic: PARTITIONS, topic, "0_0")
            with closing(transactions):
                transactions.take_fence()
                for is_aborted in data.draw(st.lists(st.booleans(), min_size=1, max_size=3)):
                    transactions.begin()
                    batch = data.draw(batches(topic))
                    transactions.send(batch)
                    if is_aborted:
                        transactions.flush()
                        assert transactions.abort(30)
                    else:
                        transactions.commit([], log._clients.consumer("unused"))
                        expected.append(batch)
        wait_until(
            lambda: log.end_offsets(partitions) == log.end_offsets(partitions, stable=False), "markers are written"
        )
        ends = log.end_offsets(partitions)
        found: list[Row] = []
        for partition in partitions:
            start, end = starts[partition], ends[partition]
            shares = data.draw(st.lists(st.integers(0, 20), max_size=3))  # in twentieths
            cuts = sorted(start + (end - start) * share // 20 for share in shares)
            by_way = []
            for way in WAYS:
                with going(way):
                    by_way.append(read(log, partition, start, [*cuts, end]))
            assert by_way[0] == by_way[-1]
            found += [row[1:] for row in by_way[0]]
    assert sorted(map(repr, found)) == sorted(repr(row) for batch in expected for row in sent(batch))


def sent(batch: OutputBatch) -> Iterator[Row]:
    for index, (key, value, timestamp) in enumerate(zip(batch.keys, batch.values, batch.timestamps, strict=True)):
        headers = () if batch.headers is None else tuple(batch.headers[index])
        targets = None if batch.partitions is None else batch.partitions[index]
        for _ in (-1,) if targets is None else targets:
            yield key, value, timestamp or 1, headers


@given(
    offsets=st.lists(st.integers(0, 30), min_size=1, unique=True).map(sorted),
    at=st.integers(0, 32),
    has_headers=st.booleans(),
)
def test_a_cut(offsets: list[int], at: int, has_headers: bool) -> None:
    names = [b"%d" % offset for offset in offsets]
    headers: Any = [(("h", b""),) if offset % 2 else () for offset in offsets] if has_headers else None
    batch = RecordBatch("t", 0, offsets, names, names[:], offsets[:], headers, offsets[-1] + 1)
    before, after = cut(batch, at)
    assert rows_of(before) + rows_of(after) == rows_of(batch)
    assert all(offset < at for offset in before.offsets) and all(offset >= at for offset in after.offsets)
    assert before.next_offset <= at and after.next_offset == batch.next_offset
    assert all(part.headers is None or any(part.headers) for part in (before, after))


# ------------------------------------------------------------------ errors


@contextmanager
def outbox_in(way: str, bootstrap: str = NOWHERE, settings: dict[str, str] | None = None) -> Iterator[Outbox]:
    clients = Clients(bootstrap, settings or {})
    with going(way), closing(Outbox(clients, lambda topic: PARTITIONS)) as outbox:
        assert isinstance(outbox._producer, columns.ColumnProducer) == (way == "compiled")
        yield outbox
    clients.admin.close()


def one(topic: str, value: Any = b"value", partition: int | None = 0, headers: Any = None) -> OutputBatch:
    return OutputBatch(topic, [b"key"], [value], [1], headers, None if partition is None else [(partition,)])


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_records_that_are_given_up_are_failures(way: str) -> None:
    with outbox_in(way) as outbox:
        outbox.send(one("somewhere"))
        outbox.send(one("elsewhere"))
        assert outbox.failed is None
        outbox._producer.purge()
        outbox.poll(0)
        failure = outbox._failures.first()
        assert failure == DeliveryFailure("somewhere", KafkaError(KafkaError._PURGE_QUEUE), 8)
        assert not outbox.knows_refusal()
        outbox._failures.forget()
        assert outbox.failed is None


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_refused_record_takes_precedence(way: str, broker: KafkaBroker, topic: str) -> None:
    with outbox_in(way, broker.bootstrap) as outbox:
        outbox.send(one("nowhere", partition=None))
        outbox._producer.purge()
        outbox.poll(0)
        assert outbox.failed is not None and not outbox.knows_refusal()
        small = fresh_name("small")
        with closing(KafkaLog(broker.bootstrap)) as log:
            log.create_topic(small, 1, {"max.message.bytes": "100"})
        outbox._producer.queue(one(small, b"x" * 200), 0, 1)
        outbox._flush(30)
        assert outbox._failures.first() == DeliveryFailure(small, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), 203)
        outbox._producer.queue(one("nowhere", partition=None), 0, 1)
        outbox._producer.purge()
        outbox.poll(0)
        assert outbox._failures.first() == DeliveryFailure(small, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), 203)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_what_librdkafka_refuses_at_once_is_no_failure(way: str, broker: KafkaBroker, topic: str) -> None:
    with outbox_in(way, broker.bootstrap, {"producer.message.max.bytes": "1000"}) as outbox:
        outbox.send(one(topic))
        outbox.flush()
        for batch, code in (
            (one(topic, partition=PARTITIONS + 5), KafkaError._UNKNOWN_PARTITION),
            (one(topic, b"x" * 2000), KafkaError.MSG_SIZE_TOO_LARGE),
        ):
            with pytest.raises(KafkaException) as caught:
                outbox._producer.queue(batch, 0, 1)
            assert caught.value.args[0] == KafkaError(code)
            assert str(caught.value.args[0].str()).startswith("Unable to produce message: ")
        outbox.poll(0)
        assert outbox._failures.first() is None


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_a_full_queue(way: str) -> None:
    with outbox_in(way, settings={"producer.queue.buffering.max.messages": "1"}) as outbox:
        outbox.send(one("somewhere"))
        with pytest.raises(BufferError, match="Queue full"):
            outbox.send(one("somewhere"))


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (one("t", 7), TypeError),
        (one("t", bytearray(b"7")), TypeError),
        (OutputBatch("t", [b"k"], [b"v"], [1 << 64]), OverflowError),
        (OutputBatch("t", [b"k"], [b"v"], ["1"]), TypeError),  # type: ignore[list-item]
        (one("t", partition="0"), TypeError),  # type: ignore[arg-type]
        (one("t", headers=[["ab"]]), TypeError),
        (one("t", headers=[[("a", 7)]]), TypeError),
        (one("t", headers=[[("a",)]]), TypeError),
    ],
)
def test_what_is_no_record(way: str, batch: OutputBatch, error: type[Exception]) -> None:
    with outbox_in(way) as outbox:
        with pytest.raises(error):
            outbox._producer.queue(batch, 0, 1)
        outbox._producer.purge()
        outbox.poll(0)
        assert outbox._failures.first() is None  # nothing was queued


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_text_is_taken_as_utf_8(way: str, broker: KafkaBroker, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with outbox_in(way, broker.bootstrap) as outbox, closing(KafkaLog(broker.bootstrap)) as log:
        start = log.end_offsets([partition])[partition]
        outbox.send(one(topic, "ä", headers=[[("h", "ö")]]))
        outbox.flush()
        assert read(log, partition, start, [start + 1]) == [(start, b"key", "ä".encode(), 1, (("h", "ö".encode()),))]


# ------------------------------------------------------------------ reports


class Logged:
    """A logger that keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, level: int, message: str, *arguments: object) -> None:
        self.lines.append(message % arguments)


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_errors_of_connections_and_log_lines(way: str) -> None:
    """librdkafka reports both in the queue that the reader takes messages from."""
    errors: list[KafkaError] = []
    logged = Logged()
    made: Any = columns.ColumnReader if way == "compiled" else columns.MessageReader
    address = f"127.0.0.1:{free_ports(1)[0]}"
    properties = {
        "bootstrap.servers": address,
        "group.id": "g",
        "debug": "broker",
        "error_cb": errors.append,
        "reconnect.backoff.ms": 10,
    }
    reader = made(properties, logger=logged)
    try:

        def is_reported() -> bool:
            assert not reader.take(10, 0.05, ())
            return {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN} <= {each.code() for each in errors}

        wait_until(is_reported, "the errors are reported")
        assert any(address in each.str() for each in errors)
        assert any(line.startswith("CONNECT [rdkafka#consumer-") for line in logged.lines)
    finally:
        reader.close()
    with pytest.raises(RuntimeError):
        reader.take(10, 0.05, ())


# ------------------------------------------------------------------ the choice


@pytest.mark.parametrize(
    "settings",
    [
        {"plugin.library.paths": COMPILED and COMPILED.__file__},
        {"enable.sasl.oauthbearer.unsecure.jwt": True},
        {"stats_cb": print},
        {"throttle_cb": print},
    ],
)
@needs_compiled
def test_some_clients_go_the_way_in_python(settings: dict[str, Any]) -> None:
    properties = {"bootstrap.servers": NOWHERE, "error_cb": print, **settings}
    with going("compiled"):
        assert isinstance(columns.producer(properties, logger=Logged()), columns.RecordProducer)
        assert columns._module is COMPILED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda patch: patch.setattr(columns, "_with_plugin", dict), "librdkafka did not call the plugin"),
        (
            lambda patch: patch.setattr(columns, "_with_plugin", lambda given: {**given, "no": 1}),
            "No such configuration",
        ),
    ],
)
@needs_compiled
def test_without_the_plugin_all_go_the_way_in_python(
    change: Callable[[pytest.MonkeyPatch], None], reason: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    before = compiled.status()
    monkeypatch.setattr(compiled, "_parts", before)
    change(monkeypatch)
    with going("compiled"), caplog.at_level(logging.DEBUG, "penstock.kafka"):
        made = columns.producer({"bootstrap.servers": NOWHERE, "error_cb": print}, logger=Logged())
        assert isinstance(made, columns.RecordProducer)
        assert columns._module is None
    assert reason in compiled.status()["kafka"]
    assert [reason in line for line in caplog.messages] == [True]


@needs_compiled
def test_mistakes_in_settings_do_not_switch_it_off() -> None:
    with going("compiled"):
        with pytest.raises(KafkaException, match="No such configuration"):
            columns.producer({"bootstrap.servers": NOWHERE, "no": "1"}, logger=Logged())
        assert columns._module is COMPILED


@needs_compiled
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("version", lambda: "1.9.2", "not tested with confluent-kafka 1.9.2"),
        ("version", lambda: ("3.0.0", 0x03000000), "not tested with confluent-kafka 3.0.0"),
        ("libversion", lambda: ("0", 0), "another librdkafka is loaded"),
    ],
)
def test_another_confluent_kafka(
    name: str, value: Callable[[], Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert columns._refusal(COMPILED) is None
    monkeypatch.setattr(confluent_kafka, name, value)
    assert reason in str(columns._refusal(COMPILED))


# ------------------------------------------------------------------ leaks


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@needs_compiled
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures memory where Linux shows it")
def test_nothing_leaks(broker: KafkaBroker, topic: str) -> None:
    key, value, header, name = b"k" * 1000, b"v" * 1000, b"h" * 1000, "name of a header"
    count = 500
    batch = OutputBatch(
        topic, [key] * count, [value] * count, [1] * count, [((name, header), (name, None))] * count, [(0,)] * count
    )
    no_bytes: Any = 7
    wrong = OutputBatch(topic, [key], [value], [1], [((name, no_bytes),)], [(0,)])
    partition = TopicPartition(topic, 0)
    with (
        outbox_in("compiled", broker.bootstrap) as outbox,
        closing(KafkaLog(broker.bootstrap)) as log,
        going("compiled"),
        closing(log._clients.reader("leaks")) as reader,
    ):
        reader.assign([KafkaPartition(topic, 0, log.end_offsets([partition])[partition])])

        def turn() -> None:
            outbox.send(batch)
            outbox.flush()
            with pytest.raises(TypeError):
                outbox._producer.queue(wrong, 0, 1)
            left = count
            while left:
                taken: Taken = reader.take(100, 1.0, ())
                assert not any(each.error.code() != KafkaError._PARTITION_EOF for each in taken.events)
                left -= sum(map(len, taken.batches))

        for _ in range(30):
            turn()
        gc.collect()
        counts = [sys.getrefcount(each) for each in (key, value, header, name, topic, ())]
        memory, objects = resident(), len(gc.get_objects())
        for _ in range(60):
            turn()
        gc.collect()
        assert [sys.getrefcount(each) for each in (key, value, header, name, topic, ())] == pytest.approx(counts, abs=9)
        assert len(gc.get_objects()) - objects < count
        assert resident() - memory < 30 * count * 1000  # 60 turns take four times as many bytes
