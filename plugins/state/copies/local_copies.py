"""Copies of a task's stores on this machine: its local state, and the replicas of commands."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock import Application, StoreError
from penstock.changelog import is_version
from penstock.hooks import registry
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.engine.task.local_state.backends import OF_REPLICA
from penstock.plugins.engine.task.locations import Places, live_directory

_log = logging.getLogger("penstock.replicas")


@dataclass(frozen=True)
class LocalCopy:
    """A copy of stores of a task, as one store backend has them.

    `kind`: "local state", "standby" (which its task has not opened since) or "replica". `version`: None while it is
    restored. `entries`: about how many each store has. `bytes`: of the files in `directory`.
    """

    kind: str
    directory: Path
    version: str | None
    entries: Mapping[str, int]
    bytes: int


def local_copies(application: Application, task: SavedTask) -> list[LocalCopy]:
    """Return the copies of a task's stores on this machine, without changing any.

    Left out: those on a backend that only one process can open, while it is open, and those in the memory of others.
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
    found = []
    for kind, directory, stores in kinds:
        for backend in sorted({task.layouts.now[store].backend for store in stores}):
            own = [store for store in stores if task.layouts.now[store].backend == backend]
            live = live_directory(directory / backend)
            copy = None if live is None else _copy(kind, backend, live, own)
            if copy is not None:
                found.append(copy)
    return found


def _copy(kind: str, backend: str, directory: Path, stores: list[str]) -> LocalCopy | None:
    try:
        with closing(registry().load("store backend", backend)(directory, stores, read_only=True)) as opened:
            version = opened.version()
            entries = {store: opened.approximate_count(store) for store in stores}
    except StoreError as error:
        _log.debug("%s: %s", directory, error)
        return None
    size = sum(each.stat().st_size for each in directory.iterdir() if each.is_file())
    if version is None:
        return None
    return LocalCopy(kind, directory, version if is_version(version) else None, entries, size)
