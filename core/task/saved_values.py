"""The numbers that operators save with each commit, by the store that they belong to."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ..errors import IncompatibleStateError
from ..program.layouts import Layout
from ..program.nodes import ProcessorNode, Subtopology

Values = dict[str, int]
Saved = dict[str, Values]
"""By store, or part of one (`STORE/PART`): the numbers."""
_NUMBERED = re.compile(r"-[0-9]{10}$")
"""The name of a node that the DSL has numbered."""


class SavedValues:
    """The numbers of one task's operators. `saved` is the `engine_state` of the last commit.

    A store has its numbers whatever its node is called. Those of a parked store are kept.
    """

    def __init__(self, saved: Mapping[str, Any], subtopology: Subtopology) -> None:
        self._values: Saved = {name: dict(values) for name, values in saved.get("stores", {}).items()}
        self._names = {each.name: _name(each) for each in _processors(subtopology)}

    def of(self, node: str) -> Values:
        """Return the numbers of a node, which may share them with others; to be changed in place."""
        return self._values.setdefault(self._names[node], {})

    def state(self) -> dict[str, Saved]:
        """Return what to save, as a part of the engine state."""
        values = {name: each for name, each in self._values.items() if each}
        return {"stores": values} if values else {}


def adopt_values(engine_state: bytes, subtopology: Subtopology, before: Layout | None, now: Layout) -> bytes:
    """Return an `engine_state` with the numbers of those stores that continue, by store; or the same one.

    `before` is the layout at the last commit (None: not known), `now` the present one. A store that starts empty drops
    its numbers. An earlier release saved numbers by the names of nodes: each node takes over those under its name.

    Raises IncompatibleStateError for numbers or schedules of nodes that are gone, where a store, or a processor without
    a name, would be left without any.
    """
    state: dict[str, Any] = json.loads(engine_state) if engine_state else {}
    _check_schedules(state.get("timers", {}), subtopology)
    continued = {
        store
        for store, kept in now.items()
        if before is None or (store in before and before[store].generation == kept.generation)
    }
    by_store: Saved = state.pop("stores", {})
    stores = {name: values for name, values in by_store.items() if name.partition("/")[0] in continued}
    by_node: Saved | None = state.pop("nodes", None)
    if by_node is not None:
        new = set[str]() if before is None else set(now) - set(before)
        stores |= _by_store(by_node, subtopology, stores, continued, new)
    elif stores == by_store:
        return engine_state
    if stores:
        state["stores"] = stores
    return json.dumps(state, separators=(",", ":")).encode()


def has_values_by_node(engine_state: bytes) -> bool:
    """Return whether an earlier release wrote this, and saved numbers or schedules in it under the names of nodes."""
    state: dict[str, Any] = json.loads(engine_state) if engine_state else {}
    return bool(state.get("nodes")) or any(map(_NUMBERED.search, state.get("timers", {})))


def _by_store(
    by_node: Saved, subtopology: Subtopology, found: Saved, continued: Collection[str], new: Collection[str]
) -> Saved:
    left, taken, without = dict(by_node), Saved(), set[str]()
    stores = set[str]()
    for node in _processors(subtopology):
        store, name = node.store_saved_with, _name(node)
        if store is None or store in new:
            continue
        values = left.pop(node.name, None)
        if store not in continued:
            continue
        stores.add(store)
        if values is not None:
            taken[name] = values
        elif name not in found:
            without.add(name)
    if left and without - taken.keys():
        # A number may be another node's by now, so what others would take is as doubtful.
        raise IncompatibleStateError(
            f"an earlier release saved the times of store {_listed(stores)} under the names of nodes, and the program "
            f"has no node {_listed(left)} any more: windows would be lost or sent twice. Start the program as it was "
            "once with this release, which saves times under the names of stores, and change it then; or give the "
            "stores up (`penstock stores drop`)"
        )
    return taken


def _check_schedules(by_node: Mapping[str, Mapping[str, list[str | None]]], subtopology: Subtopology) -> None:
    nodes = {each.name: each for each in _processors(subtopology)}
    # A schedule that was made later has a "/"; if its node went long ago, it is kept and reported elsewhere.
    left = [
        name
        for name, keys in by_node.items()
        if _NUMBERED.search(name) and name not in nodes
        if any(text is None or "/" not in text for texts in keys.values() for text in texts)
    ]
    without = [
        each
        for each in nodes.values()
        if _NUMBERED.search(each.name) and each.saved_as and each.store_saved_with is None
        if not {*each.saved_as, each.name} & set(by_node)
    ]
    if left and without:
        stores = sorted({store for each in without for store in each.stores})
        of_stores = f" (of store {_listed(stores)})" if stores else ""
        raise IncompatibleStateError(
            f"an earlier release saved schedules under the number of their node, and the program has no node "
            f"{_listed(left)} any more, but {_listed(each.name for each in without)}{of_stores}: schedules would be "
            "lost. Start the program as it was once with this release, and change it then"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _processors(subtopology: Subtopology) -> list[ProcessorNode]:
    return [each for each in subtopology.nodes if isinstance(each, ProcessorNode)]


def _name(node: ProcessorNode) -> str:
    return node.saved_as[0] if node.saved_as else node.name
