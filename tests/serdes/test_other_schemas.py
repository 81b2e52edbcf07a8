"""JSON Schema and Protobuf with their schemas in a registry; what all formats share is in test_avro.py."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import any_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.message import Message
from hypothesis import strategies as st

from penstock import Topology
from penstock.errors import ConfigError, SerdeError
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde
from penstock.plugins.serdes.registry.protobuf import ProtobufSerde
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.program.serdes import make_serde
from penstock.support.text_form import from_json, to_json

from . import shop_messages
from .schema_registry import SchemaRegistry, running
from .shop_messages import Changed, Line, Wider
from .typed_values import Customer

SCHEMA = json.dumps(
    {"title": "Order", "type": "object", "properties": {"user": {"type": "string"}, "cents": {"type": "integer"}},
     "required": ["user"]}
)  # fmt: skip


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with running() as made:
        yield made


@dataclass
class Payment:
    user: str
    amount: Decimal = Decimal(0)


@dataclass
class Grown(Payment):
    """A payment with another field, which has a default."""

    note: str | None = None


@dataclass
class Wrong:
    user: int


def _orders(kind: Any) -> st.SearchStrategy[Any]:
    lines = st.builds(lambda sku, cents: Line(sku=sku, cents=cents), st.text(max_size=3), st.integers(0, 2**63 - 1))
    return st.builds(lambda user, of: kind(user=user, lines=of), st.text(max_size=5), st.lists(lines, max_size=2))


class TestJsonSchema(SerdeContract):
    keeps_order = True
    serde = staticmethod(lambda: JsonSchemaSerde(SCHEMA, registry="mock://contract", subject="orders"))
    in_one_process = True  # so is the mock registry
    values = st.builds(lambda user, cents: {"user": user, "cents": cents}, st.text(max_size=5), st.integers(0, 2**53))
    refused = ({"cents": 1}, {"user": 1}, "text", None)


class TestJsonSchemaOfDataclass(SerdeContract):
    serde = staticmethod(lambda: JsonSchemaSerde(Payment, registry="mock://contract"))
    in_one_process = True  # so is the mock registry
    values = st.builds(Payment, st.text(max_size=5), st.decimals(-999, 999, places=2))
    refused = ({"user": "a"}, Payment(1), None)  # type: ignore[arg-type]


class TestProtobuf(SerdeContract):
    serde = staticmethod(lambda: ProtobufSerde(shop_messages.Order, registry="mock://contract"))
    in_one_process = True  # so is the mock registry
    values = _orders(shop_messages.Order)
    refused = (Line(sku="a"), {"user": "a"}, None)

    @staticmethod
    def same(one: Any, other: Any) -> bool:
        return bool(one == other)


def test_the_bytes_of_json_and_protobuf(registry: SchemaRegistry) -> None:
    json_serde = JsonSchemaSerde(SCHEMA, registry=registry.url).bind("orders", is_key=False)
    assert json_serde.serialize({"user": "anna"}) == b'\0\0\0\0\1{"user":"anna"}'
    first = ProtobufSerde(Line, registry=registry.url).bind("lines", is_key=False)
    # A zero in place of a list of indexes: the first message of its file. shop.Order is the second one: one index, 1.
    assert first.serialize(Line(sku="tea", cents=1)) == b"\0\0\0\0\2\0\x0a\x03tea\x10\x01"
    second = ProtobufSerde(shop_messages.Order, registry=registry.url).bind("orders2", is_key=False)
    assert second.serialize(shop_messages.Order(user="anna")) == b"\0\0\0\0\2\x02\x02\x0a\x04anna"
    assert registry.subjects == {"orders-value": [1], "lines-value": [2], "orders2-value": [2]}
    assert [each.get("schemaType") for each in registry.schemas] == ["JSON", "PROTOBUF"]


@pytest.mark.parametrize(("strategy", "subject"), [("record", "shop.Order"), ("topic-record", "orders-shop.Order")])
def test_the_subject_of_a_message(registry: SchemaRegistry, strategy: Any, subject: str) -> None:
    serde = ProtobufSerde(shop_messages.Order, registry=registry.url, subject_strategy=strategy)
    serde.bind("orders", is_key=False).serialize(shop_messages.Order(user="anna"))
    assert list(registry.subjects) == [subject]


def test_a_message_of_a_newer_schema_is_read_by_the_older_one(registry: SchemaRegistry) -> None:
    new = ProtobufSerde(Wider, registry=registry.url).bind("orders", is_key=False)
    old = ProtobufSerde(shop_messages.Order, registry=registry.url).bind("orders", is_key=False)
    assert old.deserialize(new.serialize(Wider(user="anna", note="gift"))).user == "anna"
    assert new.deserialize(old.serialize(shop_messages.Order(user="ben"))) == Wider(user="ben")


@pytest.mark.parametrize("user", ["", "anna"])
def test_fields_that_a_message_does_not_know_are_kept_as_text(registry: SchemaRegistry, user: str) -> None:
    """Also where it knows none of them."""
    serde = ProtobufSerde(shop_messages.Order, registry=registry.url).bind("orders", is_key=False)
    wide = Wider(user=user, note="gift").SerializeToString()
    message = shop_messages.Order.FromString(wide)
    form = json.loads(json.dumps(serde.to_json(message)))
    assert form == {**({"user": user} if user else {}), "!protobuf": b64encode(wide).decode()}
    assert serde.from_json(form) == message
    assert serde.from_json(form).SerializeToString() == message.SerializeToString()
    assert "!protobuf" not in serde.to_json(shop_messages.Order(user="anna"))
    assert serde.from_json(from_json(form)) == message
    assert serde.from_json(to_json(from_json(form))) == message, "the key of a client's entry, given back to it"
    for wrong in ({**form, "user": "ben"}, {"!protobuf": "a"}, {"!protobuf": "eA=="}, {"!protobuf": 5}):
        with pytest.raises(SerdeError, match="serde 'protobuf': '!protobuf' "):
            serde.from_json(wrong)


def _any(type_url: str) -> any_pb2.Any:
    return any_pb2.Any(type_url=type_url, value=b"\x08\x01")


def _struct(**fields: Any) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(fields)
    return made


@pytest.mark.parametrize(
    "message",
    [
        _struct(),
        _struct(note="gift", count=2, inside={"a": [1, None, {"b": True}]}),
        _struct(**{"!bytes": "eA=="}),
        _struct(**{"!protobuf": "eA==", "other": 1}),
        _struct(**{"number": math.nan}),
        struct_pb2.Value(null_value=struct_pb2.NULL_VALUE),
        struct_pb2.Value(number_value=5),
        struct_pb2.Value(string_value="!protobuf"),
        struct_pb2.ListValue(values=[struct_pb2.Value(string_value="x")]),
        _any("type.googleapis.com/google.protobuf.Int64Value"),
        _any("type.googleapis.com/no.such.Message"),
        wrappers_pb2.FloatValue(value=3.4028234663852886e38),
        wrappers_pb2.FloatValue(value=0.1),
        wrappers_pb2.DoubleValue(value=-0.0),
        wrappers_pb2.StringValue.FromString(b"\x0a\x01x\xfa\xff\x0f\x01y"),  # a field that it does not know
        field_mask_pb2.FieldMask(paths=["no_JSON__for_this"]),
        timestamp_pb2.Timestamp(seconds=2**40),
        timestamp_pb2.Timestamp(seconds=-1, nanos=1),
    ],
    ids=lambda message: f"{message.DESCRIPTOR.name} {' '.join(str(message).split())}",
)
def test_every_message_comes_back_from_its_text_form(message: Message) -> None:
    serde = ProtobufSerde(type(message), registry="mock://forms")
    again = serde.from_json(json.loads(json.dumps(serde.to_json(message), allow_nan=False)))
    assert again.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)


def test_bytes_in_a_text_form_may_have_a_map_in_any_order() -> None:
    """As Protobuf's own C code writes them, in one order in this process and in another in the next."""
    serde = ProtobufSerde(struct_pb2.Struct, registry="mock://forms")
    one, other = (_struct(**{name: 1}).SerializeToString() for name in ("!protobuf", "other"))
    forms = [{"!protobuf": b64encode(data).decode(), "other": 1.0} for data in (one + other, other + one)]
    assert serde.from_json(forms[0]) == serde.from_json(forms[1]) == _struct(**{"!protobuf": 1, "other": 1})
    assert serde.to_json(serde.from_json(forms[0])) == serde.to_json(serde.from_json(forms[1]))
    with pytest.raises(SerdeError, match="leave it out"):
        serde.from_json({**forms[0], "other": 2.0})


