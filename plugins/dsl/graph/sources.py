"""Steps at the edges: sources, sinks, and stores that are declared on their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from penstock.program.nodes import Partitioner, TopicChooser
from penstock.store import StoreBuilder

from ..serdes import Serdes, key_of_topic, value_of_topic
from .step import Step
from .writer import Consumed, Writer


class SourceStep(Step):
    """Writes a source. Of several sources of the same topics, the first reads them for all."""

    def __init__(self, name: str, topics: tuple[str, ...], pattern: re.Pattern[str] | None, consumed: Consumed) -> None:
        super().__init__(name)
        self.topics = topics
        self.pattern = pattern
        self.consumed = consumed

    def write(self, writer: Writer) -> None:
        """Add the source."""
        writer.source(self.name, self.topics, self.pattern, self.consumed)


class SinkStep(Step):
    """Writes a sink to a topic outside."""

    def __init__(
        self, name: str, topic: str | TopicChooser, serdes: Serdes, partitioner: Partitioner | None = None
    ) -> None:
        super().__init__(name)
        self.topic = topic
        self.serdes = serdes
        self.partitioner = partitioner

    def write(self, writer: Writer) -> None:
        """Add the sink."""
        writer.topology.add_sink(
            self.name,
            self.topic,
            writer.names_of(self.parent_names()),
            key_serde=key_of_topic(self.serdes.key, writer.settings),
            value_serde=value_of_topic(self.serdes.value),
            partitioner=self.partitioner,
        )


class StoreStep(Step):
    """Declares a store that verbs name later."""

    def __init__(self, store: StoreBuilder) -> None:
        super().__init__(f"store {store.name}")
        self.store = store

    def write(self, writer: Writer) -> None:
        """Declare the store."""
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
        """Declare the store."""
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
