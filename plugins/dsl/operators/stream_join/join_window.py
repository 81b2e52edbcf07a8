"""JoinWindow: keeps the records of one side of a stream-stream join."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run
from penstock.record import Record


@dataclass(kw_only=True, eq=False)
class JoinWindow(Operator):
    """Forwards each record to the join, then puts it in `store` at its time, where the other side finds it.

    Kafka Streams: KStreamJoinWindow.
    """

    store: str

    def bind(self, context: ProcessorContext) -> Run:
        forward, put = context.send, context.get_store(self.store).put

        def run(record: Record) -> None:
            forward(record)
            key, value, timestamp, _ = record
            if key is not None:
                put(key, value, timestamp)  # A put of None does nothing, and is counted if it is late.

        return run
