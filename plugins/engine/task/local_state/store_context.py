"""TaskStoreContext: the answers of a task to the stores that are built for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock import Serde, StoreError
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
