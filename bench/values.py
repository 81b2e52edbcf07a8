"""Serdes of values with fields: microseconds to write and to read one, and its bytes."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as pydantic_dataclass

from penstock import Serde
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.msgpack import MsgpackSerde
from penstock.plugins.serdes.of import of
from penstock.plugins.serdes.registry.avro import AvroSerde

from .result import Table

SCHEMA = """{"type": "record", "name": "Order", "fields": [
    {"name": "user", "type": "string"}, {"name": "amount", "type": "long"}, {"name": "at", "type": "double"},
    {"name": "note", "type": ["null", "string"]}, {"name": "tags", "type": {"type": "array", "items": "string"}}]}"""
VALUES = 50_000
REPEATS = 5


@dataclass
class Order:
    """What is written and read."""

    user: str = "alice"
    amount: int = 1250
    at: float = 1732492800.25
    note: str | None = None
    tags: list[str] = field(default_factory=lambda: ["new", "gift"])


def values() -> Table:
    """`of` types and Avro, beside a dict as JSON and as msgpack; the best of five rounds."""
    fields = asdict(Order())
    model: Any = pydantic_dataclass(Order)
    rows = [
        _row("of(dataclass)", of(Order), Order()),
        _row("of(pydantic dataclass)", of(model), TypeAdapter(model).validate_python(fields)),
        _row("avro with a registry", AvroSerde(SCHEMA, registry="mock://bench"), fields),
        _row("json", JsonSerde(), fields),
        _row("msgpack", MsgpackSerde(), fields),
    ]
    return Table("values", rows)


def _row(name: str, serde: Serde[Any], value: Any) -> dict[str, Any]:
    data = serde.serialize(value)
    return {
        "serde": name,
        "write_us": _microseconds(lambda: serde.serialize(value)),
        "read_us": _microseconds(lambda: serde.deserialize(data)),
        "bytes": len(data),
    }


def _microseconds(once: Callable[[], Any]) -> float:
    return round(min(timeit.repeat(once, number=VALUES, repeat=REPEATS)) / VALUES * 1e6, 2)
