"""SourceStep, SinkStep and RepartitionStep: steps that read and write the user's topics, and repartition topics."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from penstock import (
    AnySink,
    Duration,
    KeyPart,
    KeyValueStoreSpec,
    Partitioner,
    Serde,
    Settings,
    StoreBuilder,
    TimestampExtractor,
    TopicChooser,
    TopologyError,
)
from penstock.program.builder import DropNullKeys

from .names import Names
from .serdes import Serdes, key_of_topic, value_of_internal_topic, value_of_topic
from .step import PassThrough, ProcessorStep, Step, Writer


@dataclass(frozen=True)
class Consumed:
    """How a source reads its topics."""

    serdes: Serdes
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: Duration | None = None

    def options(self, writer: Writer) -> dict[str, Any]:
        """Return the options of a source in the topology, beside `offset_reset`."""
        return {
            "key_serde": key_of_topic(self.serdes.key, writer.settings),
            "value_serde": value_of_topic(self.serdes.value),
            "timestamp_extractor": self.timestamp_extractor,
        }


@dataclass(eq=False, repr=False)
class SourceStep(Step):
    """Writes a source. Of several sources of the same topics, the first reads them for all."""

    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    consumed: Consumed

    def write(self, writer: Writer) -> None:
        read = self.pattern if self.pattern is not None else frozenset(self.topics)
        first: SourceStep = writer.readers.setdefault(read, self)
        if first is self:
            options, reset = self.consumed.options(writer), self.consumed.offset_reset
            writer.topology.add_source(self.name, *self.topics, pattern=self.pattern, offset_reset=reset, **options)
        elif first.consumed != self.consumed:
            shown = self.pattern.pattern if self.pattern is not None else ", ".join(self.topics)
            raise TopologyError(
                f"{shown} is read twice, and with different serdes, extractors or offset_reset (sources {first.name!r} "
                f"and {self.name!r}): keep the stream in a variable, and use it for both"
            )
        else:
            writer.renamed[self.name] = first.name


@dataclass(eq=False, repr=False)
class TableSourceStep(ProcessorStep):
    """Writes the processor of a table from a topic; the topic may also be the changelog of the table's store.

    Versions, and entries that expire, cannot be restored from a compacted topic: such a store has a changelog of its
    own. Semantics: Kafka Streams' `topology.optimization`, `reuse.ktable.source.topics`.
    """

    source: SourceStep = field(kw_only=True)

    def write(self, writer: Writer) -> None:
        """Add the processor, and its store if it has one."""
        for store in () if self.stores is None else self.stores(writer):
            if isinstance(store, KeyValueStoreSpec) and self._restores(store, writer.settings):
                (source,), topic = self.parents_in(writer), self.source.topics[0]
                writer.topology.add_read_only_store(store, source, topic, self.name, self.supplier, **self.options)
                return
        super().write(writer)

    def _restores(self, store: KeyValueStoreSpec, settings: Settings) -> bool:
        """Return whether the topic is the changelog of the store."""
        reset = self.source.consumed.offset_reset
        return (
            store.logged
            and not store.traits.expires
            and settings.optimizes("reuse_ktable_source_topics")
            and settings.log_changelog is not None
            # Else the store would be restored with records that the table never had.
            and (settings.offset_reset if reset is None else reset) == "earliest"
        )


@dataclass(eq=False, repr=False)
class SinkStep(Step):
    """Writes a sink to a topic outside."""

    topic: str | TopicChooser
    serdes: Serdes
    partitioner: Partitioner | None = None
    partition_by: KeyPart | None = None

    def write(self, writer: Writer) -> None:
        writer.topology.add_sink(
            self.name,
            self.topic,
            self.parents_in(writer),
            key_serde=key_of_topic(self.serdes.key, writer.settings),
            value_serde=value_of_topic(self.serdes.value),
            partitioner=self.partitioner,
            partition_by=self.partition_by,
        )


@dataclass(eq=False, repr=False)
class ExternalSinkStep(Step):
    """Writes an external sink: behind a topic of its own, or behind the source of the stream where nothing else is."""

    sink: AnySink
    serdes: Serdes
    partitions: int | None = None
    partition_by: KeyPart | None = None

    def write(self, writer: Writer) -> None:
        (parent,), (above,) = self.parents, self.parents_in(writer)
        if self._may_read_directly(parent, above):
            writer.topology.add_direct_sink(self.name, self.sink, above)
            return
        writer.topology.add_external_sink(
            self.name,
            self.sink,
            above,
            partitions=self.partitions,
            key_serde=key_of_topic(self.serdes.key, writer.settings),
            value_serde=value_of_internal_topic(self.serdes.value, writer.settings),
            partition_by=self.partition_by,
        )

    def _may_read_directly(self, parent: Step, above: str) -> bool:
        """Return whether the stream is a source that reads one topic, and that no other verb uses."""
        return (
            isinstance(parent, SourceStep)
            and parent.name == above
            and len(parent.topics) == 1
            and len(parent.children) == 1
            and sum(
                isinstance(each, SourceStep) and each.topics == parent.topics for each in parent.parents[0].children
            )
            == 1
            and self.partitions is None
            and self.partition_by is None
        )


class StoreStep(Step):
    """Declares a store that verbs name later."""

    def __init__(self, store: StoreBuilder) -> None:
        super().__init__(f"store {store.name}")
        self.store = store

    def write(self, writer: Writer) -> None:
        writer.topology.add_store(self.store)


@dataclass(eq=False, repr=False)
class GlobalStoreStep(Step):
    """Declares a global store with the processor that fills it. `store` may be what declares it at the end."""

    store: StoreBuilder | Callable[[Writer], StoreBuilder]
    source: str
    topic: str
    supplier: Any
    consumed: Consumed
    options: dict[str, Any]

    def write(self, writer: Writer) -> None:
        store = self.store if isinstance(self.store, StoreBuilder) else self.store(writer)
        options = {**self.consumed.options(writer), **self.options}
        writer.topology.add_global_store(store, self.source, self.topic, self.name, self.supplier, **options)


SUFFIX = "-repartition"
_SOURCE, _SINK, _FILTER = "KSTREAM-SOURCE-", "KSTREAM-SINK-", "KSTREAM-FILTER-"
_NUMBERED = re.compile(r"KSTREAM.*-[0-9]{10}")


@dataclass(frozen=True)
class RepartitionNames:
    """The names of a repartition topic and of the three nodes around it."""

    topic: str
    sink: str
    filter: str
    source: str

    @classmethod
    def numbered(cls, names: Names, topic: str) -> RepartitionNames:
        """Return numbered names of nodes; three numbers are used up, as in Kafka Streams."""
        return cls(topic, names.step(_SINK), names.step(_FILTER), names.step(_SOURCE))

    @classmethod
    def after(cls, topic: str) -> RepartitionNames:
        """Return names of nodes after the topic's."""
        return cls(topic, f"{topic}-sink", f"{topic}-filter", f"{topic}-source")


