"""Entries of a store with a TTL are gone on time, and leave no waste behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.store import ValueAndTimestamp
from penstock.store_kinds.key_value import KeyValueStore, KeyValueStoreSpec
from penstock.stores.layers.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend

from .context import TestContext


class Stored:
    """A store with a TTL of 100 ms that is committed and re-opened at will."""

    def __init__(self, directory: Path, ttl_ms: int | None = 100, timestamped: bool = False) -> None:
        self.context = TestContext()
        self.backend = MemoryBackend(directory, ["s"])
        self.spec = KeyValueStoreSpec("s", "str", None, ttl_ms=ttl_ms, timestamped=timestamped)
        self.open()

    def open(self) -> None:
        self.buffer = CommitBuffer(self.backend, "s")
        store = self.spec.build(self.buffer, self.context)
        assert isinstance(store, KeyValueStore)
        self.store: KeyValueStore[Any, Any] = store

    def commit(self) -> None:
        self.store.flush()
        version = self.backend.version()
        self.backend.write({"s": self.buffer.changes()}, version, (version or "") + "x")
        self.buffer.clear()


def test_an_entry_is_gone_when_its_time_is_up(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    store, context = stored.store, stored.context
    context.now = 1000
    store.put("a", 1)
    context.now = 1050
    store.put("b", 2)
    context.now = 1099
    assert store.get("a") == 1
    assert dict(store.all()) == {"a": 1, "b": 2}
    context.now = 1100
    assert store.get("a") is None
    assert dict(store.all()) == {"b": 2}
    assert list(store.reverse_range("a", "b")) == [("b", 2)]
    assert list(store.prefix_scan("a")) == []
    assert store.delete("a") is None
    assert store.put_if_absent("a", 3) is None
    assert store.put_if_absent("b", 4) == 2
    context.now = 1151
    assert dict(store.all()) == {"a": 3}


def test_a_put_begins_anew(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    for stored.context.now in range(0, 500, 50):
        stored.store.put("a", 1)
        stored.commit()
        stored.open()
    stored.context.now = 549
    assert stored.store.get("a") == 1
    stored.context.now = 550
    assert stored.store.get("a") is None


def test_timestamps_and_a_ttl_go_together(tmp_path: Path) -> None:
    stored = Stored(tmp_path, timestamped=True)
    stored.context.now = 0
    stored.store.put("a", ValueAndTimestamp([1], 77))
    stored.commit()
    assert stored.store.get("a") == ValueAndTimestamp([1], 77)
    stored.context.now = 100
    assert stored.store.get("a") is None


def test_a_ttl_may_be_switched_on_and_off(tmp_path: Path) -> None:
    stored = Stored(tmp_path, ttl_ms=None)
    stored.store.put("old", 1)
    stored.commit()
    stored.spec = KeyValueStoreSpec("s", "str", None, ttl_ms=100)
    stored.open()
    stored.context.now = 1000
    stored.store.put("new", 2)
    stored.context.now = 5000
    assert dict(stored.store.all()) == {"old": 1}, "what had no expiry keeps having none"
    stored.store.put("newer", 3)
    stored.commit()
    stored.spec = KeyValueStoreSpec("s", "str", None)
    stored.open()
    stored.context.now = 9000
    assert stored.store.get("newer") == 3


def test_before_the_first_record_there_is_no_time_to_expire_by(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.store.put("a", 1)
    stored.context.now = 10**12
    assert stored.store.get("a") == 1


def test_ever_new_keys_do_not_pile_up(tmp_path: Path) -> None:
    """In steady state at most a few times as many entries are kept as are alive, although nobody reads."""
    stored = Stored(tmp_path)
    for number in range(20_000):
        stored.context.now = number
        stored.store.put(f"{number * 7919 % 100_003}", number)
        if number % 1000 == 999:
            stored.commit()
    alive = 100
    assert stored.backend.approximate_count("s") < 10 * alive


def test_a_task_that_is_always_opened_again_sweeps_as_well(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    for number in range(20_000):
        stored.context.now = number
        stored.store.put(f"{number:08}", number)
        if number % 10 == 9:
            stored.commit()
            stored.open()
    assert stored.backend.approximate_count("s") < 1000


def test_a_quiet_store_empties_with_the_commits(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.context.now = 0
    for number in range(1000):
        stored.store.put(f"{number:08}", number)
    stored.context.now = 100
    for _ in range(20):
        stored.commit()
    assert stored.backend.approximate_count("s") == 0