def test_bytes_in_a_text_form_may_be_those_of_a_message_whose_json_is_no_object() -> None:
    serde, five = ProtobufSerde(struct_pb2.Value, registry="mock://forms"), struct_pb2.Value(number_value=5)
    form = {"!protobuf": b64encode(five.SerializeToString()).decode()}
    assert serde.from_json(form) == five
    with pytest.raises(SerdeError, match="leave it out"):
        serde.from_json({**form, "other": 2.0})


def test_equal_messages_have_equal_bytes_in_every_process() -> None:
    """Those of a map have an order of the process otherwise, so a key would be in another partition after a start."""
    names = [f"name{number}" for number in range(20)]
    serde = ProtobufSerde(struct_pb2.Struct, registry="mock://maps").bind("orders", is_key=True)
    one, other = (_struct(**dict.fromkeys(order, 1)) for order in (names, names[::-1]))
    assert serde.serialize(one) == serde.serialize(other)
    assert serde.serialize(one).endswith(one.SerializeToString(deterministic=True))


@pytest.mark.parametrize("number", [2**63, 2**64, 2**200, -(2**63) - 1])
@pytest.mark.parametrize("wrap", [lambda n: {"n": n}, lambda n: {"n": 1, "more": [{"n": [None, n, "x"]}]}])
def test_integers_of_any_length_are_kept(number: int, wrap: Any) -> None:
    """Also those that another program has written: they were read as the nearest float."""
    schema = json.dumps({"title": "Order", "type": "object", "properties": {"n": {"type": "integer"}}})
    serde = JsonSchemaSerde(schema, registry="mock://long")
    value, data = wrap(number), serde.serialize(wrap(1))
    assert serde.serialize(value) == data[:5] + json.dumps(value, separators=(",", ":")).encode()
    found = serde.deserialize(serde.serialize(value))
    assert (found, str(found)) == (value, str(value))
    for wrong in ({1}, b"x", Decimal(1), float("nan"), {2: 1}):
        with pytest.raises(SerdeError):
            serde.serialize({"n": number, "other": wrong})


