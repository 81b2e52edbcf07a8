"""Joins by foreign key: the steps of both sides, and the topics between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from penstock import KeyValueStoreSpec, Partitioner, ProcessorContext, Record, StoreTraits, key_value_store
from penstock.operator import Operator, Run
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.store.division import Division, PartitionInValue

from ..graph.materialized import materialized
from ..graph.names import Names, checked
from ..graph.options import StoreLike
from ..graph.recorder import Recorder
from ..graph.serdes import Serdes, key_of_topic, value_of_internal_topic
from ..graph.sources import RepartitionNames, RepartitionStep
from ..graph.step import Flow, ProcessorStep, Writer
from .foreign_key_messages import (
    ForeignKeyAnswer,
    ForeignKeyOf,
    ForeignKeyReceive,
    ForeignKeySend,
    ForeignKeyUpdates,
    JoinSerdes,
    ResponseSerde,
    SubscriptionSerde,
    compile_hash,
    with_partition,
)
from .joins import TableSide
from .reading import TopicTable, ValueGetter
from .table_store import TableUpdates

_PREFIX = "KTABLE-FK-JOIN-"
_SUBSCRIPTION, _RESPONSE = f"{_PREFIX}SUBSCRIPTION-REGISTRATION-", f"{_PREFIX}SUBSCRIPTION-RESPONSE-"
_PROCESSOR, _SINK, _SOURCE = f"{_PREFIX}SUBSCRIPTION-PROCESSOR-", "KTABLE-SINK-", "KTABLE-SOURCE-"
_HOW = 'join(..., foreign_key=..., name="NAME")'


class ForeignKeyNames:
    """The names of one join, taken in the order of Kafka Streams' doJoinOnForeignKey. `given`: that of its user."""

    def __init__(self, names: Names, given: str | None) -> None:
        self._names, self._given = names, None if given is None else checked(given)
        registration = self._named("-subscription-registration", _SUBSCRIPTION) + "-topic"
        self.send = self._named("-subscription-registration-processor", _SUBSCRIPTION)
        self.subscriptions = self._topic(registration, "-subscription-registration")
        self.store = self._named("-subscription-store", f"{_PREFIX}SUBSCRIPTION-STATE-STORE-")
        self.receive = self._named("-subscription-receive", _PROCESSOR)
        self.answer = self._named("-subscription-join-foreign", _PROCESSOR)
        self.updates = self._named("-foreign-join-subscription", _PROCESSOR)
        response = self._named("-subscription-response", _RESPONSE) + "-topic"
        self.responses = self._topic(response, "-subscription-response")
        self.resolve = self._named("-subscription-response-resolver", f"{_RESPONSE}RESOLVER-PROCESSOR-")
        self.result = self._named("-result", f"{_PREFIX}OUTPUT-")
        if given is None:
            names.generated.update(dict.fromkeys((registration, self.store, response), _HOW))

    def _named(self, suffix: str, prefix: str) -> str:
        return self._names.suffixed(self._given, suffix, prefix)

    def _topic(self, topic: str, base: str) -> RepartitionNames:
        return RepartitionNames(topic, self._named(f"{base}-sink", _SINK), "", self._named(f"{base}-source", _SOURCE))


