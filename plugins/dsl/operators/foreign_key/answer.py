"""The right side of a foreign-key join: keeps subscriptions, and answers with its rows."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import ProcessorContext, Record, ValueAndTimestamp
from penstock.operator import Operator, Run, new

from ..reading import ValueGetter
from ..table_store import NotLatest
from .messages import Instruction, JoinSerdes, Response, compile_prefix

_UNSUBSCRIBE, _UNSUBSCRIBE_AND_ANSWER = int(Instruction.UNSUBSCRIBE), int(Instruction.UNSUBSCRIBE_AND_ANSWER)
_ANSWER, _ANSWER_IF_FOUND = int(Instruction.ANSWER), int(Instruction.ANSWER_IF_FOUND)


@dataclass(kw_only=True, eq=False)
class ForeignKeyReceive(Operator):
    """Keeps subscriptions by foreign key and left key, and forwards them.

    Kafka Streams: SubscriptionReceiveProcessorSupplier.
    """

    subscriptions: str
    serdes: JoinSerdes

    def bind(self, context: ProcessorContext) -> Run:
        prefix = compile_prefix(self.serdes.of_foreign_keys(context))
        key_bytes = self.serdes.of_keys(context).serialize
        put, forward, drop = context.get_store(self.subscriptions).put, context.send, context.metrics.drop

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


@dataclass(kw_only=True, eq=False)
class ForeignKeyAnswer(Operator):
    """Answers a subscription with the right row, as it is now. Kafka Streams: SubscriptionJoinProcessorSupplier."""

    right: ValueGetter
    serdes: JoinSerdes

    def bind(self, context: ProcessorContext) -> Run:
        key_bytes = self.serdes.of_foreign_keys(context).serialize
        forward, get = context.send, self.right.open(context)

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


@dataclass(kw_only=True, eq=False)
class ForeignKeyUpdates(Operator):
    """Answers all subscriptions to a right row that was updated. Kafka Streams: ForeignTableJoinProcessorSupplier."""

    subscriptions: str
    serdes: JoinSerdes
    ignores_older: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        serde = self.serdes.of_foreign_keys(context)
        prefix, key_bytes = compile_prefix(serde), serde.serialize
        scan, forward = context.get_store(self.subscriptions).prefix_scan, context.send
        drop, ignores_older = context.metrics.drop, self.ignores_older

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
