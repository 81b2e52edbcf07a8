"""ForeignKeyResolve: makes the results of a foreign-key join of the right side's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.record import Record

from .messages import compile_hash

if TYPE_CHECKING:
    from ..reading import ValueGetter


class ForeignKeyResolve(Operator):
    """Joins the left row, as it is now, with the right row in the answer: `joiner(key, left value, right value)`.

    The left row may have changed since it subscribed. Then the answer is stale, and is dropped: another one follows,
    except where there is nothing to join. So in an inner join a stale answer without a right row deletes the result,
    if the left row still refers to the same row, whose answers come in order, or refers to none.
    Kafka Streams: ResponseJoinProcessorSupplier.
    """

    def __init__(
        self,
        joiner: Callable[[Any, Any, Any], Any],
        left: ValueGetter,
        *,
        foreign_key: Callable[[Any, Any], Any],
        is_left: bool,
        foreign_key_serde: SerdeLike,
        value_serde: SerdeLike,
        topic: str,
        deletions: str | None = None,
    ) -> None:
        self._joiner = joiner
        self._left = left
        self._foreign_key = foreign_key
        self._is_left = is_left
        self._foreign_key_serde = resolve_serde(foreign_key_serde, None, "foreign key")
        self._value_serde = resolve_serde(value_serde, None, "value")
        self._topic = topic
        self._deletions = deletions

    def bind(self, context: ProcessorContext) -> Run:
        topic = f"{context.application_id}-{self._topic}"
        digest = compile_hash(self._value_serde.bind(f"{topic}-vh", is_key=False))
        forward, drop, get, joiner = context.send, context.metrics.drop, self._left.open(context), self._joiner
        key_bytes = self._foreign_key_serde.bind(f"{topic}-fk", is_key=True).serialize
        is_left, foreign_key = self._is_left, self._foreign_key
        deletions = None if self._deletions is None else context.get_store(self._deletions)

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
