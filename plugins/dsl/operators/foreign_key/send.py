"""ForeignKeySend: subscribes the rows of the left table to the rows of the right table that they refer to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, Record
from penstock.operator import Operator, Run, new

from ..table_store import NotLatest
from .messages import Instruction, JoinSerdes, Subscription, compile_hash

_UNSUBSCRIBE, _UNSUBSCRIBE_AND_ANSWER = int(Instruction.UNSUBSCRIBE), int(Instruction.UNSUBSCRIBE_AND_ANSWER)
_ANSWER, _ANSWER_IF_FOUND = int(Instruction.ANSWER), int(Instruction.ANSWER_IF_FOUND)

Send = Callable[[Record, Any, bytes | None, int, int], None]
"""(record, foreign key, hash, instruction, ticket): forwards a Subscription."""

Ask = Callable[[Record, bytes | None, Any, Any], None]
"""(record, hash, foreign key now, foreign key before): sends the subscriptions that an update needs."""


@dataclass(kw_only=True, eq=False)
class ForeignKeySend(Operator):
    """Forwards a Subscription under its foreign key for each update that needs an answer.

    `foreign_key` is a function of key and value. With `is_left`, rows without a right row have a result, too.
    `deletions` is the store of deletions that are not answered yet; only an inner join has it. Kafka Streams:
    SubscriptionSendProcessorSupplier.
    """

    foreign_key: Callable[[Any, Any], Any]
    is_left: bool
    serdes: JoinSerdes
    deletions: str | None = None
    ignores_older: bool = False

    @classmethod
    def saved_with(cls, *args: Any, deletions: str | None = None, **options: Any) -> str | None:
        """Return the store of deletions: the numbers of deletions belong to it."""
        return deletions

    def bind(self, context: ProcessorContext) -> Run:
        key_bytes = self.serdes.of_foreign_keys(context).serialize
        digest = compile_hash(self.serdes.of_values(context))

        def is_same(one: Any, other: Any) -> bool:
            return one is other if one is None or other is None else key_bytes(one) == key_bytes(other)

        drop, foreign_key, ignores_older = context.metrics.drop, self.foreign_key, self.ignores_older
        send = _compile_send(context)
        ask = self._left(send, is_same) if self.is_left else self._inner(context, send, is_same)

        def run(record: Record) -> None:
            key, change, _, _ = record
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            value, old = change[0], change[1]
            value_hash = digest(value)  # of the row as it is in the store: the function may change its argument
            to = None if value is None else foreign_key(key, value)
            before = None if old is None else foreign_key(key, old)
            ask(record, value_hash, to, before)

        return run

    def _left(self, send: Send, is_same: Callable[[Any, Any], bool]) -> Ask:
        def ask(record: Record, value_hash: bytes | None, to: Any, before: Any) -> None:
            if record[1][0] is None and record[1][1] is None:
                return
            if before is not None and not is_same(to, before):
                send(record, before, value_hash, _UNSUBSCRIBE, 0)
            # A deletion and a row without a foreign key need an answer as well: it makes the result.
            send(record, to, value_hash, _ANSWER, 0)

        return ask

    def _inner(self, context: ProcessorContext, send: Send, is_same: Callable[[Any, Any], bool]) -> Ask:
        deletions, drop = context.get_store(str(self.deletions)), context.metrics.drop
        is_deleted, note = deletions.get, deletions.put
        tickets = context.saved_numbers

        def ask(record: Record, value_hash: bytes | None, to: Any, before: Any) -> None:
            key = record[0]
            if to is None:
                if record[1][0] is not None:
                    drop("null_foreign_key")
                if before is not None:
                    tickets["ticket"] = ticket = tickets.get("ticket", 0) + 1
                    note(key, ticket)
                    send(record, before, value_hash, _UNSUBSCRIBE_AND_ANSWER, ticket)
            elif before is None:
                if is_deleted(key) is None:
                    send(record, to, value_hash, _ANSWER_IF_FOUND, 0)
                else:
                    # The answer to the deletion will be stale, so this one has to delete the result if it makes none.
                    note(key, None)
                    send(record, to, value_hash, _ANSWER, 0)
            elif is_same(to, before):
                send(record, to, value_hash, _ANSWER_IF_FOUND, 0)
            else:
                send(record, before, value_hash, _UNSUBSCRIBE, 0)
                send(record, to, value_hash, _ANSWER, 0)

        return ask


def _compile_send(context: ProcessorContext) -> Send:
    forward, partition = context.send, int(context.task_id.rpartition("_")[2])

    def send(record: Record, foreign_key: Any, value_hash: bytes | None, instruction: int, ticket: int) -> None:
        subscription = new(Subscription, (value_hash, instruction, record[0], partition, ticket))
        forward((foreign_key, subscription, record[2], record[3]))

    return send
