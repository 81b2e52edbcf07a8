"""The parts of a topology, as inert data: nodes, sub-topologies and internal topics."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import TopologyError
from ..processor import ProcessorSupplier
from ..record import Record, RecordMetadata
from ..store import StoreBuilder
from ..support.names import pending_store_name
from .extractors import TimestampExtractor
from .layouts import Layouts
from .messages import OF_TOPOLOGY, Advice
from .serdes import SerdeLike

TopicChooser = Callable[[Record, RecordMetadata | None], str]
"""Names the topic a record goes to (Kafka Streams: TopicNameExtractor)."""

Partitioner = Callable[[str, Record, int], int | Sequence[int] | None]
"""(topic, record, number of partitions) -> the partition, several partitions (each gets a copy; empty: the record is
dropped), or None for `default_partitioner` of the whole serialized key (Kafka Streams: StreamPartitioner)."""


KeyPart = Callable[[Any], Any]
"""A function from a record's key to the part that chooses the partition: equal parts go to the same partition.

The sink's key serde serializes the part (that of a windowed key without its window, too), unless it is bytes. The
default partitioner hashes those bytes. None: any partition.
"""


class TaskId(NamedTuple):
    """Which task: sub-topology and partition. Written `0_3`."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Return the task id that is written as `text`, e.g. "0_3"."""
        subtopology, _, partition = text.partition("_")
        return cls(int(subtopology), int(partition))


@dataclass(frozen=True)
class SourceNode:
    """Reads topics: `topics` by name, or all whose whole name matches `pattern`."""

    name: str
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    key_serde: SerdeLike = None
    value_serde: SerdeLike = None
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: str | None = None
    parents: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessorNode:
    """Runs a processor. `supplier` makes it, or is the name of an installed one, called with `options`.

    `saved_as`: see `Topology.save_as`; empty: the node's name.
    """

    name: str
    supplier: ProcessorSupplier | str
    parents: tuple[str, ...]
    stores: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    saved_as: tuple[str, ...] = ()
    advice: Advice = OF_TOPOLOGY


@dataclass(frozen=True)
class SinkNode:
    """Writes to a topic, fixed or chosen for each record."""

    name: str
    topic: str | TopicChooser
    parents: tuple[str, ...]
    key_serde: SerdeLike = None
    value_serde: SerdeLike = None
    partitioner: Partitioner | None = None
    partition_by: KeyPart | None = None


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True)
class InternalTopic:
    """A topic that the application owns. `name` is without the application's prefix; see `decorate`.

    `partitions` None: as many as the sub-topologies that write to it have.
    """

    name: str
    partitions: int | None = None


@dataclass(frozen=True)
class GlobalStore:
    """A store that every task can read, filled from all partitions of one topic by one processor.

    It is never logged, whatever its builder has: the topic is its changelog. `id` is its number among the
    sub-topologies.
    """

    id: int
    store: StoreBuilder
    source: SourceNode
    processor: ProcessorNode


@dataclass(frozen=True)
class ReadOnlyStore:
    """A store of a sub-topology that one processor fills from one topic; the others only read it.

    It is not logged: the topic is its changelog.
    """

    store: StoreBuilder
    source: SourceNode
    processor: ProcessorNode


@dataclass(frozen=True)
class Subtopology:
    """Nodes that are connected by edges or stores: a task runs one of these for one partition number.

    `nodes` has every parent before its children, and otherwise the order in which they were added. `children` gives
    each node's children in the order of adding. `id` counts global stores too, as Kafka's does. `layouts` says how its
    tasks keep their stores, now and before; None where nothing is known of programs before.
    """

    id: int
    nodes: tuple[Node, ...]
    children: Mapping[str, tuple[str, ...]]
    stores: tuple[StoreBuilder, ...]
    layouts: Layouts | None = None
    read_only_stores: tuple[ReadOnlyStore, ...] = ()

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        """The source nodes."""
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """The sink nodes."""
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))


