"""A topology under construction: its nodes and stores so far, and the checks of further ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..clock import Duration
from ..errors import ConfigError, TopologyError
from ..store import StoreBuilder
from .checks import (
    check_builder,
    check_function,
    check_name,
    check_names,
    check_serdes,
    check_supplier,
    check_topic,
    kind_of,
    nearest,
)
from .external_sink import is_external_sink
from .extractors import TimestampExtractor
from .messages import OF_TOPOLOGY, Advice
from .nodes import GlobalStore, InternalTopic, Node, ProcessorNode, ReadOnlyStore, SinkNode, SourceNode
from .offset_reset import offset_reset_text
from .provided import provided_stores
from .serdes import SerdeLike


@dataclass
class Draft:
    """The parts that a Topology collects. `readers` gives for each topic that is read by name its source."""

    nodes: dict[str, Node] = field(default_factory=dict)
    stores: dict[str, StoreBuilder] = field(default_factory=dict)
    global_stores: dict[str, GlobalStore] = field(default_factory=dict)
    internal_topics: dict[str, InternalTopic] = field(default_factory=dict)
    copartitioned: list[tuple[str, ...]] = field(default_factory=list)
    readers: dict[str, str] = field(default_factory=dict)
    read_only_stores: dict[str, ReadOnlyStore] = field(default_factory=dict)
    advice: Advice = OF_TOPOLOGY

    def add(self, node: Node) -> None:
        """Add a node. Raises TopologyError for a name that is none, or that is taken."""
        check_name(kind_of(node), node.name)
        self.check_new(node.name)
        self.nodes[node.name] = node

    def check_new(self, name: str) -> None:
        """Refuse the name of a node that is in the topology."""
        if name in self.nodes:
            raise TopologyError(
                f"there is already a {kind_of(self.nodes[name])} named {name!r} in the topology; choose another name"
            )

    def global_nodes(self) -> set[str]:
        """Return the names of the nodes that fill global stores."""
        return {name for store in self.global_stores.values() for name in (store.source.name, store.processor.name)}

    def add_filled(
        self, where: str, builder: StoreBuilder, source: SourceNode, processor: str, supplier: Any, options: Any
    ) -> ProcessorNode:
        """Add the source, if it is new, and the processor that fill a store; return the processor."""
        check_name("processor", processor)
        self.check_new(processor)
        if source.name == processor:
            raise TopologyError(f"{where}: its source and its processor need different names, both are {processor!r}")
        found = check_supplier(f"processor {processor!r}", supplier, options)
        check_builder(builder)
        for store in provided_stores(f"processor {processor!r}", found, options):
            if store != builder:
                raise TopologyError(
                    f"{where}: its processor {processor!r} brings store {store.name!r}, and can have no other store "
                    "than the one that it fills, as that is declared here"
                )
        if builder.name in self.stores or builder.name in self.global_stores:
            raise TopologyError(f"{where}: there is already a store of that name; choose another")
        filler = ProcessorNode(processor, supplier, (source.name,), (builder.name,), options, advice=self.advice)
        if source.name not in self.nodes:
            self.add(source)
            self.readers[source.topics[0]] = source.name
        self.add(filler)
        return filler

    def parents(self, where: str, name: str, parents: str | Sequence[str]) -> tuple[str, ...]:
        """Return the names of a node's parents. Raises TopologyError for a wrong parent."""
        if not isinstance(parents, Iterable):
            raise TopologyError(f"{where}: expected the name of its parent, or names, found {parents!r}")
        given = (parents,) if isinstance(parents, str) else tuple(parents)
        if not given:
            raise TopologyError(f"{where} has no parent; name the nodes whose records it gets")
        for parent in given:
            if parent == name:
                raise TopologyError(
                    f"{where} is its own parent, and a topology has no cycles; to feed records back, write them to a "
                    "topic with add_sink and read that topic with add_source"
                )
            node = self.nodes.get(parent)
            if node is None:
                raise TopologyError(
                    f"{where}: its parent {parent!r} is not in the topology; parents are added before their children, "
                    f"so that there are no cycles{nearest(parent, self.nodes)}"
                )
            if isinstance(node, SinkNode):
                raise TopologyError(
                    f"{where}: its parent {parent!r} is a sink, and sinks have no children; name the sink's own "
                    f"parents ({', '.join(node.parents)}), or read the sink's topic with add_source"
                )
            if is_external_sink(node):
                raise TopologyError(
                    f"{where}: its parent {parent!r} is an external sink, which has no children; name the source above "
                    f"it, {node.parents[0]!r}"
                )
            if parent in self.global_nodes():
                raise TopologyError(
                    f"{where}: its parent {parent!r} belongs to a global store and has no other children; read the "
                    "store with context.get_store"
                )
        if len(set(given)) < len(given):
            raise TopologyError(f"{where} names a parent twice: {', '.join(given)}")
        return given

    def reader(
        self, where: str, source: str, topic: str, key_serde: Any, value_serde: Any, timestamp_extractor: Any
    ) -> SourceNode:
        """Return the source of this name that reads `topic` alone; a new one if there is none."""
        own = (key_serde, value_serde, timestamp_extractor)
        node = self.nodes.get(source)
        if not isinstance(node, SourceNode) or node.topics != (topic,) or source in self.global_nodes():
            return self.source(source, (topic,), None, *own, "earliest")
        if any(each is not None for each in own):
            raise TopologyError(
                f"{where}: source {source!r} is in the topology and has its serdes and timestamp extractor; leave them "
                "out here"
            )
        return node

    def source(
        self,
        name: str,
        topics: tuple[str, ...],
        pattern: str | re.Pattern[str] | None,
        key_serde: SerdeLike,
        value_serde: SerdeLike,
        timestamp_extractor: TimestampExtractor | None,
        offset_reset: Duration | None,
    ) -> SourceNode:
        """Return a source node. Raises TopologyError if its topics, serdes or options are wrong."""
        where = f"source {name!r}"
        check_name("source", name)
        self.check_new(name)
        if bool(topics) == (pattern is not None):
            found = "both" if topics else "neither"
            raise TopologyError(
                f"{where}: expected topics or a pattern, found {found}; write add_source({name!r}, TOPIC)"
            )
        for topic in topics:
            check_topic(where, topic)
            if topic in self.readers:
                raise TopologyError(
                    f"{where}: topic {topic!r} is already read by source {self.readers[topic]!r}; a topic belongs to "
                    "one source: make that one the parent of both readers"
                )
        if len(set(topics)) < len(topics):
            raise TopologyError(f"{where} names a topic twice: {', '.join(topics)}")
        compiled = None
        if pattern is not None:
            try:
                compiled = re.compile(pattern)
            except (re.error, TypeError) as error:
                raise TopologyError(f"{where}: {pattern!r} is not a regular expression: {error}") from error
            if not isinstance(compiled.pattern, str):
                raise TopologyError(f"{where}: the pattern {pattern!r} is of bytes; topics have names of text")
        try:
            reset = None if offset_reset is None else offset_reset_text(offset_reset, f"{where}: offset_reset")
        except ConfigError as error:
            raise TopologyError(str(error)) from None
        check_function(where, "timestamp_extractor", timestamp_extractor, ("record", "partition_time", "wall_clock"))
        check_serdes(where, key_serde, value_serde)
        return SourceNode(name, topics, compiled, key_serde, value_serde, timestamp_extractor, reset)

    def check_declared(self, builder: StoreBuilder) -> None:
        """Check a declared store: its type, and that no other store has its name."""
        check_builder(builder)
        if builder.name in self.global_stores:
            raise TopologyError(f"store {builder.name!r}: there is already a global store of that name; choose another")
        other = self.stores.get(builder.name)
        if other is not None and other is not builder and other != builder:
            raise TopologyError(
                f"store {builder.name!r} is already in the topology, declared differently; choose another name, or "
                "connect the one there is by its name"
            )

    def connect(
        self,
        where: str,
        stores: Sequence[str | StoreBuilder],
        own: Sequence[StoreBuilder],
        provided: Sequence[StoreBuilder],
    ) -> tuple[str, ...]:
        """Declare stores for a node; return the names of its stores.

        `own` are the engine's; `provided` the supplier's, except those that `stores` names.
        """
        if isinstance(stores, (str, StoreBuilder)) or not isinstance(stores, Iterable):
            raise TopologyError(f"{where}: stores is a list of stores or names of stores; write stores=[{stores!r}]")
        declared = [store for store in (*stores, *own) if not isinstance(store, str)]
        for store in declared:
            self.check_declared(store)
        given = [store if isinstance(store, str) else store.name for store in stores]
        brought = [store for store in provided if store.name not in given]
        for store in brought:
            self._check_brought(where, store)
        names = (*given, *(store.name for store in (*brought, *own)))
        connected = dict.fromkeys(self.connectable(where, store) for store in names)
        self.stores |= {store.name: store for store in (*declared, *brought)}
        return tuple(connected)

    def _check_brought(self, where: str, builder: StoreBuilder) -> None:
        """Refuse a supplier's store that is none, or whose name is taken by another one."""
        try:
            self.check_declared(builder)
        except TopologyError as error:
            raise TopologyError(
                f"{where}: its supplier brings store {builder.name!r}, which does not fit: {error}. To use the store "
                f"of the topology instead, say stores=[{builder.name!r}]"
            ) from error

    def connectable(self, where: str, store: str) -> str:
        """Return the name of a store that can be connected; a global store cannot."""
        if store in self.global_stores:
            raise TopologyError(
                f"{where}: store {store!r} is global and needs no connection; context.get_store({store!r}) works in "
                "every processor"
            )
        return store

    def connect_processor(self, processor: str, stores: Sequence[str]) -> None:
        """Connect a processor of the topology to further stores."""
        if not stores:
            raise TopologyError(f"connect({processor!r}): name at least one store")
        node = self.nodes.get(processor)
        if node is None:
            raise TopologyError(
                f"store {stores[0]!r} cannot be connected to {processor!r}: there is no such processor yet"
                + nearest(processor, (each.name for each in self.nodes.values() if isinstance(each, ProcessorNode)))
            )
        if not isinstance(node, ProcessorNode):
            raise TopologyError(
                f"store {stores[0]!r} cannot be connected to {processor!r}, which is a {kind_of(node)}: only "
                "processors use stores"
            )
        fillers = {each.processor.name for each in self.read_only_stores.values()}
        for kind, nodes in (("global", self.global_nodes()), ("read-only", fillers)):
            if processor in nodes:
                raise TopologyError(f"processor {processor!r} fills a {kind} store and can have no other store")
        names = [self.connectable(f"processor {processor!r}", store) for store in stores]
        self.nodes[processor] = replace(node, stores=tuple(dict.fromkeys([*node.stores, *names])))

    def save_as(self, processor: str, names: tuple[str, ...]) -> None:
        """Set the names under which a processor's saved data is found."""
        self.nodes[processor] = replace(self._processor("save_as", processor), saved_as=names)

    def saved_as(self, processor: str) -> tuple[str, ...]:
        """Return these names."""
        return self._processor("saved_as", processor).saved_as

    def _processor(self, method: str, name: str) -> ProcessorNode:
        node = self.nodes.get(name)
        if not isinstance(node, ProcessorNode):
            raise TopologyError(f"{method}: there is no processor named {name!r} yet{nearest(name, self.nodes)}")
        return node

    def copartition(self, sources: tuple[str, ...]) -> None:
        """Require equal numbers of partitions for the topics of these sources."""
        check_names("copartition", sources)
        known = [name for name, node in self.nodes.items() if isinstance(node, SourceNode)]
        for source in sources:
            if source in self.global_nodes():
                raise TopologyError(f"copartition: {source!r} belongs to a global store, which every task reads whole")
            if source not in known:
                raise TopologyError(f"copartition: there is no source named {source!r} yet{nearest(source, known)}")
        if len(set(sources)) < 2:
            raise TopologyError(f"copartition: expected the names of at least two sources, found {list(sources)}")
        self.copartitioned.append(sources)
