"""Joins by foreign key: the steps of both sides, and the topics between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.program.nodes import Partitioner
from penstock.program.serdes import SerdeLike
from penstock.record import Record
from penstock.serde import Serde
from penstock.store.kinds.key_value import KeyValueStoreSpec, key_value_store
from penstock.store.traits import StoreTraits

from ...graph.flow import Flow
from ...graph.materialized import StoreLike, materialized
from ...graph.names import Names, checked
from ...graph.serdes import KnownSerde, Serdes, key_of_topic, value_of_internal_topic
from ...graph.step import ProcessorStep, Step
from ...graph.writer import RepartitionNames, Writer
from ...table_base import TableBase
from ..reading import TopicTable
from ..table_source import TableUpdates
from .answer import ForeignKeyAnswer, ForeignKeyReceive, ForeignKeyUpdates
from .messages import ResponseSerde, SubscriptionSerde
from .resolve import ForeignKeyResolve
from .send import ForeignKeySend

_PREFIX = "KTABLE-FK-JOIN-"
_PROCESSOR, _SINK, _SOURCE = f"{_PREFIX}SUBSCRIPTION-PROCESSOR-", "KTABLE-SINK-", "KTABLE-SOURCE-"
_HOW = 'join(..., foreign_key=..., name="NAME")'


@dataclass(frozen=True)
class ForeignKeyJoin:
    """One join of `left` with `right`. Functions get the key first; `partitioner` and `other_partitioner`: KIP-775."""

    left: TableBase[Any, Any]
    right: TableBase[Any, Any]
    foreign_key: Callable[[Any, Any], Any]
    joiner: Callable[[Any, Any, Any], Any]
    is_left: bool
    name: str | None
    partitioner: Partitioner | None
    other_partitioner: Partitioner | None

    def add(self, verb: str, store: StoreLike | None, options: Any) -> Any:
        """Add the steps and return the result, a table.

        The order in which names are taken is that of Kafka Streams' doJoinOnForeignKey.
        """
        left, right, recorder = self.left, self.right, self.left.recorder
        right.source.send_old_values(force=True)
        left.source.send_old_values(force=True)
        registration = self._named("-subscription-registration", f"{_PREFIX}SUBSCRIPTION-REGISTRATION-") + "-topic"
        send = LateStep(
            self._named("-subscription-registration-processor", f"{_PREFIX}SUBSCRIPTION-REGISTRATION-"),
            ForeignKeySend,
            {
                "foreign_key": self.foreign_key,
                "is_left": self.is_left,
                "topic": registration,
                "ignores_older": left.source.is_versioned,
            },
            late=lambda writer: {
                "foreign_key_serde": self._key(writer, right),
                "value_serde": self._value(writer, left),
            },
        )
        subscriptions = MessageTopic(
            RepartitionNames(
                registration,
                self._named("-subscription-registration-sink", _SINK),
                "",
                self._named("-subscription-registration-source", _SOURCE),
            ),
            right.flow.serdes.key,
            lambda writer: SubscriptionSerde(self._key(writer, left)),
            None if self.other_partitioner is None else WithoutValue(self.other_partitioner),
        )
        kept = self._named("-subscription-store", f"{_PREFIX}SUBSCRIPTION-STATE-STORE-")
        deletions = None if self.is_left else Deletions(f"{kept}-deletions")
        send.options["deletions"] = None if deletions is None else deletions.name
        send.stores = lambda writer: () if deletions is None else (deletions.declared(self._key(writer, left)),)
        receive = LateStep(
            self._named("-subscription-receive", _PROCESSOR),
            ForeignKeyReceive,
            {"subscriptions": kept, "topic": registration},
            late=lambda writer: {
                "foreign_key_serde": self._key(writer, right),
                "key_serde": self._key(writer, left),
            },
            stores=lambda writer: (
                key_value_store(
                    kept,
                    key_serde="bytes",
                    value_serde=SubscriptionSerde(self._key(writer, left)),
                    timestamped=True,
                ),
            ),
        )
        of_right = right.source.getter()
        answer = LateStep(
            self._named("-subscription-join-foreign", _PROCESSOR),
            ForeignKeyAnswer,
            {"right": of_right, "topic": registration},
            late=lambda writer: {"foreign_key_serde": self._key(writer, right)},
            stores=lambda writer: of_right.stores,
        )
        updates = LateStep(
            self._named("-foreign-join-subscription", _PROCESSOR),
            ForeignKeyUpdates,
            {"subscriptions": kept, "topic": registration, "ignores_older": right.source.is_versioned},
            late=lambda writer: {"foreign_key_serde": self._key(writer, right)},
            stores=lambda writer: (kept,),
        )
        response = self._named("-subscription-response", f"{_PREFIX}SUBSCRIPTION-RESPONSE-") + "-topic"
        responses = MessageTopic(
            RepartitionNames(
                response,
                self._named("-subscription-response-sink", _SINK),
                "",
                self._named("-subscription-response-source", _SOURCE),
            ),
            left.flow.serdes.key,
            lambda writer: ResponseSerde(self._value(writer, right)),
            to_the_left_row if self.partitioner is None else WithoutValue(self.partitioner),
        )
        of_left = left.source.getter()
        resolve = LateStep(
            self._named("-subscription-response-resolver", f"{_PREFIX}SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-"),
            ForeignKeyResolve,
            {
                "joiner": self.joiner,
                "left": of_left,
                "foreign_key": self.foreign_key,
                "is_left": self.is_left,
                "topic": registration,
                "deletions": send.options["deletions"],
            },
            late=lambda writer: {
                "foreign_key_serde": self._key(writer, right),
                "value_serde": self._value(writer, left),
            },
            stores=lambda writer: (*of_left.stores, *(() if deletions is None else (deletions.name,))),
        )
        result = ProcessorStep(
            self._named("-result", f"{_PREFIX}OUTPUT-"), TableUpdates, {"store": None, "sends_old": False}
        )
        if self.name is None:
            recorder.names.generated.update(dict.fromkeys((registration, kept, response), _HOW))
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
        return self._result(verb, store, options, result, sources)

    def _result(self, verb: str, store: StoreLike | None, options: Any, step: ProcessorStep, sources: Any) -> Any:
        recorder = self.left.recorder
        kept = materialized(verb, recorder.names, store, options, f"{_PREFIX}OUTPUT-")
        if not kept.is_named:
            recorder.names.generated[kept.name] = f'{verb}(..., store="NAME")'
        serdes = kept.serdes(Serdes(self.left.flow.serdes.key))
        table = TopicTable(step, kept, serdes)
        name = kept.name if kept.is_named else None
        return recorder.kinds.table(recorder, Flow(step, serdes, sources), table, name)

    def _named(self, suffix: str, prefix: str) -> str:
        names: Names = self.left.recorder.names
        return names.suffixed(None if self.name is None else checked(self.name), suffix, prefix)

    def _key(self, writer: Writer, table: TableBase[Any, Any]) -> SerdeLike:
        """Return the serde of a table's keys."""
        serde = key_of_topic(table.flow.serdes.key, writer.settings)
        return writer.settings.key_serde if serde is None else serde

    def _value(self, writer: Writer, table: TableBase[Any, Any]) -> SerdeLike:
        """Return the serde of a table's values."""
        serde = value_of_internal_topic(table.flow.serdes.value, writer.settings)
        return writer.settings.value_serde if serde is None else serde


