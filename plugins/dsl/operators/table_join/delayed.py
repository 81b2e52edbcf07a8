"""StreamTableDelayedJoin: lets each record of a stream wait for late updates of the table before it looks it up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Run

from .stream_table import StreamTableJoin

_STREAM_TIME, _MIN_TIME = "stream_time", "min_time"
_NEVER = 2**63 - 1


@dataclass(kw_only=True, eq=False)
class StreamTableDelayedJoin(StreamTableJoin):
    """Joins a record when the stream is `grace_ms` past its time, with the table as of the record's time.

    Until then it waits in the store `waiting`, under (time, key). Only records of the stream that have key and value
    move this time. A record that is later than the grace is joined at once. Kafka Streams: KStreamKTableJoin with a
    grace period (KIP-923).
    """

    waiting: str
    grace_ms: int

    @classmethod
    def saved_with(cls, *args: Any, waiting: str, **options: Any) -> str:
        """Return the store of the records that wait: the times belong to it."""
        return waiting

    def bind(self, context: ProcessorContext) -> Run:
        drop, join, keeps = context.metrics.drop, self.bind_join(context), self.keeps_unmatched
        waiting, grace = context.get_store(self.waiting), self.grace_ms
        add = waiting.add
        times = context.saved_numbers

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None or key is None:
                if value is None or not keeps:
                    drop("null_value" if value is None else "null_key")
                else:
                    join(record)
                return
            stream_time = times.get(_STREAM_TIME, -1)
            if timestamp < stream_time - grace:
                join(record)
                return
            add((timestamp, key), (value, headers))
            min_time = min(times.get(_MIN_TIME, _NEVER), timestamp)
            if timestamp > stream_time:
                times[_STREAM_TIME] = stream_time = timestamp
            up_to = stream_time - grace
            times[_MIN_TIME] = min_time if min_time > up_to else join_due(min_time, up_to)

        def join_due(first: int, up_to: int) -> int:
            """Join what waits from one time to another, both included; return the time of what waits next."""
            due: list[tuple[int, Any]] = []
            next_time = _NEVER
            with waiting.range((first, None)) as entries:
                for entry, (value, headers) in entries:
                    time, key = entry
                    if time > up_to:
                        next_time = time
                        break
                    join((key, value, time, headers))
                    if not due or due[-1] != entry:
                        due.append(entry)
            for entry in due:
                waiting.delete(entry)
            return next_time

        return run
