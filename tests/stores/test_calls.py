"""The calls of every kind of store are counted, each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
    key_value_store,
    list_store,
    session_store,
    versioned_store,
    window_store,
)
from penstock.store.kinds.key_value import lru_map
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend

from .context import TestContext

WINDOWS: dict[str, Any] = {"retention": "1h", "window_size": "5ms"}
KINDS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "text keys": (key_value_store("s", key_serde="str"), lambda s: s.get("a"), lambda s: s.put("a", 1)),
    "int keys": (key_value_store("s", key_serde="int"), lambda s: s.get(1), lambda s: s.put(1, 1)),
    "timestamped": (
        key_value_store("s", timestamped=True), lambda s: s.get("a"), lambda s: s.put("a", ValueAndTimestamp(1, 1)),
    ),
    "headers": (
        key_value_store("s", headers=True), lambda s: s.get("a"),
        lambda s: s.put("a", ValueTimestampHeaders(1, 1, ())),
    ),
    "ttl": (key_value_store("s", ttl="1h"), lambda s: s.get("a"), lambda s: s.put("a", 1)),
    "windows": (window_store("s", **WINDOWS), lambda s: s.fetch("a", 5), lambda s: s.put("a", 1, 5)),
    "duplicates": (
        window_store("s", retain_duplicates=True, **WINDOWS), lambda s: s.fetch("a", 0, 5), lambda s: s.put("a", 1, 5),
    ),
    "sessions": (
        session_store("s", retention="1h"), lambda s: s.find_sessions("a", 0, 9),
        lambda s: s.put(Windowed("a", 1, 2), 1),
    ),
    "removed sessions": (
        session_store("s", retention="1h"), lambda s: s.find_sessions("a", 0, 9),
        lambda s: s.remove(Windowed("a", 1, 2)),
    ),
    "versions": (versioned_store("s", history_retention="1h"), lambda s: s.get("a"), lambda s: s.put("a", 1, 5)),
    "lists": (list_store("s"), lambda s: s.get("a"), lambda s: s.add("a", 1)),
    "lru map": (lru_map("s", max_entries=9), lambda s: s.get("a"), lambda s: s.put("a", 1)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_each_call_counts_once(kind: str) -> None:
    spec, get, put = KINDS[kind]
    context = TestContext()
    backend = MemoryBackend.ephemeral(["s", "i"])
    context.fixed_options = spec.traits.fixed_options
    context.given_index = CommitBuffer(backend, "i")
    buffer = CommitBuffer(backend, "s")
    store = spec.build(buffer, context)
    buffer.count(store.calls, lambda: 0.0)
    assert store.calls.take() == []
    for _ in range(3):
        get(store)
        put(store)
        get(store)
    assert store.calls.take()[:2] == [6, 3]
    put(store)
    assert store.calls.take()[:2] == [0, 1]
    store.flush()
    buffer.save()
    store.discard()
    get(store)
    assert store.calls.take()[:1] == [1]


def test_reads_of_the_backend_are_counted_and_some_are_timed() -> None:
    seconds = iter(range(100))
    buffer = CommitBuffer(MemoryBackend.ephemeral(["s"]), "s")
    store: Any = key_value_store("s", key_serde="int").build(buffer, TestContext())
    buffer.count(store.calls, lambda: next(seconds))
    for key in [*range(16), *range(16)]:
        store.get(key)
    assert store.calls.take() == [32, 0, 16, 16], "the sixteenth took a second, and stands for all"