def repartition_names(names: Names, base: str, how: str) -> RepartitionNames:
    """Return the names for a topic named after `base`, a step or the user's choice; `how` says how to choose one."""
    topic = base if base.endswith(SUFFIX) else base + SUFFIX
    numbered = RepartitionNames.numbered(names, topic)
    if _NUMBERED.fullmatch(base):
        names.generated[topic] = how
        return numbered
    return RepartitionNames.after(topic)


@dataclass(eq=False, repr=False)
class RepartitionStep(Step):
    """Writes a repartition topic. Its children get the records of the source that reads the topic.

    One that `may_merge` was not asked for by the user, and may be merged with others of the same stream. One for
    messages that are no records of a stream (updates of a table, or messages between both sides of a join) has
    `messages`, which returns their serde; it drops none of them, and is not merged.
    """

    name: str = field(init=False)
    names: RepartitionNames
    serdes: Serdes
    _: KW_ONLY
    messages: Callable[[Writer], Serde[Any]] | None = None
    may_merge: bool = True
    partitions: int | None = None
    partitioner: Partitioner | None = None
    partition_by: KeyPart | None = None

    def __post_init__(self) -> None:
        self.name = self.names.source
        self.may_merge = self.may_merge and self.messages is None

    def write(self, writer: Writer) -> None:
        """Add the filter of records without a key, the sink, and the source that reads the topic."""
        topology, names, above = writer.topology, self.names, self.parents_in(writer)
        serdes = self.serdes if self.messages is None else Serdes(self.serdes.key, self.messages(writer))
        key = key_of_topic(serdes.key, writer.settings)
        value = value_of_internal_topic(serdes.value, writer.settings)
        if self.messages is None:
            topology.add_processor(names.filter, PassThrough if _leads_to_null_keys(self) else DropNullKeys, above)
            above = [names.filter]
        topology.add_internal_topic(names.topic, self.partitions)
        topology.add_sink(
            names.sink,
            names.topic,
            above,
            key_serde=key,
            value_serde=value,
            partitioner=self.partitioner,
            partition_by=self.partition_by,
        )
        topology.add_source(names.source, names.topic, key_serde=key, value_serde=value)


def _leads_to_null_keys(step: Step) -> bool:
    return any(child.takes_null_keys or _leads_to_null_keys(child) for child in step.children)
