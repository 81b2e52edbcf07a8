"""BuiltStores: typed stores that queries have built, each for one version of a store in a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import Application, StateStore, StoreBackend, StoreBuilder
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.state.copies.contents import store_over

from .snapshots import Snapshot, ViewBackend

_MOST_BUILT = 64
"""How many stores are kept."""
_MOST_USES = 200
"""How many queries use a kept store: it keeps objects of the keys that were read."""


@dataclass
class BuiltStore:
    """A store that is built over a backend. `of`: what of its snapshot it depends on."""

    store: StateStore
    backend: StoreBackend
    of: tuple[Any, ...]
    uses: int = 1

    def end(self) -> None:
        """Take the store apart: its fast methods refer to it, so only the garbage collector would free it.

        With tens of stores a second much comes together until then, and a server answers nothing while it is freed.
        """
        getattr(self.store, "__dict__", {}).clear()


class BuiltStores:
    """Keeps a store after its query, for the next query of the same version: to build one takes longer than to read.

    Any thread calls all methods; a store has one user at a time. `now_ms` is the wall clock, by which entries expire.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._kept: dict[tuple[Any, ...], BuiltStore] = {}

    def take(self, application: Application, task: SavedTask, builder: StoreBuilder, found: Snapshot) -> BuiltStore:
        """Return a store over a snapshot, to be used until the snapshot is closed. Raises as `store_over`."""
        # A commit without changes of the state has the same version, and later clocks.
        commit = found.commit and (found.commit.version, found.commit.engine_state)
        of = (found.task, builder.name, found.version, commit, task.identity)
        kept = self._kept.pop(of[:2], None)
        if kept is not None and kept.of == of:
            assert isinstance(kept.backend, ViewBackend) and isinstance(found.backend, ViewBackend)
            kept.backend.show(found.backend)
            kept.uses += 1
            return kept
        if kept is not None:
            kept.end()
        store = store_over(application, task, builder, found.kept, found.backend, found.commit, self._now_ms)
        return BuiltStore(store, found.backend, of)

    def give_back(self, built: BuiltStore) -> None:
        """Keep a store for the next query."""
        if built.uses >= _MOST_USES or not isinstance(built.backend, ViewBackend):
            built.end()
            return
        others = self._kept.pop(built.of[:2], None)
        if others is None and len(self._kept) >= _MOST_BUILT:
            _, others = self._kept.popitem()
        if others is not None:
            others.end()
        self._kept[built.of[:2]] = built
