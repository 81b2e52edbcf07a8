"""Filter: forwards the records that a predicate accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run
from penstock.record import Record


@dataclass(kw_only=True, eq=False)
class Filter(Operator):
    """Forwards records for which `predicate` is true, or with `inverted`, those for which it is not."""

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
