"""Assembly: makes a Program of a Topology's draft. It checks nodes against each other and finds the sub-topologies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import TopologyError
from ..support.names import index_name
from .assignment import DisjointSets
from .checks import nearest
from .draft import Draft
from .extractors import fail_on_invalid_timestamp
from .nodes import GlobalStore, InternalTopic, Node, ProcessorNode, SinkNode, SourceNode, Subtopology
from .program import Program
from .visited import check_visitors


def assemble(draft: Draft) -> Program:
    """Return the program of a Topology's nodes and stores. Raises TopologyError."""
    if not draft.nodes:
        raise TopologyError(f"the topology is empty: {draft.advice.first_step}")
    _check_stores(draft)
    _check_patterns(draft)
    _check_internal_topics(draft)
    draft = replace(
        draft, nodes={name: _with_extractor(node, draft.internal_topics) for name, node in draft.nodes.items()}
    )
    check_visitors(draft.nodes)
    subtopologies, global_stores = _divide(draft)
    return Program(
        dict(draft.nodes),
        subtopologies,
        global_stores,
        dict(draft.stores),
        dict(draft.internal_topics),
        tuple(draft.copartitioned),
        draft.advice,
    )


def _check_stores(draft: Draft) -> None:
    stores, global_nodes = draft.stores, draft.global_nodes()
    used = set[str]()
    for node in draft.nodes.values():
        if not isinstance(node, ProcessorNode) or node.name in global_nodes:
            continue
        for store in node.stores:
            draft.connectable(f"processor {node.name!r}", store)
            if store not in stores:
                raise TopologyError(
                    f"processor {node.name!r} is connected to store {store!r}, which is not in the topology; "
                    f"{draft.advice.declare}{nearest(store, stores)}"
                )
            used.add(store)
    for store in stores:
        if store not in used:
            how = draft.advice.name_store.format(store=repr(store))
            raise TopologyError(f"store {store!r} is connected to no processor; {how}, or leave it out")
    for store, builder in stores.items():
        if builder.traits.has_index and index_name(store) in stores:
            raise TopologyError(
                f"store {index_name(store)!r}: the index of store {store!r} is kept under this name; choose another"
            )


def _check_patterns(draft: Draft) -> None:
    owners: dict[str, str] = {}
    for node in draft.nodes.values():
        if not isinstance(node, SourceNode) or node.pattern is None:
            continue
        pattern = node.pattern.pattern
        other = owners.setdefault(pattern, node.name)
        if other != node.name:
            raise TopologyError(
                f"sources {other!r} and {node.name!r} have the same pattern {pattern!r}: a topic belongs to one "
                f"source; make {other!r} the parent of both readers"
            )
        for topic, reader in draft.readers.items():
            # Patterns never match internal topics, see Program.resolve.
            if topic not in draft.internal_topics and node.pattern.fullmatch(topic):
                raise TopologyError(
                    f"topic {topic!r} of source {reader!r} also matches the pattern {pattern!r} of source "
                    f"{node.name!r}: a topic belongs to one source; narrow the pattern"
                )


def _check_internal_topics(draft: Draft) -> None:
    nodes, internal_topics, readers = draft.nodes, draft.internal_topics, draft.readers
    written = [node.topic for node in nodes.values() if isinstance(node, SinkNode) and isinstance(node.topic, str)]
    for topic in internal_topics:
        if topic not in written:
            raise TopologyError(f"internal topic {topic!r} is written by no sink{nearest(topic, written)}")
        if topic not in readers:
            raise TopologyError(f"internal topic {topic!r} is read by no source{nearest(topic, readers)}")
    filled = [("global", name, each.source) for name, each in draft.global_stores.items()]
    filled += [("read-only", name, each.source) for name, each in draft.read_only_stores.items()]
    for kind, store, source in filled:
        if source.topics[0] in internal_topics:
            raise TopologyError(
                f"{kind} store {store!r} reads the internal topic {source.topics[0]!r}, which is emptied as it is "
                "processed; write to a topic of your own with " + draft.advice.write + ", and let the store read that"
            )


def _with_extractor(node: Node, internal_topics: Mapping[str, InternalTopic]) -> Node:
    """Return the node; a source of an internal topic gets the extractor that returns each record's own timestamp.

    The application's extractor has chosen that timestamp where the record came in. Here it would choose again, from
    another value. Kafka Streams: `new FailOnInvalidTimestamp()` in OptimizableRepartitionNode. Raises TopologyError.
    """
    if not isinstance(node, SourceNode) or node.timestamp_extractor is not None:
        return node
    internal = [topic for topic in node.topics if topic in internal_topics]
    outside = [topic for topic in node.topics if topic not in internal_topics]
    if internal and outside:
        raise TopologyError(
            f"source {node.name!r} reads the internal topic {internal[0]!r} and {outside[0]!r}: the application's "
            "timestamp extractor is for topics outside only; give each a source of its own, or this one a "
            "timestamp_extractor"
        )
    return replace(node, timestamp_extractor=fail_on_invalid_timestamp) if internal else node


def _divide(draft: Draft) -> tuple[tuple[Subtopology, ...], tuple[GlobalStore, ...]]:
    """Group nodes that edges or stores connect; number the groups by their first node, as Kafka Streams does."""
    nodes = draft.nodes
    groups = DisjointSets(nodes)
    user: dict[str, str] = {}
    for node in nodes.values():
        for parent in node.parents:
            groups.unite(node.name, parent)
        if isinstance(node, ProcessorNode):
            for store in node.stores:
                groups.unite(node.name, user.setdefault(store, node.name))
    filled_by = {each.source.name: each for each in draft.global_stores.values()}
    subtopologies: list[Subtopology] = []
    numbered: list[GlobalStore] = []
    for number, names in enumerate(groups.members()):
        if names[0] in filled_by:
            numbered.append(replace(filled_by[names[0]], id=number))
        else:
            subtopologies.append(_subtopology(number, [nodes[name] for name in names], draft))
    return tuple(subtopologies), tuple(numbered)


def _subtopology(number: int, nodes: Sequence[Node], draft: Draft) -> Subtopology:
    children: dict[str, list[str]] = {node.name: [] for node in nodes}
    for node in nodes:
        for parent in node.parents:
            children[parent].append(node.name)
    used = {store for node in nodes if isinstance(node, ProcessorNode) for store in node.stores}
    return Subtopology(
        number,
        tuple(nodes),
        {name: tuple(each) for name, each in children.items()},
        tuple(builder for store, builder in draft.stores.items() if store in used),
        read_only_stores=tuple(each for store, each in draft.read_only_stores.items() if store in used),
    )
