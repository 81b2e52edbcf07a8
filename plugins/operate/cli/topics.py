"""The verbs `topics`, `consume` and `produce`: topics, their records as lines, and lines into a topic."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from io import UnsupportedOperation
from typing import IO, TYPE_CHECKING, Any

import click

from penstock import (
    ConfigError,
    Log,
    PenstockError,
    ProductionError,
    RecordBatch,
    SerdeError,
    TopicInfo,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.task.locations import read_up_to
from penstock.support.names import did_you_mean

from .command import Group, options, separator_option, verb
from .failures import ended_by_sigterm
from .options import by_name, find_settings, log_options, name_and_value, open_log
from .output import (
    ProgressMeter,
    count,
    data_output,
    note,
    print_json,
    print_rows,
    print_table,
    print_text,
    reader_may_leave,
)

if TYPE_CHECKING:
    from .text import LineReader


@click.group(
    cls=Group,
    examples=[
        ("Four partitions, records kept for a week", "penstock topics create clicks --partitions 4 --config retention.ms=604800000"),
        ("What there is, for a program", "penstock topics list --json"),
    ],
)  # fmt: skip
def topics() -> None:
    """Create, list, describe and delete topics.

    A topic is an ordered log of records in one or more partitions; records with equal keys go to the
    same partition. The number of partitions is the number of tasks that can work on a topic at a time.
    """


@topics.verb(
    ("A topic with four partitions", "penstock topics create clicks --partitions 4"),
    ("A table: only the last value of each key is kept", "penstock topics create customers --partitions 4 --config cleanup.policy=compact"),
)  # fmt: skip
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--partitions", "-p", type=click.IntRange(min=1), default=1, show_default=True, help="How many partitions."
)
@click.option(
    "--config",
    "-c",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topic, named as in Kafka, e.g. cleanup.policy=compact or retention.ms=3600000. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic alone that exists, whatever its settings.")
@log_options
def create(names: Sequence[str], partitions: int, config: Sequence[str], if_not_exists: bool, **where: Any) -> None:
    """Create topics."""
    example = ", for instance --config cleanup.policy=compact"
    pairs = [name_and_value("--config", each, example) for each in config]
    settings = by_name("--config", ((name.strip(), value.strip()) for name, value in pairs))
    with open_log(find_settings(**where)) as log:
        existing = log.topics() if if_not_exists else {}
        for name in names:
            if name in existing:
                note(f"topic {name} exists")
                continue
            log.create_topic(name, partitions, settings)
            note(f"created topic {name} with {count(partitions, 'partition')}")


@topics.verb(
    ("Names, partitions and records", "penstock topics list"),
    ("Names only, one a line", "penstock topics list --names"),
    ("For a program, the topics that applications made for themselves as well", "penstock topics list --internal --json"),
    name="list",
)  # fmt: skip
@click.option("--internal", is_flag=True, help="Also topics that applications made for themselves, but for notes.")
@click.option("--names", is_flag=True, help="Names only, one a line.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@log_options
def list_topics(internal: bool, names: bool, as_json: bool, **where: Any) -> None:
    """List topics with their partitions and records."""
    with open_log(find_settings(**where)) as log:
        found = [info for _, info in sorted(log.topics().items()) if internal or not info.internal]
        if names:
            print_text("".join(f"{info.name}\n" for info in found))
            return
        rows = [_as_json(info, log) for info in found]
    cells = ((row["name"], row["partitions"], f"{row['records']:,}", _words(row)) for row in rows)
    columns, none = ["topic", "partitions", "records", "settings"], "no topics (penstock topics create NAME makes one)"
    print_rows(rows, as_json, columns, cells, numbers=columns[1:3], none=none)


@topics.verb(
    ("Offsets of each partition, and settings", "penstock topics describe clicks"),
    ("The end offset of partition 0", "penstock topics describe clicks --json | jq '.[0].offsets[0].end'"),
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="A JSON list of objects.")
@log_options
def describe(names: Sequence[str], as_json: bool, **where: Any) -> None:
    """Show a topic's settings and the offsets of its partitions."""
    with open_log(find_settings(**where)) as log:
        rows = [_as_json(topic_info(log, name), log) for name in names]
    if as_json:
        print_json(rows)
        return
    for number, row in enumerate(rows):
        print_text(("\n" if number else "") + f"{row['name']}: {_words(row) or 'default settings'}\n")
        print_table(
            ["partition", "start", "end", "records"],
            [
                (each["partition"], each["start"], each["end"], f"{each['end'] - each['start']:,}")
                for each in row["offsets"]
            ],
            numbers=["partition", "start", "end", "records"],
        )


