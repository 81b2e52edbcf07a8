"""Filter and Branch: forward records by predicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run


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
