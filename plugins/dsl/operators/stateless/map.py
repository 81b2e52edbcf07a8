"""Filter, Map and Peek: the processors of a stream's verbs without state, and their relatives."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from penstock import ConfigError, ProcessingError, ProcessorContext, Record
from penstock.operator import Operator, Run
from penstock.support.own_copy import IMMUTABLE, own_copy

from ...graph.functions import keyed


@dataclass(kw_only=True, eq=False)
class Filter(Operator):
    """Forwards records for which `predicate` is true, or with `inverted`, those for which it is not."""

    forwards_last = True

    predicate: Callable[..., Any]
    with_key: bool = False
    inverted: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, predicate = context.send, self.predicate
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


@dataclass(kw_only=True, eq=False)
class OfFunction(Operator):
    """An operator with a function of the value, or `with_key` of key and value."""

    function: Callable[..., Any]
    with_key: bool = False


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
