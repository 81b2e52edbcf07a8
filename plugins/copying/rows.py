"""Rows and FrameRows: rows of Python, of a pandas DataFrame and of a Spark DataFrame."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

from penstock import ConfigError
from penstock.support.text_form import to_json

from .pandas_rows import rows_of_pandas
from .source import CopyError, Row, RowBatch, Source, SourceReader
from .spark_rows import rows_of_spark


class Rows(Source):
    """Rows of Python: mappings or dataclasses, in an order that is the same each time.

    `rows` is an iterable, or a function that returns one. The position is the number of a row, with a SHA-256 of the
    rows before it: a copy that is started again passes them.
    """

    kind = "rows"

    def __init__(self, rows: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self._rows = rows

    def __str__(self) -> str:
        return "the rows"

    @property
    def name(self) -> str:
        return ""

    def open(self, position: Any, *, follow: bool) -> SourceReader:
        if follow:
            raise ConfigError("rows of Python have an end, so they cannot be followed: leave out follow=True")
        return _Reader(self, iter(self.each()), position)

    def each(self) -> Iterable[Any]:
        """Return all rows, from the first on."""
        return self._rows() if callable(self._rows) else self._rows


class FrameRows(Rows):
    """The rows of a pandas DataFrame in its order, or of a Spark DataFrame in the order of `order_by`.

    A missing value of pandas (None, NaN, NaT, NA) is null. The index is no column.
    """

    def __init__(self, frame: Any, order_by: Sequence[str] = ()) -> None:
        """Take the DataFrame. Raises ConfigError for a Spark DataFrame without `order_by`, since it has no order."""
        super().__init__(())
        self._frame = frame
        self._order_by = [order_by] if isinstance(order_by, str) else list(order_by)
        self._is_of_spark = hasattr(frame, "toLocalIterator")
        if self._is_of_spark and not self._order_by:
            raise ConfigError(
                "a Spark DataFrame has no order of its own, and a copy continues at a row: name columns that order its "
                'rows in one way only, for instance order_by=["id"]'
            )
        if self._order_by and not self._is_of_spark:
            raise ConfigError("order_by is for a Spark DataFrame; a pandas DataFrame is copied in its order")

    def __str__(self) -> str:
        return "the DataFrame"

    def each(self) -> Iterable[Any]:
        if self._is_of_spark:
            return rows_of_spark(self._frame.orderBy(*self._order_by), self)
        return rows_of_pandas(self._frame, self)


def is_frame(value: object) -> bool:
    """Return whether a value is a DataFrame of pandas or Spark."""
    return type(value).__name__ == "DataFrame" and type(value).__module__.startswith(("pandas.", "pyspark.sql."))


class _Reader(SourceReader):
    def __init__(self, source: Rows, rows: Iterator[Any], position: Any) -> None:
        self._source, self._rows = source, rows
        self._row, self._digest = 0, sha256()
        if position is not None:
            self._go_to(position["row"], position["sha256"])

    def _go_to(self, count: int, digest: str) -> None:
        while self._row < count:
            if not self._next(min(1000, count - self._row)):
                raise CopyError(f"{self._source}: there are {self._row}, and {count} were copied: some are gone")
        if self._digest.hexdigest() != digest:
            raise CopyError(
                f"{self._source}: the first {count} are not those that were copied, or are in another order"
            )

    def read(self, most: int) -> RowBatch | None:
        first = self._row
        rows = self._next(most)
        if not rows:
            return None
        position = {"row": self._row, "sha256": self._digest.hexdigest()}
        return RowBatch(rows, position, lambda index: f"row {first + index + 1}")

    def _next(self, most: int) -> list[Row]:
        rows: list[Row] = []
        for row in islice(self._rows, most):
            columns = _columns(row, self._row + 1)
            try:
                self._digest.update(json.dumps(to_json(columns)).encode() + b"\n")
            except Exception as error:
                raise CopyError(f"row {self._row + 1}: {error}") from error
            rows.append(columns)
            self._row += 1
        return rows

    def close(self) -> None:
        self._rows = iter(())


def _columns(row: Any, number: int) -> dict[str, Any]:
    if is_dataclass(row) and not isinstance(row, type):
        return {each.name: getattr(row, each.name) for each in fields(row)}
    if isinstance(row, Mapping):
        return dict(row)
    raise CopyError(f"row {number}: expected a mapping of columns, or a dataclass, found {type(row).__name__}")
