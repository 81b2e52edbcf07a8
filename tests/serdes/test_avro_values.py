"""Avro writes values of the declared types only: none comes back as another value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import SerdeError
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.testing.contracts.serde_tests import same_value

pytestmark = pytest.mark.filterwarnings("ignore:Unknown local-timestamp:avro.errors.IgnoredLogicalType")
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DAY = {"type": "int", "logicalType": "date"}
COARSE = {"type": "int", "logicalType": "time-millis"}
CLOCK = {"type": "long", "logicalType": "time-micros"}
ID = {"type": "string", "logicalType": "uuid"}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
PAIR = {"type": "fixed", "name": "Pair", "size": 2}
TEXTS = {"type": "array", "items": "string"}
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "x", "type": "string"}]}
_NOW = datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC)


def serde_of(kind: Any, value_type: Any = None) -> AvroSerde[Any]:
    """Return the serde of a record with the field `v`."""
    schema = {"type": "record", "name": "Row", "fields": [{"name": "v", "type": kind}]}
    return AvroSerde(json.dumps(schema), value_type, registry=registry_of(kind))


def registry_of(kind: Any) -> str:
    """Return a registry for the schema of `kind` alone."""
    return f"mock://{sha256(str(kind).encode()).hexdigest()}"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int", [1.5, 1.0, True, "1", None, Decimal("1.5"), 2**31, -(2**31) - 1]),
        ("long", [1.5, False, Decimal(1), 2**63]),
        ("boolean", [1, 0, "no", "", None, 0.5]),
        ("float", [1e300, True, "1.5", None, Decimal("0.1")]),
        ("double", [True, "1.5", "NaN", Decimal("0.1"), 10**400]),
        (MILLIS, [datetime(2024, 2, 29), 1.5, "2024-02-29"]),
        (MICROS, [datetime(2024, 2, 29), True]),
        (LOCAL, [_NOW]),
        (DAY, [_NOW, datetime(2024, 2, 29), "29 February", 1.5]),
        (CLOCK, [time(1, tzinfo=UTC), time(1, tzinfo=timezone(timedelta(hours=2)))]),
        (ID, ["text", 1]),
        (TEXTS, ["text", b"text", {"a": 1}]),
        (["null", "boolean"], [1, "no"]),
        (["null", MILLIS], [datetime(2024, 2, 29)]),
        (["null", DAY], [datetime(2024, 2, 29)]),
        (["null", "float"], [1e300]),
        (["null", TEXTS], ["text"]),
        ({"type": "array", "items": "int"}, [[1.5], [True]]),
        ({"type": "map", "values": "int"}, [{"a": 1.5}]),
        (INNER, [{"x": 1.5}]),
        (["null", INNER], [{"x": 1.5}]),
    ],
)
def test_a_value_of_another_type_is_refused(kind: Any, values: list[Any]) -> None:
    for has_written in (False, True):  # the first value is written by Confluent's serializer
        for value in values:
            serde = serde_of(kind)
            if has_written:
                serde.serialize({"v": _of(kind)})
            with pytest.raises(SerdeError, match="serde 'avro': cannot write"):
                serde.serialize({"v": value})
            if has_written:
                by_newest = AvroSerde(registry=registry_of(kind), subject="Row")
                with pytest.raises(SerdeError, match="serde 'avro': cannot write"):
                    by_newest.serialize({"v": value})


def test_text_is_a_date_where_it_cannot_be_text() -> None:
    """JSON has a date as text, as in the lines of `penstock produce`."""
    for kind, expected in (
        (DAY, date(2024, 2, 29)),
        (["null", DAY], date(2024, 2, 29)),
        ([DAY, "string"], "2024-02-29"),
    ):
        serde = serde_of(kind)
        for _ in range(2):  # the first value is written by Confluent's serializer
            assert serde.deserialize(serde.serialize({"v": "2024-02-29"})) == {"v": expected}


def _of(kind: Any) -> Any:
    """Return a value that fits."""
    kind = next((each for each in kind if each != "null"), None) if isinstance(kind, list) else kind
    name = kind if isinstance(kind, str) else kind.get("logicalType", kind["type"])
    return {
        "boolean": True, "float": 0.5, "double": 0.1, "timestamp-millis": _NOW, "timestamp-micros": _NOW,
        "local-timestamp-micros": datetime(2024, 2, 29), "date": date(2024, 2, 29), "time-micros": time(1),
        "uuid": UUID(int=1), "array": [], "map": {}, "record": {"x": 1},
    }.get(name, 1)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int", [0, -(2**31), 2**31 - 1]),
        ("long", [2**63 - 1, -(2**63)]),
        ("float", [0.5, -0.0, float("inf"), float("nan")]),
        ("double", [0.1, 1e300]),
        (MICROS, [_NOW]),
        (LOCAL, [datetime(2024, 2, 29, 1)]),
        (["null", DAY, "string"], [None, date(2024, 2, 29), "2024-02-29", "text"]),
        (["null", "float", "double"], [0.5, 1e300, 0.1]),
        ([INNER, OTHER], [("Inner", {"x": 1}), ("Other", {"x": "text"})]),
        (["int", "long", "double"], [1, 2**40, 1.0, 0.5]),
        ({"type": "array", "items": ["null", "boolean"]}, [[True, None, False]]),
        (["null", DAY, "long"], [1, 2**40, date(2024, 2, 29)]),
        ([MICROS, "int", "string"], [1, _NOW, "text"]),
        (["null", AMOUNT, PAIR], [b"\x01\x02", Decimal("2.58"), None]),
        (["null", COARSE, CLOCK], [time(1, 2, 3, 4567), time(1, 2, 3, 4000), time(0), None]),
        ([CLOCK, COARSE], [time(1, 2, 3, 4567), time(1, 2, 3, 4000)]),
        ({"type": "map", "values": [AMOUNT, PAIR]}, [{"a": b"\x01\x02", "b": Decimal("2.58")}]),
    ],
)
def test_a_value_comes_back_as_it_was(kind: Any, values: list[Any]) -> None:
    serde, by_newest = serde_of(kind), AvroSerde(registry=registry_of(kind), subject="Row")
    for value in [*values, *values]:
        data = serde.serialize({"v": value})
        read = serde.deserialize(data)["v"]
        assert same_value(read, value), f"{value!r} came back as {read!r}"
        assert by_newest.serialize({"v": value}) == data


def test_a_logical_type_takes_plain_values_where_no_other_branch_does() -> None:
    """As fastavro does: an int is the number of a day, and bytes are those of a Decimal."""
    for kind, value, expected in (
        (["null", DAY], 1, date(1970, 1, 2)),
        ([DAY, "string"], 1, date(1970, 1, 2)),
        (["null", AMOUNT], b"\x01\x02", Decimal("2.58")),
    ):
        serde = serde_of(kind)
        for _ in range(2):  # the first value is written by Confluent's serializer
            assert serde.deserialize(serde.serialize({"v": value})) == {"v": expected}


@pytest.mark.parametrize("kind", [[COARSE, CLOCK], [DAY, MILLIS, "string"], ["null", CLOCK, DAY]], ids=str)
def test_an_int_that_may_be_several_dates_and_times_is_refused(kind: list[Any]) -> None:
    serde = serde_of(kind)
    for value in (1, 2**40):
        for _ in range(2):
            with pytest.raises(SerdeError, match="serde 'avro': cannot write"):
                serde.serialize({"v": value})


def test_a_schema_that_is_no_record() -> None:
    for kind, value, wrong in (("long", 2**40, 1.5), (DAY, date(2024, 2, 29), _NOW), (TEXTS, ["a"], "a")):
        own = AvroSerde(json.dumps(kind), registry=registry_of([kind]), subject="own")
        by_newest = AvroSerde(registry=registry_of([kind]), subject="own")
        for serde in (own, by_newest, own, by_newest):
            assert serde.deserialize(serde.serialize(value)) == value
            with pytest.raises(SerdeError, match="serde 'avro': cannot write"):
                serde.serialize(wrong)


@dataclass
class Row:
    v: int


def test_a_wrong_field_of_a_type_is_refused_with_what_was_found() -> None:
    serde = serde_of("long", Row)
    assert serde.deserialize(serde.serialize(Row(2))) == Row(2)
    with pytest.raises(SerdeError, match="expected Avro's long, found float 1.5 on field v"):
        serde.serialize(Row(1.5))  # type: ignore[arg-type]


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    declared = [each if isinstance(each, dict) else {"name": each, "type": "int"} for each in fields]
    return {"type": "record", "name": f"shop.{name}", "fields": declared, **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


IN, OUT = record("In", "cents"), record("Out", "cents")
MORE = record("More", "cents", field("why", "string", default=""))
EITHER = [IN, OUT]
NUMBER = record("Number", "cents")
SUM = record("Sum", field("left", ["shop.Sum", NUMBER]), field("right", ["null", "shop.Number", "shop.Sum"]))
ONE: dict[str, Any] = {"cents": 1}
COLOR = {"type": "enum", "name": "shop.Color", "symbols": ["RED", "BLUE"]}
FOUR = {"type": "fixed", "name": "shop.Four", "size": 4}
BY_NAME = record(
    "Event", field("in", IN), field("color", COLOR), field("four", FOUR),
    field("of", {"type": "array", "items": ["null", "shop.In", "shop.Color", "shop.Four"]}),
)  # fmt: skip
"""A union that names one record, an enum and a fixed type."""


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (EITHER, None),
        (["null", MORE, *EITHER], None),
        ({"type": "array", "items": EITHER}, [("shop.Out", ONE), ("shop.In", ONE)]),
        ({"type": "map", "values": ["null", *EITHER]}, {"a": ("shop.Out", ONE), "b": None}),
        (record("Event", field("of", EITHER)), {"of": ("shop.Out", ONE)}),
        (
            record("Event", field("a", IN), field("b", OUT), field("of", ["shop.In", "null", "shop.Out"])),
            {"a": ONE, "b": ONE, "of": ("shop.Out", ONE)},
        ),
        (BY_NAME, {"in": ONE, "color": "RED", "four": b"1234", "of": [None, ONE, "BLUE", b"4321"]}),
        (SUM, {"left": ("shop.Sum", {"left": ("shop.Number", ONE), "right": None}), "right": ("shop.Number", ONE)}),
    ],
    ids=str,
)
def test_a_record_of_a_union_keeps_its_name(schema: Any, value: Any) -> None:
    """Records with the same fields are written as what they were read as, and no other."""
    serde = AvroSerde(json.dumps(schema), registry=registry_of(schema), subject="events")
    newest: AvroSerde[Any] = AvroSerde(registry=registry_of(schema), subject="events")
    for each in [value] if value is not None else [("shop.In", ONE), ("shop.Out", ONE)]:
        for _ in range(2):  # the first value is written by another way
            data = serde.serialize(each)
            assert serde.deserialize(data) == newest.deserialize(data) == each
            assert serde.serialize(serde.deserialize(data)) == newest.serialize(each) == data
            assert serde.from_json(json.loads(json.dumps(serde.to_json(each)))) == each


def test_a_record_that_may_be_several_is_refused() -> None:
    schema = [IN, OUT, record("Else", "euros"), record("Text", field("cents", ["null", "string"]))]
    serde = AvroSerde(json.dumps(schema), registry=registry_of(schema), subject="events")
    AvroSerde(json.dumps(schema), registry=registry_of(schema), subject="events").serialize(("shop.In", ONE))
    for each in (serde, AvroSerde(registry=registry_of(schema), subject="events")):
        for _ in range(2):
            with pytest.raises(SerdeError, match="may be a shop.In or a shop.Out: give a pair"):
                each.serialize(ONE)
            assert serde.deserialize(each.serialize({"euros": 1})) == ("shop.Else", {"euros": 1})
            assert serde.deserialize(each.serialize({"cents": "1"})) == ("shop.Text", {"cents": "1"})
    assert serde.deserialize(serde.serialize(("shop.Out", ONE))) == ("shop.Out", ONE)


class Deposit(msgspec.Struct, tag=True):
    cents: int


class Withdrawal(msgspec.Struct, tag=True):
    cents: int


class Moved(msgspec.Struct):
    of: Deposit | Withdrawal


def test_values_of_a_type_are_told_apart_by_their_fields() -> None:
    """They have no names, and are not asked for one."""
    tagged = [
        record(name, field("type", {"type": "enum", "name": f"shop.Is{name}", "symbols": [name]}), "cents")
        for name in ("Deposit", "Withdrawal")
    ]
    schema = record("Moved", field("of", tagged))
    serde = AvroSerde(json.dumps(schema), Moved, registry=registry_of(schema), subject="events")
    plain: AvroSerde[Any] = AvroSerde(json.dumps(schema), registry=registry_of(schema), subject="events")
    for each in (Moved(Deposit(1)), Moved(Withdrawal(2))):
        for _ in range(2):
            assert serde.deserialize(serde.serialize(each)) == each
    assert plain.deserialize(plain.serialize({"of": {"type": "Withdrawal", "cents": 2}}))["of"][0] == "shop.Withdrawal"


NAMED_IN = {"of": ("shop.In", ONE)}


@pytest.mark.parametrize(
    ("before", "now", "written", "read"),
    [
        (EITHER, [MORE, OUT, IN], NAMED_IN, NAMED_IN),
        (EITHER, ["null", record("Later", "cents", aliases=["shop.In"]), OUT], NAMED_IN, {"of": ("shop.Later", ONE)}),
        (IN, ["null", OUT, IN], {"of": ONE}, NAMED_IN),
        (["null", IN], ["null", OUT, IN], {"of": ONE}, NAMED_IN),
        (EITHER, IN, NAMED_IN, {"of": ONE}),
        (["null", *EITHER], ["null", IN], NAMED_IN, {"of": ONE}),
        ([IN, MORE], ["string", MORE, {"type": "array", "items": [OUT, IN]}],
         {"of": ("shop.More", {**ONE, "why": "x"})}, {"of": {**ONE, "why": "x"}}),
        ({"type": "array", "items": EITHER}, {"type": "array", "items": ["null", OUT, IN]}, {"of": [("shop.In", ONE)]},
         {"of": [("shop.In", ONE)]}),
    ],
    ids=str,
)  # fmt: skip
def test_a_record_of_a_union_has_the_name_of_the_schema_that_reads(
    before: Any, now: Any, written: Any, read: Any
) -> None:
    """A value has the form of the serde's own schema, whatever schema wrote it, also where that is new there."""
    registry, new = registry_of((before, now)), field("new", "int", default=7)
    old = AvroSerde(json.dumps(record("Event", field("of", before))), registry=registry, subject="old")
    serde = AvroSerde(json.dumps(record("Event", field("of", now), new)), registry=registry, subject="new")
    assert serde.deserialize(old.serialize(written)) == {**read, "new": 7}
    assert serde.deserialize(serde.serialize({**read, "new": 7})) == {**read, "new": 7}


