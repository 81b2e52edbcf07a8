"""MapValues: forwards each record with another value."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.context import ProcessorContext
from penstock.errors import ProcessingError
from penstock.operator import Operator, Run
from penstock.record import Record


@dataclass(kw_only=True, eq=False)
class MapValues(Operator):
    """Forwards each record with the value that `function` returns."""

    function: Callable[..., Any]
    with_key: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, function = context.send, self.function
        if self.with_key:

            def run(record: Record) -> None:
                forward((record[0], function(record[0], record[1]), record[2], record[3]))
        else:

            def run(record: Record) -> None:
                forward((record[0], function(record[1]), record[2], record[3]))

        return run


@dataclass(kw_only=True, eq=False)
class FlatMapValues(Operator):
    """Forwards a record for each value that `function` returns."""

    function: Callable[..., Any]
    with_key: bool = False

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
                forward((key, each, timestamp, headers))

        return run


def no_list(made: str | bytes) -> str:
    """Return the beginning of a message: Python could iterate over `made`, but that is never meant."""
    what = "text" if isinstance(made, str) else "bytes"
    return f"the {what} {reprlib.repr(made)}, expected a list"
