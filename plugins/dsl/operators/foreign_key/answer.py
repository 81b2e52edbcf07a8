"""The right side of a foreign-key join: keeps subscriptions, and answers with its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.context import ProcessorContext
from penstock.operator import Operator, Run, new
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.record import Record
from penstock.store import ValueAndTimestamp

from ..table_store import NotLatest
from .messages import Instruction, Response, compile_prefix

if TYPE_CHECKING:
    from ..reading import ValueGetter

_UNSUBSCRIBE, _UNSUBSCRIBE_AND_ANSWER = int(Instruction.UNSUBSCRIBE), int(Instruction.UNSUBSCRIBE_AND_ANSWER)
_ANSWER, _ANSWER_IF_FOUND = int(Instruction.ANSWER), int(Instruction.ANSWER_IF_FOUND)


class ForeignKeyReceive(Operator):
    """Keeps subscriptions by foreign key and left key, and forwards them.

    Kafka Streams: SubscriptionReceiveProcessorSupplier.
    """

    def __init__(self, subscriptions: str, *, foreign_key_serde: SerdeLike, key_serde: SerdeLike, topic: str) -> None:
        self._subscriptions = subscriptions
        self._foreign_key_serde = resolve_serde(foreign_key_serde, None, "foreign key")
        self._key_serde = resolve_serde(key_serde, None, "key")
        self._topic = topic

    def bind(self, context: ProcessorContext) -> Run:
        topic = f"{context.application_id}-{self._topic}"
        prefix = compile_prefix(self._foreign_key_serde.bind(f"{topic}-fk", is_key=True))
        key_bytes = self._key_serde.bind(f"{topic}-pk", is_key=True).serialize
        put, forward, drop = context.get_store(self._subscriptions).put, context.send, context.metrics.drop

        def run(record: Record) -> None:
            foreign_key, subscription, timestamp, _ = record
            if foreign_key is None:
                # The row refers to nothing, and its side still needs an answer.
                if subscription[1] == _ANSWER:
                    forward(record)
                else:
                    drop("null_key")
                return
            where = prefix(foreign_key) + key_bytes(subscription[2])
            ends = subscription[1] in (_UNSUBSCRIBE, _UNSUBSCRIBE_AND_ANSWER)
            put(where, None if ends else new(ValueAndTimestamp, (subscription, timestamp)))
            forward(record)

        return run


class ForeignKeyAnswer(Operator):
    """Answers a subscription with the right row, as it is now. Kafka Streams: SubscriptionJoinProcessorSupplier."""

    def __init__(self, right: ValueGetter, *, foreign_key_serde: SerdeLike, topic: str) -> None:
        self._right = right
        self._foreign_key_serde = resolve_serde(foreign_key_serde, None, "foreign key")
        self._topic = topic

    def bind(self, context: ProcessorContext) -> Run:
        topic = f"{context.application_id}-{self._topic}"
        key_bytes = self._foreign_key_serde.bind(f"{topic}-fk", is_key=True).serialize
        forward, get = context.send, self._right.open(context)

        def run(record: Record) -> None:
            foreign_key, (value_hash, instruction, key, partition, ticket), timestamp, headers = record
            if instruction == _UNSUBSCRIBE:
                return
            found = None if foreign_key is None else get(foreign_key)
            if found is None:
                if instruction == _ANSWER_IF_FOUND:
                    return
                value = None
            else:
                timestamp = max(timestamp, found[1])
                value = None if instruction == _UNSUBSCRIBE_AND_ANSWER else found[0]
            of = key_bytes(foreign_key) if value is None and foreign_key is not None else None
            response = new(Response, (value_hash, value, partition, of, ticket))
            forward((key, response, timestamp, headers))

        return run


class ForeignKeyUpdates(Operator):
    """Answers all subscriptions to a right row that was updated. Kafka Streams: ForeignTableJoinProcessorSupplier."""

    def __init__(
        self, subscriptions: str, *, foreign_key_serde: SerdeLike, topic: str, ignores_older: bool = False
    ) -> None:
        self._subscriptions = subscriptions
        self._foreign_key_serde = resolve_serde(foreign_key_serde, None, "foreign key")
        self._topic = topic
        self._ignores_older = ignores_older

    def bind(self, context: ProcessorContext) -> Run:
        topic = f"{context.application_id}-{self._topic}"
        serde = self._foreign_key_serde.bind(f"{topic}-fk", is_key=True)
        prefix, key_bytes = compile_prefix(serde), serde.serialize
        scan, forward = context.get_store(self._subscriptions).prefix_scan, context.send
        drop, ignores_older = context.metrics.drop, self._ignores_older

        def run(record: Record) -> None:
            foreign_key, change, timestamp, headers = record
            if foreign_key is None:
                drop("null_key")
                return
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            of = key_bytes(foreign_key) if change[0] is None else None
            with scan(prefix(foreign_key)) as entries:
                for _, ((value_hash, _, key, partition, _), _) in entries:
                    response = new(Response, (value_hash, change[0], partition, of, 0))
                    forward((key, response, timestamp, headers))

        return run
