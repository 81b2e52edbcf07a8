"""MapValues: forwards each record with another value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.record import Record

from .operator import Operator, Run, sender


class MapValues(Operator):
    """Forwards each record with the value that `function` returns."""

    def __init__(self, function: Callable[..., Any], *, with_key: bool = False) -> None:
        self._function = function
        self._with_key = with_key

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        forward, function = sender(context), self._function
        if self._with_key:

            def run(record: Record) -> None:
                forward((record[0], function(record[0], record[1]), record[2], record[3]))
        else:

            def run(record: Record) -> None:
                forward((record[0], function(record[1]), record[2], record[3]))

        return run


class FlatMapValues(Operator):
    """Forwards a record for each value that `function` returns."""

    def __init__(self, function: Callable[..., Any], *, with_key: bool = False) -> None:
        self._function = function
        self._with_key = with_key

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        forward, function, with_key = sender(context), self._function, self._with_key

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            for each in function(key, value) if with_key else function(value):
                forward((key, each, timestamp, headers))

        return run
