"""Typed columns: Spark's types as Python values and back, without and with Spark."""

from __future__ import annotations

import json
import os
import pickle
import re
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from pydantic import BaseModel, Field
from pyspark.sql import functions
from pyspark.sql import types as spark_types

from penstock import (
    Application,
    DeadLetter,
    Headers,
    OutputBatch,
    Processor,
    Record,
    Serde,
    SerdeError,
    TaskId,
    TopicPartition,
    Topology,
    default_partitioner,
    key_value_store,
)
from penstock.errors import ConfigError
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.serdes.list import ListSerde
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde
from penstock.plugins.spark import Records, topic_rows, transform
from penstock.plugins.spark.dataframe.checkpoint import SourceOrder
from penstock.plugins.spark.dataframe.packing import (
    Packer,
    Unpacker,
    arrays,
    packed,
    packed_arrays,
    typed_keys,
    typed_values,
)
from penstock.plugins.spark.dataframe.spark_types import column_of, fitted, type_of
from penstock.plugins.spark.dataframe.stream_engine import StreamTask
from penstock.plugins.spark.dataframe.transform import parts_of, spark_schemas
from penstock.plugins.spark.dataframe.typed_serdes import Column, TopicPart, TypedTopics
from penstock.plugins.spark.sessions import tune

# ---------------------------------------------------------------------- every type, both ways


def leaf(kind: spark_types.DataType) -> st.SearchStrategy[Any]:
    """Values of a Spark type that has no others inside."""
    name = kind.simpleString()
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}.get(name)
    if bits:
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    if isinstance(kind, spark_types.DecimalType):
        whole = 10**kind.precision - 1
        return st.integers(-whole, whole).map(lambda n: Decimal(f"{n}e-{kind.scale}"))
    if isinstance(kind, spark_types.DayTimeIntervalType):
        unit = (86_400_000_000, 3_600_000_000, 60_000_000, 1)[kind.endField]
        most = (1 << 63) // unit - 1
        return st.integers(-most, most).map(lambda n: timedelta(microseconds=n * unit))
    found: dict[str, st.SearchStrategy[Any]] = {
        "float": st.floats(width=32), "double": st.floats(), "boolean": st.booleans(), "string": st.text(),
        "binary": st.binary(), "date": st.dates(), "timestamp": st.datetimes(timezones=st.just(UTC)),
        "timestamp_ntz": st.datetimes(), "time(6)": st.times(), "void": st.none(),
    }  # fmt: skip
    return found[name]


_FIELD = spark_types.StructField
LEAVES = st.one_of(
    st.sampled_from(
        [
            spark_types.ByteType(),
            spark_types.ShortType(),
            spark_types.IntegerType(),
            spark_types.LongType(),
            spark_types.FloatType(),
            spark_types.DoubleType(),
            spark_types.BooleanType(),
            spark_types.StringType(),
            spark_types.BinaryType(),
            spark_types.DateType(),
            spark_types.TimestampType(),
            spark_types.TimestampNTZType(),
            spark_types.TimeType(6),
        ]
    ),
    st.integers(1, 38).flatmap(lambda p: st.builds(spark_types.DecimalType, st.just(p), st.integers(0, p))),
    st.sampled_from([(0, 0), (0, 3), (1, 2), (3, 3)]).map(lambda ends: spark_types.DayTimeIntervalType(*ends)),
)


def nested(inner: st.SearchStrategy[spark_types.DataType]) -> st.SearchStrategy[spark_types.DataType]:
    names = st.lists(st.sampled_from(["a", "b", "ä c", "value", "d.e"]), max_size=3, unique=True)
    return st.one_of(
        st.builds(spark_types.ArrayType, inner, st.booleans()),
        st.builds(spark_types.MapType, st.one_of(LEAVES, nested_keys()), inner, st.booleans()),
        names.flatmap(
            lambda names: st.tuples(*(st.builds(_FIELD, st.just(each), inner, st.booleans()) for each in names))
        ).map(lambda fields: spark_types.StructType(list(fields))),
    )  # fmt: skip


def nested_keys() -> st.SearchStrategy[spark_types.DataType]:
    return st.one_of(
        st.builds(spark_types.ArrayType, LEAVES, st.just(False)),
        LEAVES.map(lambda kind: spark_types.StructType([spark_types.StructField("x", kind, False)])),
    )


TYPES = st.recursive(st.one_of(LEAVES, st.just(spark_types.NullType())), nested, max_leaves=6)


def values(kind: spark_types.DataType, *, as_key: bool = False) -> st.SearchStrategy[Any]:
    """Values of a Spark type as a processor gets them."""
    if isinstance(kind, spark_types.ArrayType):
        found = st.lists(nullable(kind.elementType, kind.containsNull, as_key), max_size=3)
        return found.map(tuple) if as_key else found
    if isinstance(kind, spark_types.MapType):
        keys = values(kind.keyType, as_key=True).filter(lambda key: "nan" not in repr(key))
        return st.dictionaries(keys, nullable(kind.valueType, kind.valueContainsNull), max_size=3)
    if isinstance(kind, spark_types.StructType):
        parts = {each.name: nullable(each.dataType, each.nullable, as_key) for each in kind.fields}
        return st.tuples(*parts.values()) if as_key else st.fixed_dictionaries(parts)
    return leaf(kind)


