"""ClosedStore: what a store becomes when its task is closed, so that a processor that kept it is told."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock import StateStore, StoreError


class ClosedStore(StateStore):
    """The store of a task that was closed: any use raises StoreError."""

    _why: str

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise StoreError(self._why)

    def close(self) -> None:
        """Do nothing: it is closed."""

    def __iter__(self) -> Any:
        raise StoreError(self._why)


def close_store(store: StateStore, task_id: str) -> None:
    """Close a store; from then on the object is a ClosedStore, for those who still have it.

    So no open store has to look whether it is open. A store of another package whose objects cannot change their class
    (`__slots__`) is only closed. Idempotent.
    """
    store.close()
    if isinstance(store, ClosedStore):
        return
    name = store.name
    try:
        store.__class__ = ClosedStore
    except TypeError:
        return
    vars(store).clear()
    vars(store)["_why"] = (
        f"store {name!r} belongs to task {task_id} as it was opened before, and that task was closed: what is put "
        "there would be lost. Do not keep a store in a class attribute or a global: each processor gets its own in "
        f"init, as self.store = context.get_store({name!r})"
    )
