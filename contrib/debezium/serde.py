"""DebeziumSerde: change events in JSON, with or without their schemas, and keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from penstock import Serde, SerdeError
from penstock.support.text_form import from_json, to_json

from .change import Change
from .values import Schema, convert, fields, typed

_OWN = "!debezium"
"""The name of what this serde writes, in the text form of values; Debezium writes no such field."""
_OPERATIONS = ("r", "c", "u", "d")


class DebeziumSerde(Serde[Any]):
    """Reads events of Debezium in JSON: values are `Change`s, and a key of one column is its value, of several a tuple.

    With the schemas that Kafka Connect's JSON converter writes (`schemas.enable=true`), columns have Python's types. In
    JSON without schemas they are numbers and text, but for those of `columns`: "date", "time_ms", "time_us",
    "timestamp_ms", "timestamp_us", "zoned_timestamp", "duration_us", "uuid", "decimal:SCALE" (`precise`),
    "variable_decimal", "decimal" (`string` or `double`), "bytes" and "double", by the names of columns. A value that
    its Python type does not hold is refused; an infinite date or time is `math.inf` or `-math.inf`.

    What it writes, for topics of the application, only it reads.

    >>> serde = DebeziumSerde({"day": "date"}).bind("shop.public.orders", is_key=False)
    >>> serde.deserialize(b'{"op": "c", "before": null, "after": {"id": 1, "day": 19782}, "source": {}}').after
    {'id': 1, 'day': datetime.date(2024, 2, 29)}
    """

    saved_name = "penstock.contrib.debezium.DebeziumSerde"

    def __init__(self, columns: Mapping[str, str] | None = None) -> None:
        """Take the types of columns. Raises SerdeError for one that is not known."""
        self.columns = dict(columns or {})
        self._schemas: Mapping[str, Schema] = {name: typed(kind) for name, kind in self.columns.items()}
        self._is_key = False

    def bind(self, topic: str, *, is_key: bool) -> DebeziumSerde:
        bound = copy(self)
        bound._is_key = is_key
        return bound

    def written_form(self) -> str:
        """Return one name for all: the types of columns do not change the bytes that it writes."""
        return self.saved_name

    def serialize(self, value: Any) -> bytes:
        data = to_json(asdict(value) if isinstance(value, Change) else value)
        form = {"change": data} if isinstance(value, Change) else {"value": data}
        return json.dumps({_OWN: form}, separators=(",", ":")).encode()

    def deserialize(self, data: bytes) -> Any:
        """Return a change, or a key. Raises SerdeError."""
        try:
            read = json.loads(data, parse_float=Decimal)
            if isinstance(read, dict) and list(read) == [_OWN]:
                return _own(json.loads(data)[_OWN])
            is_wrapped = isinstance(read, dict) and set(read) == {"schema", "payload"}
            payload, schema = (read["payload"], read["schema"]) if is_wrapped else (read, None)
            return self._key(payload, schema) if self._is_key else self._change(payload, schema)
        except SerdeError:
            raise
        except Exception as error:
            raise SerdeError(f"serde 'contrib.debezium': {error}, in {data[:60]!r}") from error

    def _key(self, payload: Any, schema: Schema | None) -> Any:
        if not isinstance(payload, dict):
            return convert(payload, schema)
        parts = list(self._row(payload, schema).values())
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _change(self, payload: Any, schema: Schema | None) -> Any:
        if payload is None:
            return None
        if not isinstance(payload, dict) or "op" not in payload or "source" not in payload:
            raise SerdeError(
                "serde 'contrib.debezium': expected the envelope of a change (before, after, source, op), found "
                f"{list(payload) if isinstance(payload, dict) else payload!r}: rows without an envelope, as of "
                "ExtractNewRecordState, are for 'json', and so are events of transactions"
            )
        operation = payload["op"]
        if operation not in _OPERATIONS:
            meaning = {"t": "the table was truncated", "m": "a message of logical decoding"}.get(operation, "unknown")
            raise SerdeError(
                f"serde 'contrib.debezium': operation {operation!r} ({meaning}) is no change of a row: let Debezium "
                "leave it out (skipped.operations), or decide by a deserialization_handler"
            )
        inner = {} if schema is None else {each["field"]: each for each in schema["fields"]}
        rows = {name: _or_none(payload.get(name), inner.get(name), self._row) for name in ("before", "after")}
        source = fields(payload["source"], {}) if payload["source"] is not None else None
        transaction = payload.get("transaction")
        return Change(operation, rows["before"], rows["after"], source, payload.get("ts_ms"), transaction)

    def _row(self, row: Mapping[str, Any], schema: Schema | None) -> dict[str, Any]:
        declared = {} if schema is None else {each.get("field", each.get("name")): each for each in schema["fields"]}
        return fields(row, {**declared, **self._schemas})


def _or_none(row: Any, schema: Schema | None, read: Any) -> Any:
    return None if row is None else read(row, schema)


def _own(form: Mapping[str, Any]) -> Any:
    if "change" in form:
        return Change(**from_json(form["change"]))
    return from_json(form["value"])
