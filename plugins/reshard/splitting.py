"""SplitState: the rows of all tasks of a sub-topology, divided among the tasks of the new layout, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from penstock import StoreBackend, StoreBackendFactory, Subtopology
from penstock.hooks import registry
from penstock.plugins.runtime.locations import making_state_directory
from penstock.plugins.runtime.task_worker import TaskWorker
from penstock.store import Change
from penstock.stores.kinds.row_keys import OWN_ROW, merged_numbers
from penstock.support.private_files import make_private_directory

from .draining import Workers
from .plan import ReshardPlan, task_count
from .routing import StoreRoute

_Row = tuple[str, bytes, bytes]
_PORTION_BYTES = 4 * 1024 * 1024
_ROW_BYTES = 100
"""What a row takes in memory beside its key and value."""
_VERSION = "split"


class SplitState:
    """The logged stores of the new tasks of one sub-topology; one directory for each under `directory`."""

    def __init__(self, directory: Path, stores: Sequence[str], tasks: int) -> None:
        self.stores = sorted(stores)
        self._stack = ExitStack()
        factory: StoreBackendFactory = registry().load("store backend", "lmdb")
        self._backends: list[StoreBackend] = []
        for number in range(tasks):
            with making_state_directory(directory):
                make_private_directory(directory / str(number))
            backend = factory(directory / str(number), self.stores)
            self._backends.append(self._stack.enter_context(closing(backend)))
        self._waiting: list[dict[str, list[Change]]] = [{} for _ in range(tasks)]
        self._bytes = 0

    def __enter__(self) -> SplitState:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, partition: int, store: str, row: bytes, data: bytes) -> None:
        """Give a row to a task. Raises StoreError when the disk is full."""
        self._waiting[partition].setdefault(store, []).append((row, data))
        self._bytes += len(row) + len(data) + _ROW_BYTES
        if self._bytes >= _PORTION_BYTES:
            self.flush()

    def add_to_all(self, store: str, data: bytes) -> None:
        """Give every task a store's own row of numbers, together with those that it has already."""
        self.flush()
        for backend in self._backends:
            before = backend.get(store, OWN_ROW)
            merged = data if before is None else merged_numbers(before, data)
            backend.write({store: [(OWN_ROW, merged)]}, backend.version(), _VERSION)

    def flush(self) -> None:
        """Write what waits."""
        for backend, changes in zip(self._backends, self._waiting, strict=True):
            if changes:
                ordered = {store: sorted(rows) for store, rows in changes.items()}
                backend.write(ordered, backend.version(), _VERSION)
                changes.clear()
        self._bytes = 0

    def rows(self, partition: int) -> Iterator[_Row]:
        """Yield the rows of a task, by store and key."""
        backend = self._backends[partition]
        return ((store, row, data) for store in self.stores for row, data in backend.range(store))

    def get(self, partition: int, store: str, row: bytes) -> bytes | None:
        """Return the value of a row."""
        return self._backends[partition].get(store, row)


def split_state(
    plan: ReshardPlan, subtopology: Subtopology, workers: Workers, tasks: int, directory: Path
) -> SplitState:
    """Return the state of the `tasks` new tasks of a sub-topology. Close it.

    Raises IncompatibleStateError, naming the store and a key, where the state is not divided by key.
    """
    layout = {} if subtopology.layouts is None else subtopology.layouts.now
    stores = [name for name, kept in layout.items() if kept.logged]
    own = {task.partition: worker for task, worker in workers.items() if task.subtopology == subtopology.id}
    made = SplitState(directory, stores, tasks)
    try:
        wanted = [store for store in stores if store not in plan.dropped]
        if len(own) == tasks:
            _copy(own, wanted, made)
        else:
            _divide(plan, subtopology, own, wanted, tasks, made)
        made.flush()
    except BaseException:
        made.__exit__()
        raise
    return made


def _copy(own: Mapping[int, TaskWorker], stores: Sequence[str], made: SplitState) -> None:
    for partition, worker in own.items():
        for store, row, data in worker.rows():
            if store in stores:
                made.add(partition, store, row, data)


def _divide(
    plan: ReshardPlan,
    subtopology: Subtopology,
    own: Mapping[int, TaskWorker],
    stores: Sequence[str],
    tasks: int,
    made: SplitState,
) -> None:
    routes = {store: StoreRoute(plan, subtopology, store) for store in stores}
    count = task_count(plan.tasks, subtopology.id)
    for partition, worker in own.items():
        for store, rows in _by_store(worker.rows()):
            if store in routes:
                routes[store].check(f"{subtopology.id}_{partition}", partition, count, rows)
    choose: dict[str, Callable[[bytes], int | None]] = {store: route.split(tasks) for store, route in routes.items()}
    for worker in own.values():
        for store, row, data in worker.rows():
            if store not in choose:
                continue
            target = choose[store](row)
            if target is None:
                made.add_to_all(store, data)
            else:
                made.add(target, store, row, data)


def _by_store(rows: Iterable[_Row]) -> Iterator[tuple[str, Iterator[tuple[bytes, bytes]]]]:
    from itertools import groupby

    for store, group in groupby(rows, key=lambda row: row[0]):
        yield store, ((row, data) for _, row, data in group)
