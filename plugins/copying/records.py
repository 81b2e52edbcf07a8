"""RecordMaker: rows as the records of a topic, by the names of columns and serdes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from penstock import ConfigError, Headers, OutputBatch, Serde, SerdeError
from penstock.plugins.serdes.json import JsonSerde
from penstock.plugins.serdes.json_text import dump_json
from penstock.plugins.serdes.list import ListSerde
from penstock.plugins.serdes.typed.base import TypedSerde
from penstock.program.partitioning import keys_to_hash

from .json_lines import exact
from .source import CopyError, Row, RowBatch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MOST_MS = 2**63 - 1
_TAKES_JSON = ("penstock.plugins.serdes.registry.json_schema", "penstock.plugins.serdes.registry.protobuf")
"""Modules of serdes with values that are made of JSON; they need packages that may not be installed."""


@dataclass(frozen=True)
class Columns:
    """The columns of a source that a record is made of.

    `key`: those of its key; several make a tuple, or a list where the serde has lists. `value`: the one that is its
    value; None: the whole row. `timestamp`: None: the time of copying. `headers` are the same for all records, then
    one of each column of `header_columns` follows. `tombstones`: a null value is a tombstone, else it is an error.
    """

    key: Sequence[str] = ()
    value: str | None = None
    timestamp: str | None = None
    headers: Headers = ()
    header_columns: Sequence[str] = ()
    tombstones: bool = False

    def __post_init__(self) -> None:
        if self.tombstones and self.value is None:
            raise ConfigError("tombstones are null values of one column: name it as the value")
        if self.tombstones and not self.key:
            raise ConfigError("a tombstone deletes the value of a key: name the columns of the key")


class RecordMaker:
    """Makes records of rows. Raises CopyError with the place of a row that no record can be made of."""

    def __init__(self, topic: str, columns: Columns, key_serde: Serde[Any], value_serde: Serde[Any]) -> None:
        self._topic, self._columns = topic, columns
        self._key_serde = key_serde
        self._keys, self._values = _writer(key_serde), _writer(value_serde)
        self._exact = _as_it_is
        self._copies_texts = type(value_serde) is JsonSerde and columns.value is None
        self._several = list if isinstance(key_serde, (JsonSerde, ListSerde)) else tuple

    def batch(self, rows: RowBatch, now_ms: int) -> OutputBatch:
        """Return the records of rows; `now_ms` is the timestamp of those that bring none."""
        columns = self._columns
        batch = OutputBatch(self._topic, [], [], [])
        headers: list[Headers] = []
        self._exact = _as_it_is if rows.texts is None else exact
        texts = rows.texts if self._copies_texts else None
        for index, row in enumerate(rows.rows):
            try:
                batch.keys.append(self._key(row))
                batch.values.append(texts[index] if texts is not None else self._value(row))
                batch.timestamps.append(now_ms if columns.timestamp is None else _timestamp(row, columns.timestamp))
                if columns.header_columns:
                    own = ((name, _header(self._exact(_of(row, name)))) for name in columns.header_columns)
                    headers.append((*columns.headers, *own))
            except Exception as error:  # a serde of another package may raise anything
                raise CopyError(f"{rows.where(index)}: {error}") from error
        if headers or columns.headers:
            batch.headers = headers or [columns.headers] * len(batch)
        batch.hashed = keys_to_hash(self._key_serde, batch.keys)
        return batch

    def _key(self, row: Row) -> bytes | None:
        names = self._columns.key
        if not names:
            return None
        parts = [self._exact(_of(row, name)) for name in names]
        if None in parts:
            raise ValueError(f"the column {names[parts.index(None)]!r} of the key is null")
        key = parts[0] if len(parts) == 1 else self._several(parts)
        try:
            return self._keys(key)
        except Exception as error:
            raise SerdeError(f"the key {key!r}: {error} (--key-serde, key_serde=)") from error

    def _value(self, row: Row) -> bytes | None:
        name = self._columns.value
        if name is None:
            try:
                return self._values(self._exact(row))
            except Exception as error:
                raise SerdeError(f"{self._blamed(row)}{error}") from error
        value = _of(row, name)
        if value is None:
            if self._columns.tombstones:
                return None
            raise ValueError(f"the value, column {name!r}, is null; with tombstones it deletes the key")
        return self._values(self._exact(value))

    def _blamed(self, row: Row) -> str:
        """Return the name of the column that cannot be written, as the beginning of a message; "" if none alone is."""
        for name, value in row.items():
            try:
                self._values({name: self._exact(value)})
            except Exception:
                if isinstance(value, (Mapping, list)) or not _is_plain(value):
                    return f"column {name!r}: "
        return ""


def plain(value: Any) -> Any:
    """Return a value as JSON has it, as `of` writes it: Decimals, dates, times, UUIDs and bytes (base64) are text.

    Raises TypeError for a type that has no such form.

    >>> from decimal import Decimal
    >>> plain({"price": Decimal("1.50"), "day": date(2024, 2, 29), "data": b"x"})
    {'price': '1.50', 'day': '2024-02-29', 'data': 'eA=='}
    """
    return msgspec.to_builtins(value)


def _is_plain(value: Any) -> bool:
    try:
        plain(value)
    except Exception:
        return False
    return True


def _writer(serde: Serde[Any]) -> Callable[[Any], bytes]:
    """Return the function that writes a value of a source."""
    if type(serde) is JsonSerde:
        return lambda value: serde.serialize(plain(value))
    if isinstance(serde, TypedSerde) or type(serde).__module__ in _TAKES_JSON:
        return lambda value: serde.serialize(serde.from_json(plain(value)))
    return serde.serialize


def _of(row: Row, name: str) -> Any:
    try:
        return row[name]
    except KeyError:
        raise ValueError(f"there is no column {name!r}; there are {', '.join(map(str, row))}") from None


def _timestamp(row: Row, name: str) -> int:
    """Return milliseconds since the epoch. A time without a zone is in UTC, and parts of a millisecond are cut off."""
    value = _of(row, name)
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
    elif isinstance(value, date) and not isinstance(value, datetime):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(moment, datetime):
        return ((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND
    if isinstance(moment, int) and not isinstance(moment, bool) and abs(moment) <= _MOST_MS:
        return moment
    raise ValueError(
        f"the timestamp, column {name!r}, is {value!r}: expected a time, text like 2024-05-01T12:00:00Z, or "
        "milliseconds since 1970"
    )


def _header(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else dump_json(plain(value))


def _as_it_is(value: Any) -> Any:
    return value
