"""Copies of a task's stores on this machine, and their comparison with the changelog."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Application, StoreError, StoreView, is_version
from penstock.hooks import registry
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.engine.task.local_state.backends import OF_REPLICA
from penstock.plugins.engine.task.locations import Places, live_directory
from penstock.store.kept_store import Layout

from .replica import Replica

_log = logging.getLogger("penstock.replicas")
_MOST_TRIES = 100
_FREEING = frozenset({"window", "session", "versioned", "timers"})
"""The kinds that free rows on this machine which they do not delete in a changelog directory."""


@dataclass(frozen=True)
class LocalCopy:
    """A copy of stores of a task in one store backend.

    `kind`: "local state", "standby" (its task has not opened it since) or "replica". `version`: None while it is
    restored. `entries`: about how many each store has. `bytes`: of its files.
    """

    kind: str
    directory: Path
    version: str | None
    entries: Mapping[str, int]
    bytes: int


def local_copies(application: Application, task: SavedTask) -> list[LocalCopy]:
    """Return the copies of a task's stores on this machine, without changing any.

    Left out: open ones on a backend for one process, and those in the memory of other processes.
    """
    places = Places.of(application)
    own_directory = places.task(task.id)
    first = "standby" if (own_directory / OF_REPLICA).exists() else "local state"
    kinds = [(first, own_directory, sorted(task.layouts.now))]
    kinds += [
        ("replica", places.replica(store, task.id), [store])
        for store, kept in sorted(task.layouts.now.items())
        if kept.logged
    ]
    copies = [
        _copy(kind, backend, live_directory(directory / backend), own)
        for kind, directory, stores in kinds
        for backend, own in sorted(_by_backend(stores, task.layouts.now).items())
    ]
    return [copy for copy in copies if copy is not None]


def _by_backend(stores: Iterable[str], layout: Layout) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for store in stores:
        found.setdefault(layout[store].backend, []).append(store)
    return found


def _copy(kind: str, backend: str, directory: Path | None, stores: list[str]) -> LocalCopy | None:
    if directory is None:
        return None
    try:
        with closing(registry().load("store backend", backend)(directory, stores, read_only=True)) as opened:
            version = opened.version()
            entries = {store: opened.approximate_count(store) for store in stores}
    except StoreError as error:
        _log.debug("%s: %s", directory, error)
        return None
    if version is None:
        return None
    size = sum(each.stat().st_size for each in directory.iterdir() if each.is_file())
    return LocalCopy(kind, directory, version if is_version(version) else None, entries, size)


@dataclass
class Comparison:
    """The rows of a store in the local state and in the changelog, both at `version`.

    `rows` are the same; `freed` have expired, and the local state has freed them. Faults, by key (bytes): `differing`
    have another value, `missing` are not in the local state, `added` only there.
    """

    task: str
    store: str
    version: str
    rows: int = 0
    freed: int = 0
    differing: list[bytes] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    added: list[bytes] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether there is no fault."""
        return not (self.differing or self.missing or self.added)


def compare(application: Application, replica: Replica) -> list[Comparison]:
    """Bring a replica to the version of its task's local state, and compare all stores; the task may run meanwhile.

    Raises StoreError where this machine has no local state of the task, where a backend cannot be read beside its task,
    and where the task commits too fast or its local state is old.
    """
    for _ in range(_MOST_TRIES):
        replica.catch_up()
        with ExitStack() as stack:
            views = _views(application, replica, stack)
            version = replica.version
            if version is not None and all(view.version == version for view in views.values()):
                return [
                    _compared(Comparison(replica.task, store, version), view, replica)
                    for store, view in sorted(views.items())
                ]
            found = {view.version for view in views.values()}
    raise StoreError(
        f"task {replica.task} of application {application.id!r}: its local state here is at "
        f"{', '.join(sorted(map(str, found)))}, and the last commit is {version}: it commits faster than its records "
        "can be read, or it runs on another machine now: run this there, or when it rests"
    )


def _views(application: Application, replica: Replica, stack: ExitStack) -> dict[str, StoreView]:
    """Return a view of each store of a replica; `stack` closes the views."""
    root = Places.of(application).task(replica.task)
    views: dict[str, StoreView] = {}
    for name, stores in _by_backend(replica.layout, replica.layout).items():
        factory, directory = registry().load("store backend", name), live_directory(root / name)
        if directory is None:
            raise StoreError(
                f"this machine has no local state of task {replica.task} of application {application.id!r} under "
                f"{root}: run this where the task runs"
            )
        backend = stack.enter_context(closing(factory(directory, stores, read_only=True)))
        view = backend.view(stores)
        if view is None:
            raise StoreError(
                f"store backend {name!r} cannot be read beside its task: stores {', '.join(sorted(stores))} cannot be "
                "compared; --store chooses others"
            )
        stack.callback(view.close)
        views.update(dict.fromkeys(stores, view))
    return views


def _compared(result: Comparison, view: StoreView, replica: Replica) -> Comparison:
    kept_store = replica.layout[result.store]
    frees = kept_store.has_index or kept_store.kind in _FREEING
    for key, local, kept in beside(view.range(result.store), replica.backend(result.store).range(result.store)):
        if local == kept:
            result.rows += 1
        elif local is None and frees:
            result.freed += 1
        else:
            (result.missing if local is None else result.added if kept is None else result.differing).append(key)
    return result


def beside(
    first: Iterator[tuple[bytes, bytes]], second: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Yield each key of two sorted iterators with both values, None where one has none."""
    left, right = next(first, None), next(second, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield left[0], left[1], None
            left = next(first, None)
        elif left is None or right[0] < left[0]:
            yield right[0], None, right[1]
            right = next(second, None)
        else:
            yield left[0], left[1], right[1]
            left, right = next(first, None), next(second, None)