BOTH = ["null", "string", "bytes"]


@pytest.mark.parametrize(
    ("before", "now", "values"),
    [
        (BOTH, BOTH, [None, "text", b"text", b"\xff"]),
        (BOTH, ["bytes", "int", "string", "null"], [None, "text", b"text", b"\xff"]),
        (
            {"type": "map", "values": BOTH},
            {"type": "map", "values": ["bytes", "string", "null"]},
            [{"a": "x", "b": b"x"}],
        ),
        ("string", ["null", "bytes", "string"], ["text", ""]),
        ("bytes", ["string", "bytes"], [b"text", b""]),
        ("string", [{"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "string"], ["1.50", "ab"]),
        ("string", ["bytes", ID], ["text"]),
    ],
    ids=str,
)
def test_text_and_bytes_of_a_union_are_what_was_written(before: Any, now: Any, values: list[Any]) -> None:
    """Also where the schema has changed: each was read as the first of the two."""
    registry = registry_of((before, now))
    old = AvroSerde(json.dumps(record("Row", field("v", before))), registry=registry, subject="old")
    new = AvroSerde(
        json.dumps(record("Row", field("v", now), field("w", "int", default=7))), registry=registry, subject="new"
    )
    for value in values:
        assert same_value(new.deserialize(old.serialize({"v": value})), {"v": value, "w": 7})


@pytest.mark.parametrize(("before", "now"), [("string", "bytes"), ("string", ["null", "bytes"]), ("bytes", "string")])
def test_text_becomes_bytes_and_bytes_text(before: Any, now: Any) -> None:
    registry = registry_of((before, now))
    old, new = (
        AvroSerde(json.dumps(record("Row", field("v", kind))), registry=registry, subject=str(kind))
        for kind in (before, now)
    )
    text, data = "\u00e4", "\u00e4".encode()
    written, read = (text, data) if before == "string" else (data, text)
    assert new.deserialize(old.serialize({"v": written})) == {"v": read}


def test_a_default_that_is_a_record_of_a_union_has_its_name() -> None:
    registry = registry_of("a default")
    old = AvroSerde(json.dumps(record("Event", "a")), registry=registry, subject="old")
    with_default = record("Event", "a", field("of", EITHER, default=ONE))
    serde = AvroSerde(json.dumps(with_default), registry=registry, subject="new")
    assert serde.deserialize(old.serialize({"a": 1})) == {"a": 1, "of": ("shop.In", ONE)}


@pytest.mark.parametrize("schema", [record("Nothing"), record("Nothing", field("a", "null"))], ids=str)
def test_a_value_without_bytes_is_read(schema: Any) -> None:
    serde = AvroSerde(json.dumps(schema), registry=registry_of(schema))
    value = {each["name"]: None for each in schema["fields"]}
    assert serde.deserialize(serde.serialize(value)) == value


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=3),
    "bytes": st.binary(max_size=3),
}


@st.composite
def types_with_values(
    draw: st.DrawFn, names: Iterator[int], depth: int = 0, is_branch: bool = False
) -> tuple[Any, st.SearchStrategy[Any]]:
    """Return a type of Avro with the strategy of its values; records in it have the same few fields."""
    inner = partial(types_with_values, names, depth + 1)
    kind = draw(st.sampled_from([*_PRIMITIVES, *(["array", "map", "record", "record", "union"] if depth < 3 else [])]))
    if kind in _PRIMITIVES:
        return kind, _PRIMITIVES[kind]
    if kind == "array":
        items, values = draw(inner())
        return {"type": "array", "items": items}, st.lists(values, max_size=2)
    if kind == "map":
        items, values = draw(inner())
        return {"type": "map", "values": items}, st.dictionaries(st.sampled_from("ax"), values, max_size=2)
    if kind == "record" or is_branch:
        fields = {name: draw(inner()) for name in draw(st.sampled_from(["a", "b", "ab"]))}
        declared = [field(name, kind) for name, (kind, _) in fields.items()]
        values = st.fixed_dictionaries({name: values for name, (_, values) in fields.items()})
        return record(f"R{next(names)}", *declared), values
    found: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {}
    for branch, values in draw(st.lists(inner(is_branch=True), min_size=2, max_size=4)):
        name = branch.get("name") or branch["type"] if isinstance(branch, dict) else branch
        found.setdefault(name, (branch, values))
    records = [name for name in found if name.startswith("shop.")]
    pairs = {name: st.tuples(st.just(name), found[name][1]) for name in records if len(records) > 1}
    branches = [branch for branch, _ in found.values()]
    return branches, st.one_of([pairs.get(name, values) for name, (_, values) in found.items()])


@given(st.data())
def test_values_of_every_schema_are_written_as_they_were_read(data: st.DataObject) -> None:
    """Whatever unions it has: nothing changes its branch on the way through a program, nor as text."""
    kind, values = data.draw(types_with_values(count()))
    serde, newest = serde_of(kind), AvroSerde(registry=registry_of(kind), subject="Row")
    for value in data.draw(st.lists(values, min_size=1, max_size=3)):
        written = serde.serialize({"v": value})
        read = serde.deserialize(written)
        assert same_value(read["v"], value)
        assert newest.deserialize(written) == read
        assert serde.serialize(read) == newest.serialize(read) == written
        assert same_value(serde.from_json(json.loads(json.dumps(serde.to_json(read)))), read)


@dataclass
class Place:
    city: str
    country: str = "be"
    since: date = date(2024, 2, 29)


@dataclass
class Visit:
    places: list[Place]
    by_day: dict[str, Place | None]
    last: Place = dataclasses.field(default_factory=lambda: Place("Gent"))


def test_a_field_that_was_absent_where_a_value_was_read_is_written_with_its_default() -> None:
    """The default of the class counts, not that of the schema; `of` sets no attribute for it."""
    place = record("Place", field("city", "string"), field("country", "string", default="de"), field("since", DAY))
    visit = record(
        "Visit",
        field("places", {"type": "array", "items": place}),
        field("by_day", {"type": "map", "values": ["null", "shop.Place"]}),
        field("last", "shop.Place"),
    )
    serde = AvroSerde(json.dumps(visit), Visit, registry="mock://absent")
    read = of(Visit).deserialize(b'{"places": [{"city": "Gent"}], "by_day": {"1": {"city": "Aalst"}, "2": null}}')
    for value in (read, read):  # the first value is written by Confluent's serializer
        found = serde.deserialize(serde.serialize(value))
        assert found == Visit([Place("Gent")], {"1": Place("Aalst"), "2": None}) == value
        assert serde.from_json(json.loads(json.dumps(serde.to_json(value)))) == value
    alone = AvroSerde(json.dumps(place), Place, registry="mock://absent")
    for one in (of(Place).deserialize(b'{"city": "Gent"}'), Place("Gent"), Place("Gent", "nl", date(2025, 1, 1))):
        assert alone.deserialize(alone.serialize(one)) == one
