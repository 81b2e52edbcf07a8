"""Avro with its schemas in a registry."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.avro import AvroSerializer
from hypothesis import strategies as st

from penstock import Application, Processor, Record, Topology, key_value_store, skip
from penstock.errors import (
    ConfigError,
    IncompatibleStateError,
    SerdeError,
    SerdeUnavailableError,
)
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.serdes.registry import client as registry_client
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.contracts.log_tests import read
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.record import OutputBatch, TopicPartition
from penstock.task.failures import DeserializationFailed

from ..processes import opened_workers
from .schema_registry import SchemaRegistry, running

FAST = {"max.retries": 0}


def record(*fields: Any, name: str = "shop.Order") -> str:
    space, _, plain = name.rpartition(".")
    return json.dumps({"type": "record", "name": plain, "namespace": space, "fields": list(fields)})


USER: dict[str, Any] = {"name": "user", "type": "string"}
AMOUNT: dict[str, Any] = {"name": "amount", "type": "long"}
NOTE: dict[str, Any] = {"name": "note", "type": ["null", "string"], "default": None}
ORDER = record(USER, AMOUNT)
WIDER = record(USER, AMOUNT, NOTE)


@pytest.fixture(scope="module")
def served() -> Iterator[SchemaRegistry]:
    with running() as registry:
        yield registry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running() as registry:
        yield registry


@pytest.fixture(scope="module", autouse=True)
def address(served: SchemaRegistry) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCHEMA_REGISTRY_URL", served.url)
        yield


class TestAvro(SerdeContract):
    serde = staticmethod(lambda: AvroSerde(WIDER))
    ignores_the_rest = True  # as Confluent's deserializers
    values = st.builds(
        lambda user, amount, note: {"user": user, "amount": amount, "note": note},
        st.text(max_size=5),
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.text(max_size=5),
    )
    refused = ({"user": "a"}, {"user": 1, "amount": 1}, {"user": "a", "amount": 1, "amnt": 2}, "text", None)


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    user: str
    day: date
    lines: list[Line]


TYPED = record(
    USER,
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
        {"name": "sku", "type": "string"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ]}}},
    name="shop.Typed",
)  # fmt: skip


class TestAvroOfDataclass(SerdeContract):
    serde = staticmethod(lambda: AvroSerde(TYPED, Order, subject="typed"))
    ignores_the_rest = True  # as Confluent's deserializers
    values = st.builds(
        Order,
        st.text(max_size=5),
        st.dates(),
        st.lists(st.builds(Line, st.text(max_size=3), st.decimals(-999, 999, places=2)), max_size=2),
    )
    refused = (1, Line("a", Decimal(1)), {"user": 1})


# ---------------------------------------------------------------- the wire, and subjects


def test_a_value_has_a_zero_the_id_of_its_schema_and_avro(registry: SchemaRegistry) -> None:
    serde = AvroSerde(ORDER, registry=registry.url).bind("orders", is_key=False)
    assert serde.serialize({"user": "anna", "amount": 3}) == b"\0\0\0\0\1\x08anna\x06"
    assert registry.subjects == {"orders-value": [1]}


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({}, "orders-key"),
        ({"subject_strategy": "record"}, "shop.Order"),
        ({"subject_strategy": "topic-record"}, "orders-shop.Order"),
        ({"subject": "mine"}, "mine"),
    ],
)
def test_the_subject_follows_from_the_strategy(registry: SchemaRegistry, options: Any, subject: str) -> None:
    value = {"user": "anna", "amount": 3}
    AvroSerde(ORDER, registry=registry.url, **options).bind("orders", is_key=True).serialize(value)
    assert list(registry.subjects) == [subject]


def test_a_store_has_the_subject_of_the_record(registry: SchemaRegistry) -> None:
    AvroSerde(ORDER, registry=registry.url).serialize({"user": "anna", "amount": 3})
    assert list(registry.subjects) == ["shop.Order"]
    with pytest.raises(SerdeError, match=r"the schema is no record, and a store has no topic; give subject=\.\.\."):
        AvroSerde('"string"', registry=registry.url).serialize("text")


def test_each_value_is_read_by_the_schema_that_wrote_it(registry: SchemaRegistry) -> None:
    old = AvroSerde(ORDER, registry=registry.url).bind("orders", is_key=False)
    new = AvroSerde(WIDER, registry=registry.url).bind("orders", is_key=False)
    by_the_registry = AvroSerde(registry=registry.url).bind("orders", is_key=False)
    first = old.serialize({"user": "anna", "amount": 3})
    second = new.serialize({"user": "ben", "amount": 4, "note": "gift"})
    assert new.deserialize(first) == {"user": "anna", "amount": 3, "note": None}
    assert old.deserialize(second) == {"user": "ben", "amount": 4}
    assert [by_the_registry.deserialize(each) for each in (first, second)] == [
        {"user": "anna", "amount": 3},
        {"user": "ben", "amount": 4, "note": "gift"},
    ]
    third = by_the_registry.serialize({"user": "cat", "amount": 5, "note": None})
    assert new.deserialize(third) == {"user": "cat", "amount": 5, "note": None}


def test_the_registry_is_asked_once_for_each_schema(registry: SchemaRegistry) -> None:
    serde = AvroSerde(ORDER, registry=registry.url).bind("orders", is_key=False)
    for amount in range(20):
        other = pickle.loads(pickle.dumps(serde))
        assert other.deserialize(serde.serialize({"user": "anna", "amount": amount}))["amount"] == amount
    assert len(registry.asked) <= 2


_INNER = {"type": "record", "name": "Inner", "fields": [
    {"name": "x", "type": "bytes"}, {"name": "y", "type": "fixed2", "default": "\u00fe\u0001"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("bytes", "\u00ff\u0001", b"\xff\1"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00ff\u0001", b"\xff\1"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "\u0001", Decimal("0.01")),
        ({"type": "int", "logicalType": "date"}, 5, date(1970, 1, 6)),
        ({"type": "int", "logicalType": "time-millis"}, 1000, time(0, 0, 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ({"type": "string", "logicalType": "uuid"}, str(UUID(int=1)), UUID(int=1)),
        ("double", 1, 1.0),
        (["bytes", "null"], "\u00ff", b"\xff"),
        (["null", "bytes"], None, None),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": {"type": "int", "logicalType": "date"}}, {"a": 0}, {"a": date(1970, 1, 1)}),
        (_INNER, {"x": "\u00ff"}, {"x": b"\xff", "y": b"\xfe\1"}),
    ],
)  # fmt: skip
def test_a_default_is_a_value_of_its_type(kind: Any, default: Any, expected: Any) -> None:
    """Read where the writer did not have the field, and written where the value does not; the first and later ones."""
    fixed = {"name": "z", "type": ["null", {"type": "fixed", "name": "fixed2", "size": 2}], "default": None}
    wider = record(USER, fixed, {"name": "new", "type": kind, "default": default}, name="shop.Defaults")
    registry = f"mock://{uuid4()}"
    old = AvroSerde(record(USER, name="shop.Defaults"), registry=registry, subject="s")
    new = AvroSerde(wider, registry=registry, subject="s")
    newest = AvroSerde(registry=registry, subject="s")
    for _ in range(2):
        read = new.deserialize(old.serialize({"user": "anna"}))
        assert repr(read["new"]) == repr(expected)
        if isinstance(read["new"], list):
            read["new"].append("changed by a processor")
        assert repr(new.deserialize(new.serialize({"user": "ben"}))["new"]) == repr(expected)
        given = {"user": "cat", "z": None, "new": expected}
        assert repr(newest.deserialize(newest.serialize(given))) == repr(given)


@pytest.mark.parametrize("branches", [["double", "long"], ["null", "float", "int", "double", "long"], ["float", "int"]])
def test_an_int_in_a_union_stays_an_int(branches: list[str]) -> None:
    registry = f"mock://{uuid4()}"
    long = AvroSerde(record({"name": "a", "type": branches[-1]}), registry=registry, subject="s")
    union = AvroSerde(record({"name": "a", "type": branches}), registry=registry, subject="s")
    wider = AvroSerde(record({"name": "a", "type": branches}, NOTE), registry=registry, subject="s")
    newest = AvroSerde(registry=registry, subject="s")
    large = 2**53 + 1 if "long" in branches else 2**24 + 1
    for value in (large, 3, 1.5, large):
        data = union.serialize({"a": value})
        for reader in (union, wider, newest):
            assert repr(reader.deserialize(data)["a"]) == repr(value)
    assert repr(union.deserialize(long.serialize({"a": large}))["a"]) == repr(large)
    union.prepare(writes=True)
    assert repr(newest.deserialize(newest.serialize({"a": large}))["a"]) == repr(large)
    with pytest.raises(SerdeError, match="do not match"):
        union.serialize({"a": 2**70})


def test_a_default_is_a_value_also_where_the_writer_refers_to_other_schemas() -> None:
    serde = AvroSerde(
        record(USER, {"name": "new", "type": "bytes", "default": "\u00ff"}), registry="mock://ref", subject="s"
    )
    name = Schema('{"type": "record", "name": "Name", "namespace": "shop", "fields": []}', "AVRO")
    serde.client.register_schema("name", name)
    written = record(USER, {"name": "full", "type": "shop.Name"})
    referring = Schema(written, "AVRO", [SchemaReference("shop.Name", "name", 1)])
    number = serde.client.register_schema("s", referring)
    for _ in range(2):
        read = serde.deserialize(b"\0" + number.to_bytes(4, "big") + b"\x08anna")
        assert read == {"user": "anna", "new": b"\xff"}


def test_bytes_in_a_union_with_text_stay_bytes() -> None:
    serde = AvroSerde(record({"name": "a", "type": ["string", "bytes"]}), registry="mock://text", subject="s")
    for value in (b"\xff", "text", b"text"):
        assert serde.deserialize(serde.serialize({"a": value})) == {"a": value}


class TestBytesAlone(SerdeContract):
    """Confluent's serializers write Avro's type bytes without its length."""

    serde = staticmethod(lambda: AvroSerde('"bytes"', subject="bytes"))
    values = st.binary(min_size=1, max_size=9)
    refused = (1, None)
    # Confluent's deserializer takes a value of no bytes for no message at all.
    test_the_ends_of_ranges_come_back_or_are_refused = None  # type: ignore[assignment]


def test_first_and_later_values_have_the_same_bytes_as_confluents(registry: SchemaRegistry) -> None:
    serde = AvroSerde(WIDER, registry=registry.url, subject="orders")
    slow = AvroSerializer(
        serde.client, str(serde.schema), conf={"subject.name.strategy": lambda context, name: "orders"}
    )
    for amount in (1, -5, 2**62):
        value = {"user": "anna", "amount": amount, "note": None}
        assert serde.serialize(value) == slow(value)
        assert serde.deserialize(serde.serialize(value)) == value
    with pytest.raises(SerdeError, match="amnt"):
        serde.serialize({"user": "anna", "amount": 1, "note": None, "amnt": 1})


def test_a_name_takes_a_file_or_a_subject(served: SchemaRegistry, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.avsc").write_text(ORDER)
    topology = Topology().add_source("in", "in", value_serde="avro:order.avsc")
    topology.add_sink("out", "out", "in", value_serde="avro:")
    AvroSerde(WIDER).bind("out", is_key=False).prepare(writes=True)
    with TopologyTestDriver(topology) as driver:
        driver.pipe("in", "k", {"user": "anna", "amount": 3})
        assert [each.value for each in driver.read_all("out")] == [{"user": "anna", "amount": 3, "note": None}]
    assert {"in-value", "out-value"} <= served.subjects.keys()


# ---------------------------------------------------------------- mistakes


def test_mistakes_in_a_declaration_say_what_to_do(tmp_path: Path, monkeypatch: Any) -> None:
    for given, expected in (
        (str(tmp_path / "gone.avsc"), "gone.avsc' cannot be read: No such file or directory"),
        ('{"type": "record"}', "serde 'avro': the schema is no Avro schema: "),
        ("Order", "the schema is no Avro schema"),
    ):
        with pytest.raises(ConfigError, match=expected):
            AvroSerde(given)
    with pytest.raises(ConfigError, match="subject_strategy: expected one of topic, record, topic-record, found 'x'"):
        AvroSerde(ORDER, subject_strategy="x")  # type: ignore[call-overload]
    monkeypatch.delenv("SCHEMA_REGISTRY_URL")
    topology = Topology().add_source("in", "in", value_serde=AvroSerde(ORDER))
    with pytest.raises(ConfigError, match="topic 'in': .*registry is not known: give registry='http://H.*the setting"):
        TopologyTestDriver(topology)


def test_bytes_of_another_registry_are_refused(registry: SchemaRegistry) -> None:
    serde = AvroSerde(ORDER, registry=registry.url)
    with pytest.raises(SerdeError, match="Schema 9 not found: the record was written with another registry or another"):
        serde.deserialize(b"\0\0\0\0\x09abc")
    with pytest.raises(SerdeError, match="expected 0, 4 bytes with the id of a schema"):
        serde.deserialize(b"{}")


def test_a_schema_that_is_not_registered_is_named_with_its_subject(registry: SchemaRegistry) -> None:
    serde = AvroSerde(ORDER, registry=registry.url, register=False).bind("orders", is_key=False)
    with pytest.raises(SerdeError, match=r"'orders-value'.* not found.*: register it first, or let the serde do so"):
        serde.serialize({"user": "anna", "amount": 3})
    with pytest.raises(SerdeError, match="'orders-value'.*register a schema under it, or give the serde one"):
        AvroSerde(registry=registry.url).bind("orders", is_key=False).serialize({"user": "anna"})


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ((200, "<html>Welcome</html>"), "JSONDecodeError.*start the registry, or give its address"),
        ((200, '{"subject": "x"}'), "ValueError: expected a schema.*, found .*: start the registry"),
        ((200, "[]"), "start the registry, or give its address"),
        (
            (401, '{"error_code": 40101, "message": "Unauthorized"}'),
            r"Unauthorized \(HTTP status 401\): check its",
        ),
        ((500, "oops"), r"\(HTTP status 500\)"),
    ],
)
def test_a_registry_that_lies_is_no_fault_of_the_record(registry: SchemaRegistry, lie: Any, expected: str) -> None:
    registry.lie = lie
    serde = AvroSerde(ORDER, registry={"url": registry.url, **FAST}).bind("orders", is_key=False)
    for call in (
        lambda: serde.deserialize(b"\0\0\0\0\1\x08anna\x06"),
        lambda: serde.serialize({"user": "a", "amount": 1}),
        lambda: serde.prepare(writes=True),
        lambda: serde.prepare(writes=False),
    ):
        with pytest.raises(SerdeUnavailableError, match=expected):
            call()


def test_a_registry_that_never_answers_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "_ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        serde = AvroSerde(ORDER, registry={"url": address, **FAST}).bind("orders", is_key=False)
        with pytest.raises(SerdeUnavailableError, match="ReadTimeout.*start the registry, or give its address"):
            serde.prepare(writes=True)


def test_a_handler_that_skips_is_not_asked_while_the_registry_is_down(registry: SchemaRegistry) -> None:
    data = AvroSerde(ORDER, registry=registry.url).bind("in", is_key=False).serialize({"user": "a", "amount": 1})
    serde = AvroSerde(ORDER, registry={"url": registry.url, **FAST})
    topology = Topology().add_source("in", "in", value_serde=serde).add_sink("o", "o", "in", value_serde="json")
    with TopologyTestDriver(topology, deserialization_handler=skip) as driver:
        registry.lie = 503, "down"
        with pytest.raises(DeserializationFailed, match="HTTP status.*503.*The record is not at fault, so no handler"):
            driver.pipe_raw(OutputBatch("in", [b"k"], [data], [1], None, [[0]]))


# ---------------------------------------------------------------- starts, and state


class Keep(Processor):
    """Adds the amounts of each user."""

    def process(self, record: Record) -> None:
        store, order = self.context.get_store("kept"), record.value
        before = store.get(order["user"])
        if before is not None:
            order["amount"] += before["amount"]
        store.put(order["user"], order)
        self.context.forward(record.with_value(order))


def application(registry: SchemaRegistry, schema: str, directory: Path, *, url: str | None = None) -> Application:
    serde = AvroSerde(schema, registry={"url": url or registry.url, **FAST})
    topology = Topology().add_source("in", "in", value_serde=serde).add_processor("keep", Keep, "in", stores=[
        key_value_store("kept", key_serde="str", value_serde=serde)
    ]).add_sink("out", "out", "keep", value_serde=serde)  # fmt: skip
    return Application("app", topology, log="memory:x", changelog="directory:changelog", data_dir=str(directory))


def run(registry: SchemaRegistry, log: MemoryLog, schema: str, directory: Path, value: Any) -> list[Any]:
    """Process one record by a program with this schema; return the store's content."""
    made = application(registry, schema, directory)
    data = AvroSerde(schema, registry=registry.url).bind("in", is_key=False).serialize(value)
    log.append(OutputBatch("in", [value["user"].encode()], [data], [1], None, [[0]]))
    with opened_workers(made, log) as [worker]:
        worker.run_batch(log.end_offsets(worker.partitions), 0)
    sent = [each.value for each in read(log, TopicPartition("out", 0))]
    reader = AvroSerde(registry=registry.url)
    return [reader.deserialize(each or b"") for each in sent]


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    made = MemoryLog()
    for topic in ("in", "out"):
        made.create_topic(topic, 1)
    yield made
    made.close()


