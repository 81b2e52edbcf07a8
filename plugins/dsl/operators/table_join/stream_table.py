"""StreamTableJoin: looks up each record of a stream in a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run
from penstock.support.own_copy import own_copy

from ...graph.keys import is_same_key
from ..reading import ValueGetter


@dataclass(kw_only=True, eq=False)
class StreamTableJoin(Operator):
    """Forwards each record with what `joiner` makes of its value and of the table's value for its key.

    With `select_key` the table is read by the key that it makes of the record: a global table. A versioned table is
    read as of the record's time. `joiner` takes the left value and the right one, `with_key` the record's key before
    them, and `select_key` the value, `with_key` the key before it. With `keeps_unmatched`, records that find no value
    are forwarded, too; the others are not. Kafka Streams: KStreamKTableJoin, KStreamGlobalKTableJoin.
    """

    table: ValueGetter
    joiner: Callable[..., Any]
    select_key: Callable[..., Any] | None = None
    with_key: bool = False
    keeps_unmatched: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        if self.table.history_ms is not None:
            return self._bind_versioned(context)
        if self.with_key or self.select_key is not None:
            return self._bind_general(context)
        forward, drop, get = context.send, context.metrics.drop, self.table.open(context)
        joiner, keeps = self.joiner, self.keeps_unmatched

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None or key is None:
                if value is None or not keeps:
                    drop("null_value" if value is None else "null_key")
                    return
                found = None
            else:
                found = get(key)
            if found is not None:
                forward((key, joiner(value, found[0]), timestamp, headers))
            elif keeps:
                forward((key, joiner(value, None), timestamp, headers))

        return run

    def _bind_general(self, context: ProcessorContext) -> Run:
        forward, drop, get = context.send, context.metrics.drop, self.table.open(context)
        joiner, select, with_key, keeps = self.joiner, self.select_key, self.with_key, self.keeps_unmatched

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None:
                drop("null_value")
                return
            wanted = key if select is None else select(key, value) if with_key else select(value)
            if wanted is None and not keeps:
                drop("null_key")
                return
            found = None if wanted is None else get(wanted)
            if found is not None or keeps:
                other = None if found is None else found[0]
                result = joiner(key, value, other) if with_key else joiner(value, other)
                forward((key, result, timestamp, headers))

        return run

    def _bind_versioned(self, context: ProcessorContext) -> Run:
        drop, join, keeps = context.metrics.drop, self.bind_join(context), self.keeps_unmatched

        def run(record: Record) -> None:
            if record[1] is None or (record[0] is None and not keeps):
                drop("null_value" if record[1] is None else "null_key")
            else:
                join(record)

        return run

    def bind_join(self, context: ProcessorContext) -> Run:
        """Return the function that joins a record which has a value with the versioned table."""
        forward, joiner, keeps, with_key = context.send, self.joiner, self.keeps_unmatched, self.with_key
        get = self.table.open_as_of(context)

        def join(record: Record) -> None:
            key, value, timestamp, headers = record
            found = None if key is None else get(key, timestamp)
            if found is not None or keeps:
                other = None if found is None else found[0]
                result = joiner(key, value, other) if with_key else joiner(value, other)
                forward((key, result, timestamp, headers))

        return join


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
        waiting, grace, join_late = context.get_store(self.waiting), self.grace_ms, context.guarded(join)
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
                    join_late((own_copy(key), value, time, headers))  # `entry` is deleted afterwards
                    if not due or not is_same_key(due[-1], entry):
                        due.append(entry)
            for entry in due:
                waiting.delete(entry)
            return next_time

        return run
