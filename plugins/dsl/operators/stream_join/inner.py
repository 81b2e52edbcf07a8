"""StreamStreamJoin and JoinWindow: join the records of one side with those of the other side that are near in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run
from penstock.support.own_copy import IMMUTABLE, own_copy, own_record

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
