"""Keys and values as text on the command line, and as bytes in the log; the lines of `consume` and `produce`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import IO, Any, NamedTuple

from penstock import (
    BytesSerde,
    ConfigError,
    Headers,
    OutputBatch,
    PenstockError,
    RecordBatch,
    Serde,
    SerdeError,
    Settings,
    StrSerde,
    SystemClock,
)
from penstock.plugins.engine.program.topic_records import serdes_in_program
from penstock.plugins.serdes.json_text import bytes_of_json, dump_json, headers_to_json
from penstock.program.partitioning import keys_to_hash
from penstock.program.serdes import SerdeLike, checked, make_serde

from .options import name_and_value
from .output import reader_may_leave


class TextSerde:
    """One serde between text and bytes.

    As lines, `str` and `bytes` are the text itself, and every other serde's values are written as JSON, in the text
    form. As JSON, all are.
    """

    def __init__(
        self, serde: str | Serde[Any], topic: str, *, is_key: bool, config: Mapping[str, Any] | None = None
    ) -> None:
        """Take the serde or its name; `config` has settings of plugins. Raises PluginError when none is installed."""
        self.name = serde if isinstance(serde, str) else type(serde).__name__
        made = make_serde(serde, f"serde of {'keys' if is_key else 'values'}") if isinstance(serde, str) else serde
        self.serde: Serde[Any] = checked(made).configure(config or {}).bind(topic, is_key=is_key)
        self._what = "key" if is_key else "value"
        self._of_json = self.serde.key_from_json if is_key else self.serde.from_json
        self._is_text = type(made) is StrSerde
        self._is_bytes = type(made) is BytesSerde

    def from_line(self, text: bytes) -> bytes:
        """Return the serialized value of a line's text. Raises SerdeError."""
        if self._is_bytes:
            return text
        if self._is_text:
            self.serde.deserialize(text)  # only to see that it is text
            return text
        try:
            value = json.loads(text)
        except ValueError as error:
            raise SerdeError(
                f"{self._what} {shorten(text)} is not JSON ({error}), which the serde {self.name!r} needs on the "
                f"command line; for plain text use --{self._what}-serde str"
            ) from error
        return self.from_json(value)

    def from_json(self, value: Any) -> bytes:
        """Return a JSON value, serialized. Raises SerdeError."""
        try:
            return self.serde.serialize(self._of_json(value))
        except PenstockError:
            raise
        except Exception as error:  # a serde of another package may raise anything
            raise SerdeError(f"the {self._what} {shorten(value)}: {error!r}") from error

    def to_line(self, data: bytes) -> bytes:
        """Return serialized bytes as the text of a line. Raises SerdeError."""
        if self._is_bytes:
            return data
        if self._is_text:
            self._read(data)
            return data
        value = self._read(data)
        return dump_json(None if value is None else self.serde.to_json(value))

    def to_json(self, data: bytes) -> Any:
        """Return serialized bytes as JSON data; never None, which is a record without a key or value.

        Raises SerdeError.
        """
        value = self._read(data)
        return {"!null": True} if value is None else self.serde.to_json(value)

    def _read(self, data: bytes) -> Any:
        try:
            return self.serde.deserialize(data)
        except Exception as error:  # a serde of another package may raise anything
            raise SerdeError(f"the {self._what}: {error}") from error


def topic_serdes(
    topic: str, app: str | None, settings: Settings, key: SerdeLike, value: SerdeLike, *, reading: bool = False
) -> tuple[TextSerde, TextSerde]:
    """Return the serdes of a topic's keys and values.

    The names given win; then what the application's sources and sinks say about the topic, the sinks first if it is
    `reading`; then its settings.
    """
    said_key, said_value = program_serdes(topic, app, reading=reading)
    config = settings.of_plugins
    return (
        TextSerde(key or said_key or settings.key_serde or "str", topic, is_key=True, config=config),
        TextSerde(value or said_value or settings.value_serde or "str", topic, is_key=False, config=config),
    )


