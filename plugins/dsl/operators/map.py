"""Filter, Map, Peek and their relatives: the processors of a stream's verbs without state; printers of records."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TextIO

from penstock import ConfigError, ProcessingError, ProcessorContext, Record, Windowed
from penstock.operator import Operator, Run
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..graph.functions import keyed


@dataclass(kw_only=True, eq=False)
class OfFunction(Operator):
    """An operator with a function of the value, or `with_key` of key and value."""

    reads_time = False

    function: Callable[..., Any]
    with_key: bool = False


@dataclass(kw_only=True, eq=False)
class Filter(OfFunction):
    """Forwards records for which `function` is true, or with `inverted`, those for which it is not."""

    forwards_last = True

    inverted: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, predicate = context.send, self.function
        if self.inverted:
            original = predicate
            predicate = (lambda key, value: not original(key, value)) if self.with_key else lambda v: not original(v)
        if self.with_key:

            def run(record: Record) -> None:
                if predicate(record[0], record[1]):
                    forward(record)
        else:

            def run(record: Record) -> None:
                if predicate(record[1]):
                    forward(record)

        return run


class Branch(Operator):
    """Forwards to the child whose predicate comes first among those that are true, else to `default`, if there is one.

    `children` are the names of the children, one for each predicate.
    """

    def __init__(
        self, predicates: Sequence[Callable[[Any, Any], Any]], children: Sequence[str], default: str | None
    ) -> None:
        self._branches = list(zip(predicates, children, strict=True))
        self._default = default

    def bind(self, context: ProcessorContext) -> Run:
        forward, branches, default = context.send, self._branches, self._default

        def run(record: Record) -> None:
            for predicate, child in branches:
                if predicate(record[0], record[1]):
                    forward(record, child)
                    return
            if default is not None:
                forward(record, default)

        return run


class Map(OfFunction):
    """Forwards each record with the key and the value that `function` returns."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        forward, function = context.send, keyed(self.function, with_key=self.with_key)

        def run(record: Record) -> None:
            made = function(record[0], record[1])
            key, value = made if type(made) is tuple and len(made) == 2 else pair(made)
            # It may be a part of the value.
            forward((key if type(key) in IMMUTABLE else own_copy(key), value, record[2], record[3]))

        return run


class FlatMap(OfFunction):
    """Forwards a record for each pair of key and value that `function` returns; each has its own."""

    def bind(self, context: ProcessorContext) -> Run:
        forward, function = context.send, keyed(self.function, with_key=self.with_key)

        def run(record: Record) -> None:
            made = function(record[0], record[1])
            if made.__class__ is str or made.__class__ is bytes:
                raise ProcessingError(f"the function returned {no_list(made)} of (key, value) pairs")
            for each in made:
                key, value = pair(each)
                if type(value) not in IMMUTABLE or type(key) not in IMMUTABLE:
                    key, value = own_copy(key), own_copy(value)
                forward((key, value, record[2], record[3]))

        return run


class SelectKey(OfFunction):
    """Forwards each record with the key that `function` returns."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        forward, function, with_key = context.send, self.function, self.with_key

        def run(record: Record) -> None:
            key = function(record[0], record[1]) if with_key else function(record[1])
            # It may be a part of the value.
            forward((key if type(key) in IMMUTABLE else own_copy(key), record[1], record[2], record[3]))

        return run


def pair(made: Any) -> tuple[Any, Any]:
    """Return the key and the value that a function made. Raises ProcessingError for anything but a pair."""
    if type(made) is tuple and len(made) == 2:
        return made
    raise ProcessingError(f"the function must return a (key, value) pair, found {made!r}")


class MapValues(OfFunction):
    """Forwards each record with the value that `function` returns."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        forward, function = context.send, self.function
        if self.with_key:

            def run(record: Record) -> None:
                forward((record[0], function(record[0], record[1]), record[2], record[3]))
        else:

            def run(record: Record) -> None:
                forward((record[0], function(record[1]), record[2], record[3]))

        return run


class FlatMapValues(OfFunction):
    """Forwards a record for each value that `function` returns; each has its own."""

    def bind(self, context: ProcessorContext) -> Run:
        forward, function, with_key = context.send, self.function, self.with_key

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            made = function(key, value) if with_key else function(value)
            if made.__class__ is str or made.__class__ is bytes:
                raise ProcessingError(
                    f"the function returned {no_list(made)} of values; return a list, or use map_values for one value"
                )
            for each in made:
                if type(each) not in IMMUTABLE or type(key) not in IMMUTABLE:
                    each, key = own_copy(each), own_copy(record[0])  # a child may have changed the one before
                forward((key, each, timestamp, headers))

        return run


def no_list(made: str | bytes) -> str:
    """Return the beginning of a message: Python could iterate over `made`, but that is never meant."""
    what = "text" if isinstance(made, str) else "bytes"
    return f"the {what} {reprlib.repr(made)}, expected a list"


@dataclass(kw_only=True, eq=False)
class Peek(OfFunction):
    """Calls `function` for each record, and forwards it. With `is_last` it forwards nothing."""

    forwards_each = forwards_last = True

    is_last: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, function = context.send, keyed(self.function, with_key=self.with_key)
        if self.is_last:
            return lambda record: function(record[0], record[1])

        def run(record: Record) -> None:
            function(record[0], record[1])
            forward(record)

        return run


@dataclass(kw_only=True, eq=False)
class Printer(Operator):
    """Prints each record to the standard output of the process that runs the task, or appends it to `file`."""

    label: str
    function: Callable[..., str] | None = None
    file: str | None = None
    _opened: TextIO | None = field(default=None, init=False)

    def bind(self, context: ProcessorContext) -> Run:
        label, text = self.label, self.function or (lambda key, value: f"{key}, {value}")
        if self.file is not None:
            try:
                self._opened = Path(self.file).open("a", encoding="utf-8")  # noqa: SIM115 (`close` closes it)
            except OSError as error:
                raise ConfigError(
                    f"node {context.node!r}: print cannot append to the file {self.file!r}: {error.strerror}; name a "
                    "file in a directory that is there, and that the process of the task may write"
                ) from error
        # Without a file it is the standard output of that moment, which tests and notebooks replace.
        opened = self._opened

        def run(record: Record) -> None:
            print(f"[{label}]: {text(record[0], record[1])}", file=opened, flush=True)

        return run

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


_LEAST, _WIDEST = 8, 60
"""So wide is a column at first, and so many characters of a cell are shown."""


class TablePrinter(Operator):
    """Prints each record to the standard output of the process that runs the task: key, columns of the value, time.

    Label and header come first, and again for a new column, a wider cell, and after rows of another table. `columns`:
    the ones that are shown; None: all.
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
