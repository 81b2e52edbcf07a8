"""A store of any kind over a backend, with the commits, failures and openings that a task would make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock import StoreBackend
from penstock.plugins.engine.task.local_state.store_context import TaskStoreContext
from penstock.store.record_cache import CacheBudget, RecordCache
from penstock.store.state_store import built_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.support.names import index_name
from penstock.support.repeats import Repeats


class MisuseError(AssertionError):
    """The suite is wrong, or the store writes what is no row: another call does not show more."""


def everything(answer: Any) -> Any:
    """Return an answer, with all that it iterates over as a list."""
    is_whole = isinstance(answer, str | bytes | tuple | list | dict | set | frozenset)
    return list(answer) if hasattr(answer, "__iter__") and not is_whole else answer


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
        return everything(self.begin(method, *given))

    def begin(self, method: str, *given: Any) -> Any:
        """Call a method of the store. Raises MisuseError where the store has no such method with such arguments."""
        called = getattr(self.store, method, None)
        kind = type(self.store).__name__
        if not callable(called):
            raise MisuseError(f"`calls` has {method!r}, and the store {self.spec.name!r} ({kind}) has no such method")
        try:
            inspect.signature(called).bind(*given)
        except TypeError as error:
            raise MisuseError(
                f"`calls` has {(method, *given)!r}, and {kind}.{method} takes other arguments: {error}"
            ) from None
        except ValueError:
            pass  # written in C, and does not say
        return called(*given)

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

    def beside(self) -> StoreUnderTest:
        """Open the same rows another time, as another process does."""
        return StoreUnderTest(self.spec, self._factory, str(self._directory))

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
        self._buffers = [_Rows(self._backend, name, self.spec) for name in self._names]
        traits = self.spec.traits
        context = TaskStoreContext(
            "contract", "0_0", "msgpack", traits.fixed_options, lambda: self.now, lambda: self.now,
            lambda reason, count: None, self._buffers[1], traits.expires, RecordCache(self.spec.name, CacheBudget(0)),
            Repeats(lambda: self.now),
        )  # fmt: skip
        self.store: Any = built_store(self.spec, self._buffers[0], context)


class _Rows(CommitBuffer):
    """What a store has below it; refuses rows that are no bytes, which a task would write as something else."""

    def __init__(self, backend: StoreBackend, name: str, spec: Any) -> None:
        super().__init__(backend, name)
        self._spec = spec

    def get(self, key: bytes) -> bytes | None:
        self._check("get", key)
        return super().get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        self._check("put", key, *([] if value is None else [value]))
        super().put(key, value)

    def put_all(self, entries: Mapping[bytes, bytes | None]) -> None:
        for key, value in entries.items():
            self._check("put_all", key, *([] if value is None else [value]))
        super().put_all(entries)

    def _check(self, method: str, *parts: object) -> None:
        for part in parts:
            if type(part) is not bytes:
                raise MisuseError(
                    f"store {self._spec.name!r} ({type(self._spec).__name__}): {method} of the BytesStore below got "
                    f"{part!r}: keys and values of rows are bytes, and no text, number or other buffer; encode it"
                )
