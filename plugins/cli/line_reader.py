"""Reads lines as records: the text form and the JSON form of `penstock produce`."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from penstock.clock import SystemClock
from penstock.errors import ConfigError, PenstockError, SerdeError
from penstock.record import Headers, OutputBatch

from .text import TextSerde, headers_from_json, shorten


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
        self._headers = tuple(_header(each) for each in headers)
        self._partition = self._checked_partition(partition)
        self._null = None if null_marker is None else null_marker.encode()
        self._line = 0

    def read(self, piece: bytes) -> tuple[OutputBatch, PenstockError | None]:
        """Return the records of whole lines, up to the first line that is not valid, and its error."""
        now = SystemClock().now_ms() if self._timestamp is None else self._timestamp
        batch = OutputBatch(self._topic, [], [], [], [], [])
        read = self._read_json if self._json else self._read_line
        error = None
        lines = piece.replace(b"\r\n", b"\n").split(b"\n")
        if not lines[-1]:
            lines.pop()  # what follows the last line's end
        for line in lines:
            self._line += 1
            try:
                read(line, now, batch)
            except (PenstockError, ValueError) as problem:
                error = SerdeError(f"line {self._line}: {problem}")
                break
        if not any(batch.headers or ()):
            batch.headers = None
        if batch.partitions is not None and all(each is None for each in batch.partitions):
            batch.partitions = None
        return batch, error

    def _read_line(self, line: bytes, now: int, batch: OutputBatch) -> None:
        key: bytes | None = None
        value: bytes | None = line
        if self._separator is not None:
            key_text, separator, value_text = line.partition(self._separator)
            if not separator:
                raise ValueError(f"no key separator {shorten(self._separator)} in {shorten(line)}")
            key = None if key_text == self._null else self._keys.from_line(key_text)
            value = value_text
        value = None if value == self._null else self._values.from_line(value or b"")
        self._add(batch, key, value, now, self._headers, self._partition)

    def _read_json(self, line: bytes, now: int, batch: OutputBatch) -> None:
        if not line.strip():
            return
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
        if not isinstance(timestamp, int) or isinstance(timestamp, bool):
            raise ValueError(f'"timestamp": expected ms since the epoch, found {timestamp!r}')
        headers = headers_from_json(record["headers"]) if record.get("headers") is not None else self._headers
        partition = (
            self._checked_partition(record["partition"]) if record.get("partition") is not None else self._partition
        )
        self._add(
            batch,
            None if key is None else self._keys.from_json(key),
            None if value is None else self._values.from_json(value),
            timestamp,
            headers,
            partition,
        )

    def _checked_partition(self, partition: Any) -> int | None:
        if partition is None or (isinstance(partition, int) and 0 <= partition < self._partitions):
            return partition
        raise ConfigError(f"partition {partition!r}: topic {self._topic!r} has {self._partitions}, numbered from 0")

    def _add(
        self,
        batch: OutputBatch,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        partition: int | None,
    ) -> None:
        batch.keys.append(key)
        batch.values.append(value)
        batch.timestamps.append(timestamp)
        assert batch.headers is not None and batch.partitions is not None
        batch.headers.append(headers)
        batch.partitions.append(None if partition is None else (partition,))


def parse_timestamp(text: str) -> int:
    """Return milliseconds since the epoch from such a number or an ISO 8601 time (without zone: local time).

    >>> parse_timestamp("2024-05-01T12:00:00Z")
    1714564800000
    """
    if text.removeprefix("-").isdigit():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise ConfigError(
            f"timestamp {text!r}: expected ms since the epoch or a time like 2024-05-01T12:00:00Z"
        ) from None


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--header {text!r}: expected NAME=VALUE")
    return name, value.encode()
