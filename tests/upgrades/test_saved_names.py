"""The names of our classes in saved state: fixed, whatever module a class is in, and as commit `BASE` wrote them."""

from __future__ import annotations

import pickle
import pickletools
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import isabstract
from typing import Any

import pytest

from penstock import Serde, ValueAndTimestamp, ValueTimestampHeaders, VersionedRecord, Windowed, errors
from penstock.contrib.debezium import DebeziumSerde
from penstock.plugins.dsl import (
    SessionWindowedSerde,
    TimeWindowedSerde,
    TimeWindows,
    calendar_windows,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)
from penstock.plugins.dsl.operators.aggregate.table_aggregate import ChangeSerde
from penstock.plugins.dsl.operators.foreign_key_messages import ResponseSerde, SubscriptionSerde
from penstock.plugins.dsl.operators.suppress import BufferedSerde
from penstock.plugins.dsl.operators.waiting import (
    SideSerde,
    TimedKeySerde,
    ValueAndHeadersSerde,
    WaitingKeySerde,
)
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.list import ListSerde
from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.plugins.serdes.pickle import PickleSerde
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.serdes.registry.base import RegistrySerde
from penstock.plugins.serdes.registry.json_schema import JsonSchemaSerde
from penstock.plugins.serdes.registry.protobuf import ProtobufSerde
from penstock.plugins.serdes.typed.base import TypedSerde
from penstock.plugins.serdes.typed.models import ModelSerde
from penstock.plugins.serdes.typed.standard import StandardSerde
from penstock.plugins.serdes.uuid import UuidSerde
from penstock.plugins.serdes.void import VoidSerde
from penstock.plugins.spark.dataframe.typed_serdes import ColumnSerde, ColumnWriter
from penstock.program.in_flight import PendingKeySerde, PendingRecordSerde
from penstock.program.row_serde import RowSerde
from penstock.record import Record, RecordMetadata, TopicPartition
from penstock.serde import (
    BoolSerde,
    BytesSerde,
    Float32Serde,
    FloatSerde,
    Int16Serde,
    Int32Serde,
    IntSerde,
    StrSerde,
    WrappingSerde,
)
from tests.test_structure import MODULES

from ..serdes.shop_messages import Line

STR = StrSerde()
SERDES: dict[str, Serde[Any]] = {
    "penstock.serde.BytesSerde": BytesSerde(),
    "penstock.serde.StrSerde": STR,
    "penstock.serde.IntSerde": IntSerde(),
    "penstock.serde.Int32Serde": Int32Serde(),
    "penstock.serde.Int16Serde": Int16Serde(),
    "penstock.serde.FloatSerde": FloatSerde(),
    "penstock.serde.Float32Serde": Float32Serde(),
    "penstock.serde.BoolSerde": BoolSerde(),
    "penstock.plugins.serdes.json.JsonSerde": JsonSerde(),
    "penstock.plugins.serdes.msgpack.MsgpackSerde": MsgpackSerde(),
    "penstock.plugins.serdes.pickle.PickleSerde": PickleSerde(),
    "penstock.plugins.serdes.uuid.UuidSerde": UuidSerde(),
    "penstock.plugins.serdes.void.VoidSerde": VoidSerde(),
    'avro({"type":"string"})': AvroSerde('"string"', registry="mock://names"),
    'json_schema({"type":"integer","$comment":"68b6ebbfa3175b33"})': JsonSchemaSerde(int, registry="mock://names"),
    'protobuf(["shop.Line",{"":{"sha256":["b50e4004bcea4966"]},'
    '"shop.Line":{"1":["sku","string"],"2":["cents","int64"]}}])': ProtobufSerde(Line, registry="mock://names"),
    'of({"type":"integer"})': StandardSerde(int, refuses_extra=False),
    'of({"type":"number"})': ModelSerde(float, refuses_extra=False),
    "ListSerde(penstock.serde.StrSerde)": ListSerde(STR),
    "TimeWindowedSerde(penstock.serde.StrSerde)": TimeWindowedSerde(STR, 5),
    "SessionWindowedSerde(penstock.serde.StrSerde)": SessionWindowedSerde(STR),
    "ChangeSerde(penstock.serde.StrSerde)": ChangeSerde(STR),
    "BufferedSerde(penstock.serde.StrSerde)": BufferedSerde(STR),
    "SubscriptionSerde(penstock.serde.StrSerde)": SubscriptionSerde(STR),
    "ResponseSerde(penstock.serde.StrSerde)": ResponseSerde(STR),
    "WaitingKeySerde(penstock.serde.StrSerde)": WaitingKeySerde(STR),
    "SideSerde(penstock.serde.StrSerde, penstock.serde.IntSerde)": SideSerde(STR, IntSerde()),
    "TimedKeySerde(penstock.serde.StrSerde)": TimedKeySerde(STR),
    "ValueAndHeadersSerde(penstock.serde.StrSerde)": ValueAndHeadersSerde(STR),
    "PendingKeySerde(penstock.serde.StrSerde)": PendingKeySerde(STR),
    "PendingRecordSerde(penstock.serde.StrSerde)": PendingRecordSerde(STR),
    "penstock.contrib.debezium.DebeziumSerde": DebeziumSerde(),
}
WINDOWS: dict[str, Any] = {
    "tumbling windows of 5000 ms": tumbling("5s", grace="1s"),
    "hopping windows of 5000 ms every 1000 ms": hopping("5s", every="1s", grace="1s"),
    "one window from 7 ms on": unlimited(start=7),
    "calendar months in Europe/Berlin": calendar_windows("month", tz="Europe/Berlin", grace="1s"),
    "calendar weeks from sunday in UTC": calendar_windows("week", tz="UTC", week_begins="sunday", grace="1s"),
    "sliding windows of 5000 ms": sliding("5s", grace="1s"),
    "sessions with a gap of 5000 ms": sessions(gap="5s", grace="1s"),
}
VALUES: dict[str, tuple[Any, ...]] = {
    "penstock Windowed": Windowed("k", 0, 1),
    "penstock ValueTimestampHeaders": ValueTimestampHeaders("v", 0),
    "penstock VersionedRecord": VersionedRecord("v", 0),
    "penstock.store ValueAndTimestamp": ValueAndTimestamp("v", 0),
    "penstock.record Record": Record("k", "v", 0),
    "penstock.record RecordMetadata": RecordMetadata("t", 0, 0),
    "penstock.record TopicPartition": TopicPartition("t", 0),
}
"""The values that a user's serde may pickle, by what a pickle says of their class."""


