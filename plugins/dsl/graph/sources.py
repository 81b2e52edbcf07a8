"""Steps at the edges: sources, sinks, and stores that are declared on their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock import KeyPart, KeyValueStoreSpec, Partitioner, Processor, Settings, StoreBuilder, TopicChooser

from .serdes import Serdes, key_of_topic, value_of_topic
from .step import ProcessorStep, Step
from .writer import Consumed, Writer


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
