"""ToStream: turns a table's updates into records."""

from __future__ import annotations

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run
from penstock.record import Record


class ToStream(Operator):
    """Forwards the new value of each Change."""

    def bind(self, context: ProcessorContext) -> Run:
        forward = context.send

        def run(record: Record) -> None:
            forward((record[0], record[1][0], record[2], record[3]))

        return run
