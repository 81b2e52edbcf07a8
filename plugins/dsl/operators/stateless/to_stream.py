"""ToStream: turns a table's updates into records."""

from __future__ import annotations

from penstock.context import ProcessorContext
from penstock.record import Record

from ..operator import Operator, Run, sender


class ToStream(Operator):
    """Forwards the new value of each Change."""

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        forward = sender(context)

        def run(record: Record) -> None:
            forward((record[0], record[1][0], record[2], record[3]))

        return run
