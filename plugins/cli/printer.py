"""Writes records as lines: the text form and the JSON form of `penstock consume`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import IO, Any

from penstock.errors import SerdeError
from penstock.record import RecordBatch

from .output import reader_may_leave
from .text import TextSerde, dump_json, headers_to_json


class Printer(ABC):
    """Writes records to the output."""

    def __init__(self, keys: TextSerde, values: TextSerde) -> None:
        self._keys, self._values = keys, values

    def write(self, batch: RecordBatch, limit: int, output: IO[bytes]) -> int:
        """Write up to `limit` records and return how many."""
        number = min(len(batch), limit)
        lines: list[bytes] = []
        failed: SerdeError | None = None
        for index in range(number):
            try:
                lines.append(self.line(batch, index))
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

    @abstractmethod
    def line(self, batch: RecordBatch, index: int) -> bytes:
        """Return one record as a line, without its end."""


class LinePrinter(Printer):
    """Writes values, and keys if asked for."""

    def __init__(self, keys: TextSerde, values: TextSerde, separator: str | None, null: str) -> None:
        super().__init__(keys, values)
        self._separator = None if separator is None else separator.encode()
        self._null = null.encode()

    def line(self, batch: RecordBatch, index: int) -> bytes:
        key, value = batch.keys[index], batch.values[index]
        text = self._null if value is None else self._values.to_line(value)
        if self._separator is None:
            return text
        return (self._null if key is None else self._keys.to_line(key)) + self._separator + text


class JsonPrinter(Printer):
    """Writes whole records as JSON objects."""

    def line(self, batch: RecordBatch, index: int) -> bytes:
        key, value = batch.keys[index], batch.values[index]
        record: Mapping[str, Any] = {
            "topic": batch.topic,
            "partition": batch.partition,
            "offset": batch.offsets[index],
            "timestamp": batch.timestamps[index],
            "key": None if key is None else self._keys.to_json(key),
            "value": None if value is None else self._values.to_json(value),
            "headers": headers_to_json(batch.headers[index]) if batch.headers else [],
        }
        return dump_json(record)
