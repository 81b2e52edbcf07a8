"""The stores that visitors visit, and the names by which visitors are asked for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ..errors import TopologyError
from ..processor import Processor, Visitor, visitors_of
from ..support.names import timer_store_name
from .nodes import Node, ProcessorNode


def visitor_name(node: ProcessorNode, method: str) -> str:
    """Return the name of a visitor, NODE.METHOD, which stays when its node is renamed and `save_as` says so."""
    return f"{node.saved_as[0] if node.saved_as else node.name}.{method}"


def visited_store(node: ProcessorNode, name: str, visitor: Visitor) -> str:
    """Return the store that a visitor visits, of those that its node is connected to. Raises TopologyError."""
    where = f"node {node.name!r}, visitor {name!r}"
    own = [store for store in node.stores if store != timer_store_name(node.name)]
    if visitor.store is None and len(own) == 1:
        return own[0]
    if visitor.store is None:
        raise TopologyError(f"{where}: its node is connected to {len(own)} stores: name one, @visitor(STORE)")
    if visitor.store not in own:
        raise TopologyError(
            f"{where}: it visits store {visitor.store!r}, to which its node is not connected; it is connected to "
            f"{', '.join(own) or 'none'}"
        )
    return visitor.store


def check_visitors(nodes: Mapping[str, Node]) -> None:
    """Refuse visitors whose nodes do not have their stores, as far as looking at classes shows it."""
    for node in nodes.values():
        kind: Any = node.supplier if isinstance(node, ProcessorNode) else None
        while isinstance(kind, functools.partial):
            kind = kind.func
        if isinstance(node, ProcessorNode) and isinstance(kind, type):
            check_visitors_of(node, kind)


def check_visitors_of(node: ProcessorNode, kind: type) -> Mapping[str, Visitor]:
    """Return the visitors of a node from its processor's class. Raises TopologyError for wrong ones."""
    visitors = visitors_of(kind)
    for name, each in visitors.items():
        if not issubclass(kind, Processor):
            raise TopologyError(
                f"node {node.name!r}, visitor {name!r}: {kind.__name__} is a ValueTransformer: derive it from Processor"
            )
        visited_store(node, name, each)
    return visitors