def nullable(kind: spark_types.DataType, may_be_null: bool, as_key: bool = False) -> st.SearchStrategy[Any]:
    if isinstance(kind, spark_types.NullType):
        return st.none()
    found = values(kind, as_key=as_key)
    return st.one_of(st.none(), found) if may_be_null else found


def has_void(kind: spark_types.DataType) -> bool:
    """Whether a type demands values of a type that has none."""
    inside: list[tuple[spark_types.DataType, bool]] = []
    if isinstance(kind, spark_types.ArrayType):
        inside = [(kind.elementType, kind.containsNull)]
    elif isinstance(kind, spark_types.MapType):
        inside = [(kind.valueType, kind.valueContainsNull)]
    elif isinstance(kind, spark_types.StructType):
        inside = [(each.dataType, each.nullable) for each in kind]
    return any((isinstance(each, spark_types.NullType) and not nullable) or has_void(each) for each, nullable in inside)


def same(one: Any, other: Any) -> bool:
    """Whether values are equal and of equal types, NaN included, and zeros of equal signs."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, Decimal):
        return bool(one == other) and one.as_tuple()[2] == other.as_tuple()[2]
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(each, other[key]) for key, each in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, datetime):
        return bool(one == other) and one.tzinfo is other.tzinfo
    return bool(one == other)


def in_order(value: Any) -> str:
    """Return text to sort values by, the same for dicts whatever the order of their keys."""
    if isinstance(value, dict):
        return repr(sorted((key, in_order(each)) for key, each in value.items()))
    return repr([in_order(each) for each in value]) if isinstance(value, (list, tuple)) else repr(value)


def written(column: Column, given: list[Any]) -> Any:
    """An array of values, as a sink's part makes it."""
    return pyarrow.array([None if each is None else column.plain(each) for each in given], column.arrow())


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_values_of_every_type_come_back_as_they_were(data: st.DataObject) -> None:
    kind = data.draw(TYPES.filter(lambda kind: not has_void(kind)))
    column = pickle.loads(pickle.dumps(column_of(kind, "here")))
    rows = data.draw(st.lists(nullable(kind, True), max_size=5))
    array = written(column, rows)
    array.validate(full=True)
    assert same(column.read(array), rows)
    # A slice of a chunk that went through a stream, as a task gets it.
    start = data.draw(st.integers(0, len(rows)))
    sink = pyarrow.BufferOutputStream()
    batch = pyarrow.RecordBatch.from_arrays([array], ["value"])
    with pyarrow.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    arrived = pyarrow.ipc.open_stream(sink.getvalue()).read_all().column("value").combine_chunks()
    assert same(column.read(arrived.slice(start, 2)), rows[start : start + 2])
    # Different values have different text, which is JSON.
    texts = column.texts(array)
    assert [each is None for each in texts] == [each is None for each in rows]
    for each in filter(None, texts):
        json.loads(each, parse_constant=pytest.fail)
    for text, row in zip(texts, rows, strict=True):
        assert all(same(row, each) for other, each in zip(texts, rows, strict=True) if other == text)


class Broken:
    _fields = ("a",)

    @property
    def a(self) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("ddl", "value", "message"),
    [
        ("tinyint", 128, "expected an int from -128 to 127 for the type tinyint, found int 128; choose a wider type"),
        ("bigint", 1 << 63, "expected an int from -9223372036854775808 to"),
        ("bigint", True, "expected an int .*found bool True"),
        ("bigint", 1.0, "expected an int .*found float 1.0; convert it"),
        ("float", 3.5e38, "expected a float of 32 bits"),
        ("double", 10**400, "expected a float of 64 bits"),
        ("double", "1", "expected a float .*found str '1'"),
        ("boolean", 1, "expected a bool"),
        ("decimal(5,2)", Decimal("1.005"), "expected a number of 3 digits before the point and 2 after it .*round it"),
        ("decimal(5,2)", Decimal(1000), "expected a number of 3 digits before"),
        ("decimal(5,2)", Decimal("NaN"), "expected a number of 3 digits before"),
        ("decimal(5,2)", 1.5, "expected a Decimal"),
        ("string", b"x", "expected a str"),
        ("string", "\ud800", "expected text that UTF-8 can hold"),
        ("binary", "x", "expected bytes"),
        ("date", datetime(2026, 1, 1), "expected a date"),
        ("timestamp", datetime(2026, 1, 1), "expected a datetime with a zone .*tzinfo=UTC.*timestamp_ntz"),
        ("timestamp_ntz", datetime(2026, 1, 1, tzinfo=UTC), "expected a datetime without a zone .*type timestamp"),
        ("timestamp", pandas.NaT, "expected a datetime for .*NaT"),
        ("timestamp", pandas.Timestamp(1, tz="UTC"), "expected a datetime to the microsecond .*round it"),
        ("interval second", pandas.NaT, "expected a timedelta for .*NaT"),
        ("interval second", pandas.Timedelta(1), "expected a timedelta to the microsecond .*round it"),
        ("struct<a:int>", Broken(), "^ZeroDivisionError: "),
        ("time(3)", time(1, 2, 3, 4), "expected a time with 3 digits after the second"),
        ("interval day", timedelta(hours=1), "expected a timedelta that it can hold"),
        ("interval second", timedelta.max, "expected a timedelta that it can hold"),
        ("void", 1, "expected None"),
        ("array<int>", "12", "expected a list"),
        ("map<string,int>", [("a", 1)], "expected a dict"),
        ("struct<a:int>", [1], "expected a dict, a dataclass or a NamedTuple"),
        ("struct<a:int>", {"a": 1, "b": 2}, "has no field 'b'.*leave it out"),
        ("struct<a:int not null>", {}, "^value.a: expected a value of the type int, found None"),
        ("struct<a:array<struct<b:int>>>", {"a": [{"b": 1}, {"b": "x"}]}, r"^value.a\[1\].b: expected an int"),
        ("struct<a:map<string,tinyint>>", {"a": {"k": 300}}, r"^value.a\['k'\]: expected an int"),
    ],
)
def test_what_does_not_fit_is_refused(ddl: str, value: Any, message: str) -> None:
    part = TopicPart("out", "value", column_of(_ddl(ddl), "here"))
    with pytest.raises(SerdeError, match="topic 'out', value") as raised:
        part.plain(value)
    assert re.search(message, str(raised.value).removeprefix("topic 'out', ").replace("value: ", "", 1))


