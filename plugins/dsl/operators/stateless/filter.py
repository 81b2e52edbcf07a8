"""Filter: forwards the records that a predicate accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run
from penstock.record import Record


class Filter(Operator):
    """Forwards records for which `predicate` is true, or with `inverted`, those for which it is not."""

    def __init__(self, predicate: Callable[..., Any], *, with_key: bool = False, inverted: bool = False) -> None:
        self._predicate = predicate
        self._with_key = with_key
        self._inverted = inverted

    def bind(self, context: ProcessorContext) -> Run:
        forward, predicate = context.send, self._predicate
        if self._inverted:
            original = predicate
            predicate = (lambda key, value: not original(key, value)) if self._with_key else lambda v: not original(v)
        if self._with_key:

            def run(record: Record) -> None:
                if predicate(record[0], record[1]):
                    forward(record)
        else:

            def run(record: Record) -> None:
                if predicate(record[1]):
                    forward(record)

        return run
