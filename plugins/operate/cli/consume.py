"""The verb `consume`: a topic's records as lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import IO, Any

import click

from penstock import ConfigError, Log, RecordBatch, TopicPartition
from penstock.plugins.engine.task.reading import read_up_to

from .command import separator_option, verb
from .failures import ended_by_sigterm
from .options import find_settings, log_options, open_log
from .output import data_output, note, reader_may_leave
from .topics import topic_info

POLL_SECONDS = 0.1
"""Seconds between two looks of --follow: a log does not notify of new records."""


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
@click.option("--key-serde", metavar="NAME", help="Serde of keys. [default: the application's, or str]")
@click.option("--value-serde", metavar="NAME", help="Serde of values. [default: the application's, or str]")
@click.option("--serde", metavar="NAME", help="Serde of both keys and values.")
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
        keys, values = topic_serdes(topic, where["app"], settings, key_serde or serde, value_serde or serde)
        separator = key_separator if print_key else None
        line = json_lines(keys, values) if as_json else text_lines(keys, values, separator, null_text)
        start = log.end_offsets(partitions) if follow and not from_beginning else log.start_offsets(partitions)
        output = data_output()
        left = max_records if max_records is not None else sys.maxsize
        for batch in _batches(log, dict(start), follow, output):
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


def _batches(log: Log, positions: dict[TopicPartition, int], follow: bool, output: IO[bytes]) -> Iterator[RecordBatch]:
    """Yield the records from the positions to the ends, and with `follow` also later ones."""
    pause = threading.Event()  # never set: an interruptible wait
    while True:
        ends = log.end_offsets(list(positions))
        for partition, end in ends.items():
            yield from _up_to(log, positions, partition, end)
        if not follow:
            return
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
