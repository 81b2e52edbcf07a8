"""A store of any kind over a backend, with the commits, failures and openings that a task would make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import StoreBackend
from penstock.plugins.runtime.local_state.store_context import TaskStoreContext
from penstock.store.record_cache import CacheBudget, RecordCache
from penstock.stores.commit_buffer import CommitBuffer
from penstock.support.names import index_name
from penstock.support.repeats import Repeats


class StoreUnderTest:
    """A store over a backend in a directory; `now` is its stream time and wall clock, in ms."""

    def __init__(self, spec: Any, factory: Callable[..., StoreBackend], directory: str) -> None:
        self.spec = spec
        self._factory = factory
        self._directory = Path(directory)
        self.now = 0
        self._open()

    def call(self, method: str, *given: Any) -> Any:
        """Call a method of the store; return the answer, with everything that it iterates over."""
        answer = getattr(self.store, method)(*given)
        is_whole = isinstance(answer, str | bytes | tuple | list | dict | set | frozenset)
        return list(answer) if hasattr(answer, "__iter__") and not is_whole else answer

    def commit(self) -> None:
        """Write what was changed, as a commit does."""
        self.store.flush()
        changes = {buffer.name: buffer.local_changes(buffer.changes()) for buffer in self._buffers}
        version = self._backend.version()
        self._backend.write({name: rows for name, rows in changes.items() if rows}, version, f"{version or ''}x")
        for buffer in self._buffers:
            buffer.clear()

    def fail(self) -> None:
        """Drop what was not committed, where the store stays open."""
        self.store.discard()
        for buffer in self._buffers:
            buffer.clear()

    def open_again(self) -> None:
        """Close the store, and open it from what was committed."""
        self.close()
        self._open()

    def move(self, directory: str) -> None:
        """Close the store, and open it in a fresh directory with its rows: the index is to be built again."""
        rows = self.rows()
        self.close()
        self._directory = Path(directory)
        backend = self._factory(self._directory, self._names)
        backend.write({self.spec.name: sorted(rows.items())}, None, "moved")
        backend.close()
        self._open()

    def rows(self) -> dict[bytes, bytes]:
        """Return the committed rows."""
        return dict(self._backend.range(self.spec.name))

    def uncommitted(self) -> dict[bytes, bytes | None]:
        """Return what the next commit would write."""
        return dict(self._buffers[0].changes())

    def close(self) -> None:
        """Close the store and its backend."""
        self.store.close()
        self._backend.close()

    def _open(self) -> None:
        self._names = [self.spec.name, index_name(self.spec.name)]
        self._backend = self._factory(self._directory, self._names)
        self._buffers = [CommitBuffer(self._backend, name) for name in self._names]
        traits = self.spec.traits
        context = TaskStoreContext(
            "contract", "0_0", "msgpack", traits.fixed_options, lambda: self.now, lambda: self.now,
            lambda reason, count: None, self._buffers[1], traits.expires, RecordCache(self.spec.name, CacheBudget(0)),
            Repeats(lambda: self.now),
        )  # fmt: skip
        self.store: Any = self.spec.build(self._buffers[0], context)
