"""Reads lines as records: the text form and the JSON form of `penstock produce`."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, NamedTuple

from penstock import ConfigError, Headers, OutputBatch, PenstockError, SerdeError, SystemClock
from penstock.program.partitioning import keys_to_hash

from .options import name_and_value
from .text import TextSerde, headers_from_json, shorten

_MOST_MS = 2**63 - 1
"""A log keeps timestamps in 64 bits."""


class _Row(NamedTuple):
    """A record to write."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    partition: int | None


class LineReader:
    """Turns lines into records, by the options of the command."""

    def __init__(
        self,
        topic: str,
        partitions: int,
        keys: TextSerde,
        values: TextSerde,
        *,
        key_separator: str | None,
        json_lines: bool,
        timestamp: str | None,
        headers: tuple[str, ...],
        partition: int | None,
        null_marker: str | None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._keys, self._values = keys, values
        self._separator = None if key_separator is None else key_separator.encode()
        self._json = json_lines
        self._timestamp = None if timestamp is None else parse_timestamp(timestamp)
        pairs = [name_and_value("--header", each) for each in headers]
        self._headers = tuple((name, value.encode()) for name, value in pairs)
        self._partition = self._checked_partition(partition)
        self._null = None if null_marker is None else null_marker.encode()
        self.line = 0
        """The number of the last line that was read, from 1."""

    def read(self, piece: bytes) -> tuple[OutputBatch, PenstockError | None]:
        """Return the records of whole lines, up to the first line that is not valid, and its error."""
        now = SystemClock().now_ms() if self._timestamp is None else self._timestamp
        rows: list[_Row] = []
        read = self._read_json if self._json else self._read_line
        error = None
        lines = piece.replace(b"\r\n", b"\n").split(b"\n")
        if not lines[-1]:
            lines.pop()  # what follows the last line's end
        for line in lines:
            self.line += 1
            try:
                rows += read(line, now)
            except (PenstockError, ValueError, RecursionError) as problem:
                error = SerdeError(f"line {self.line}: {problem}")
                break
        batch = OutputBatch(
            self._topic, [row.key for row in rows], [row.value for row in rows], [row.timestamp for row in rows]
        )
        batch.hashed = keys_to_hash(self._keys.serde, batch.keys)
        if any(row.headers for row in rows):
            batch.headers = [row.headers for row in rows]
        if any(row.partition is not None for row in rows):
            batch.partitions = [None if row.partition is None else (row.partition,) for row in rows]
        return batch, error

    def _read_line(self, line: bytes, now: int) -> list[_Row]:
        key: bytes | None = None
        value: bytes | None = line
        if self._separator is not None:
            key_text, separator, value_text = line.partition(self._separator)
            if not separator:
                raise ValueError(f"no key separator {shorten(self._separator)} in {shorten(line)}")
            key = None if key_text == self._null else self._keys.from_line(key_text)
            value = value_text
        value = None if value == self._null else self._values.from_line(value or b"")
        return [_Row(key, value, now, self._headers, self._partition)]

    def _read_json(self, line: bytes, now: int) -> list[_Row]:
        """Return the record of a line, none of an empty line."""
        if not line.strip():
            return []
        record = json.loads(line)
        if not isinstance(record, dict) or "value" not in record:
            raise ValueError(f'expected a JSON object with "value", found {shorten(line)}')
        unknown = set(record) - {"key", "value", "timestamp", "headers", "partition", "topic", "offset"}
        if unknown:
            raise ValueError(
                f"unknown name {', '.join(map(repr, sorted(unknown)))}; expected key, value, timestamp, headers, "
                "partition"
            )
        key, value = record.get("key"), record["value"]
        timestamp = record.get("timestamp", now)
        if isinstance(timestamp, str):
            timestamp = parse_timestamp(timestamp)
        if not isinstance(timestamp, int) or isinstance(timestamp, bool) or abs(timestamp) > _MOST_MS:
            raise ValueError(f'"timestamp": expected ms since the epoch, found {shorten(timestamp)}')
        headers = headers_from_json(record["headers"]) if record.get("headers") is not None else self._headers
        partition = self._checked_partition(record.get("partition"))
        return [
            _Row(
                None if key is None else self._keys.from_json(key),
                None if value is None else self._values.from_json(value),
                timestamp,
                headers,
                self._partition if partition is None else partition,
            )
        ]

    def _checked_partition(self, partition: Any) -> int | None:
        if partition is None or (type(partition) is int and 0 <= partition < self._partitions):
            return partition
        raise ConfigError(f"partition {partition!r}: topic {self._topic!r} has {self._partitions}, numbered from 0")


def parse_timestamp(text: str) -> int:
    """Return milliseconds since the epoch from such a number or an ISO 8601 time (without zone: local time).

    >>> parse_timestamp("2024-05-01T12:00:00Z")
    1714564800000
    """
    if re.fullmatch(r"-?[0-9]{1,19}", text) and abs(int(text)) <= _MOST_MS:
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"timestamp {text!r}: expected ms since the epoch or a time like 2024-05-01T12:00:00Z"
        ) from None