@dataclass(frozen=True)
class Deletions:
    """The store of the left rows of an inner join whose deletions are not answered yet: their tickets, by key."""

    name: str

    def declared(self, key_serde: SerdeLike) -> DeletionsSpec:
        """Return the declared store."""
        return DeletionsSpec(self.name, key_serde, "int")


class DeletionsSpec(KeyValueStoreSpec):
    """Declares that store. Kafka Streams has none."""

    @property
    def traits(self) -> StoreTraits:
        """Those of a key-value store."""
        return dataclasses.replace(super().traits, is_extra=True)


class LateStep(ProcessorStep):
    """A processor with options that are known only with the settings: `late` returns them."""

    def __init__(self, *given: Any, late: Callable[[Writer], dict[str, Any]], **options: Any) -> None:
        super().__init__(*given, **options)
        self._late = late

    def write(self, writer: Writer) -> None:
        stores: Sequence[Any] = self.stores(writer) if self.stores is not None else ()
        self.add_to(writer, stores, {**self.options, **self._late(writer)})


class MessageTopic(Step):
    """Writes a topic between both sides, with its sink and its source."""

    def __init__(
        self,
        names: RepartitionNames,
        key: KnownSerde,
        value: Callable[[Writer], Serde[Any]],
        partitioner: Partitioner | None,
    ) -> None:
        super().__init__(names.source)
        self._names = names
        self._key = key
        self._value = value
        self._partitioner = partitioner

    def write(self, writer: Writer) -> None:
        writer.repartition(
            self._names,
            self.parent_names(),
            Serdes(self._key, self._value(writer)),
            partitioner=self._partitioner,
            drops_null_keys=False,
        )


def to_the_left_row(topic: str, record: Record, count: int) -> int:
    """Return the partition of the left row: it may not be that of its key."""
    partition: int = record.value.partition
    return partition


@dataclass(frozen=True)
class WithoutValue:
    """Calls a user's partitioner, which must go by the key: it gets a record without a value."""

    partitioner: Partitioner

    def __call__(self, topic: str, record: Record, count: int) -> int | Sequence[int] | None:
        """Return what the partitioner returns."""
        return self.partitioner(topic, record.with_value(None), count)
