"""The parts of a program that saved positions and state depend on, and whether an earlier program fits this one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..serde import Serde
from ..store import StoreBuilder
from ..store.kinds.key_value import KeyValueStoreSpec
from ..store.specs import KEY_VALUE, StoreSpec, declared_serdes
from .assignment import Assignment
from .nodes import Graph, Node, ProcessorNode, Subtopology
from .serdes import NodeDefaults, SerdeLike, resolve_serde

SavedSerdes = Mapping[tuple[str, str], Serde[Any]]
"""The serde for (store or internal topic, "key_serde" or "value_serde")."""

FORMAT = 3
"""The format of a program with a processor that saves under another name than its own."""
BY_NODE = 2
"""The format of a program in which every processor saves under its own name."""


def fingerprint(program: Graph, assignment: Assignment | None, settings: NodeDefaults) -> dict[str, Any]:
    """Return the parts of `program` that its saved positions and state depend on, as data for JSON.

    Topics go by their names in the program, patterns by their text in `patterns`. Serdes and backends are those in
    force under `settings`. `tasks` and `partitions` are null without an assignment.
    """
    return {
        "format": FORMAT if any(map(_saves_elsewhere, program.nodes.values())) else BY_NODE,
        "subtopologies": {
            str(subtopology.id): _subtopology(program, subtopology, assignment, settings)
            for subtopology in program.subtopologies
        },
        "internal_topics": sorted(program.internal_topics),
        "internal_serdes": {
            topic: {
                "key_serde": _form(source.key_serde, settings.key_serde, f"source {source.name!r}"),
                "value_serde": _form(source.value_serde, settings.value_serde, f"source {source.name!r}"),
            }
            for subtopology in program.subtopologies
            for source in subtopology.sources
            for topic in source.topics
            if topic in program.internal_topics
        },
        "global_stores": {store.store.name: store.source.topics[0] for store in program.global_stores},
        "partitions": None if assignment is None else dict(sorted(assignment.partitions().items())),
    }


def _saves_elsewhere(node: Node) -> bool:
    return isinstance(node, ProcessorNode) and node.saved_as[:1] not in ((), (node.name,))


def _subtopology(
    program: Graph, subtopology: Subtopology, assignment: Assignment | None, settings: NodeDefaults
) -> dict[str, Any]:
    topics = {each.store.name: {"topic": each.source.topics[0]} for each in subtopology.read_only_stores}
    return {
        "topics": sorted(topic for source in subtopology.sources for topic in source.topics),
        "patterns": sorted(source.pattern.pattern for source in subtopology.sources if source.pattern is not None),
        "writes": sorted({node.topic for node in subtopology.sinks if node.topic in program.internal_topics}),
        "stores": {
            store.name: _store(store, settings) | topics.get(store.name, {})
            for store in sorted(subtopology.stores, key=lambda store: store.name)
        },
        "tasks": None if assignment is None else sum(task.subtopology == subtopology.id for task in assignment.tasks),
    }


def _store(store: StoreBuilder, settings: NodeDefaults) -> dict[str, Any]:
    """Return the serdes and the TTL of a store; null where its kind has none."""
    serdes = {
        name: _form(given, settings.state_serde, f"store {store.name!r}")
        for name, given in declared_serdes(store).items()
    }
    ttl_ms = store.ttl_ms if isinstance(store, KeyValueStoreSpec) else None
    kind, windows = (store.kind, store.windows) if isinstance(store, StoreSpec) else (KEY_VALUE, "")
    return {
        "kind": type(store).__name__ + (f" {store.traits.form}" if store.traits.form else ""),
        "key_serde": serdes.get("key_serde"),
        "value_serde": serdes.get("value_serde"),
        "backend": store.backend or settings.store_backend,
        "logged": store.logged,
        "timestamped": store.traits.timestamped,
        "ttl_ms": ttl_ms,
        **({"store_kind": kind} if kind != KEY_VALUE else {}),
        **({"expires": True} if store.traits.expires and ttl_ms is None else {}),
        **({"is_indexed": True} if store.traits.is_indexed else {}),
        **({"windows": windows} if windows else {}),
        **({"fixed_options": dict(store.traits.fixed_options)} if store.traits.fixed_options else {}),
    }


def _form(given: SerdeLike, default: SerdeLike, what: str) -> str:
    return resolve_serde(given, default, what).written_form()


def saved_serdes(program: Graph, settings: NodeDefaults) -> SavedSerdes:
    """Return the serdes of the stores and internal topics of `program` that are in force under `settings`."""
    made = {
        (store.name, field): resolve_serde(given, settings.state_serde, f"store {store.name!r}")
        for subtopology in program.subtopologies
        for store in subtopology.stores
        for field, given in declared_serdes(store).items()
    }
    for subtopology in program.subtopologies:
        for source in subtopology.sources:
            for topic in program.internal_topics.keys() & source.topics:
                what = f"source {source.name!r}"
                made[topic, "key_serde"] = resolve_serde(source.key_serde, settings.key_serde, what)
                made[topic, "value_serde"] = resolve_serde(source.value_serde, settings.value_serde, what)
    return made


def check_compatible(
    old: Mapping[str, Any], new: Mapping[str, Any], drained: Collection[str] = (), serdes: SavedSerdes | None = None
) -> list[str]:
    """Return in words why positions and state saved under `old` do not fit `new`; an empty list if they fit.

    Both are fingerprints. `drained` are internal topics in which no record waits. Positions and state are kept by task,
    so the meaning of a task id must stay: a sub-topology keeps its number, its stores and, if it has any, its number of
    tasks. `serdes` (those of `saved_serdes`) say whether they read data in earlier forms of their own; without them the
    names must be equal.

    What fits: new sub-topologies behind the old ones, new stores (they start empty), topics that come or go within a
    sub-topology, more partitions where there is no store, other processors and edges. A store may have another backend,
    another TTL or none, timestamps or none, and may be in the changelog or not.
    """
    if other := of_other_version(old):
        return [other]
    return [
        *_moved(old, new, "store", "stores"),
        *_moved(old, new, "topic", "topics"),
        *_moved(old, new, "pattern", "patterns"),
        *_changed_stores(old, new, serdes or {}),
        *_replaced(old, new),
        *_repartitioned(old, new),
        *_waiting(old, new, drained, serdes or {}),
        *_refilled(old, new),
    ]


def of_other_version(saved: Mapping[str, Any]) -> str:
    """Return in words that another version of penstock saved this fingerprint; "" if this version reads it."""
    found = saved.get("format")
    if found in (BY_NODE, FORMAT):
        return ""
    age = "an older" if isinstance(found, int) and found < BY_NODE else "another"
    return (
        f"it was saved by {age} version of penstock, in format {found!r}, and this version reads the formats {BY_NODE} "
        f"and {FORMAT}"
    )


def _moved(old: Mapping[str, Any], new: Mapping[str, Any], what: str, field: str) -> Iterable[str]:
    now = {name: number for number, each in new["subtopologies"].items() for name in each[field]}
    for number, each in old["subtopologies"].items():
        for name in each[field]:
            if name in now and now[name] != number:
                yield (
                    f"{what} {name!r} was in sub-topology {number} and is now in {now[name]}: sub-topologies are "
                    "numbered in the order of their first nodes, add new ones behind the old"
                )


def _changed_stores(old: Mapping[str, Any], new: Mapping[str, Any], serdes: SavedSerdes) -> Iterable[str]:
    now = {name: store for each in new["subtopologies"].values() for name, store in each["stores"].items()}
    for number, each in old["subtopologies"].items():
        for name, store in each["stores"].items():
            if name not in now:
                yield (
                    f"store {name!r} of sub-topology {number} is no longer in the program, and its content would be "
                    "lost: put it back"
                )
                continue
            # A store that is filled from a topic from now on gets the topic's records again, whatever it was before.
            was, becomes = store.get("topic"), now[name].get("topic")
            if was is not None and becomes is None:
                yield (
                    f"store {name!r} was filled from topic {was!r}, which was its changelog, and now has one of its "
                    "own, without that content: let the topic be its changelog as before (for a table of the DSL: "
                    "reuse_ktable_source_topics in the setting 'topology_optimization')"
                )
            elif was not in (None, becomes):
                yield (
                    f"store {name!r} was filled from topic {was!r} and now is filled from topic {becomes!r}: give it "
                    "another name, so that it is filled afresh"
                )
            before, after = store.get("windows"), now[name].get("windows")
            if before is not None and after is not None and before != after:
                yield (
                    f"store {name!r} has {before} and now gets {after}: what is in open windows would be counted "
                    "wrongly; give it another name, and it starts empty"
                )
            for field in ("kind", "key_serde", "value_serde"):
                before, after = store[field], now[name][field]
                if None in (before, after):  # a kind of store that does not have this serde
                    continue
                serde = serdes.get((name, field))
                if why := _unreadable(before, after, serde):
                    yield f"store {name!r} was written with {field} {why}: its content cannot be read"
                elif why := _unfindable(field, before, serde):
                    yield (
                        f"store {name!r} was written with {field} {why}: its rows would not be found by their keys; "
                        "give it another name, and it starts empty"
                    )


def _unreadable(before: str, after: str, serde: Serde[Any] | None) -> str:
    """Return why the program's serde cannot read data of the form `before`; "" if it can. A kind is no serde."""
    if before == after:
        return ""
    return f"{before} and now has {after}" if serde is None else serde.unreadable(before)


