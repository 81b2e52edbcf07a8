"""Writes records as lines: the text form and the JSON form of `penstock consume`."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from penstock import RecordBatch, SerdeError
from penstock.plugins.serdes.json_text import dump_json

from .output import reader_may_leave
from .text import TextSerde, headers_to_json

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
    """Write up to `limit` records and return how many. Raises SerdeError after the lines before a failed record."""
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
