"""with_topics: an application whose program reads other source topics."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from penstock import Application, Node, SourceNode


def with_topics(application: Application, topics: Mapping[str, str]) -> Application:
    """Return an application whose sources read `topics[NAME]` in place of each topic NAME; others stay."""
    if not topics:
        return application
    program = application.program
    nodes = {name: _reading(node, topics) for name, node in program.nodes.items()}
    made = copy(application)
    made.program = replace(
        program,
        nodes=nodes,
        subtopologies=tuple(
            replace(
                each,
                nodes=tuple(nodes[node.name] for node in each.nodes),
                read_only_stores=tuple(
                    replace(store, source=_source(store.source, topics)) for store in each.read_only_stores
                ),
            )
            for each in program.subtopologies
        ),
    )
    return made


def _reading(node: Node, topics: Mapping[str, str]) -> Node:
    return _source(node, topics) if isinstance(node, SourceNode) else node


def _source(node: SourceNode, topics: Mapping[str, str]) -> SourceNode:
    return replace(node, topics=tuple(topics.get(topic, topic) for topic in node.topics))
