"""The LMDB environments that this process has open: each directory once, because LMDB forbids to open one twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakSet

from .environment import SharedEnvironment

_environments: dict[str, SharedEnvironment] = {}
_alive: WeakSet[SharedEnvironment] = WeakSet()
_registry = threading.RLock()


def acquire(
    directory: Path, stores: Sequence[str], map_size: int, largest_map_size: int, read_only: bool, timeout: float
) -> SharedEnvironment:
    """Return the environment of `directory`, opening it if this process has not; `release` it later."""
    path = os.path.realpath(directory)
    with _registry:
        shared = _environments.get(path)
        if shared is None or not shared.is_here():  # another process may have removed or rebuilt the files
            shared = SharedEnvironment(path, map_size, largest_map_size)
            _alive.add(shared)
        try:
            shared.open(stores, read_only, timeout)
        except BaseException:
            if not shared.users:
                shared.close()
            raise
        _environments[path] = shared
        shared.users += 1
        return shared


def share(shared: SharedEnvironment) -> None:
    """Keep an environment open for one more user, until `release`."""
    with _registry:
        shared.users += 1


def release(shared: SharedEnvironment) -> None:
    """Give an environment back; the last one closes it."""
    with _registry:
        shared.users -= 1
        if shared.users == 0:
            if _environments.get(shared.directory) is shared:
                del _environments[shared.directory]
            shared.close()


def destroy(shared: SharedEnvironment) -> None:
    """Close an environment for everybody in this process, and delete it."""
    with _registry:
        if _environments.get(shared.directory) is shared:
            del _environments[shared.directory]
        shared.destroy()


def _forget_all() -> None:
    global _registry
    _registry = threading.RLock()  # another thread of the parent may hold it
    for shared in list(_alive):
        shared.forget()
    _environments.clear()


os.register_at_fork(after_in_child=_forget_all)
