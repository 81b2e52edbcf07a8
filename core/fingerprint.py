"""What saved positions and state depend on, and whether those of an earlier program fit this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .describe import serde_name
from .nodes import Subtopology

if TYPE_CHECKING:
    from .assignment import Assignment
    from .program import Program

FORMAT = 1


def fingerprint(program: Program, assignment: Assignment | None = None) -> dict[str, Any]:
    """Return what saved positions and state of `program` depend on, as data for JSON.

    Topics go by their names in the program, patterns by their text in `patterns`. `tasks` and `partitions` are null
    without an assignment.
    """
    return {
        "format": FORMAT,
        "subtopologies": {str(each.id): _subtopology(each, assignment) for each in program.subtopologies},
        "internal_topics": sorted(program.internal_topics),
        "global_stores": {each.store.name: each.source.topics[0] for each in program.global_stores},
        "partitions": None if assignment is None else dict(sorted(assignment.partitions().items())),
    }


def _subtopology(subtopology: Subtopology, assignment: Assignment | None) -> dict[str, Any]:
    return {
        "topics": sorted(topic for source in subtopology.sources for topic in source.topics),
        "patterns": sorted(source.pattern.pattern for source in subtopology.sources if source.pattern is not None),
        "stores": {
            store.name: {
                "kind": type(store).__name__,
                "key_serde": serde_name(getattr(store, "key_serde", None)),
                "value_serde": serde_name(getattr(store, "value_serde", None)),
            }
            for store in sorted(subtopology.stores, key=lambda store: store.name)
        },
        "tasks": None if assignment is None else sum(task.subtopology == subtopology.id for task in assignment.tasks),
    }


def check_compatible(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the reasons, in words, why positions and state saved under `old` do not fit `new`; none: they fit.

    Both are fingerprints. Positions and state are kept by task, so what a task id stands for must stay: a sub-topology
    keeps its number, its stores and, if it has any, its number of tasks. What fits: new sub-topologies behind the old
    ones, new stores (they start empty), topics that come or go within a sub-topology, more partitions where there is no
    store, other processors and edges.
    """
    if old.get("format") != FORMAT:
        return [
            f"the saved state was written by another release (format {old.get('format')!r}, this one knows {FORMAT})"
        ]
    return [
        *_moved(old, new, "store", "stores"),
        *_moved(old, new, "topic", "topics"),
        *_moved(old, new, "pattern", "patterns"),
        *_changed_stores(old, new),
        *_replaced(old, new),
        *_repartitioned(old, new),
        *_drained(old, new),
        *_refilled(old, new),
    ]


def _moved(old: Mapping[str, Any], new: Mapping[str, Any], what: str, field: str) -> Iterable[str]:
    now = {name: number for number, each in new["subtopologies"].items() for name in each[field]}
    for number, each in old["subtopologies"].items():
        for name in each[field]:
            if name in now and now[name] != number:
                yield (
                    f"{what} {name!r} was in sub-topology {number} and is now in {now[name]}: sub-topologies are "
                    "numbered in the order of their first nodes, add new ones behind the old"
                )


def _changed_stores(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    now = {name: store for each in new["subtopologies"].values() for name, store in each["stores"].items()}
    for number, each in old["subtopologies"].items():
        for name, store in each["stores"].items():
            if name not in now:
                yield (
                    f"store {name!r} of sub-topology {number} is no longer in the program, and its content would be "
                    "lost: put it back"
                )
                continue
            for field, before in store.items():
                after = now[name][field]
                # A default is not known here: what it stands for may be what is now named.
                if before != after and before is not None and after is not None:
                    yield (
                        f"store {name!r} was written with {field} {before} and now has {after}: its content cannot be "
                        "read"
                    )


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
        if after is None or not before["stores"] or None in (before["tasks"], after["tasks"]):
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
                + f": the content of {_listed(before['stores'])} is divided by the old number"
            )


def _drained(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    for topic in old["internal_topics"]:
        if topic not in new["internal_topics"]:
            yield f"internal topic {topic!r} is no longer in the program, and records that wait in it would be lost"


def _refilled(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
    for store, topic in old["global_stores"].items():
        if new["global_stores"].get(store, topic) != topic:
            yield (
                f"global store {store!r} was filled from topic {topic!r} and now is from "
                f"{new['global_stores'][store]!r}: give it another name, so that it starts empty"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"