def test_sets_are_written_in_order() -> None:
    """A batch that Spark repeats elsewhere has the same rows, although hashes of text differ by process."""
    texts = {f"{number}" for number in range(100)}
    assert column_of(_ddl("array<string>"), "here").plain(texts) == sorted(texts)
    pairs = frozenset((number if number % 2 else None, number) for number in range(100))
    column = column_of(_ddl("array<array<int>>"), "here")
    assert column.plain(pairs) == sorted(([*pair] for pair in pairs), key=repr)  # None has no order


def test_text_that_is_not_utf_8_is_refused() -> None:
    column = column_of(_ddl("array<string>"), "here")
    texts = pyarrow.ListArray.from_arrays([0, 2], pyarrow.array([b"a", b"b\xff"], pyarrow.binary()).view("string"))
    with pytest.raises(SerdeError, match=r"value\[\]: expected text, found bytes that are not UTF-8: b'b\\xff'; cast"):
        TopicPart("in", "value", column).read(texts)
    assert json.loads(column.texts(texts)[0] or b"") == ["a", "b\udcff"]


_ATOMS = {
    "tinyint": spark_types.ByteType(), "int": spark_types.IntegerType(), "bigint": spark_types.LongType(),
    "float": spark_types.FloatType(), "double": spark_types.DoubleType(), "boolean": spark_types.BooleanType(),
    "string": spark_types.StringType(), "binary": spark_types.BinaryType(), "date": spark_types.DateType(),
    "timestamp": spark_types.TimestampType(), "timestamp_ntz": spark_types.TimestampNTZType(),
    "time(3)": spark_types.TimeType(3), "void": spark_types.NullType(),
    "interval day": spark_types.DayTimeIntervalType(0, 0), "interval second": spark_types.DayTimeIntervalType(3, 3),
}  # fmt: skip


def _ddl(text: str) -> spark_types.DataType:
    """A type as Spark reads it from such text, without a JVM."""
    name, _, inner = text.partition("<")
    if name == "array":
        return spark_types.ArrayType(_ddl(inner[:-1]))
    if name == "map":
        key, value = map(_ddl, _parts(inner[:-1]))
        return spark_types.MapType(key, value)
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", text):
        return spark_types.DecimalType(*map(int, decimal.groups()))
    if text in _ATOMS:
        return _ATOMS[text]
    struct = spark_types.StructType()
    for part in _parts(inner[:-1] if name == "struct" else text):
        field, _, kind = part.strip().replace(":", " ", 1).partition(" ")
        struct.add(field, _ddl(kind.removesuffix(" not null")), not kind.endswith(" not null"))
    return struct


def _parts(text: str) -> list[str]:
    """Text at the commas outside of brackets."""
    parts, depth = [""], 0
    for each in text:
        depth += (each in "<(") - (each in ">)")
        if each == "," and not depth:
            parts.append("")
        else:
            parts[-1] += each
    return parts


# ---------------------------------------------------------------------- classes


class Place(NamedTuple):
    x: int
    y: float = 0.5


class Color(Enum):
    RED = "red"


@dataclass
class Stop:
    at: datetime
    place: Place
    note: str | None = None


@dataclass
class Trip:
    id: UUID
    price: Decimal
    stops: list[Stop]
    color: Color = Color.RED
    seen: dict[str, Place] = field(default_factory=dict)
    took: timedelta = timedelta(0)


STOP = "struct<note:string,at:timestamp,place:struct<y:double,x:bigint>>"
TRIP = f"id string, price decimal(10,2), stops array<{STOP}>, color string, seen map<string,struct<x:int>>, extra int"
AT = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)


