"""ForeignKeyResolve: makes the results of a foreign-key join of the right side's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run

from ..reading import ValueGetter
from .messages import JoinSerdes, compile_hash


@dataclass(kw_only=True, eq=False)
class ForeignKeyResolve(Operator):
    """Joins the left row, as it is now, with the right row in the answer: `joiner(key, left value, right value)`.

    The left row may have changed since it subscribed. Then the answer is stale, and is dropped: another one follows,
    except where there is nothing to join. So in an inner join a stale answer without a right row deletes the result,
    if the left row still refers to the same row, whose answers come in order, or refers to none.
    Kafka Streams: ResponseJoinProcessorSupplier.
    """

    joiner: Callable[[Any, Any, Any], Any]
    left: ValueGetter
    foreign_key: Callable[[Any, Any], Any]
    is_left: bool
    serdes: JoinSerdes
    deletions: str | None = None

    def bind(self, context: ProcessorContext) -> Run:
        digest = compile_hash(self.serdes.of_values(context))
        forward, drop, get, joiner = context.send, context.metrics.drop, self.left.open(context), self.joiner
        key_bytes = self.serdes.of_foreign_keys(context).serialize
        is_left, foreign_key = self.is_left, self.foreign_key
        deletions = None if self.deletions is None else context.get_store(self.deletions)

        def deletes(key: Any, left: Any, of: bytes | None) -> bool:
            """Return whether a stale answer without a right row deletes the result."""
            now = None if left is None else foreign_key(key, left)
            return now is None or key_bytes(now) == of

        def run(record: Record) -> None:
            key, (value_hash, right, _, of, ticket), timestamp, headers = record
            row = get(key)
            left = None if row is None else row[0]
            if ticket and deletions is not None and deletions.get(key) == ticket:
                deletions.put(key, None)
            if digest(left) != value_hash:
                if is_left or right is not None or not deletes(key, left, of):
                    drop("stale_response")
                    return
                left = None
            result = None if left is None or (right is None and not is_left) else joiner(key, left, right)
            forward((key, result, timestamp, headers))

        return run
