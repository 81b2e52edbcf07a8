"""Coverage: compares the stores of a saved version with the program's: what to restore, copy, start empty or delete."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.program.layouts import Layouts, id_of_version
from penstock.store.kept_store import KeptStore


class Coverage:
    """Compares the layout that a version's name says with the program's present layout.

    A version that names no layout, or an unknown one, counts as written in the present layout. Tasks of a prepared
    application open no version of an unknown layout (`check_layout`). `lacking`: stores whose content the copies lack,
    whatever their versions' names say.
    """

    def __init__(self, layouts: Layouts, version: str, lacking: frozenset[str] = frozenset()) -> None:
        self._layouts = layouts
        self._lacking = lacking
        self._version = version
        known = layouts.of_version(version)
        self._now = layouts.now
        self._was = layouts.now if known is None else known
        self.is_settled = known is None or id_of_version(version) == layouts.id
        """Whether the version was written in the present layout."""

    def _before(self, store: str) -> KeptStore | None:
        """Return how the store was kept; None if the version does not have it."""
        was, now = self._was.get(store), self._now.get(store)
        return was if was is not None and now is not None and was.generation == now.generation else None

    @property
    def in_history(self) -> frozenset[str]:
        """The stores that are restored from the changelog."""
        return frozenset(
            store
            for store, now in self._now.items()
            if now.logged and (was := self._before(store)) is not None and was.logged
        )

    @property
    def left_out(self) -> frozenset[str]:
        """The backends on which a copy restored for the present layout lacks rows that the version has in its own."""
        restored = self.in_history
        return frozenset(
            was.backend
            for store, was in self._was.items()
            if was.logged and (store not in restored or self._now[store].backend != was.backend)
        )

    @property
    def begun(self) -> frozenset[str]:
        """The logged stores that are not in the changelog yet."""
        return frozenset(store for store, now in self._now.items() if now.logged) - self.in_history

    @property
    def needs_new_history(self) -> bool:
        """Whether the changelog has entries of stores that have left it, or lacks entries of stores that joined it."""
        logged = {store for store, was in self._was.items() if was.logged}
        if logged - self.in_history or (not logged and self.begun):
            return True
        return any(self._before(store) is not None for store in self.begun)

    @property
    def had_changelog(self) -> bool:
        """Whether the version is in the changelog: the versions of a task without stores are not."""
        return bool(self._was)

    @property
    def gone(self) -> Mapping[str, list[str]]:
        """The stores and their indexes, by backend, whose content there is not needed any more."""
        found: dict[str, list[str]] = {}
        for store, was in self._was.items():
            before = self._before(store)
            if (before is None and store not in self._now) or (
                before is not None and before.backend != self._now[store].backend
            ):
                found.setdefault(was.backend, []).extend(was.tables(store))
        return found

    @property
    def moved(self) -> Mapping[str, str]:
        """The stores outside the changelog that have changed their backend, with the name of the earlier one."""
        return {
            store: was.backend
            for store, now in self._now.items()
            if store not in self.in_history and (was := self._before(store)) is not None and was.backend != now.backend
        }

    def missing(self, backend: str, have: str) -> frozenset[str]:
        """Return the stores of `backend` whose content a copy at version `have` does not have.

        That is also so where it has the content of an earlier store of the same name.
        """
        stores = frozenset(store for store, now in self._now.items() if now.backend == backend)
        copy = self._layouts.of_version(have)
        if copy is None:
            known = id_of_version(have) in (None, id_of_version(self._version))
            return stores & self._lacking if known else stores
        return frozenset(
            store for store in stores if store in self._lacking or not self._is_in(copy.get(store), store, backend)
        )

    def _is_in(self, copied: KeptStore | None, store: str, backend: str) -> bool:
        return (
            copied is not None
            and copied.backend == backend
            and copied.generation == self._now[store].generation
            and (copied.logged or store not in self.in_history)
        )