def test_a_store_reads_rows_of_an_older_schema_by_that_schema(
    registry: SchemaRegistry, log: MemoryLog, tmp_path: Path
) -> None:
    anna = {"user": "anna", "amount": 3}
    run(registry, log, ORDER, tmp_path, anna)
    sent = run(registry, log, WIDER, tmp_path, {"user": "anna", "amount": 4, "note": "gift"})
    assert sent[1:] == [{"user": "anna", "amount": 7, "note": "gift"}], "the row of the older schema was added"


def test_a_store_whose_schema_cannot_read_its_rows_is_refused_with_the_difference(
    registry: SchemaRegistry, log: MemoryLog, tmp_path: Path
) -> None:
    run(registry, log, ORDER, tmp_path, {"user": "anna", "amount": 3})
    other = record({**USER, "type": "int"}, AMOUNT, {"name": "vat", "type": "long"})
    with pytest.raises(IncompatibleStateError) as caught, opened_workers(application(registry, other, tmp_path), log):
        pass
    assert (
        "store 'kept' was written with value_serde another schema, and user, vat: 'vat' is new and has no default; "
        "reader type: int not compatible with writer type: string: its content cannot be read"
    ) in str(caught.value)


def test_a_schema_that_the_registry_refuses_is_refused_at_the_start_with_the_difference(
    registry: SchemaRegistry, log: MemoryLog, tmp_path: Path
) -> None:
    AvroSerde(ORDER, registry=registry.url).bind("out", is_key=False).prepare(writes=True)
    other = record(USER, {"name": "amount", "type": "string"})
    with pytest.raises(ConfigError) as caught:
        prepare(application(registry, other, tmp_path), log)
    said = str(caught.value)
    assert "application 'app', sink 'out', values of topic 'out': serde 'avro': schema registry http://" in said
    assert "incompatible with an earlier schema for subject" in said
    assert (
        "(version 1 against the serde's schema: amount: reader type: string not compatible with writer type: long)"
        in said
    )


def test_a_source_that_cannot_read_what_is_written_is_refused_at_the_start(
    registry: SchemaRegistry, log: MemoryLog, tmp_path: Path
) -> None:
    AvroSerde(ORDER, registry=registry.url).bind("in", is_key=False).prepare(writes=True)
    other = record(USER, {"name": "amount", "type": "string"})
    with pytest.raises(ConfigError, match="source 'in', values of topic 'in': .* cannot read what version 1 of"):
        prepare(application(registry, other, tmp_path), log)


def test_a_start_without_the_registry_says_what_to_do(registry: SchemaRegistry, log: MemoryLog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="source 'in'.*ConnectError.*: start the registry, or give its address"):
        prepare(application(registry, ORDER, tmp_path, url="http://127.0.0.1:1"), log)
