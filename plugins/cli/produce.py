"""The verb `produce`: lines into a topic."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator
from datetime import datetime
from io import UnsupportedOperation
from typing import IO, TYPE_CHECKING, Any

import click

from penstock.clock import SystemClock
from penstock.errors import ConfigError, PenstockError, SerdeError
from penstock.record import Headers, OutputBatch

from .command import Command, verbose_option
from .options import find_settings, log_options, open_log
from .output import Meter, count, note, print_json

if TYPE_CHECKING:
    from penstock.log import Log

    from .text import TextSerde

BATCH_BYTES = 4 * 1024 * 1024
"""Input is appended in pieces of about this size, each durable before the next is read."""
LINGER_SECONDS = 0.05
"""How long a piece of a slow input (a pipe, a terminal) waits for more."""


@click.command(
    cls=Command,
    examples=[
        ("Each line of a file becomes the value of a record", "penstock produce lines --file book.txt"),
        ("Keys and values", "printf 'alice:3\\nbob:5\\n' | penstock produce points --key-separator : --value-serde int"),
        ("Whole records, with timestamps and headers", """echo '{"key": "alice", "value": {"points": 3}, "timestamp": 1700000000000}' \\\n  | penstock produce points --json-lines --value-serde json"""),
        ("Copy a topic from one log to another", "penstock consume points --json | penstock produce points --json-lines --log local:/tmp/copy"),
    ],
)  # fmt: skip
@click.argument("topic")
@click.option(
    "--file",
    "-f",
    "source",
    type=click.File("rb"),
    default="-",
    metavar="FILE",
    help="Read lines from this file. [default: stdin]",
)
@click.option(
    "--key-separator",
    "-K",
    metavar="TEXT",
    help="What stands between key and value in a line; without it records have no key.",
)
@click.option(
    "--json-lines",
    "-j",
    is_flag=True,
    help='Each line is a JSON object with "value" and optionally "key", "timestamp" (ms), "headers" ([[name, value], ...] or an object), "partition".',
)
@click.option("--key-serde", metavar="NAME", help="Serde of keys. [default: the application's, or str]")
@click.option("--value-serde", metavar="NAME", help="Serde of values. [default: the application's, or str]")
@click.option("--serde", metavar="NAME", help="Serde of both keys and values.")
@click.option(
    "--timestamp",
    "-t",
    metavar="TIME",
    help="Timestamp of records that bring none: ms since the epoch, or like 2024-05-01T12:00:00Z. [default: now]",
)
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of records that bring none. Repeatable.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Partition of records that bring none. [default: by key]")
@click.option(
    "--null", "null_marker", metavar="TEXT", help="A value that is this text is null (a tombstone); a key likewise."
)
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as a JSON object.")
@log_options
@verbose_option
def produce(
    topic: str,
    source: IO[bytes],
    key_serde: str | None,
    value_serde: str | None,
    serde: str | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the lines of stdin or of a file to TOPIC.

    Serdes str and bytes take the text of a line as it is; for every other serde keys and values are JSON.
    Input is written in pieces as it comes; a piece is durable before the next one is read, and a line that
    does not fit ends the command with its number after everything before it was written.
    """
    from .serdes import topic_serdes
    from .topics import topic_info

    where = {name: options.pop(name) for name in ("log", "data_dir", "app")}
    settings = find_settings(**where)
    if options["json_lines"] and options["key_separator"] is not None:
        raise click.UsageError("--key-separator is for lines; with --json-lines a record brings its own key")
    if options["key_separator"] == "":
        raise click.BadParameter("expected some text", param_hint="--key-separator")
    with open_log(settings) as log:
        partitions = topic_info(log, topic).partitions
        keys, values = topic_serdes(topic, where["app"], settings, key_serde or serde, value_serde or serde)
        reader = _Records(topic, partitions, keys, values, **options)
        with Meter(f"producing {topic}", _size(source), quiet=quiet) as meter:
            records = _copy(source, reader, log, meter)
    if as_json:
        print_json({"topic": topic, "records": records, "seconds": round(meter.seconds, 3)})
    elif not quiet:
        note(
            f"produced {count(records)} to {topic} in {meter.seconds:.1f} s ({meter.records_per_second:,.0f} records/s)"
        )


def _copy(source: IO[bytes], reader: _Records, log: Log, meter: Meter) -> int:
    records, done = 0, 0
    for piece in _pieces(source):
        batch, error = reader.read(piece)
        if len(batch):
            log.append(batch)
        records += len(batch)
        done += len(piece)
        meter.update(records, done=done)
        if error is not None:
            raise SerdeError(
                f"{error}. {count(records)} before it {'was' if records == 1 else 'were'} written"
            ) from error
    return records


class _Records:
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
        """Return the records of whole lines, up to the first line that cannot be read, and what is wrong with that one."""
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
                raise ValueError(f"no key separator {self._separator.decode()!r} in {line[:60]!r}")
            key = None if key_text == self._null else self._keys.from_line(key_text)
            value = value_text
        value = None if value == self._null else self._values.from_line(value or b"")
        self._add(batch, key, value, now, self._headers, self._partition)

    def _read_json(self, line: bytes, now: int, batch: OutputBatch) -> None:
        from .text import headers_from_json

        if not line.strip():
            return
        record = json.loads(line)
        if not isinstance(record, dict) or "value" not in record:
            raise ValueError(f'expected a JSON object with "value", found {line[:60].decode(errors="replace")}')
        unknown = set(record) - {"key", "value", "timestamp", "headers", "partition", "topic", "offset"}
        if unknown:
            raise ValueError(
                f"unknown name {', '.join(map(repr, sorted(unknown)))}; expected key, value, timestamp, headers, partition"
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


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines in pieces: large ones from a file, what is there from a pipe or a terminal."""
    waiting: list[bytes] = []
    size = 0
    rest = b""
    read = getattr(source, "read1", source.read)
    while True:
        if waiting and (size >= BATCH_BYTES or not _more_soon(source)):
            yield b"".join(waiting)
            waiting, size = [], 0
        chunk = read(BATCH_BYTES)
        if not chunk:
            break
        end = chunk.rfind(b"\n") + 1
        if end:
            waiting.append(rest + chunk[:end])
            size += len(waiting[-1])
            rest = chunk[end:]
        else:
            rest += chunk
    if waiting or rest:
        yield b"".join(waiting) + rest


def _more_soon(source: IO[bytes]) -> bool:
    try:
        return bool(select.select([source.fileno()], [], [], LINGER_SECONDS)[0])
    except (UnsupportedOperation, ValueError, OSError):  # no file of the operating system: all of it is there
        return True


def _size(source: IO[bytes]) -> int | None:
    try:
        return os.fstat(source.fileno()).st_size or None
    except (UnsupportedOperation, ValueError, OSError):
        return None


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--header {text!r}: expected NAME=VALUE")
    return name, value.encode()