def test_a_struct_becomes_the_class_of_the_serde_and_a_class_a_struct() -> None:
    kind = _ddl(TRIP)
    part = TopicPart("in", "value", fitted(column_of(kind, "here"), Trip, "here"), of(Trip))  # type: ignore[arg-type]
    part = pickle.loads(pickle.dumps(part))
    uuid = UUID(int=5)
    row = {
        "id": str(uuid), "price": Decimal("1.50"), "color": "red", "extra": 3, "seen": [("a", {"x": 7})],
        "stops": [{"at": AT, "place": {"x": 1, "y": 2.5}, "note": None}],
    }  # fmt: skip
    array = pyarrow.array([row, None], part.column.arrow())
    trip = Trip(uuid, Decimal("1.50"), [Stop(AT, Place(1, 2.5))], Color.RED, {"a": Place(7)})
    assert part.read(array) == [trip, None]
    (again,) = written(column_of(type_of(Trip, "here"), "here"), [trip]).to_pylist()
    assert (again["id"], again["color"], again["price"]) == (str(uuid), "red", Decimal("1.50"))
    assert again["stops"] == [{"at": AT, "place": {"x": 1, "y": 2.5}, "note": None}]

    row["stops"] = [{"at": AT, "place": None, "note": None}]
    with pytest.raises(SerdeError, match=r"topic 'in', value: serde 'of\(Trip\)': stops\[0\].place: Expected .* null"):
        part.read(pyarrow.array([row], part.column.arrow()))


class Note(TypedDict):
    text: Annotated[str, "of a page"]
    places: NotRequired[list[Place]]


class Notes(Note, total=False):
    more: Annotated[int, "pages"]


class Named(BaseModel):
    name: str = Field(default="none", alias="theName")
    place: Place | None = None


class Tagged(Struct, rename="camel"):
    tag_of: str = "none"
    place: Place | None = None


@pytest.mark.parametrize(
    ("kind", "ddl", "row", "value"),
    [
        (Stop, "AT timestamp, Place struct<X:int,Y:double>, NOTE string",
         {"AT": AT, "Place": {"X": 1, "Y": 2}, "NOTE": "n"}, Stop(AT, Place(1, 2), "n")),
        (Note, "Text string, places array<struct<X:int>>", {"Text": "t", "places": [{"X": 1}]},
         {"text": "t", "places": [Place(1)]}),
        (Named, "thename string, PLACE struct<x:int>", {"thename": "n", "PLACE": {"x": 1}},
         Named(theName="n", place=Place(1))),
        (Tagged, "tagof string, PLACE struct<x:int>", {"tagof": "n", "PLACE": {"x": 1}}, Tagged("n", Place(1))),
    ],
)  # fmt: skip
def test_fields_of_a_class_are_found_as_spark_finds_names(kind: Any, ddl: str, row: Any, value: Any) -> None:
    topology = Topology().add_source("in", "in", value_serde=of(kind)).add_sink("out", "out", "in")
    part = typed_values(Application("app", topology), "in", _ddl(ddl))
    assert part is not None
    array = pyarrow.array([row], column_of(_ddl(ddl), "here").arrow())
    assert part.read(array) == [value]
    with pytest.raises((ConfigError, SerdeError)) if kind in (Stop, Note) else nullcontext():
        exact = typed_values(Application("app", topology), "in", _ddl(ddl), case_sensitive=True)
        assert exact is not None and exact.read(array) == [kind()]


PLACE = json.dumps(
    {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "double"}]}
)


@pytest.mark.parametrize(
    ("serde", "ddl", "row", "value", "out"),
    [
        (AvroSerde(PLACE, Place, registry="mock://typed"), "y double, x int", {"x": 1, "y": 2.5}, Place(1, 2.5),
         "struct<x:bigint,y:double>"),
        (JsonSchemaSerde(Stop, registry="mock://typed"), "at timestamp, place struct<x:int>",
         {"at": AT, "place": {"x": 1}}, Stop(AT, Place(1)),
         "struct<at:timestamp,place:struct<x:bigint,y:double>,note:string>"),
        (ListSerde(of(Place)), "array<struct<x:int>>", [{"x": 1}, None], [Place(1), None],
         "array<struct<x:bigint,y:double>>"),
        ("of-a-plugin", "x int", {"x": 1}, Place(1), "struct<x:bigint,y:double>"),
    ],
)  # fmt: skip
def test_every_serde_for_a_class_binds_its_columns(serde: Any, ddl: str, row: Any, value: Any, out: str) -> None:
    serde = Foreign() if serde == "of-a-plugin" else serde
    topology = Topology().add_source("in", "in", value_serde=serde).add_sink("out", "out", "in", value_serde=serde)
    app = Application("app", topology)
    part = typed_values(app, "in", _ddl(ddl))
    assert part is not None
    part = pickle.loads(pickle.dumps(part))
    assert part.read(pyarrow.array([row, None], part.column.arrow())) == [value, None]
    schemas = spark_schemas(app, "schema", ["out"])
    assert schemas["out"].simpleString() == out
    (sink,) = parts_of("schema", schemas).values()
    assert part.read(pyarrow.array([sink.plain(value)], sink.column.arrow()).cast(part.column.arrow())) == [value]


class Foreign(Serde[Place]):
    """A serde of another package."""

    value_type = Place

    def serialize(self, value: Place) -> bytes:
        raise NotImplementedError

    def deserialize(self, data: bytes) -> Place:
        raise NotImplementedError