@pytest.mark.parametrize("name", SERDES)
def test_serdes(name: str) -> None:
    serde = SERDES[name]
    assert serde.written_form() == name
    kind = type(serde)
    moved = type(kind.__name__, (kind,), {**vars(kind), "__module__": "elsewhere"})
    made: Any = object.__new__(moved)
    made.__dict__.update(vars(serde))
    assert made.written_form() == name


def test_a_subclass_has_a_name_of_its_own() -> None:
    class Upper(StrSerde):
        def serialize(self, value: str) -> bytes:
            return super().serialize(value.upper())

    assert Upper().written_form() == f"{__name__}.{Upper.__qualname__}"


def test_every_serde_is_listed() -> None:
    for name, source in MODULES.items():
        if re.search(r"^class .*Serde\b.*\(", source.read_text(), re.MULTILINE):
            import_module(name)
    ours = {each for each in subclasses(Serde) if each.__module__.startswith("penstock.")}
    bases = {each for each in ours if each.__name__.startswith("_")}
    bases |= {RegistrySerde, RowSerde, TypedSerde, WrappingSerde}
    of_columns = {ColumnSerde, ColumnWriter}  # between a DataFrame and a task: nothing saves them
    assert ours - bases - of_columns == set(map(type, SERDES.values()))


@pytest.mark.parametrize("form", WINDOWS)
def test_windows(form: str) -> None:
    assert WINDOWS[form].form == form
    assert "form" in vars(type(WINDOWS[form])), "the default follows the module"


def test_all_windows_are_listed() -> None:
    made = {each for each in subclasses(TimeWindows) if not isabstract(each)}
    ours = {each for each in made if each.__module__.startswith("penstock.")}
    assert ours <= set(map(type, WINDOWS.values()))


@pytest.mark.parametrize("name", VALUES)
def test_pickled_values(name: str) -> None:
    data = PickleSerde().serialize(VALUES[name])
    assert name == " ".join(each for each in strings(data) if each in name.split())
    assert PickleSerde().deserialize(data) == VALUES[name]


@pytest.mark.parametrize(
    ("module", "value"),
    [
        ("penstock.store_kinds.windowed", Windowed("k", 0, 1)),
        ("penstock.store_kinds.headers", ValueTimestampHeaders("v", 0)),
        ("penstock.store_kinds.versioned", VersionedRecord("v", 0)),
    ],
)
def test_values_are_read_by_the_modules_that_they_had(module: str, value: Any) -> None:
    name = type(value).__name__
    old = b"\x80\x05" + b"c" + f"{module}\n{name}\n".encode() + pickle.dumps(tuple(value), 2)[2:-1] + b"\x81."
    assert PickleSerde().deserialize(old) == value


def test_errors() -> None:
    """Dead letters name the class of their error, and a replay remembers them by it."""
    ours = [each for each in subclasses(errors.PenstockError) if getattr(errors, each.__name__, None) is each]
    assert len(ours) > 10
    assert {each.__module__ for each in ours} == {"penstock.errors"}


def subclasses(kind: type) -> Iterator[type]:
    """Yield all classes that are derived from one."""
    each: type
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def strings(data: bytes) -> list[str]:
    """Return the texts in a pickle."""
    operations: Any = pickletools.genops(data)
    return [argument for _, argument, _ in operations if isinstance(argument, str)]