@dataclass(frozen=True)
class Graph:
    """A checked topology as inert data: every node, and the sub-topologies that they form.

    `nodes` has all nodes by name in the order of adding, those of global stores included; `subtopologies`: the
    sub-topologies with tasks. `stores` leaves out the global ones. `copartitioned` are groups of sources whose topics
    must have equal numbers of partitions.
    """

    nodes: Mapping[str, Node]
    subtopologies: tuple[Subtopology, ...]
    global_stores: tuple[GlobalStore, ...] = ()
    stores: Mapping[str, StoreBuilder] = field(default_factory=dict)
    internal_topics: Mapping[str, InternalTopic] = field(default_factory=dict)
    copartitioned: tuple[tuple[str, ...], ...] = ()
    advice: Advice = OF_TOPOLOGY

    def subtopology(self, number: int) -> Subtopology:
        """Return a sub-topology by its id."""
        for each in self.subtopologies:
            if each.id == number:
                return each
        raise TopologyError(
            f"there is no sub-topology {number}; there is: {', '.join(str(each.id) for each in self.subtopologies)}"
        )

    def upstream(self) -> Mapping[int, frozenset[int]]:
        """Return, by sub-topology id, the others that write to topics that it reads, directly or through further ones.

        Only topics that sources and sinks name count.
        """
        parts = self.subtopologies
        read = {part.id: {topic for source in part.sources for topic in source.topics} for part in parts}
        written = {part.id: {sink.topic for sink in part.sinks if isinstance(sink.topic, str)} for part in parts}
        above = {one: {other for other in written if read[one] & written[other]} for one in read}
        for through in above:
            for others in above.values():
                others |= above[through] if through in others else set()
        return {number: frozenset(others - {number}) for number, others in above.items()}

    def holding(self) -> frozenset[int]:
        """Return the ids of sub-topologies with stores: they may hold back results."""
        return frozenset(subtopology.id for subtopology in self.subtopologies if subtopology.stores)

    def calling(self) -> frozenset[int]:
        """Return the ids of sub-topologies with calls that may be under way at a commit."""
        return frozenset(
            part.id
            for part in self.subtopologies
            for node in part.nodes
            if isinstance(node, ProcessorNode) and pending_store_name(node.name) in node.stores
        )

    def topics(self) -> tuple[str, ...]:
        """Return the topics outside that sources and global stores read by name, in the order of adding."""
        sources = (node for node in self.nodes.values() if isinstance(node, SourceNode))
        return tuple(topic for node in sources for topic in node.topics if topic not in self.internal_topics)

    def sink_topics(self) -> tuple[str, ...]:
        """Return the topics outside that sinks write to by name, in the order of adding."""
        named = (
            node.topic for node in self.nodes.values() if isinstance(node, SinkNode) and isinstance(node.topic, str)
        )
        return tuple(dict.fromkeys(topic for topic in named if topic not in self.internal_topics))

    def copartitioned_sources(self) -> list[tuple[str, set[str]]]:
        """Return groups of sources whose topics must be partitioned alike, each with the reason in words."""
        reasons: list[tuple[str, set[str]]] = []
        for subtopology in self.subtopologies:
            stored = self.sources_of_stores(subtopology)
            reasons += [(f"their records meet in store {store!r}", sources) for store, sources in stored.items()]
        return reasons + [
            (f"sources {', '.join(each)} are declared to be co-partitioned", set(each)) for each in self.copartitioned
        ]

    def sources_of_stores(self, subtopology: Subtopology) -> dict[str, set[str]]:
        """Return the sources whose records reach each store of a sub-topology."""
        feeds: dict[str, set[str]] = {}
        stored: dict[str, set[str]] = {each.name: set() for each in subtopology.stores}
        for node in subtopology.nodes:
            feeds[node.name] = {node.name} if isinstance(node, SourceNode) else set()
            feeds[node.name].update(*(feeds[parent] for parent in node.parents))
            if isinstance(node, ProcessorNode):
                for store in node.stores:
                    stored[store] |= feeds[node.name]
        return stored

    def intermediate_topics(self, read: Collection[str], named: Collection[str] = ()) -> frozenset[str]:
        """Return the topics from outside, of those `read` by tasks, that only results of other topics reach.

        A sink names such a topic, and nothing above that sink reads it, directly or through further topics. Or it is
        among `named`, also where no sink names it, because a function chooses topics. A topic that fills a store is
        left out: the store has what the topic has, however often it is read. Source: the intermediate topics of Kafka
        Streams' reset tool.
        """
        found = {each for each, is_circular in self._circular(read).items() if not is_circular}
        return frozenset(found.union(named) & self._from_outside(read))

    def circular_topics(self, read: Collection[str], named: Collection[str] = ()) -> frozenset[str]:
        """Return the other topics, except those in `named`, that the program both reads and writes.

        Only nodes that read such a topic write it, directly or through further topics. The program does not say where
        its first records come from: another producer (an input to which failed records are sent back), or other inputs
        (a topic for retries that is read beside them).
        """
        return frozenset(
            each for each, is_circular in self._circular(read).items() if is_circular and each not in named
        )

    def _circular(self, read: Collection[str]) -> dict[str, bool]:
        """Return the topics from outside that sinks name and tasks read, and whether above each sink it is read."""
        above: dict[str, set[str]] = {}
        written: dict[str, list[set[str]]] = {}
        for node in (node for part in self.subtopologies for node in part.nodes):
            found = above[node.name] = {topic for parent in node.parents for topic in above[parent]}
            if isinstance(node, SourceNode):
                found |= {*node.topics, *(each for each in read if node.pattern and node.pattern.fullmatch(each))}
            elif isinstance(node, SinkNode) and isinstance(node.topic, str):
                written.setdefault(node.topic, []).append(found)
        for through, sinks in written.items():
            for topics in (topics for each in written.values() for topics in each if through in topics):
                topics |= {topic for sink in sinks for topic in sink}
        return {
            topic: all(topic in topics for topics in written[topic]) for topic in {*written} & self._from_outside(read)
        }

    def _from_outside(self, read: Collection[str]) -> set[str]:
        """Return the topics from outside, of those `read` by tasks, without those that fill a store."""
        filling = {each.source.topics[0] for part in self.subtopologies for each in part.read_only_stores}
        return {*read} - filling - {*self.internal_topics}

    def all_stores(self) -> tuple[StoreBuilder, ...]:
        """Return every declared store, the global ones last."""
        return (*self.stores.values(), *(store.store for store in self.global_stores))


def decorate(application_id: str, topic: str, internal: Mapping[str, InternalTopic]) -> str:
    """Return the name a topic has in the log: an internal one carries the application's id."""
    return f"{application_id}-{topic}" if topic in internal else topic


def reads(source: SourceNode, topic: str, application_id: str, internal: Mapping[str, InternalTopic]) -> bool:
    """Return whether a source reads a topic of the log, given by its name there."""
    if source.pattern is None:
        return topic in {decorate(application_id, each, internal) for each in source.topics}
    # An earlier form of the program may have left repartition topics behind: they have the form of ours, and are not
    # input.
    ours = topic.startswith(f"{application_id}-") and topic.endswith(("-repartition", "-changelog"))
    return source.pattern.fullmatch(topic) is not None and not ours
