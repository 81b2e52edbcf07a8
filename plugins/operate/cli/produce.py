"""The verb `produce`: lines into a topic."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from io import UnsupportedOperation
from typing import IO, TYPE_CHECKING, Any

import click

from penstock import PenstockError, ProductionError, SerdeError

from .command import separator_option, verb
from .options import find_settings, log_options, open_log
from .output import Meter, count, note, print_json
from .topics import topic_info

if TYPE_CHECKING:
    from penstock import Log

    from .line_reader import LineReader

BATCH_BYTES = 4 * 1024 * 1024
"""Input is appended in pieces of about this size. A piece is durable before the next one is read."""
LINGER_SECONDS = 0.05
"""Seconds that a piece of a slow input (a pipe, a terminal) waits for more."""


@verb(
    ("Each line of a file becomes the value of a record", "penstock produce lines --file book.txt"),
    ("Keys and values", "printf 'alice:3\\nbob:5\\n' | penstock produce points --key-separator : --value-serde int"),
    ("Whole records, with timestamps and headers", """echo '{"key": "alice", "value": {"points": 3}, "timestamp": 1700000000000}' \\\n  | penstock produce points --json-lines --value-serde json"""),
    ("Copy a topic from one log to another", "penstock consume points --json | penstock produce points --json-lines --log local:/tmp/copy"),
    target=False,
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
@separator_option(None, "What stands between key and value in a line; without it records have no key.")
@click.option(
    "--json-lines",
    "-j",
    is_flag=True,
    help='Each line is a JSON object with "value" and optionally "key", "timestamp" (ms), "headers" ([[name, value], '
    '...] or an object), "partition".',
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
    from .line_reader import LineReader
    from .text import topic_serdes

    where = {name: options.pop(name) for name in ("log", "data_dir", "app")}
    settings = find_settings(**where)
    if options["json_lines"] and options["key_separator"] is not None:
        raise click.UsageError("--key-separator is for lines; with --json-lines a record brings its own key")
    if options["json_lines"] and options["null_marker"] is not None:
        raise click.UsageError("--null is for lines; in JSON lines null is null")
    with open_log(settings) as log:
        partitions = topic_info(log, topic).partitions
        keys, values = topic_serdes(topic, where["app"], settings, key_serde or serde, value_serde or serde)
        reader = LineReader(topic, partitions, keys, values, **options)
        with Meter(f"producing {topic}", _size(source), quiet=quiet) as meter:
            records = _copy(source, reader, log, meter)
    if as_json:
        print_json({"topic": topic, "records": records, "seconds": round(meter.seconds, 3)})
    elif not quiet:
        note(
            f"produced {count(records)} to {topic} in {meter.seconds:.1f} s ({meter.records_per_second:,.0f} records/s)"
        )


def _copy(source: IO[bytes], reader: LineReader, log: Log, meter: Meter) -> int:
    records, done = 0, 0
    for piece in _pieces(source):
        first = reader.line + 1
        batch, error = reader.read(piece)
        if len(batch):
            try:
                log.append(batch)
            except PenstockError as problem:
                raise ProductionError(
                    f"lines {first} to {reader.line}: {problem}. {count(records)} before them {_were(records)} written, "
                    "and some of these may be"
                ) from problem
        records += len(batch)
        done += len(piece)
        meter.update(records, done=done)
        if error is not None:
            raise SerdeError(f"{error}. {count(records)} before it {_were(records)} written") from error
    return records


def _were(records: int) -> str:
    return "was" if records == 1 else "were"


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines in pieces: large ones from a file; from a pipe or a terminal what has arrived."""
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
