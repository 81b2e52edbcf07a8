"""TablePrinter: prints records as the rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from penstock import ProcessorContext, Record, Windowed
from penstock.operator import Operator, Run

_LEAST, _WIDEST = 8, 60
"""So wide is a column at first, and so many characters of a cell are shown."""


class TablePrinter(Operator):
    """Prints each record to the standard output of the process that runs the task: key, columns of the value, time.

    The label and the header come first. They come again when a value has a new column, when a cell is too wide for its
    column, and after rows of another table, so a row always has its columns above it. `columns` are the ones that are
    shown; without it, all that come.
    """

    _shown: ClassVar[tuple[str, dict[str, int]] | None] = None
    """The table whose rows this process printed last: its label, and the widths of its columns."""

    def __init__(self, label: str, columns: Sequence[str] | None = None) -> None:
        self._label = label
        self._columns = columns
        self._widths: dict[str, int] = {}

    def bind(self, context: ProcessorContext) -> Run:
        def run(record: Record) -> None:
            print(self._rows(*record[:3]), flush=True)

        return run

    def _rows(self, key: Any, value: Any, timestamp: int) -> str:
        """Return the row of a record, below the label and the header if they are due."""
        cells = self._cells(key, value, timestamp)
        is_first = not self._widths
        known = [name for name in self._widths if name not in ("key", "timestamp")]
        new = [name for name in cells if name not in ("key", "timestamp") and name not in known]
        shown, widths = TablePrinter._shown or ("", {})
        if shown == self._label and not is_first:
            # Several tasks of this process print one table: it gets the columns of all of them.
            new += [name for name in widths if name not in (*known, *new, "key", "timestamp")]
        else:
            widths = {}
        self._widths = {
            name: max(self._widths.get(name, 0), widths.get(name, 0), len(_title(name)), _LEAST)
            for name in ("key", *known, *new, "timestamp")
        }
        for name, cell in cells.items():
            self._widths[name] = max(self._widths[name], len(_text(cell)))
        lines = []
        if is_first or TablePrinter._shown != (self._label, self._widths):
            if is_first or shown != self._label:
                lines.append(f"[{self._label}]")
            lines.append(self._line([_title(name) for name in self._widths]))
            lines.append("-+-".join("-" * width for width in self._widths.values()))
            TablePrinter._shown = (self._label, dict(self._widths))
        lines.append(self._line([cells.get(name) for name in self._widths]))
        return "\n".join(lines)

    def _cells(self, key: Any, value: Any, timestamp: int) -> dict[str, Any]:
        """Return the cells of a record by the names of their columns, those of a value with "value." before it."""
        if self._columns is not None:
            given = {} if value is None else columns_of(value)
            columns: Mapping[str, Any] = {name: given.get(name) for name in self._columns}
        else:
            # A deletion has no columns of its own.
            columns = {} if value is None and len(self._widths) > 2 else columns_of(value)
        cells = {f"value.{name}": each for name, each in columns.items()}
        return {"key": str(key) if isinstance(key, Windowed) else key, **cells, "timestamp": time_text(timestamp)}

    def _line(self, cells: Sequence[Any]) -> str:
        padded = (
            _text(cell).rjust(width) if _is_number(cell) else _text(cell).ljust(width)
            for cell, width in zip(cells, self._widths.values(), strict=True)
        )
        return " | ".join(padded).rstrip()


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)


def _title(name: str) -> str:
    return name.removeprefix("value.")


def _text(cell: Any) -> str:
    text = "-" if cell is None else str(cell).replace("\n", " ")
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(value: Any) -> Mapping[str, Any]:
    """Return the columns of a value: the fields of a dict, a dataclass or a named tuple; else one named "value".

    >>> columns_of({"page": "/", "ms": 5}), columns_of(3)
    ({'page': '/', 'ms': 5}, {'value': 3})
    """
    if isinstance(value, Mapping):
        return {str(name): each for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields: Mapping[str, Any] = value._asdict()
        return fields
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return {"value": value}


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp as text in UTC; one that no date has, as the number.

    >>> time_text(1_500)
    '1970-01-01 00:00:01.500'
    """
    try:
        at = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return f"{at:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03}"
