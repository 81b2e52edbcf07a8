"""TaskStoreContext: the answers of a task to its stores. ClosedStore: the answer of a store whose task is closed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock import Serde, StateStore, StoreError
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.store import IndexStore
from penstock.store.record_cache import RecordCache
from penstock.support.repeats import Repeats


@dataclass
class TaskStoreContext:
    """A `penstock.StoreContext` of an application whose default state serde is `state_serde`.

    `stream_time` and `wall_clock` return the task's times in ms; `count_dropped` is given the reason and the number of
    dropped records. `given_index` is the store's index, or None if it has none. `record_cache` is for a store that is
    declared with one. `repeats` writes log lines that may come with every record. `config`: settings of
    plugins, for serdes.
    """

    application_id: str
    task_id: str
    state_serde: SerdeLike
    fixed_options: Mapping[str, int]
    stream_time: Callable[[], int]
    wall_clock: Callable[[], int]
    count_dropped: Callable[[str, int], None]
    given_index: IndexStore | None
    expires: bool
    record_cache: RecordCache
    repeats: Repeats
    config: Mapping[str, Any] | None = None

    @property
    def index(self) -> IndexStore:
        """The index of the store."""
        if self.given_index is None:
            raise StoreError("this store has no index: its traits say neither is_indexed=True nor expires=True")
        return self.given_index

    def serde(self, given: SerdeLike, store: str) -> Serde[Any]:
        """Return the serde that `given` names (None: the default state serde)."""
        return resolve_serde(given, self.state_serde, f"store {store!r}", self.config)

    def dropped(self, reason: str, count: int = 1) -> None:
        """Count records that the store dropped."""
        self.count_dropped(reason, count)


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