@dataclass(frozen=True)
class ForeignKeyJoin:
    """One join of `left` with `right`. Functions get the key first; `partitioner` and `other_partitioner`: KIP-775."""

    recorder: Recorder
    left: TableSide
    right: TableSide
    foreign_key: Callable[[Any, Any], Any]
    joiner: Callable[[Any, Any, Any], Any]
    is_left: bool
    name: str | None
    partitioner: Partitioner | None
    other_partitioner: Partitioner | None

    def add(self, verb: str, store: StoreLike | None, options: Any) -> tuple[Flow, TopicTable, str | None]:
        """Add the steps; return the flow of the result, its source, and the name of its store, if it was chosen."""
        left, right, recorder = self.left, self.right, self.recorder
        right.source.send_old_values(force=True)
        left.source.send_old_values(force=True)
        names = ForeignKeyNames(recorder.names, self.name)
        send = self._send(names)
        subscriptions = self._subscriptions(names)
        receive, answer, updates = self._right_side(names)
        responses = self._responses(names)
        resolve = self._resolve(names, send)
        result = ProcessorStep(names.result, TableUpdates, {"store": None, "sends_old": False})
        recorder.add(send, left.flow.step)
        recorder.add(subscriptions, send)
        recorder.add(receive, subscriptions)
        recorder.add(answer, receive)
        recorder.add(updates, right.flow.step)
        recorder.add(responses, answer, updates)
        recorder.add(resolve, responses)
        recorder.add(result, resolve)
        sources = left.flow.sources | {responses.name}
        recorder.copartition(right.flow.sources | {subscriptions.name})
        recorder.copartition(sources)
        kept = materialized(verb, recorder.names, store, options, f"{_PREFIX}OUTPUT-")
        if not kept.is_named:
            recorder.names.generated[kept.name] = f'{verb}(..., store="NAME")'
        serdes = kept.serdes(Serdes(left.flow.serdes.key))
        return Flow(result, serdes, sources), TopicTable(result, kept, serdes), kept.own_name

    def _send(self, names: ForeignKeyNames) -> ProcessorStep:
        deletions = None if self.is_left else f"{names.store}-deletions"
        return ProcessorStep(
            names.send,
            ForeignKeySend,
            {
                "foreign_key": self.foreign_key,
                "is_left": self.is_left,
                "ignores_older": self.left.source.is_versioned,
                "deletions": deletions,
                **({"rows_expire": True} if self.left.source.expiring or self.right.source.expiring else {}),
            },
            late=self._late(names),
            stores=lambda writer: (
                () if deletions is None else (DeletionsSpec(deletions, self._key(writer, self.left), "int"),)
            ),
        )

    def _subscriptions(self, names: ForeignKeyNames) -> RepartitionStep:
        by = self.other_partitioner
        return RepartitionStep(
            names.subscriptions,
            Serdes(self.right.flow.serdes.key),
            messages=lambda writer: SubscriptionSerde(self._key(writer, self.left)),
            partitioner=None if by is None else WithoutValue(by),
        )

    def _right_side(self, names: ForeignKeyNames) -> tuple[ProcessorStep, ProcessorStep, ProcessorStep]:
        """Return the steps that keep subscriptions, that answer them, and that answer with each update of the row."""
        kept, late, row = names.store, self._late(names), self.right.source.getter()

        def declared(writer: Writer) -> tuple[KeyValueStoreSpec]:
            value = SubscriptionSerde(self._key(writer, self.left))
            made = key_value_store(kept, key_serde="bytes", value_serde=value, timestamped=True)
            of_left_row = PartitionInValue(names.responses.topic, itemgetter(2, 3), with_partition)
            serde = resolve_serde(
                self._key(writer, self.right), None, f"{names.send}: serde", writer.settings.of_plugins
            )
            return (dataclasses.replace(made, division=Division(ForeignKeyOf(serde), None, of_left_row)),)

        older = self.right.source.is_versioned
        return (
            ProcessorStep(names.receive, ForeignKeyReceive, {"subscriptions": kept}, late=late, stores=declared),
            ProcessorStep(names.answer, ForeignKeyAnswer, {"right": row}, late=late, stores=lambda writer: row.stores),
            ProcessorStep(
                names.updates,
                ForeignKeyUpdates,
                {"subscriptions": kept, "ignores_older": older},
                late=late,
                stores=lambda writer: (kept,),
            ),
        )

    def _responses(self, names: ForeignKeyNames) -> RepartitionStep:
        return RepartitionStep(
            names.responses,
            Serdes(self.left.flow.serdes.key),
            messages=lambda writer: ResponseSerde(self._value(writer, self.right)),
            partitioner=to_the_left_row if self.partitioner is None else WithoutValue(self.partitioner),
        )

    def _resolve(self, names: ForeignKeyNames, send: ProcessorStep) -> ProcessorStep:
        row, deletions = self.left.source.getter(), send.options["deletions"]
        return ProcessorStep(
            names.resolve,
            ForeignKeyResolve,
            {
                "joiner": self.joiner,
                "left": row,
                "foreign_key": self.foreign_key,
                "is_left": self.is_left,
                "deletions": deletions,
            },
            late=self._late(names),
            stores=lambda writer: (*row.stores, *(() if deletions is None else (deletions,))),
        )

    def _late(self, names: ForeignKeyNames) -> Callable[[Writer], dict[str, Any]]:
        """Return the function that makes the option that is known only with the settings, and that all steps have."""

        def late(writer: Writer) -> dict[str, Any]:
            given = (self._key(writer, self.right), self._key(writer, self.left), self._value(writer, self.left))
            config = writer.settings.of_plugins
            serdes = (resolve_serde(each, None, f"{names.send}: serde", config) for each in given)
            return {"serdes": JoinSerdes(names.subscriptions.topic, *serdes)}

        return late

    def _key(self, writer: Writer, side: TableSide) -> SerdeLike:
        """Return the serde of a table's keys."""
        serde = key_of_topic(side.flow.serdes.key, writer.settings)
        return writer.settings.key_serde if serde is None else serde

    def _value(self, writer: Writer, side: TableSide) -> SerdeLike:
        """Return the serde of a table's values."""
        serde = value_of_internal_topic(side.flow.serdes.value, writer.settings)
        return writer.settings.value_serde if serde is None else serde


class DeletionsSpec(KeyValueStoreSpec):
    """Declares the tickets of deleted left rows without an answer yet, by key; Kafka Streams has no such store."""

    @property
    def traits(self) -> StoreTraits:
        """The traits of a key-value store."""
        return dataclasses.replace(super().traits, is_extra=True)


def to_the_left_row(topic: str, record: Record, count: int) -> int:
    """Return the partition of the left row: it may not be that of its key."""
    partition: int = record.value.partition
    return partition


@dataclass(frozen=True)
class WithoutValue:
    """Calls a user's partitioner, which must go by the key: it gets a record without a value."""

    partitioner: Partitioner

    def __call__(self, topic: str, record: Record, count: int) -> int | Sequence[int] | None:
        """Return the partitioner's choice."""
        return self.partitioner(topic, record.with_value(None), count)


@dataclass(kw_only=True, eq=False)
class ForeignKeyResolve(Operator):
    """Joins the left row, as it was sent last, with the right row in the answer: `joiner(key, left, right)`.

    An answer is stale, and dropped, if the left row has changed: another one follows, if there is something to join. So
    in an inner join a stale answer without a right row deletes the result, if the left row refers to the same row or to
    none. Kafka Streams: ResponseJoinProcessorSupplier.
    """

    joiner: Callable[[Any, Any, Any], Any]
    left: ValueGetter
    foreign_key: Callable[[Any, Any], Any]
    is_left: bool
    serdes: JoinSerdes
    deletions: str | None = None

    def bind(self, context: ProcessorContext) -> Run:
        digest = compile_hash(self.serdes.of_values(context))
        forward, drop, joiner = context.send, context.metrics.drop, self.joiner
        get = self.left.open(context, sent=True)
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
