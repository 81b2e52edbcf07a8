"""PassThrough: forwards records as they are, where streams meet."""

from __future__ import annotations

from penstock import ProcessorContext
from penstock.operator import Operator, Run


class PassThrough(Operator):
    """Forwards each record."""

    forwards_each = True

    def bind(self, context: ProcessorContext) -> Run:
        return context.send