def test_types_take_part_in_the_registry(registry: SchemaRegistry) -> None:
    serde = JsonSchemaSerde(Customer, registry=registry.url).bind("customers", is_key=False)
    anna = Customer.model_validate({"name": "anna"})
    assert serde.deserialize(serde.serialize(anna)) == anna
    assert json.loads(registry.schemas[0]["schema"])["title"] == "Customer"


def test_a_name_takes_a_file_of_json_schema(
    registry: SchemaRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
    Path("order.json").write_text(SCHEMA)
    JsonSchemaSerde(SCHEMA).bind("in", is_key=False).prepare(writes=True)
    topology = Topology().add_source("in", "in", value_serde="json_schema:order.json")
    topology.add_sink("out", "out", "in", value_serde="json_schema:in-value")
    with TopologyTestDriver(topology) as driver:
        driver.pipe("in", "k", {"user": "anna"})
        assert [each.value for each in driver.read_all("out")] == [{"user": "anna"}]


def test_mistakes_say_what_to_do(registry: SchemaRegistry) -> None:
    for given, expected in (
        ("gone.json", "file 'gone.json' cannot be read: No such file"),
        ('{"type": "objekt"}', "the schema is no JSON schema"),
        ("Order", "the schema is no JSON schema"),
    ):
        with pytest.raises(ConfigError, match=expected):
            JsonSchemaSerde(given, registry=registry.url)
    with pytest.raises(ConfigError, match="expected a class that protoc has made, found <class '.*Payment'>"):
        ProtobufSerde(Payment, registry=registry.url)
    serde = JsonSchemaSerde(SCHEMA, registry=registry.url)
    with pytest.raises(SerdeError, match="'user' is a required property"):
        serde.serialize({"cents": 1})
    with pytest.raises(SerdeError, match="expected shop.Order, found Line; return that message"):
        ProtobufSerde(shop_messages.Order, registry=registry.url).serialize(Line())


def test_a_source_that_cannot_read_what_is_written_is_found_before_it_reads(registry: SchemaRegistry) -> None:
    JsonSchemaSerde(Payment, registry=registry.url).bind("in", is_key=False).prepare(writes=True)
    with pytest.raises(SerdeError, match="cannot read what version 1 of subject 'in-value' wrote: .*'user' was string"):
        JsonSchemaSerde(Wrong, registry=registry.url).bind("in", is_key=False).prepare(writes=False)
    ProtobufSerde(Line, registry=registry.url).bind("lines", is_key=False).prepare(writes=True)
    assert list(registry.subjects) == ["in-value", "lines-value"]


@dataclass
class Count:
    number: int
    weight: float = 0.0


def test_integers_of_any_size_come_back() -> None:
    serde = JsonSchemaSerde(Count, registry="mock://large")
    for number in (1, 2**64 - 1, 2**64, -(2**63) - 1, 10**30 + 7):
        data = serde.serialize(Count(number, 1e22))
        assert serde.deserialize(data) == Count(number, 1e22)
        assert serde.from_json(json.loads(json.dumps(serde.to_json(Count(number))))) == Count(number)


def test_what_a_store_can_read() -> None:
    def unreadable(before: Any, now: Any) -> str:
        found: str = now.unreadable(before.written_form())
        return found

    mock: dict[str, Any] = {"registry": "mock://names"}
    old, wider, changed = (ProtobufSerde(each, **mock) for each in (shop_messages.Order, Wider, Changed))
    assert unreadable(old, wider) == ""
    assert unreadable(old, changed) == (
        "another schema of shop.Order, and field 'user' (number 1) of shop.Order is gone: keep it, with `deprecated = "
        "true`; field 'cents' (number 2) of shop.Line was int64 and is double"
    )
    plain, payment, wrong = JsonSchemaSerde(**mock), JsonSchemaSerde(Payment, **mock), JsonSchemaSerde(Wrong, **mock)
    assert unreadable(payment, plain) == unreadable(plain, payment) == ""
    assert unreadable(payment, wrong).startswith("another schema, and field 'user' was string and is integer; field")
    assert "and now has" in unreadable(old, payment)


def test_a_type_may_get_fields_with_defaults_and_old_programs_read_what_has_them(registry: SchemaRegistry) -> None:
    old = JsonSchemaSerde(Payment, registry=registry.url).bind("in", is_key=False)
    new = JsonSchemaSerde(Grown, registry=registry.url).bind("in", is_key=False)
    first, second = old.serialize(Payment("anna")), new.serialize(Grown("ben", note="gift"))
    assert registry.subjects == {"in-value": [1, 2]}
    assert new.deserialize(first) == Grown("anna")
    assert old.deserialize(second) == Payment("ben")


def test_schemas_that_the_registry_does_not_take_are_refused_with_the_difference(registry: SchemaRegistry) -> None:
    def prepare(serde: Any) -> None:
        serde.bind("in", is_key=False).prepare(writes=True)

    prepare(JsonSchemaSerde(Payment, registry=registry.url, subject="payments"))
    with pytest.raises(SerdeError, match="incompatible.*does not fit.*'user' was string and is integer"):
        prepare(JsonSchemaSerde(Wrong, registry=registry.url, subject="payments"))
    prepare(ProtobufSerde(shop_messages.Order, registry=registry.url, subject="orders"))
    prepare(ProtobufSerde(Wider, registry=registry.url, subject="orders"))
    with pytest.raises(SerdeError, match=r"incompatible.*#/Line/2: FIELD_KIND_CHANGED.*does not fit the versions"):
        prepare(ProtobufSerde(Changed, registry=registry.url, subject="orders"))


def test_the_driver_refuses_what_a_start_refuses(registry: SchemaRegistry) -> None:
    JsonSchemaSerde(Payment, registry=registry.url).bind("in", is_key=False).prepare(writes=True)
    topology = Topology().add_source("in", "in", value_serde=JsonSchemaSerde(Wrong, registry=registry.url))
    with pytest.raises(ConfigError, match="source 'in', values of topic 'in': .*'user' was string and is integer"):
        TopologyTestDriver(topology.add_sink("out", "out", "in", value_serde="json"))


def test_protobuf_by_name_has_the_module_and_the_class() -> None:
    serde = make_serde("protobuf:tests.serdes.shop_messages:Order", "the topic")
    assert isinstance(serde, ProtobufSerde)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("", "expected protobuf:MODULE:CLASS"),
        ("Order", "expected protobuf:MODULE:CLASS"),
        ("no_such_module:Order", "class Order of module no_such_module cannot be imported"),
        ("tests.serdes.shop_messages:Nothing", "class Nothing of module tests.serdes.shop_messages cannot be imported"),
        ("pathlib:Path", "expected a class that protoc has made"),
    ],
)
def test_protobuf_by_name_says_what_is_wrong(argument: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"the topic: serde 'protobuf:{argument}': .*{said}"):
        make_serde(f"protobuf:{argument}", "the topic")
