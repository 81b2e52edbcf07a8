"""The numbers that operators save with each commit, by the store that they belong to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..program.nodes import ProcessorNode, Subtopology
from ..store.kept_store import Layout

Values = dict[str, int]
Saved = dict[str, Values]
"""By store, or part of one (`STORE/PART`): the numbers."""


class SavedValues:
    """The numbers of one task's operators. `saved` is the `engine_state` of the last commit.

    A store's numbers do not depend on the name of its node. The numbers of parked stores are kept.
    """

    def __init__(self, saved: Mapping[str, Any], subtopology: Subtopology) -> None:
        self._values: Saved = {name: dict(values) for name, values in saved.get("stores", {}).items()}
        self._names = {
            node.name: node.saved_as[0] if node.saved_as else node.name
            for node in subtopology.nodes
            if isinstance(node, ProcessorNode)
        }

    def of(self, node: str) -> Values:
        """Return the numbers of a node, which may share them with others; to be changed in place."""
        return self._values.setdefault(self._names[node], {})

    def state(self) -> dict[str, Saved]:
        """Return the values to save, as a part of the engine state."""
        values = {name: each for name, each in self._values.items() if each}
        return {"stores": values} if values else {}


def adopt_values(engine_state: bytes, before: Layout | None, now: Layout) -> bytes:
    """Return an `engine_state` without the numbers of stores that do not continue; or the same one.

    `before` is the layout at the last commit (None: not known), `now` the present one. A store that starts empty drops
    its numbers. A name of no store is a node's, which keeps its numbers.
    """
    state: dict[str, Any] = json.loads(engine_state) if engine_state else {}
    ended: set[str] = set()
    if before is not None:
        ended = {
            store
            for store in {**before, **now}
            if store not in before or store not in now or before[store].generation != now[store].generation
        }
    saved: Saved = state.pop("stores", {})
    stores = {name: values for name, values in saved.items() if name.partition("/")[0] not in ended}
    if stores == saved:
        return engine_state
    if stores:
        state["stores"] = stores
    return json.dumps(state, separators=(",", ":")).encode()