def _unfindable(field: str, before: str, serde: Serde[Any] | None) -> str:
    """Return why the bytes of keys would differ from those of the written form `before`; "" if they are the same."""
    return serde.unfindable(before) if field == "key_serde" and serde is not None else ""


def _replaced(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    for number, before in old["subtopologies"].items():
        after = new["subtopologies"].get(number)
        if after is None or (set(before["stores"]) & set(after["stores"])):
            continue
        read = {field: set(before[field]) for field in ("topics", "patterns")}
        if not any(read[field] & set(after[field]) for field in read):
            yield (
                f"sub-topology {number} read {_listed(read['topics'] | read['patterns'])} and now reads "
                f"{_listed({*after['topics'], *after['patterns']})}: it is another one, and would take over the old "
                "one's positions"
            )


def _repartitioned(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    for number, before in old["subtopologies"].items():
        after = new["subtopologies"].get(number)
        stores = [*before["stores"], *before.get("parked", ())]
        if after is None or not stores or None in (before["tasks"], after["tasks"]):
            continue
        if before["tasks"] != after["tasks"]:
            was, now = old["partitions"] or {}, new["partitions"] or {}
            changes = [
                f"{topic!r} had {was[topic]} partitions and has {now[topic]}"
                for topic in was
                if now.get(topic, was[topic]) != was[topic]
            ]
            yield (
                f"sub-topology {number} had {before['tasks']} tasks and now has {after['tasks']}"
                + (f" ({', '.join(changes)})" if changes else "")
                + f": the content of {_listed(stores)} is divided by the old number; `penstock reshard` "
                "divides it by the new one"
            )


def _waiting(
    old: Mapping[str, Any], new: Mapping[str, Any], drained: Collection[str], serdes: SavedSerdes
) -> Iterable[str]:
    read = new["internal_serdes"]
    for topic in old["internal_topics"]:
        if topic in drained:
            continue
        if topic not in new["internal_topics"]:
            yield (
                f"internal topic {topic!r} is no longer in the program, and records that wait in it would be lost: "
                "let the program that ran last process them first"
            )
        for field, before in old["internal_serdes"].get(topic, {}).items():
            after = read.get(topic, {}).get(field)
            if after is None:
                continue
            serde, what = serdes.get((topic, field)), f"internal topic {topic!r} was written for {field}"
            if why := _unreadable(before, after, serde):
                yield (
                    f"{what} {why}: records that wait in it cannot be read. Let the program that ran last process them "
                    "first"
                )
            elif why := _unfindable(field, before, serde):
                yield (
                    f"{what} {why}: records that wait in it may be in other partitions than later ones of their keys. "
                    "Let the program that ran last process them first"
                )


def _refilled(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    for store, topic in old["global_stores"].items():
        if new["global_stores"].get(store, topic) != topic:
            yield (
                f"global store {store!r} was filled from topic {topic!r} and now is from "
                f"{new['global_stores'][store]!r}: give it another name, so that it starts empty"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"