Foreign.__module__ = "acme"


def test_types_of_classes() -> None:
    found = type_of(Trip, "here")
    assert found.simpleString() == (
        "struct<id:string,price:decimal(38,18),stops:array<struct<at:timestamp,place:struct<x:bigint,y:double>,"
        "note:string>>,color:string,seen:map<string,struct<x:bigint,y:double>>,took:interval day to second>"
    )
    fields = found["stops"].dataType.elementType.fields  # type: ignore[index]
    assert [each.nullable for each in fields] == [False, False, True]
    (text, places, more) = type_of(Notes, "here").fields  # type: ignore[attr-defined]
    assert (text.nullable, places.nullable, more.nullable) == (False, True, True)
    assert places.dataType.simpleString() == "array<struct<x:bigint,y:double>>"
    assert fitted(column_of(_ddl("text string"), "here"), Notes, "here")  # of which no other field must be there
    with pytest.raises(ConfigError, match="here: there is no Spark type for complex; give the schema as text"):
        type_of(complex, "here")


@pytest.mark.parametrize(
    ("ddl", "kind", "message"),
    [
        ("at timestamp", Stop, "here: the struct has no field 'place', which Stop has without a default; it has: at"),
        ("at timestamp, place struct<y:double>", Stop, "here.place: the struct has no field 'x'"),
        ("X int, x int", Place, "here: the struct has several fields that Spark finds by the name 'x': X, x. Rename"),
        ("at timestamp", Note, "here: the struct has no field 'text', which Note has without a default"),
    ],
)
def test_a_struct_must_have_the_fields_of_its_class(ddl: str, kind: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fitted(column_of(_ddl(ddl), "here"), kind, "here")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (spark_types.YearMonthIntervalType(), "here: the type interval year to month is not supported"),
        (spark_types.CalendarIntervalType(), "here: the type interval is not supported"),
        (spark_types.VariantType(), "here: the type variant is not supported"),
        (spark_types.GeometryType(4326), r"here: the type geometry\(4326\) is not supported"),
        (spark_types.ArrayType(spark_types.VariantType()), r"here\[\]: the type variant is not supported"),
        (spark_types.StructType().add("a", spark_types.VariantType()), "here.a: the type variant is not supported"),
        (
            spark_types.StructType().add("a", spark_types.LongType()).add("a", spark_types.DateType()),
            "here: the struct has several fields 'a'",
        ),
    ],
)
def test_types_that_python_does_not_have_are_refused(kind: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        column_of(kind, "here")


# ---------------------------------------------------------------------- in a task


class Doubles(Processor):
    """Forwards n twice as large; changes its dict afterwards, which must not change what was forwarded."""

    def process(self, record: Record) -> None:
        result = {"n": 2 * record.value["n"], "at": record.value["at"]}
        self.context.forward(record.with_value(result))
        result.clear()


IN, OUT = "n bigint, at timestamp", "n int, at timestamp"


def doubles(**options: Any) -> Application:
    topology = Topology().add_source("in", "in", key_serde="int").add_processor("doubles", Doubles, "in")
    return Application("app", topology.add_sink("out", "out", "doubles", key_serde="int"), **options)


def rows_of(application: Application, given: Any, tmp_path: Path) -> list[dict[str, Any]]:
    """What a task makes of an Arrow batch with the columns of `records.normalized`."""
    out = column_of(_ddl(OUT), "here")
    return [row for batch in results(application, [given], tmp_path, _ddl(IN), out) for row in batch.to_pylist()]


def results(
    application: Application, given: list[Any], tmp_path: Path, kind: spark_types.DataType, out: Column, tasks: int = 1
) -> list[Any]:
    """What tasks make of Arrow batches with the columns of `records.normalized`, as Arrow batches."""
    application = application.with_settings(data_dir=str(tmp_path))
    key, value = typed_keys(application, "in", _ddl("bigint")), typed_values(application, "in", kind)
    assert key is not None and value is not None
    typed = TypedTopics({"in": value}, {}, {"out": TopicPart("out", "value", out)})
    typed = pickle.loads(pickle.dumps(typed))
    chunks: list[list[bytes]] = [[] for _ in range(tasks)]
    for part in Packer("in", tuple(range(tasks)), (), key, value.column)(given):
        for group, chunk in zip(part["group"].to_pylist(), part["chunk"].to_pylist(), strict=True):
            chunks[group].append(chunk)
    program = application.program
    fingerprint = program.fingerprint(program.resolve({"in": tasks}, "app"))
    found: list[Any] = []
    for number in range(tasks):
        task = StreamTask(
            application, TaskId(0, number), [TopicPartition("in", number)], fingerprint, ProcessResources(),
            stream="query", kept=5, has_timeouts=False, source_order=SourceOrder(()), typed=typed,
        )  # fmt: skip
        try:
            outputs = task.run({"in": chunks[number]}, 0, None).outputs
        finally:
            task.close()
        found += Unpacker()([pyarrow.RecordBatch.from_pydict({"chunk": packed(outputs, typed.columns)})])
    return found


def given_rows(*rows: tuple[int | None, Any]) -> Any:
    return arrow_rows(column_of(_ddl(IN), "here"), [(key, value, 5) for key, value in rows])


def arrow_rows(column: Column, rows: list[tuple[int | None, Any, int]]) -> Any:
    """Rows of a key, a value and milliseconds with the columns of `records.normalized`."""
    return pyarrow.RecordBatch.from_pydict(
        {
            "key": pyarrow.array([key for key, _, _ in rows], pyarrow.int64()),
            "value": written(column, [value for _, value, _ in rows]),
            "time": pyarrow.array([1000 * at for _, _, at in rows], pyarrow.int64()),
            "headers": pyarrow.array([None] * len(rows), pyarrow.string()),
        }
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_of_every_schema_pass_tasks_in_whatever_order_they_come(data: st.DataObject) -> None:
    kind = data.draw(TYPES.filter(lambda kind: kind.simpleString() not in ("binary", "void") and not has_void(kind)))
    column = column_of(kind, "here")
    row = st.tuples(st.none() | st.integers(0, 3), nullable(kind, True), st.integers(0, 2))
    rows = data.draw(st.lists(row, max_size=6))
    shuffled, cut = data.draw(st.permutations(rows)), data.draw(st.integers(0, len(rows)))
    topology = Topology().add_source("in", "in", key_serde="int").add_sink("out", "out", "in", key_serde="int")
    application = Application("app", topology)
    found: list[list[Any]] = []
    for parts in ([rows], [shuffled[:cut], shuffled[cut:]]):
        with TemporaryDirectory() as directory:
            batches = results(
                application, [arrow_rows(column, part) for part in parts], Path(directory), kind, column, 2
            )
        found.append([])
        for batch in batches:
            keys = [None if each is None else int.from_bytes(each, "big") for each in batch["key"].to_pylist()]
            times = [int(each.timestamp() * 1000) for each in batch["timestamp"].to_pylist()]
            found[-1] += zip(keys, column.read(batch["out"].field("value")), times, strict=True)
    assert same(*found)
    assert same(sorted(found[0], key=in_order), sorted(rows, key=in_order))


def test_rows_with_equal_times_are_sorted_by_content(tmp_path: Path) -> None:
    rows = [(1, {"n": n, "at": AT}) for n in (3, 1, 2)]
    for order in (rows, rows[::-1]):
        found = rows_of(doubles(), given_rows(*order), tmp_path)
        assert [row["out"] for row in found] == [
            {"key": (1).to_bytes(8, "big"), "value": {"n": n, "at": AT}} for n in (2, 4, 6)
        ]
    assert found[0]["timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)
    assert (found[0]["topic"], found[0]["key"], found[0]["value"]) == ("out", (1).to_bytes(8, "big"), None)


def test_what_does_not_fit_names_topic_field_and_value_and_a_handler_decides(tmp_path: Path) -> None:
    rows = given_rows((1, {"n": 1 << 30, "at": AT}), (2, {"n": 5, "at": None}))
    with pytest.raises(Exception, match="sink 'out'|node 'out'") as raised:
        rows_of(doubles(), rows, tmp_path / "fails")
    assert "topic 'out', value.n: expected an int from -2147483648 to 2147483647" in str(raised.value)
    assert "found int 2147483648; choose a wider type in the schema" in str(raised.value)
    found = rows_of(doubles(production_handler=DeadLetter("dead")), rows, tmp_path / "dead")
    dead, good = sorted(found, key=lambda row: row["topic"])
    assert (dead["topic"], dead["key"], dead["out"]) == ("dead", (1).to_bytes(8, "big"), None)
    assert json.loads(dead["value"]) == {"n": 1 << 30, "at": "2026-01-01T12:00:00.000005Z"}
    assert good["out"]["value"] == {"n": 10, "at": None}


def test_a_value_that_python_cannot_hold_is_a_dead_letter_if_the_handler_says_so(tmp_path: Path) -> None:
    kind = column_of(_ddl(IN), "here").arrow()
    year_10_000 = pyarrow.StructArray.from_arrays(
        [pyarrow.array([1]), pyarrow.array([253_402_300_800_000_000]).cast(kind[1].type)], fields=list(kind)
    )
    late = given_rows((1, {"n": 1, "at": AT}))
    late = late.set_column(1, "value", year_10_000)
    rows = pyarrow.Table.from_batches([given_rows((2, {"n": 5, "at": AT})), late]).combine_chunks().to_batches()[0]
    with pytest.raises(
        Exception, match="topic 'in', value.at: expected a timestamp of the years 1 to 9999, found 2534"
    ):
        rows_of(doubles(), rows, tmp_path / "fails")
    found = rows_of(doubles(deserialization_handler=DeadLetter("out")), rows, tmp_path / "dead")
    dead, good = sorted(found, key=lambda row: row["out"] is not None)
    assert json.loads(dead["value"]) == {"n": 1, "at": 253_402_300_800_000_000}
    assert good["out"]["value"] == {"n": 10, "at": AT}


def test_the_bytes_of_a_key_decide_its_task() -> None:
    application = doubles()
    key, value = typed_keys(application, "in", _ddl("bigint")), typed_values(application, "in", _ddl(IN))
    assert key is not None and value is not None
    rows = given_rows(*((n, {"n": n, "at": AT}) for n in [*range(50), None]))
    found: dict[int, list[Any]] = {}
    for part in Packer("in", (10, 11, 12), (), pickle.loads(pickle.dumps(key)), value.column)([rows]):
        for group, chunk in zip(part["group"].to_pylist(), part["chunk"].to_pylist(), strict=True):
            found.setdefault(group, []).extend(pyarrow.ipc.open_stream(chunk).read_all()["key"].to_pylist())
    for n in range(50):
        raw = n.to_bytes(8, "big")
        assert raw in found[10 + default_partitioner(raw, 3)]
    assert sum(map(len, found.values())) == 51


def test_tombstones_and_typed_keys_come_out() -> None:
    typed = TypedTopics({}, {"out": TopicPart("out", "key", column_of(_ddl("string"), "here"))}, {})
    outputs = [OutputBatch("out", [("k",), None], [b"v", None], [1, 2], [(("h", b"x"),), ()])]  # type: ignore[list-item]
    packs = pyarrow.RecordBatch.from_pydict({"chunk": packed(outputs, typed.columns)})
    one, other = (row for batch in Unpacker()([packs]) for row in batch.to_pylist())
    assert (one["key"], one["value"], one["out"]) == (None, b"v", {"key": "k", "value": b"v"})
    assert (one["headers"], other["headers"]) == ([{"key": "h", "value": b"x"}], None)
    assert other["out"] == {"key": None, "value": None}


def test_large_values_go_in_several_chunks() -> None:
    """Arrow and Spark hold 2 GB in a column or a cell, and ten thousand values of 200 kB have as much."""
    texts = [each * (20 << 20) for each in "abcde"]
    typed = TypedTopics({}, {}, {"out": TopicPart("out", "value", column_of(_ddl("s string"), "here"))})
    batch = OutputBatch("out", [None] * 5, [each.encode() for each in texts], [1] * 5)
    chunks = packed([batch], {})
    assert len(chunks) >= 3 and found_in(chunks, "value") == [each.encode() for each in texts]
    rows = [arrays(chunk) for chunk in packed_arrays([batch])]
    assert len(rows) >= 3 and [value for row in rows for value in row[2]] == [each.encode() for each in texts]
    chunks = packed([replace(batch, values=[({"s": each},) for each in texts])], typed.columns)  # type: ignore[misc]
    assert len(chunks) >= 3 and [row["value"]["s"] for row in found_in(chunks, "out")] == texts


@given(st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=9))
def test_results_of_bytes_come_out_as_they_went_in(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    times = [-(1 << 62) // 1000 + number for number in range(len(pairs))]
    headers: list[Headers] = [(("name", value), ("", b"")) if value else () for value in values]
    batch = OutputBatch("out", keys, values, times, headers)
    shown = [[{"key": "name", "value": value}, {"key": "", "value": b""}] if value else None for value in values]
    for each, expected in ((batch, shown), (replace(batch, headers=None), None)):
        rows = [arrays(chunk) for chunk in packed_arrays([each])]
        assert rows == ([("out", keys, values, times, expected)] if pairs else [])


def found_in(chunks: list[bytes], column: str) -> list[Any]:
    rows = Unpacker()([pyarrow.RecordBatch.from_pydict({"chunk": chunks})])
    return [value for batch in rows for value in batch[column].to_pylist()]


def test_a_key_that_its_serde_cannot_write_is_refused() -> None:
    topology = Topology().add_source("in", "in").add_sink("out", "out", "in")
    with pytest.raises(
        ConfigError, match="topic 'in': its key is of type bigint, and the key serde 'str' of source 'in'"
    ):
        typed_keys(Application("app", topology), "in", _ddl("bigint"))
    of_json = Topology().add_source("in", "in", key_serde="json").add_sink("out", "out", "in")
    keys = typed_keys(Application("app", of_json), "in", _ddl("a double"))
    assert keys is not None and keys(pyarrow.array([{"a": 1.5}, None])) == [b'{"a":1.5}', None]
    for ddl, row in (
        ("b int, a array<struct<d:int,c:map<string,int>>>", {"b": 1, "a": [{"d": 2, "c": {"y": 3, "x": 4}}]}),
        ("a array<struct<c:map<string,int>,d:int>>, b int", {"a": [{"c": {"x": 4, "y": 3}, "d": 2}], "b": 1}),
    ):
        keys, column = typed_keys(Application("app", of_json), "in", _ddl(ddl)), column_of(_ddl(ddl), "here")
        assert keys is not None and keys(written(column, [row])) == [b'{"a":[{"c":{"x":4,"y":3},"d":2}],"b":1}']
    narrow = Topology().add_source("in", "in", key_serde="int32").add_sink("out", "out", "in")
    keys = typed_keys(Application("app", narrow), "in", _ddl("bigint"))
    assert keys is not None
    with pytest.raises(SerdeError, match="topic 'in', key: .* does not fit 4 bytes.*no handler is asked"):
        keys(pyarrow.array([1, 1 << 40]))


# ---------------------------------------------------------------------- on Spark


class Echoes(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


def echoes(tmp_path: Path) -> Application:
    topology = Topology().add_source("in", "in", key_serde="int").add_processor("echoes", Echoes, "in")
    return Application("app", topology.add_sink("out", "out", "echoes"), data_dir=str(tmp_path))


EVERY = """named_struct(
    'byte', 1Y, 'short', -2S, 'int', 3, 'long', 4L, 'float', float('nan'), 'double', double('infinity'), 'bool', true,
    'decimal', 1.50BD, 'text', 'text', 'binary', X'0102', 'date', date'1582-10-15',
    'at', timestamp'2026-07-01 12:00:00.123456', 'local', timestamp_ntz'2026-03-08 02:30:00.000001',
    'took', interval '-1 02:03:04.5' day to second, 'list', array(1, null), 'nothing', cast(null as int),
    'map', map('x', named_struct('at', timestamp'0001-01-02 00:00:00')), 'none', cast(null as struct<z:timestamp>))"""


def test_sparks_types_come_back_whatever_the_zone_of_the_session(spark: Any, tmp_path: Path) -> None:
    session = tune(spark, True, 2)
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    frame = session.sql(f"select 5L as key, {EVERY} as value, timestamp_millis(7) as timestamp")
    kind = frame.schema["value"].dataType
    assert isinstance(kind, spark_types.StructType)
    rows = transform(echoes(tmp_path), {"in": frame}, partitions=2, schema={"out": kind}, key_schema={"out": "bigint"})
    out = topic_rows(rows, "out")
    assert out.columns == ["key", *kind.names, "timestamp", "headers"]
    texts = [f"to_json(struct({name}))" if name in ("map", "none") else name for name in kind.names]
    expected = frame.select("key", "value.*", "timestamp").selectExpr("key", *texts, "timestamp")
    found = out.selectExpr("key", *texts, "timestamp").collect()
    assert len(found) == 1 and repr(found) == repr(expected.collect())
    with pytest.raises(ConfigError, match="no column for topic 'in'; it has columns for: 'out'.*schema="):
        topic_rows(rows, "in")
    for schema, message in (
        ({"oot": "n long"}, "no sink writes topic 'oot', which schema names.*did you mean 'out'"),
        ({"out": "n long, N int"}, "schema of topic 'out': fields 'n', 'N' have one name for Spark.*caseSensitive"),
        ({"out": "n lonk"}, "schema of topic 'out': 'n lonk' is no schema: .*Write names and types"),
        ({"out": "p interval month"}, "schema of topic 'out': value.p: the type interval month is not supported"),
        (["out"], "schema of topic 'out': its sinks' serdes name no class.*Give the schema"),
        ("n long", "schema is a mapping of topics to schemas"),
    ):
        with pytest.raises(ConfigError, match=message):
            transform(echoes(tmp_path), {"in": frame}, partitions=2, schema=schema)


@dataclass
class Visit:
    page: str
    at: datetime
    price: Decimal


class Counted(NamedTuple):
    pages: list[str]
    last: datetime
    paid: Decimal


class Totals(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.visits = context.get_store("visits")

    def process(self, record: Record) -> None:
        assert isinstance(record.value, Visit)
        before: Counted = self.visits.get(record.key) or Counted([], record.value.at, Decimal(0))
        pages = [*before.pages, record.value.page]
        now = Counted(pages, max(before.last, record.value.at), before.paid + record.value.price)
        self.visits.put(record.key, now)
        self.context.forward(record.with_value(now))


def test_classes_in_a_stream_with_a_batch_for_each_topic(spark: Any, tmp_path: Path) -> None:
    session = tune(spark, True, 2)
    topology = (
        Topology()
        .add_source("visits", "visits", value_serde=of(Visit))
        .add_processor("totals", Totals, "visits", stores=[key_value_store("visits", value_serde=of(Counted))])
        .add_sink("totals-out", "totals", "totals", value_serde=of(Counted))
    )
    app = Application("app", topology, data_dir=str(tmp_path))
    source = tmp_path / "in"
    source.mkdir()
    for number, lines in enumerate(([("a", "/", "0.10"), ("b", "/", "1")], [("a", "/x", "0.20"), ("a", "/y", "1e2")])):
        path = source / f"{number}.json"
        at = f"2026-01-01T12:00:0{number}.00000"
        rows = [dict(zip(("user", "page", "price"), line, strict=True), at=f"{at}{n}Z") for n, line in enumerate(lines)]
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    frame = session.readStream.schema("user string, page string, price decimal(10,2), at timestamp").option(
        "maxFilesPerTrigger", 1
    )
    records = Records(
        frame.json(str(source)), key="user", value=functions.struct("page", "price", "at"), timestamp="at"
    )
    result = transform(app, {"visits": records}, partitions=2, schema=["totals"], key_schema={"totals": "string"})
    found: list[Any] = []

    def each(batch: Any, number: int) -> None:
        found.extend(
            (row.key, row.pages, row.paid, row.last.microsecond) for row in topic_rows(batch, "totals").collect()
        )

    query = (
        result.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(found) == [
        ("a", ["/"], Decimal("0.10"), 0),
        ("a", ["/", "/x"], Decimal("0.30"), 0),
        ("a", ["/", "/x", "/y"], Decimal("100.30"), 1),
        ("b", ["/"], Decimal(1), 1),
    ]