@topics.verb(
    ("Asks first, when at a terminal", "penstock topics delete clicks"),
    ("Several, without a question", "penstock topics delete clicks orders --yes"),
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Don't ask (nobody is asked where stdin is no terminal).")
@log_options
def delete(names: Sequence[str], yes: bool, **where: Any) -> None:
    """Delete topics and all their records."""
    with open_log(find_settings(**where)) as log:
        for name in names:
            topic_info(log, name)  # all must be there before any goes
        if not yes and sys.stdin.isatty():
            click.confirm(f"Delete {', '.join(names)} and all records?", abort=True, err=True)
        for name in names:
            log.delete_topic(name)
            note(f"deleted topic {name}")


def topic_info(log: Log, name: str) -> TopicInfo:
    """Return a topic. Raises UnknownTopicError with the nearest names."""
    found = log.topics()
    if name in found:
        return found[name]
    shown = [each for each, info in sorted(found.items()) if not info.internal]
    there = f"there are: {', '.join(shown)}" if shown else f"there are none; penstock topics create {name} makes it"
    advice = did_you_mean(name, found, 0.5) or there
    raise UnknownTopicError(f"topic {name!r} does not exist in this log; {advice}")


def _as_json(info: TopicInfo, log: Log) -> dict[str, Any]:
    partitions = [TopicPartition(info.name, number) for number in range(info.partitions)]
    starts, ends = log.start_offsets(partitions), log.end_offsets(partitions)
    return {
        "name": info.name,
        "partitions": info.partitions,
        "internal": info.internal,
        "config": dict(info.config),
        "records": sum(ends[partition] - starts[partition] for partition in partitions),
        "offsets": [
            {"partition": partition.partition, "start": starts[partition], "end": ends[partition]}
            for partition in partitions
        ],
    }


def _words(row: Mapping[str, Any]) -> str:
    words = [f"{name}={value}" for name, value in sorted(row["config"].items())]
    return " ".join((["internal"] if row["internal"] else []) + words)


POLL_SECONDS = 0.1
"""Seconds between two looks of --follow: a log does not notify of new records."""


_serde_options = options(
    click.option("--key-serde", metavar="NAME", help="Serde of keys. [default: the application's, or str]"),
    click.option("--value-serde", metavar="NAME", help="Serde of values. [default: the application's, or str]"),
    click.option("--serde", metavar="NAME", help="Serde of both keys and values."),
)


@verb(
    ("Every value there is", "penstock consume lines"),
    ("Keys and values, with a value serde", "penstock consume counts --print-key --value-serde int"),
    ("Counts by windows of a minute", "penstock consume minutes --print-key --key-serde windowed:str:60s --value-serde int"),
    ("What comes from now on, until Ctrl-C", "penstock consume counts --follow --print-key --value-serde int"),
    ("Whole records, for a program", "penstock consume counts --json --value-serde int | jq 'select(.value > 100) | .key'"),
    target=False,
)  # fmt: skip
@click.argument("topic")
@click.option(
    "--from-beginning",
    "-b",
    is_flag=True,
    help="With --follow: first everything there is. (Without it that is the default.)",
)
@click.option(
    "--follow", "-F", is_flag=True, help="Go on with new records until Ctrl-C (exit code 130) or SIGTERM (0)."
)
@click.option("--max-records", "-n", type=click.IntRange(min=1), help="End after this many records.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition. [default: one after the other]")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Each record as a JSON object: topic, partition, offset, timestamp, key, value, headers.",
)
@click.option("--print-key", "-k", is_flag=True, help="Print the key before the value.")
@separator_option("\t", "What stands between key and value.")
@click.option(
    "--null",
    "null_text",
    metavar="TEXT",
    default="null",
    show_default=True,
    help="What stands for a missing key or a null value.",
)
@_serde_options
@log_options
def consume(
    topic: str,
    from_beginning: bool,
    follow: bool,
    max_records: int | None,
    partition: int | None,
    as_json: bool,
    print_key: bool,
    key_separator: str,
    null_text: str,
    key_serde: str | None,
    value_serde: str | None,
    serde: str | None,
    **where: Any,
) -> None:
    """Print the records of TOPIC, one a line, up to where it ends now or (--follow) for ever.

    Serdes str and bytes print as they are, everything else as JSON; on a terminal control characters are escaped.
    With --json bytes are base64 text, and the output is what `penstock produce --json-lines` reads. Only committed
    records are seen.
    """
    from .text import json_lines, text_lines, topic_serdes, write_lines

    settings = find_settings(**where)
    with open_log(settings) as log, ended_by_sigterm() if follow else nullcontext():
        partitions = _partitions(topic, topic_info(log, topic).partitions, partition)
        chosen = key_serde or serde, value_serde or serde
        keys, values = topic_serdes(topic, where["app"], settings, *chosen, reading=True)
        separator = key_separator if print_key else None
        line = json_lines(keys, values) if as_json else text_lines(keys, values, separator, null_text)
        start = log.end_offsets(partitions) if follow and not from_beginning else log.start_offsets(partitions)
        output = data_output()
        left = max_records if max_records is not None else sys.maxsize
        found = _followed(log, topic, partition, dict(start), output) if follow else _there(log, dict(start))
        for batch in found:
            left -= write_lines(batch, line, left, output)
            if left == 0:
                break
        with reader_may_leave():
            output.flush()


