"""Operator: the base of the DSL's processors, which are bound to their stores and children once, as closures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from penstock.context import ProcessorContext
from penstock.processor import Processor
from penstock.record import Record

Run = Callable[[Any], Any]
"""Gets a record, which may be a plain tuple of its four parts."""

new = tuple.__new__
"""Makes a NamedTuple of the tuple of its parts, in half the time that its constructor takes."""


class Operator(Processor):
    """A processor whose work is a function that `bind` makes.

    All look-ups happen in `bind`: what a record costs is the call of that function. It reads records by position, and
    forwards with `sender`, so records are plain tuples between operators.
    """

    takes_tuples: ClassVar[bool] = True
    _run: Run | None = None

    @abstractmethod
    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""

    def process(self, record: Record) -> None:
        """Handle one record; the engine calls what `bind` returned instead."""
        if self._run is None:
            self._run = self.bind(self.context)
        self._run(record)


def sender(context: ProcessorContext) -> Callable[..., Any]:
    """Return the `forward` of a context for records that may be plain tuples of their four parts."""
    send: Callable[..., Any] = context.send  # type: ignore[attr-defined]
    return send
