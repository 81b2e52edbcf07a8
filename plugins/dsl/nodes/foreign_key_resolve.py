"""ForeignKeyResolve: makes the results of a foreign-key join of the right side's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.context import ProcessorContext
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.record import Record

from .foreign_key_messages import compile_hash
from .operator import Operator, Run, new

if TYPE_CHECKING:
    from ..tables.values import ValueGetter


class ForeignKeyResolve(Operator):
    """Joins the left row, as it is now, with the right row in the answer: `joiner(key, left value, right value)`.

    The left row may have changed since it subscribed. Then the answer is stale, and is dropped: another one follows.
    Kafka Streams: ResponseJoinProcessorSupplier.
    """

    def __init__(
        self,
        joiner: Callable[[Any, Any, Any], Any],
        left: ValueGetter,
        *,
        is_left: bool,
        value_serde: SerdeLike,
        topic: str,
    ) -> None:
        self._joiner = joiner
        self._left = left
        self._is_left = is_left
        self._value_serde = resolve_serde(value_serde, None, "value")
        self._topic = topic

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        topic = f"{context.application_id}-{self._topic}"
        digest = compile_hash(self._value_serde.bind(f"{topic}-vh", is_key=False))
        forward, drop, get, joiner = context.forward, context.metrics.drop, self._left.open(context), self._joiner
        is_left = self._is_left

        def run(record: Record) -> None:
            key, (value_hash, right, _), timestamp, headers = record
            row = get(key)
            left = None if row is None else row[0]
            if digest(left) != value_hash:
                drop("stale_response")
                return
            result = None if left is None or (right is None and not is_left) else joiner(key, left, right)
            forward(new(Record, (key, result, timestamp, headers)))

        return run