def program_serdes(topic: str, app: str | None, *, reading: bool = False) -> tuple[SerdeLike, SerdeLike]:
    """Return the serdes of a topic's keys and values in the program that `app` names; None where it names none.

    `reading`: those of the sink that writes the topic count first, else those of the source that reads it.
    """
    if app is None:
        return None, None
    from .target import load_program

    return serdes_in_program(load_program(app), topic, reading=reading)


def headers_from_json(value: Any) -> Headers:
    """Return headers from pairs as `headers_to_json` makes them, or from a JSON object. Raises ValueError."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list):
        raise ValueError(f'"headers": expected an object or a list of [name, value] pairs, found {shorten(value)}')
    return tuple(_header(pair) for pair in pairs)


def _header(pair: Any) -> tuple[str, bytes | None]:
    if isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str):
        with suppress(ValueError, TypeError):  # the second for base64 that is no text
            return pair[0], bytes_of_json(pair[1])
    raise ValueError(f'"headers": expected [name, text or null or {{"base64": text}}], found {shorten(pair)}')


def shorten(value: object) -> str:
    """Return a value for a message: bytes as text, and shortened."""
    text = repr(value.decode(errors="replace") if isinstance(value, bytes) else value)
    return text if len(text) <= 60 else text[:57] + "..."


Line = Callable[[RecordBatch, int], bytes]
"""Returns one record of a batch as a line, without its end."""


def text_lines(keys: TextSerde, values: TextSerde, separator: str | None, null: str) -> Line:
    """Return the form of values, and with a `separator` of keys before them."""
    between = None if separator is None else separator.encode()
    missing = null.encode()

    def line(batch: RecordBatch, index: int) -> bytes:
        key, value = batch.keys[index], batch.values[index]
        text = missing if value is None else values.to_line(value)
        if between is None:
            return text
        return (missing if key is None else keys.to_line(key)) + between + text

    return line


def json_lines(keys: TextSerde, values: TextSerde) -> Line:
    """Return the form of whole records as JSON objects."""

    def line(batch: RecordBatch, index: int) -> bytes:
        key, value = batch.keys[index], batch.values[index]
        return dump_json(
            {
                "topic": batch.topic,
                "partition": batch.partition,
                "offset": batch.offsets[index],
                "timestamp": batch.timestamps[index],
                "key": None if key is None else keys.to_json(key),
                "value": None if value is None else values.to_json(value),
                "headers": headers_to_json(batch.headers[index]) if batch.headers else [],
            }
        )

    return line


def write_lines(batch: RecordBatch, line: Line, limit: int, output: IO[bytes]) -> int:
    """Write up to `limit` records and return their number. Raises SerdeError after the lines before a failed record."""
    number = min(len(batch), limit)
    lines: list[bytes] = []
    failed: SerdeError | None = None
    for index in range(number):
        try:
            lines.append(line(batch, index))
        except Exception as error:  # a serde of another package may raise anything
            failed = SerdeError(
                f"topic {batch.topic!r}, partition {batch.partition}, offset {batch.offsets[index]}: {error} "
                "(see --key-serde and --value-serde; bytes reads anything)"
            )
            failed.__cause__ = error
            break
    lines.append(b"")
    with reader_may_leave():
        output.write(b"\n".join(lines))
        if failed is not None:
            output.flush()
    if failed is not None:
        raise failed
    return number


_MOST_MS = 2**63 - 1
"""A log keeps timestamps in 64 bits."""


class _Row(NamedTuple):
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
        key_separator: str | None = None,
        json_lines: bool = False,
        timestamp: str | None = None,
        headers: tuple[str, ...] = (),
        partition: int | None = None,
        null_marker: str | None = None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._keys, self._values = keys, values
        self._separator = None if key_separator is None else key_separator.encode()
        self._json = json_lines
        self._timestamp = None if timestamp is None else parse_timestamp(timestamp)
        pairs = [name_and_value("--header", header) for header in headers]
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
