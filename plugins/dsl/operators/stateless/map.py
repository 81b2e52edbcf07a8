"""Map, FlatMap and SelectKey forward records with other keys, MapValues and FlatMapValues with other values."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessingError, ProcessorContext, Record
from penstock.operator import Operator, Run
from penstock.support.own_copy import IMMUTABLE, own_copy

from ...graph.functions import keyed


@dataclass(kw_only=True, eq=False)
class OfFunction(Operator):
    """An operator with a function of the value, or `with_key` of key and value."""

    function: Callable[..., Any]
    with_key: bool = False


class Map(OfFunction):
    """Forwards each record with the key and the value that `function` returns."""

    forwards_each = True

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

    forwards_each = True

    def bind(self, context: ProcessorContext) -> Run:
        forward, function = context.send, keyed(self.function, with_key=self.with_key)

        def run(record: Record) -> None:
            key = function(record[0], record[1])
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

    forwards_each = True

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
