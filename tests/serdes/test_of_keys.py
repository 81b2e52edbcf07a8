"""Keys of a type: what is read back is the same key, with the same bytes, and so in the same partition and store."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from dataclasses import fields as fields_of
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest
from msgspec import Meta, Struct, defstruct
from pydantic import AliasChoices, BaseModel, Field, computed_field, create_model

from penstock import Processor, Record, Serde, SerdeError, Topology, key_value_store
from penstock.plugins.dsl import TimeWindowedSerde
from penstock.plugins.serdes.list import ListSerde
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde
from penstock.plugins.testing import TopologyTestDriver
from penstock.program.serdes import checked, make_serde
from penstock.stores.rows.value_form import ValueForm


class Place(NamedTuple):
    x: float
    y: float | None = None


@dataclass(frozen=True)
class Price:
    amount: Decimal
    by_weight: dict[float, int] = field(default_factory=dict)


class Area(Struct, frozen=True):
    corners: tuple[Place, ...]


@pytest.mark.parametrize(
    "key",
    [Place(1), Place(1.5, -0.0), Place(2**53, 1), Price(1), Price(1.5), Price(Decimal("1.50"), {2: 1}),  # type: ignore[arg-type]
     Area((Place(1), Place(2, 3)))],
)  # fmt: skip
def test_a_key_that_is_read_back_has_the_same_bytes(key: Any) -> None:
    for serde, value in ((of(type(key)), key), (of(list[type(key)]), [key]), (of(dict[str, type(key)]), {"a": key})):  # type: ignore[misc]
        data = serde.serialize(value)
        again = serde.deserialize(data)
        assert again == value and serde.serialize(again) == data


def a_dataclass(**fields: Any) -> Any:
    """A dataclass of fields by their types; a field that is given a number has it as its default."""
    made = [(name, int, each) if isinstance(each, int) else (name, each) for name, each in fields.items()]
    return make_dataclass("Key", made)


def a_struct(*, omits: bool, **fields: Any) -> Any:
    return defstruct("Key", [(name, type(each), each) for name, each in fields.items()], omit_defaults=omits)


DAY = date(2024, 2, 29)
EMPTY = a_dataclass()


def a_tuple(**fields: Any) -> Any:
    return NamedTuple("Key", list(fields.items()))


def a_typed_dict(**fields: Any) -> Any:
    return TypedDict("Key", fields)  # type: ignore[operator]


CHANGED: list[tuple[Any, Any, Any, str]] = [
    (a_dataclass(a=int, b=str), a_dataclass(b=str, a=int), (1, "x"), "the value had its fields in another order: a, b"),
    (a_dataclass(a=int), a_dataclass(a=int, b=1), (1,), "field 'b' is new, and keys from before do not have it"),
    (a_dataclass(a=int), a_dataclass(a=float), (1,), "field 'a' was integer and is number"),
    (a_dataclass(a=int), a_dataclass(a=float | None), (1,), "field 'a' was integer and is number or null"),
    (list[int], list[float], None, "field '[]' was integer and is number"),
    (a_dataclass(a=dict[int, int]), a_dataclass(a=dict[float, int]), ({1: 1},), "field 'a (keys)' was integer and is"),
    (a_tuple(a=int), Place, (1,), "field '[0]' was integer and is number"),
    (a_tuple(x=float), Place, (1.0,), "field '[1]' is new, and keys from before do not have it"),
    (a_struct(omits=False, a=1), a_struct(omits=True, a=1), (1,), "field 'a' was written where it is 1, and is left"),
    (a_struct(omits=True, a=1), a_struct(omits=False, a=1), (1,), "field 'a' had the default 1, which rows leave out"),
    (a_struct(omits=True, a=1), a_struct(omits=True, a=1, b=""), (2,), ""),
    (a_dataclass(b=int, a=int), dict[str, int], (2, 1), "the value had fields, and is a dict"),
    (a_dataclass(b=int, a=str), a_dataclass(b=int | None, a=str), (1, "x"), ""),
    (a_typed_dict(b=int, a=str), a_typed_dict(a=str, b=int), {"b": 1, "a": "x"}, ""),
    (a_typed_dict(b=int), a_typed_dict(b=int, a=NotRequired[str]), {"b": 1}, ""),
    (a_dataclass(b=int, a=str), a_typed_dict(b=int, a=str), (1, "x"), "had its fields in another order: b, a"),
    (a_typed_dict(b=int, a=int), dict[str, int], {"b": 1, "a": 1}, ""),
    (a_dataclass(a=int), a_dataclass(a=int | str), (1,), ""),
    (a_dataclass(a=Literal["x"]), a_dataclass(a=Literal["x", "y"]), ("x",), ""),
    (a_dataclass(a=Literal["x"]), a_dataclass(a=str), ("x",), ""),
    (a_tuple(x=float, y=float | None), Place, (1, None), ""),
    (a_dataclass(b=int, a=dict[date, int]), a_dataclass(b=int, a=dict[str, int]), (1, {DAY: 1}),
     "a dict whose keys are no text is gone: with one, fields are written in the order of their names, and not as"),
    (a_dataclass(a=dict[date, int], b=int), a_dataclass(a=dict[str, int], b=int), ({DAY: 1}, 1), ""),
    (a_dataclass(b=int, a=EMPTY), a_dataclass(b=int, a=dict[date, int]), (1, EMPTY()), "no text is new"),
    (a_dataclass(b=int, a=int), Any, (1, 2), "had fields, and may be anything, in which they are written in order"),
    (a_dataclass(a=int, b=int), Any, (1, 2), ""),
    (a_dataclass(a=frozenset[Decimal]), a_dataclass(a=frozenset[str]), ({Decimal(10), Decimal(9)},),
     "is a set, whose elements with decimal had another order"),
    (a_dataclass(a=frozenset[date]), a_dataclass(a=frozenset[str]), ({DAY, date(2024, 2, 1)},), ""),
    (create_model("Key", a=(int, ...)), create_model("Key", a=(int, ...), b=(int, 1)), {"a": 1}, "field 'b' is new"),
    (create_model("Key", a=(int, 1), b=(int, 1)), create_model("Key", b=(int, 1), a=(int, 1)), {}, "in another order"),
    (create_model("Key", a=(float, ...)), create_model("Other", a=(float | None, ...)), {"a": 1}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("before", "now", "fields", "expected"), CHANGED)
def test_a_changed_type_that_writes_keys_otherwise_is_refused(
    before: Any, now: Any, fields: Any, expected: str
) -> None:
    old, new = of(before), of(now)
    key = [1] if fields is None else before(**fields) if isinstance(fields, dict) else before(*fields)
    data = old.serialize(key)
    found = new.unfindable(old.written_form())
    assert (expected in found) if expected else (found == ""), found
    again: Any = new.deserialize(data)
    if is_dataclass(again):  # it lacks attributes that its class has; one that a program makes does not
        again = now(**{each.name: getattr(again, each.name) for each in fields_of(again)})
    assert (new.serialize(again) == data) == (found == "")


SAVED: list[tuple[Any, str, bool]] = [
    (
        Place,
        '{"$defs":{"Place":{"maxItems":2,"minItems":1,"prefixItems":[{"title":"x","type":"number"},{"anyOf":[{"type":'
        '"number"},{"type":"null"}],"title":"y"}],"type":"array"}},"$ref":"#/$defs/Place"}',
        True,
    ),
    (Decimal, '{"$patterns":true,"format":"decimal","type":"string"}', False),
    (
        dict[float, int],
        '{"$keys":{"(keys)":{"type":"number"}},"additionalProperties":{"type":"integer"},"type":"object"}',
        True,
    ),
    (
        create_model("Key", a=(float, ...)),
        '{"properties":{"a":{"type":"number"}},"required":["a"],"type":"object"}',
        False,
    ),
    (
        a_dataclass(b=int, a=str),
        '{"$defs":{"Key":{"properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a","b"],"type":'
        '"object"}},"$patterns":true,"$ref":"#/$defs/Key"}',
        False,
    ),
    (
        a_struct(omits=True, a=1.5, b=1),
        '{"$defs":{"Key":{"properties":{"b":{"omitted":1,"type":"integer"}},"required":[],"type":"object"}},"$ref":'
        '"#/$defs/Key"}',
        False,
    ),
]
"""Types, and forms that older versions saved of them: whether these wrote an int in place of a float as an int."""


@pytest.mark.parametrize(("kind", "form", "had_ints"), SAVED)
def test_keys_that_an_older_version_may_have_written_with_an_int_are_refused(
    kind: Any, form: str, had_ints: bool
) -> None:
    serde = of(kind)
    assert serde.unreadable(f"of({form})") == ""
    found = serde.unfindable(f"of({form})")
    assert found.endswith("is written as that now") if had_ints else found == "", found
    assert serde.unfindable(serde.written_form()) == ""


class Keep(Processor):
    """Keeps a place under itself, and sends it on so."""

    def process(self, record: Record) -> None:
        place = Place(record.value)
        self.context.get_store("places").put(place, place)
        self.context.forward(Record(place, place, record.timestamp))


def program() -> Topology:
    topology = Topology().add_source("in", "in", key_serde="str", value_serde="msgpack")
    store = key_value_store("places", key_serde=of(Place), value_serde=of(Place))
    topology.add_processor("keep", Keep, "in", stores=[store])
    return topology.add_sink("out", "out", "keep", key_serde=of(Place), value_serde=of(Place))


def test_a_row_is_found_by_the_key_that_a_scan_shows() -> None:
    with TopologyTestDriver(program()) as driver:
        driver.pipe("in", "a", 1)
        driver.pipe("in", "a", 1.0)
        driver.reopen()
        store = driver.store("places")
        assert [key for key, _ in store.all()] == [Place(1.0)]
        assert store.get(Place(1.0)) == store.get(Place(1)) == Place(1.0)


def test_values_are_written_once() -> None:
    """An int in place of a float stays one in a value, which no bytes are compared of: another write takes time."""
    with TopologyTestDriver(program()) as driver:
        driver.pipe("in", "a", 1)
        out = driver.output_topic("out", key_serde="bytes", value_serde="bytes").read()
        assert out is not None and (out.key, out.value) == (b"[1.0,null]", b"[1,null]")
    serde = of(Place)
    for values in (serde.bind("out", is_key=False), serde.for_values(), ListSerde(serde).for_values().inner):  # type: ignore[attr-defined]
        for each in (values, pickle.loads(pickle.dumps(values)), values.for_values()):
            assert each.serialize(Place(1)) == b"[1,null]"
            assert each.deserialize(b"[1,null]") == Place(1.0)
            assert each.written_form() == serde.written_form()
    assert ValueForm("places", serde).encode(Place(1)).endswith(b"[1,null]")
    assert serde.bind("out", is_key=True).serialize(Place(1)) == serde.serialize(Place(1)) == b"[1.0,null]"


class Strict(BaseModel):
    row: str = Field(validation_alias=AliasChoices("row", "line"))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def upper(self) -> str:
        return self.row.upper()


class Open(BaseModel, extra="allow"):
    row: str


@dataclass(frozen=True)
class Seat:
    row: str


class SeatArray(Struct, frozen=True, array_like=True):
    row: str
    number: int = 0


class TaggedArray(SeatArray, frozen=True, array_like=True, tag="seat"):
    pass


@dataclass(frozen=True)
class Ticket:
    seat: Annotated[Seat, Meta(description="described")]


PLAIN = {"row": "a"}
MORE = {**PLAIN, "number": 5}
AVRO = '{"type": "record", "name": "Seat", "fields": [{"name": "row", "type": "string"}]}'


@pytest.mark.parametrize(
    ("serde", "key", "wrong", "path"),
    [
        (of(Seat), PLAIN, MORE, "number"),
        (of(list[Seat]), [PLAIN], [PLAIN, MORE], r"\[1\].number"),
        (of(Seat | None), PLAIN, MORE, "number"),
        (of(Strict), {"line": "a"}, {"line": "a", "number": 5}, "(line|number)"),
        (of(Strict), {**PLAIN, "upper": "A"}, {**MORE, "upper": "A"}, "number"),
        (of(Open), MORE, None, ""),
        (of(dict[str, int]), {"a": 1}, None, ""),
        (of(Ticket), {"seat": PLAIN}, {"seat": MORE}, "seat.number"),
        (of(Annotated[Seat, Meta(title="T")]), PLAIN, MORE, "number"),
        (of(list[Annotated[Seat, Meta(title="T")] | None]), [PLAIN], [MORE], r"\[0\].number"),
        (of(SeatArray), ["a"], ["a", 1, "left"], r"\[2\]"),
        (of(list[SeatArray]), [["a", 1]], [["a", 1, "left"]], r"\[0\]\[2\]"),
        (of(TaggedArray), ["seat", "a", 1], ["seat", "a", 1, "left"], r"\[3\]"),
        (of(SeatArray | None | dict[str, Seat]), {"a": PLAIN}, {"a": MORE}, r"\['a'\].number"),
        (AvroSerde(AVRO, Seat, registry="mock://keys"), PLAIN, MORE, "number"),
        (JsonSchemaSerde(Seat, registry="mock://keys"), PLAIN, MORE, "number"),
        (ListSerde(of(Seat)), [PLAIN, None], [MORE], "number"),
        (
            TimeWindowedSerde(of(Seat), 10),
            {"!windowed": {"key": PLAIN, "start": 0, "end": 10}},
            {"!windowed": {"key": MORE, "start": 0, "end": 10}},
            "number",
        ),
        ("json", MORE, None, ""),
        ("msgpack", {"!tuple": [MORE]}, None, ""),
    ],
)
def test_a_key_that_is_given_as_text_loses_no_field(serde: Any, key: Any, wrong: Any, path: str) -> None:
    """It would be another key."""
    serde = checked(serde if isinstance(serde, Serde) else make_serde(serde, "keys")).bind("seats", is_key=True)
    assert serde.serialize(serde.key_from_json(key)) == serde.serialize(serde.from_json(key))
    if wrong is not None:
        serde.from_json(wrong)
        with pytest.raises(SerdeError, match=f": {path}: keys of .* have no such field"):
            serde.key_from_json(wrong)
