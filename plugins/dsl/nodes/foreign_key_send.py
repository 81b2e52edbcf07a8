"""ForeignKeySend: subscribes the rows of the left table to the rows of the right table that they refer to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.record import Record

from .foreign_key_messages import Instruction, Subscription, compile_hash
from .operator import Operator, Run, new
from .table_store import NotLatest

_UNSUBSCRIBE, _UNSUBSCRIBE_AND_ANSWER = int(Instruction.UNSUBSCRIBE), int(Instruction.UNSUBSCRIBE_AND_ANSWER)
_ANSWER, _ANSWER_IF_FOUND = int(Instruction.ANSWER), int(Instruction.ANSWER_IF_FOUND)


class ForeignKeySend(Operator):
    """Forwards a Subscription under its foreign key for each update that needs an answer.

    `foreign_key` is a function of key and value. With `is_left`, rows without a right row have a result, too. Serdes
    are those of foreign keys and of this table's values. Kafka Streams: SubscriptionSendProcessorSupplier.
    """

    def __init__(
        self,
        foreign_key: Callable[[Any, Any], Any],
        *,
        is_left: bool,
        foreign_key_serde: SerdeLike,
        value_serde: SerdeLike,
        topic: str,
        ignores_older: bool = False,
    ) -> None:
        self._foreign_key = foreign_key
        self._is_left = is_left
        self._foreign_key_serde = resolve_serde(foreign_key_serde, None, "foreign key")
        self._value_serde = resolve_serde(value_serde, None, "value")
        self._topic = topic
        self._ignores_older = ignores_older

    def bind(self, context: ProcessorContext) -> Run:
        """Return the function that gets each record."""
        topic = f"{context.application_id}-{self._topic}"
        key_bytes = self._foreign_key_serde.bind(f"{topic}-fk", is_key=True).serialize
        digest = compile_hash(self._value_serde.bind(f"{topic}-vh", is_key=False))
        forward, drop, foreign_key = context.forward, context.metrics.drop, self._foreign_key
        is_left, ignores_older = self._is_left, self._ignores_older
        partition = int(context.task_id.rpartition("_")[2])

        def is_same(one: Any, other: Any) -> bool:
            if one is None or other is None:
                return one is other
            return key_bytes(one) == key_bytes(other)

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            value, old = change[0], change[1]
            to = None if value is None else foreign_key(key, value)
            before = None if old is None else foreign_key(key, old)
            value_hash = digest(value)

            def send(foreign: Any, instruction: int) -> None:
                subscription = new(Subscription, (value_hash, instruction, key, partition))
                forward(new(Record, (foreign, subscription, timestamp, headers)))

            if is_left:
                if value is None and old is None:
                    return
                if before is not None and not is_same(to, before):
                    send(before, _UNSUBSCRIBE)
                # A deletion and a row without a foreign key need an answer as well: it makes the result.
                send(to, _ANSWER)
                return
            if value is not None and to is None:
                drop("null_foreign_key")
            if to is None:
                if before is not None:
                    send(before, _UNSUBSCRIBE_AND_ANSWER)
            elif before is None or is_same(to, before):
                send(to, _ANSWER_IF_FOUND)
            else:
                send(before, _UNSUBSCRIBE)
                send(to, _ANSWER)

        return run
