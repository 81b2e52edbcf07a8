"""Compares a task's local state on this machine with its changelog, row by row, while the task may run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from penstock import Application, StoreError, StoreView
from penstock.hooks import registry
from penstock.plugins.engine.task.locations import Places, live_directory

from .replica import Replica

_MOST_TRIES = 100
_FREEING = frozenset({"window", "session", "versioned", "timers"})
"""The kinds that free rows on this machine which they do not delete in a changelog directory."""


@dataclass
class Comparison:
    """The rows of a store in the local state and in the changelog, both at `version`.

    `rows`: how many are the same. `freed`: how many the local state has freed, because they had expired. The others are
    faults, by key (bytes): `differing` have another value, `missing` are not in the local state, `added` only there.
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
    """Compare the stores of a replica with the local state of its task; bring the replica to the same version before.

    The local state is read in one transaction of its store backend, so the task may go on meanwhile. Raises StoreError
    where this machine has no local state of the task, where a backend cannot be read beside its task, and where the
    task commits too fast or its local state is old.
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
    """Return the local state of each store of a replica, as it is now; `stack` closes it."""
    root = Places.of(application).task(replica.task)
    by_backend: dict[str, list[str]] = {}
    for store, kept in replica.layout.items():
        by_backend.setdefault(kept.backend, []).append(store)
    views: dict[str, StoreView] = {}
    for name, stores in by_backend.items():
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
