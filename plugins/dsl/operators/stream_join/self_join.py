"""StreamStreamSelfJoin: joins a stream with itself, with one store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run

from .inner import joining


@dataclass(kw_only=True, eq=False)
class StreamStreamSelfJoin(Operator):
    """Forwards what an inner join of a stream with itself does, in the same order, with one store for both sides.

    The record itself is put into the store afterwards. It is joined with itself if the window has its time, and if it
    is not so late that the store, which keeps `retention_ms`, drops it.
    Kafka Streams: KStreamKStreamSelfJoin (KIP-862).
    """

    store: str
    before_ms: int
    after_ms: int
    retention_ms: int
    joiner: Callable[..., Any]
    with_key: bool = False

    @classmethod
    def saved_with(cls, *args: Any, store: str, **options: Any) -> str:
        """Return the store of the records: the times belong to it."""
        return store

    def bind(self, context: ProcessorContext) -> Run:
        forward, fetch, drop = context.send, context.get_store(self.store).fetch, context.metrics.drop
        before, after, retention = self.before_ms, self.after_ms, self.retention_ms
        join = joining(self.joiner, with_key=self.with_key, is_left=True)
        is_in_window = before >= 0 and after >= 0
        times = context.saved_numbers

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop("null_key" if key is None else "null_value")
                return
            stream_time = times["stream_time"] = max(times.get("stream_time", -1), timestamp)
            for time, other in fetch(key, max(timestamp - before, 0), max(timestamp + after, 0)):
                forward((key, join(key, value, other), max(time, timestamp), headers))
            joins_itself = is_in_window and timestamp > stream_time - retention
            for time, other in fetch(key, max(timestamp - after, 0), max(timestamp + before, 0)):
                if joins_itself and time > timestamp:
                    joins_itself = False
                    forward((key, join(key, value, value), timestamp, headers))
                forward((key, join(key, other, value), max(time, timestamp), headers))
            if joins_itself:
                forward((key, join(key, value, value), timestamp, headers))

        return run
