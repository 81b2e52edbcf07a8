"""A program as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock import Node, ProcessorNode, Program, SinkNode, SourceNode, StoreBuilder
from penstock.program.serdes import serde_name
from penstock.store.specs import declared_serdes
from penstock.support.names import function_name


def to_json(program: Program) -> str:
    """Return the program as a JSON document, whose form `Program.to_json` documents."""
    return json.dumps(_program_data(program), indent=2, ensure_ascii=False)


def _program_data(program: Program) -> dict[str, Any]:
    everything = [
        *((subtopology.id, False, subtopology.nodes) for subtopology in program.subtopologies),
        *((each.id, True, (each.source, each.processor)) for each in program.global_stores),
    ]
    home = {node.name: number for number, _, nodes in everything for node in nodes}
    return {
        "format": 1,
        "subtopologies": [
            {"id": number, "generates_tasks": not is_global, "nodes": [_node_data(program, node) for node in nodes]}
            for number, is_global, nodes in sorted(everything, key=lambda each: each[0])
        ],
        "stores": [_store_data(program, home, store) for store in program.all_stores()],
        "topics": _topics_data(program),
    }


def _node_data(program: Program, node: Node) -> dict[str, Any]:
    children = [each.name for each in program.nodes.values() if node.name in each.parents]
    data: dict[str, Any] = {"name": node.name, "kind": type(node).__name__.removesuffix("Node").lower()}
    match node:
        case SourceNode():
            data |= {
                "topics": list(node.topics),
                "pattern": node.pattern.pattern if node.pattern else None,
                "children": children,
                "key_serde": serde_name(node.key_serde),
                "value_serde": serde_name(node.value_serde),
                "timestamp_extractor": function_name(node.timestamp_extractor) if node.timestamp_extractor else None,
                "offset_reset": node.offset_reset,
            }
        case ProcessorNode():
            data |= {
                "supplier": node.supplier if isinstance(node.supplier, str) else function_name(node.supplier),
                "plugin": isinstance(node.supplier, str),
                "stores": list(node.stores),
                "parents": list(node.parents),
                "children": children,
            }
        case SinkNode():
            data |= {
                "topic": node.topic if isinstance(node.topic, str) else None,
                "topic_chooser": None if isinstance(node.topic, str) else function_name(node.topic),
                "parents": list(node.parents),
                "key_serde": serde_name(node.key_serde),
                "value_serde": serde_name(node.value_serde),
                "partitioner": function_name(node.partitioner) if node.partitioner else None,
                "partition_by": function_name(node.partition_by) if node.partition_by else None,
            }
    return data


def _store_data(program: Program, home: Mapping[str, int], store: StoreBuilder) -> dict[str, Any]:
    users = [
        node.name for node in program.nodes.values() if isinstance(node, ProcessorNode) and store.name in node.stores
    ]
    is_global = store.name not in program.stores
    topics = {each.store.name: each.source.topics[0] for each in program.global_stores}
    for part in program.subtopologies:
        topics |= {each.store.name: each.source.topics[0] for each in part.read_only_stores}
    serdes = declared_serdes(store)
    return {
        "name": store.name,
        "kind": type(store).__name__,
        "global": is_global,
        "subtopology": home[users[0]],
        "processors": users,
        "backend": store.backend,
        "logged": store.logged and not is_global,
        "filled_from": topics.get(store.name),
        "key_serde": serde_name(serdes.get("key_serde")),
        "value_serde": serde_name(serdes.get("value_serde")),
    }


def _topics_data(program: Program) -> list[dict[str, Any]]:
    topics: dict[str, dict[str, Any]] = {}
    for node in program.nodes.values():
        named = node.topics if isinstance(node, SourceNode) else ()
        if isinstance(node, SinkNode) and isinstance(node.topic, str):
            named = (node.topic,)
        for name in named:
            internal = program.internal_topics.get(name)
            entry = {
                "name": name,
                "internal": internal is not None,
                "partitions": internal.partitions if internal else None,
                "sources": [],
                "sinks": [],
            }
            topics.setdefault(name, entry)["sources" if isinstance(node, SourceNode) else "sinks"].append(node.name)
    return list(topics.values())
