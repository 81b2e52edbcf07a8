"""SourceStep and Repartition: what reads a topic of the user's, or one between two sub-topologies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock import KeyPart, KeyValueStoreSpec, Partitioner, Processor, Serde, Settings, StoreBuilder, TopicChooser

from .names import Names
from .serdes import Serdes, key_of_topic, value_of_topic
from .step import ProcessorStep, Step
from .writer import Consumed, RepartitionNames, Writer


class SourceStep(Step):
    """Writes a source. Of several sources of the same topics, the first reads them for all."""

    def __init__(self, name: str, topics: tuple[str, ...], pattern: re.Pattern[str] | None, consumed: Consumed) -> None:
        super().__init__(name)
        self.topics = topics
        self.pattern = pattern
        self.consumed = consumed

    def write(self, writer: Writer) -> None:
        writer.source(self.name, self.topics, self.pattern, self.consumed)


class TableSourceStep(ProcessorStep):
    """Writes the processor of a table from a topic; the topic may also be the changelog of the table's store.

    Versions, and entries that expire, cannot be restored from a compacted topic: such a store has a changelog of its
    own. Semantics: Kafka Streams' `topology.optimization`, `reuse.ktable.source.topics`.
    """

    def __init__(self, name: str, source: SourceStep, supplier: Callable[..., Processor]) -> None:
        super().__init__(name, supplier, {"store": None, "sends_old": False})
        self._source = source

    def write(self, writer: Writer) -> None:
        """Add the processor, and its store if it has one."""
        for store in () if self.stores is None else self.stores(writer):
            if isinstance(store, KeyValueStoreSpec) and self._restores(store, writer.settings):
                (source,) = writer.names_of(self.parent_names())
                topic = self._source.topics[0]
                writer.topology.add_read_only_store(store, source, topic, self.name, self.supplier, **self.options)
                return
        super().write(writer)

    def _restores(self, store: KeyValueStoreSpec, settings: Settings) -> bool:
        """Return whether the topic is the changelog of the store."""
        reset = self._source.consumed.offset_reset
        return (
            store.logged
            and not store.traits.expires
            and settings.optimizes("reuse_ktable_source_topics")
            and settings.log_changelog is not None
            # Else the store would be restored with records that the table never had.
            and (settings.offset_reset if reset is None else reset) == "earliest"
        )


class SinkStep(Step):
    """Writes a sink to a topic outside."""

    def __init__(
        self,
        name: str,
        topic: str | TopicChooser,
        serdes: Serdes,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
    ) -> None:
        super().__init__(name)
        self.topic = topic
        self.serdes = serdes
        self.partitioner = partitioner
        self.partition_by = partition_by

    def write(self, writer: Writer) -> None:
        writer.topology.add_sink(
            self.name,
            self.topic,
            writer.names_of(self.parent_names()),
            key_serde=key_of_topic(self.serdes.key, writer.settings),
            value_serde=value_of_topic(self.serdes.value),
            partitioner=self.partitioner,
            partition_by=self.partition_by,
        )


class StoreStep(Step):
    """Declares a store that verbs name later."""

    def __init__(self, store: StoreBuilder) -> None:
        super().__init__(f"store {store.name}")
        self.store = store

    def write(self, writer: Writer) -> None:
        writer.topology.add_store(self.store)


class GlobalStoreStep(Step):
    """Declares a global store with the processor that fills it. `store` may be what declares it at the end."""

    def __init__(
        self,
        store: StoreBuilder | Callable[[Writer], StoreBuilder],
        source: str,
        topic: str,
        processor: str,
        supplier: Any,
        consumed: Consumed,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(processor)
        self.store = store
        self.source = source
        self.topic = topic
        self.supplier = supplier
        self.consumed = consumed
        self.options = dict(options)

    def write(self, writer: Writer) -> None:
        writer.topology.add_global_store(
            self.store if isinstance(self.store, StoreBuilder) else self.store(writer),
            self.source,
            self.topic,
            self.name,
            self.supplier,
            key_serde=key_of_topic(self.consumed.serdes.key, writer.settings),
            value_serde=value_of_topic(self.consumed.serdes.value),
            timestamp_extractor=self.consumed.timestamp_extractor,
            **self.options,
        )


SUFFIX = "-repartition"
_SOURCE, _SINK, _FILTER = "KSTREAM-SOURCE-", "KSTREAM-SINK-", "KSTREAM-FILTER-"
_NUMBERED = re.compile(r"KSTREAM.*-[0-9]{10}")


def repartition_names(names: Names, base: str, how: str) -> RepartitionNames:
    """Return the names for a topic that is named after `base`: a step, or what the user chose.

    Three numbers are used up in either case, as in Kafka Streams. `how` says how to choose a name.
    """
    topic = base if base.endswith(SUFFIX) else base + SUFFIX
    sink, kept, source = names.step(_SINK), names.step(_FILTER), names.step(_SOURCE)
    if _NUMBERED.fullmatch(base):
        names.generated[topic] = how
        return RepartitionNames(topic, sink, kept, source)
    return _after(topic)


def shared_names(names: Names, topic: str) -> RepartitionNames:
    """Return the names for a topic that takes the place of several: its nodes are named after it, if numbered or not.

    Kafka Streams compares the whole name of the topic with a pattern that is meant for what the topic is named after.
    """
    for prefix in (_SINK, _FILTER, _SOURCE):
        names.step(prefix)
    return _after(topic)


def _after(topic: str) -> RepartitionNames:
    return RepartitionNames(topic, f"{topic}-sink", f"{topic}-filter", f"{topic}-source")


class RepartitionStep(Step):
    """Writes a repartition topic. Its children get the records of the source that reads the topic.

    One that `may_merge` was not asked for by the user, and may be merged with others of the same stream. One for
    messages that are no records of a stream (updates of a table, or messages between both sides of a join) has
    `messages`, which returns their serde; it drops none of them.
    """

    def __init__(
        self,
        names: RepartitionNames,
        serdes: Serdes,
        *,
        messages: Callable[[Writer], Serde[Any]] | None = None,
        may_merge: bool = True,
        partitions: int | None = None,
        partitioner: Partitioner | None = None,
        partition_by: KeyPart | None = None,
    ) -> None:
        super().__init__(names.source)
        self.names = names
        self.serdes = serdes
        self.messages = messages
        self.may_merge = may_merge and messages is None
        self.partitions = partitions
        self.partitioner = partitioner
        self.partition_by = partition_by

    def write(self, writer: Writer) -> None:
        is_of_stream = self.messages is None
        writer.repartition(
            self.names,
            self.parent_names(),
            self.serdes if self.messages is None else Serdes(self.serdes.key, self.messages(writer)),
            partitions=self.partitions,
            partitioner=self.partitioner,
            partition_by=self.partition_by,
            drops_null_keys=is_of_stream,
            keeps_null_keys=is_of_stream and _leads_to_null_keys(self),
        )


def _leads_to_null_keys(step: Step) -> bool:
    return any(child.takes_null_keys or _leads_to_null_keys(child) for child in step.children)
