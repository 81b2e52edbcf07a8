"""The processors of joins of two streams: inner, left and outer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run
from penstock.support.own_copy import IMMUTABLE, own_copy, own_record

from ...graph.names import is_same_key

Joiner = Callable[[Any, Any, Any], Any]


@dataclass(kw_only=True, eq=False)
class StreamStreamJoin(Operator):
    """One side of an inner join: forwards a result for each record of the other side that is in the window.

    `others` is the store of the other side. `before_ms` and `after_ms` are as seen from this side. `joiner` takes the
    left value and the right one, `with_key` the key before them. Kafka Streams: KStreamKStreamJoin.
    """

    others: str
    before_ms: int
    after_ms: int
    joiner: Callable[..., Any]
    with_key: bool = False
    is_left: bool = True

    def bind(self, context: ProcessorContext) -> Run:
        forward, fetch, drop = context.send, context.get_store(self.others).fetch, context.metrics.drop
        before, after = self.before_ms, self.after_ms
        join = joining(self.joiner, with_key=self.with_key, is_left=self.is_left)

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop("null_key" if key is None else "null_value")
                return
            earliest, latest = timestamp - before, timestamp + after
            is_own = type(value) in IMMUTABLE and type(key) in IMMUTABLE
            for time, other in fetch(key, earliest if earliest > 0 else 0, latest if latest > 0 else 0):
                if not is_own:  # it is in several results
                    key, value = own_copy(record[0]), own_copy(record[1])
                forward((key, join(key, value, other), time if time > timestamp else timestamp, headers))

        return run


def joining(joiner: Callable[..., Any], *, with_key: bool, is_left: bool) -> Joiner:
    """Return a function of the key, the value of this side and that of the other side."""
    if with_key:
        return joiner if is_left else lambda key, mine, others: joiner(key, others, mine)
    return (lambda key, mine, others: joiner(mine, others)) if is_left else lambda key, mine, other: joiner(other, mine)


@dataclass(kw_only=True, eq=False)
class JoinWindow(Operator):
    """Forwards each record to the join, then puts it in `store` at its time, where the other side finds it.

    Kafka Streams: KStreamJoinWindow.
    """

    store: str

    def bind(self, context: ProcessorContext) -> Run:
        forward, put = context.send, context.get_store(self.store).put

        def run(record: Record) -> None:
            key, value, timestamp, _ = record
            # The joiner may change what it gets, and what is put afterwards is what came.
            is_own = type(value) in IMMUTABLE and type(key) in IMMUTABLE
            forward(record if is_own else own_record(record))
            if key is not None:
                put(key, value, timestamp)  # A put of None does nothing, and is counted if it is late.

        return run


_STREAM_TIME, _MIN_TIME, _FIRST, _NEXT_EMIT = "stream_time", "min_time", "first", "next_emit"
_NEVER = 2**63 - 1


@dataclass(kw_only=True, eq=False)
class StreamStreamOuterJoin(StreamStreamJoin):
    """One side of a left or outer join.

    Unmatched records of a side that `keeps_unmatched` wait in the store `waiting`, under (time, side, key), until the
    join's own stream time has passed the end of their window and `grace_ms`; then they are forwarded without a value of
    the other side. Both sides of a join share `waiting`, and the times that are saved with it. The other options are
    those of StreamStreamJoin. Closed windows are looked for at most once in `emit_interval_ms` of the wall clock. With
    `keeps_headers`, waiting records keep their headers; else they get the headers of the record that closes their
    window. Kafka Streams: KStreamKStreamJoin with an outer join store.
    """

    waiting: str
    grace_ms: int
    keeps_unmatched: bool = True
    emit_interval_ms: int = 0
    keeps_headers: bool = False

    @classmethod
    def saved_with(cls, *args: Any, waiting: str, **options: Any) -> str:
        """Return the store of the records that wait: the times belong to it."""
        return waiting

    def bind(self, context: ProcessorContext) -> Run:
        forward, fetch, drop = context.send, context.get_store(self.others).fetch, context.metrics.drop
        waiting = context.get_store(self.waiting)
        add, delete = waiting.add, waiting.delete
        before, after, grace = self.before_ms, self.after_ms, self.grace_ms
        is_left, keeps, keeps_headers = self.is_left, self.keeps_unmatched, self.keeps_headers
        join = joining(self.joiner, with_key=self.with_key, is_left=is_left)
        times = context.saved_numbers
        emit_closed = self._bind_emit_closed(context, times)
        # Kafka Streams looks for closed windows also when nothing waits, which only counts for the interval.
        looks_always = self.emit_interval_ms > 0 and after + grace > 0

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            stream_time = times.get(_STREAM_TIME, -1)
            if timestamp > stream_time:
                times[_STREAM_TIME] = stream_time = timestamp
            if key is None or value is None:
                if keeps and value is not None:
                    forward((key, join(key, value, None), timestamp, headers))
                else:
                    drop("null_key" if key is None else "null_value")
                return
            if timestamp == stream_time:
                min_time = times.get(_MIN_TIME, _NEVER)
                if min_time + after + grace < stream_time or (looks_always and min_time == _NEVER):
                    emit_closed(headers, stream_time)
            earliest, latest = timestamp - before, timestamp + after
            latest = latest if latest > 0 else 0
            is_unmatched = keeps
            is_own = type(value) in IMMUTABLE and type(key) in IMMUTABLE
            for time, other in fetch(key, earliest if earliest > 0 else 0, latest):
                is_unmatched = False
                if not is_own:  # it is in several results
                    key, value = own_copy(record[0]), own_copy(record[1])
                result = join(key, value, other)  # if that fails, the other record still waits
                delete((time, not is_left, record[0]))
                forward((key, result, time if time > timestamp else timestamp, headers))
            if is_unmatched:
                if latest < stream_time:
                    forward((key, join(key, value, None), timestamp, headers))
                else:
                    times[_MIN_TIME] = min(times.get(_MIN_TIME, _NEVER), timestamp)
                    times[_FIRST] = min(times.get(_FIRST, _NEVER), timestamp)
                    add((timestamp, is_left, key), (is_left, (value, headers) if keeps_headers else value))

        return run

    def _bind_emit_closed(self, context: ProcessorContext, times: dict[str, int]) -> Callable[[Any, int], None]:
        """Return the function that forwards what waits in windows that have closed."""
        forward, waiting, grace = context.send, context.get_store(self.waiting), self.grace_ms
        joiner, with_key = self.joiner, self.with_key
        # A left record waits for right ones that are later by `after` of the join's window, and the reverse.
        left_ms, right_ms = self.after_ms, self.before_ms
        if not self.is_left:
            left_ms, right_ms = right_ms, left_ms

        def sends_alone(*, is_left: bool) -> Run:
            join = joining(joiner, with_key=with_key, is_left=is_left)

            def send(record: Record) -> None:
                key, value, timestamp, headers = record
                forward((key, join(key, value, None), timestamp, headers))

            return context.guarded(send)

        send_left, send_right = sends_alone(is_left=True), sends_alone(is_left=False)
        keeps_headers = self.keeps_headers
        interval, now = self.emit_interval_ms, context.current_system_time_ms

        def emit_closed(headers: Any, stream_time: int) -> None:
            if interval:
                if now() < times.get(_NEXT_EMIT, 0):
                    return
                times[_NEXT_EMIT] = now() + interval
            left_is_open = right_is_open = False
            # `min_time` is Kafka Streams', and decides when the next look is; nothing waits before `first`.
            min_time, first, last = _NEVER, _NEVER, None
            with waiting.range((times.get(_FIRST, 0), False, None)) as entries:
                for entry, (_, value) in entries:
                    min_time, is_left, key = entry
                    if left_is_open and right_is_open:
                        break
                    if min_time + (left_ms if is_left else right_ms) + grace >= stream_time:
                        left_is_open, right_is_open = left_is_open or is_left, right_is_open or not is_left
                        first = min(first, min_time)
                        continue
                    if keeps_headers:
                        value, headers = value
                    key = own_copy(key)  # `entry` is deleted afterwards
                    (send_left if is_left else send_right)((key, value, min_time, headers))
                    if last is not None and not is_same_key(last, entry):
                        waiting.delete(last)
                    last = entry
            if last is not None:
                waiting.delete(last)
            times[_MIN_TIME], times[_FIRST] = min_time, first

        return emit_closed
