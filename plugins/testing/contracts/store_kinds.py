"""The tests that every store backend must pass with each kind of store; subclass `StoreKindsContract` to run them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import (
    StoreBackendFactory,
    Windowed,
    key_value_store,
    list_store,
    lru_map,
    session_store,
    versioned_store,
    window_store,
)
from penstock.stores.memory import MemoryBackend

from .expectations import declared
from .store_under_test import StoreUnderTest

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
"""By the name of a store: what is called."""
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
    """Call a method of the store, or end a commit; return the answer."""
    if step == "commit":
        return store.commit()
    if step == "fail":
        return store.fail()
    if step == "open again":
        return store.open_again()
    return store.call(*step)
