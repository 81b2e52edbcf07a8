"""An LRU map answers as an ordered dict that drops its first entry would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock import SerdeError, StoreError, lru_map
from penstock.store.envelope import unwrap
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend

from .context import TestContext
from .stored import Stored, check

KEYS = st.sampled_from(["", "a", "ab", "b", "c", "\0", "x" * 300])
VALUES = st.sampled_from([1, "text", "long" * 100, [1, 2], {"a": 1}])
SIZE = 3


class Lru(Stored):
    """`seen` has the entries in the order of their uses, and `committed` in that of their puts."""

    @initialize()
    def begin(self) -> None:
        self.seen: dict[str, Any] = {}
        self.put_order: list[str] = []
        self.committed: dict[str, Any] = {}

    def take_over(self) -> None:
        self.seen = dict(self.committed)
        self.put_order = list(self.seen)
        assert [raw.decode() for raw in self.store._known()] == self.put_order

    def commit_model(self) -> None:
        self.committed = {key: self.seen[key] for key in self.put_order if key in self.seen}

    def use(self, key: str) -> Any:
        if key in self.seen:
            self.seen[key] = self.seen.pop(key)
        return self.seen.get(key)

    def note(self, key: str, value: Any) -> None:
        self.seen.pop(key, None)
        if value is None:
            return
        self.seen[key] = value
        self.put_order = [*(each for each in self.put_order if each != key), key]
        if len(self.seen) > SIZE:
            del self.seen[next(iter(self.seen))]

    @rule(key=KEYS, value=VALUES | st.none())
    def put(self, key: str, value: Any) -> None:
        self.store.put(key, value)
        self.note(key, value)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        assert self.store.get(key) == self.use(key)

    @rule(key=KEYS, value=VALUES)
    def put_if_absent(self, key: str, value: Any) -> None:
        old = self.use(key)
        assert self.store.put_if_absent(key, value) == old
        if old is None:
            self.note(key, value)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.store.delete(key) == self.use(key)
        self.note(key, None)

    @rule(entries=st.lists(st.tuples(KEYS, VALUES), max_size=5))
    def put_all(self, entries: list[tuple[str, Any]]) -> None:
        self.store.put_all(entries)
        for key, value in entries:
            self.note(key, value)

    @rule(start=KEYS | st.none(), end=KEYS | st.none(), reverse=st.booleans())
    def scan(self, start: str | None, end: str | None, reverse: bool) -> None:
        expected = [key for key in self.seen if (start or "") <= key and (end is None or key <= end)]
        with (self.store.reverse_range if reverse else self.store.range)(start, end) as entries:
            assert list(entries) == [(key, self.seen[key]) for key in sorted(expected, reverse=reverse)]

    @rule(prefix=st.sampled_from(["", "a"]))
    def scan_prefix(self, prefix: str) -> None:
        expected = [(key, self.seen[key]) for key in sorted(self.seen) if key.startswith(prefix)]
        assert list(self.store.prefix_scan(prefix)) == expected

    @rule()
    def count(self) -> None:
        assert self.store.approximate_count() == len(self.seen)


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_any_history(backend: str) -> None:
    check(Lru, lru_map("s", max_entries=SIZE, key_serde="str"), backend)


def test_puts_of_several_openings_are_in_one_order(tmp_path: Path) -> None:
    backend = MemoryBackend(tmp_path, ["s"])
    version = backend.version()
    spec = lru_map("s", max_entries=5, key_serde="str")
    for number, key in enumerate("abca"):
        buffer = CommitBuffer(backend, "s")
        store: Any = spec.build(buffer, TestContext())
        store.put(key, number)
        backend.write({"s": buffer.changes()}, version, str(number))
        version = str(number)
    opened: Any = spec.build(CommitBuffer(backend, "s"), TestContext())
    assert list(opened._known()) == [b"b", b"c", b"a"]


def test_a_later_program_may_have_fewer_entries(tmp_path: Path) -> None:
    buffer = CommitBuffer(MemoryBackend(tmp_path, ["s"]), "s")
    store: Any = lru_map("s", max_entries=5, key_serde="str").build(buffer, TestContext())
    store.put_all([(each, each) for each in "ebdca"])
    store = lru_map("s", max_entries=2, key_serde="str").build(buffer, TestContext())
    assert store.get("d") == "d"
    store.put("f", "f")
    assert [key for key, _ in store.all()] == ["d", "f"]


def test_the_value_in_the_changelog_is_that_of_a_key_value_store(tmp_path: Path) -> None:
    buffer = CommitBuffer(MemoryBackend(tmp_path, ["s"]), "s")
    store: Any = lru_map("s", max_entries=5, key_serde="str", value_serde="str").build(buffer, TestContext())
    store.put("a", "x")
    [(key, data)] = buffer.changes()
    assert (key, unwrap(data or b"").value) == (b"a", b"x")


def test_wrong_use_names_the_store(tmp_path: Path) -> None:
    for wrong in (0, -1, 1.5, True, "10"):
        number: Any = wrong
        with pytest.raises(StoreError, match=r"'s'.*above 0"):
            lru_map("s", max_entries=number)
    buffer = CommitBuffer(MemoryBackend(tmp_path, ["s"]), "s")
    store: Any = lru_map("s", max_entries=1, key_serde="str", value_serde="int").build(buffer, TestContext())
    store.put("a", 1)
    with pytest.raises(StoreError, match=r"'s'.*key of None"):
        store.get(None)
    with pytest.raises(SerdeError, match=r"'s'.*the value of"):
        store.put("b", "text")
    assert list(store.all()) == [("a", 1)]
