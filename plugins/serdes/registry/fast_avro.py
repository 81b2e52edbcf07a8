"""Avro without Confluent's per-value look at subjects and rules, once a schema is known to have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from .client import MockRegistryClient, RegistryClient

Convert = Callable[[Any, Any], Any]
_PREFIX = 5
"""Bytes before the value: a zero, and the id of the schema."""


def writer_of(write: Callable[..., bytes], schema: str, to_plain: Convert | None) -> Callable[..., bytes]:
    """Return a function that writes the first value by `write`, which registers the schema, and then by itself."""
    parsed, prefix = _parsed(schema), b""

    def write_fast(value: Any, context: Any) -> bytes:
        nonlocal prefix
        if not prefix or parsed is None:
            data = write(value, context)
            prefix = data[:_PREFIX]
            return data
        buffer = BytesIO()
        buffer.write(prefix)
        schemaless_writer(
            buffer, parsed, value if to_plain is None else to_plain(value, context), strict_allow_default=True
        )
        return buffer.getvalue()

    return write_fast


def reader_of(
    read: Callable[..., Any],
    client: RegistryClient | MockRegistryClient,
    schema: str | None,
    of_plain: Convert | None,
) -> Callable[..., Any]:
    """Return a function that reads the first value of each schema by `read`, and the others by itself.

    Schemas with rules (such as encryption) or with references to others are left to `read`.
    """
    reader = None if schema is None else _parsed(schema)
    known: dict[bytes, Any] = {}

    def read_fast(data: bytes, context: Any) -> Any:
        writer = known.get(data[:_PREFIX])
        if writer is None:
            value = read(data, context)
            if data[:_PREFIX] not in known and (schema is None or reader is not None):
                found = client.get_schema(int.from_bytes(data[1:_PREFIX], "big"))
                is_plain = data[:1] == b"\0" and not found.references and found.rule_set is None
                known[data[:_PREFIX]] = _parsed(found.schema_str) if is_plain and found.schema_str else None
            return value
        plain = schemaless_reader(BytesIO(data[_PREFIX:]), writer, reader)
        return plain if of_plain is None else of_plain(plain, context)

    return read_fast


def _parsed(schema: str) -> Any:
    """Return a schema as fastavro takes it; None for bytes alone: Confluent's serializers write them as they are."""
    declared = json.loads(schema)
    kind = declared.get("type") if isinstance(declared, dict) else declared
    return None if kind == "bytes" else parse_schema(declared)
