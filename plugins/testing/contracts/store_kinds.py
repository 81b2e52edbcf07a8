"""The tests that every store backend must pass with each kind of store; subclass `StoreKindsContract` to run them."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import (
    StoreBackend,
    StoreBackendFactory,
    Windowed,
    key_value_store,
    list_store,
    lru_map,
    session_store,
    versioned_store,
    window_store,
)
from penstock.plugins.engine.task.local_state.store_context import TaskStoreContext
from penstock.store.record_cache import CacheBudget, RecordCache
from penstock.store.state_store import built_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend
from penstock.support.names import index_name
from penstock.support.repeats import Repeats

from .expectations import declared


class MisuseError(AssertionError):
    """The suite is wrong, or the store writes no valid row: further calls do not help."""


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
        """Write the changes, as a commit does."""
        self.store.flush()
        changes = {buffer.name: buffer.local_changes(buffer.changes()) for buffer in self._buffers}
        version = self._backend.version()
        self._backend.write({name: rows for name, rows in changes.items() if rows}, version, f"{version or ''}x")
        for buffer in self._buffers:
            buffer.clear()

    def fail(self) -> None:
        """Drop uncommitted changes of a store that stays open."""
        self.store.discard()
        for buffer in self._buffers:
            buffer.clear()

    def open_again(self) -> None:
        """Close the store, and open it from committed rows."""
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
        """Return the changes of the next commit."""
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


_SERDES: dict[str, Any] = {"key_serde": "str", "value_serde": "int"}

SPECS: dict[str, Any] = {
    "key_value": key_value_store("s", **_SERDES),
    "key_value with a TTL": key_value_store("s", ttl="20ms", **_SERDES),
    "window": window_store("s", retention="40ms", window_size="10ms", **_SERDES),
    "window with duplicates": window_store(
        "s", retention="40ms", window_size="10ms", retain_duplicates=True, **_SERDES
    ),
    "session": session_store("s", retention="40ms", **_SERDES),
    "versioned": versioned_store("s", history_retention="30ms", **_SERDES),
    "list": list_store("s", **_SERDES),
    "lru_map": lru_map("s", max_entries=3, **_SERDES),
}
"""By a name: a store of each kind that comes with penstock."""

_KEYS = st.sampled_from(["", "a", "a\0", "ab", "b", "long" * 100])
_VALUES = st.integers(0, 9)
_TIMES = st.integers(0, 120)
_PUT_OR_DELETE = st.tuples(st.just("put"), _KEYS, _VALUES | st.none())
_KEY_VALUE = st.one_of(
    _PUT_OR_DELETE,
    st.tuples(st.just("get"), _KEYS),
    st.tuples(st.sampled_from(["range", "reverse_range"]), _KEYS, _KEYS),
    st.tuples(st.just("all")),
)

CALLS: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "key_value": _KEY_VALUE,
    "key_value with a TTL": _KEY_VALUE,
    "lru_map": _KEY_VALUE,
    "window": st.one_of(
        st.tuples(st.just("put"), _KEYS, _VALUES | st.none(), _TIMES),
        st.tuples(st.just("fetch"), _KEYS, _TIMES),
        st.tuples(st.sampled_from(["fetch", "backward_fetch"]), _KEYS, _TIMES, _TIMES),
        st.tuples(st.sampled_from(["fetch_range", "backward_fetch_range"]), _KEYS, _KEYS, _TIMES, _TIMES),
        st.tuples(st.sampled_from(["all", "backward_all"])),
    ),
    "session": st.one_of(
        st.tuples(
            st.just("put"),
            st.builds(
                lambda key, start, length: Windowed(key, start, start + length), _KEYS, _TIMES, st.integers(0, 20)
            ),
            _VALUES | st.none(),
        ),
        st.tuples(st.sampled_from(["fetch", "backward_fetch"]), _KEYS),
        st.tuples(st.just("find_sessions"), _KEYS, _TIMES, _TIMES),
        st.tuples(st.sampled_from(["fetch_range", "backward_fetch_range"]), _KEYS, _KEYS),
    ),
    "versioned": st.one_of(
        st.tuples(st.just("put"), _KEYS, _VALUES | st.none(), _TIMES),
        st.tuples(st.just("delete"), _KEYS, _TIMES),
        st.tuples(st.just("get"), _KEYS),
        st.tuples(st.just("get"), _KEYS, _TIMES),
        st.tuples(st.just("get"), _KEYS, _TIMES, _TIMES),
    ),
    "list": st.one_of(
        st.tuples(st.just("add"), _KEYS, _VALUES),
        st.tuples(st.just("delete"), _KEYS),
        st.tuples(st.just("get"), _KEYS),
        st.tuples(st.just("all")),
    ),
}
"""By the name of a store: the calls."""
CALLS["window with duplicates"] = CALLS["window"]

_STEPS = ("commit", "fail", "open again")


class StoreKindsContract:
    """The demands of each kind of store on a backend, as tests; run them in a test class of yours.

    A store over the backend answers as one over the backend `memory`, through commits, failed commits and re-openings.

    >>> from penstock.stores.lmdb import LmdbBackend
    >>> class TestKindsOverLmdb(StoreKindsContract):
    ...     open = staticmethod(LmdbBackend)

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

    open: StoreBackendFactory = declared("the backend's class or function, as a staticmethod")
    """The backend: its class or function, as a `staticmethod`."""
    examples: ClassVar[int] = 40
    """How many random histories are tried for each kind of store."""

    @pytest.mark.parametrize("name", SPECS)
    def test_any_history_of_a_kind(self, name: str) -> None:
        """Every call answers as over the backend `memory`."""
        steps = st.lists(st.one_of(CALLS[name], CALLS[name], st.sampled_from(_STEPS)), min_size=40, max_size=80)

        # Without shrinking, which would take minutes on a slow backend: the message names the call that went wrong.
        @settings(
            max_examples=self.examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        @given(steps)
        def check(history: Sequence[Any]) -> None:
            with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as memory:
                store, model = (
                    StoreUnderTest(SPECS[name], type(self).open, own),
                    StoreUnderTest(SPECS[name], MemoryBackend, memory),
                )
                try:
                    for number, step in enumerate(history):
                        store.now = model.now = number
                        found, expected = _do(store, step), _do(model, step)
                        assert found == expected, f"step {number}, {step}: {found}, expected {expected}"
                finally:
                    store.close()
                    model.close()

        check()


def _do(store: StoreUnderTest, step: Any) -> Any:
    ends = {"commit": store.commit, "fail": store.fail, "open again": store.open_again}
    return ends[step]() if isinstance(step, str) else store.call(*step)