def _partitions(topic: str, number: int, chosen: int | None) -> list[TopicPartition]:
    if chosen is None:
        return [TopicPartition(topic, each) for each in range(number)]
    if chosen >= number:
        raise ConfigError(f"--partition {chosen}: topic {topic!r} has {number}, numbered from 0")
    return [TopicPartition(topic, chosen)]


def _there(log: Log, positions: dict[TopicPartition, int]) -> Iterator[RecordBatch]:
    """Yield the records from the positions to the present ends."""
    for partition, end in log.end_offsets(list(positions)).items():
        yield from _up_to(log, positions, partition, end)


def _followed(
    log: Log, topic: str, chosen: int | None, positions: dict[TopicPartition, int], output: IO[bytes]
) -> Generator[RecordBatch, None, None]:
    """Yield the records from the positions on, without an end. A topic that was made again is read from its start."""
    pause = threading.Event()  # never set: an interruptible wait
    known = log.topic_ids([topic])
    while True:
        # With nothing new to read, it does not matter yet which topic it is.
        if log.end_offsets(list(positions)) != positions and (ids := log.topic_ids([topic])) != known:
            note(f"topic {topic} was deleted and made again: from its start")
            known = ids
            positions = dict(log.start_offsets(_partitions(topic, topic_info(log, topic).partitions, chosen)))
        yield from _there(log, positions)
        with reader_may_leave():
            output.flush()
        if all(positions[partition] >= end for partition, end in log.end_offsets(list(positions)).items()):
            pause.wait(POLL_SECONDS)


def _up_to(
    log: Log, positions: dict[TopicPartition, int], partition: TopicPartition, end: int
) -> Iterator[RecordBatch]:
    def on_deleted(first: int, next_offset: int) -> None:
        note(f"{partition}: offsets {first} to {next_offset - 1} were deleted before they were read")
        positions[partition] = next_offset

    for batch in read_up_to(log, partition, positions[partition], end, on_deleted):
        positions[partition] = batch.next_offset
        yield batch
    positions[partition] = max(positions[partition], end)


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
@_serde_options
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
    **given: Any,
) -> None:
    """Write the lines of stdin or of a file to TOPIC.

    Serdes str and bytes take the text of a line as it is; for every other serde keys and values are JSON.
    Input is written in pieces as it comes; a piece is durable before the next one is read, and a line that
    does not fit ends the command with its number after everything before it was written.
    """
    from .text import LineReader, topic_serdes

    where = {name: given.pop(name) for name in ("log", "data_dir", "app")}
    settings = find_settings(**where)
    if given["json_lines"] and given["key_separator"] is not None:
        raise click.UsageError("--key-separator is for lines; with --json-lines a record brings its own key")
    if given["json_lines"] and given["null_marker"] is not None:
        raise click.UsageError("--null is for lines; in JSON lines null is null")
    with open_log(settings) as log:
        partitions = topic_info(log, topic).partitions
        keys, values = topic_serdes(topic, where["app"], settings, key_serde or serde, value_serde or serde)
        reader = LineReader(topic, partitions, keys, values, **given)
        with ProgressMeter(f"producing {topic}", _size(source), quiet=quiet) as meter:
            records = _copy(source, reader, log, meter)
    if as_json:
        print_json({"topic": topic, "records": records, "seconds": round(meter.seconds, 3)})
    elif not quiet:
        note(
            f"produced {count(records)} to {topic} in {meter.seconds:.1f} s ({meter.records_per_second:,.0f} records/s)"
        )


def _copy(source: IO[bytes], reader: LineReader, log: Log, meter: ProgressMeter) -> int:
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
    """Yield pieces of whole lines: large ones from a file, arrived lines from a pipe or terminal."""
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
