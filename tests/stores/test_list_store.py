"""A list store answers as a dict of lists would, in the order of serialized keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock import StoreError, list_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds import list_store as list_store_layer
from penstock.stores.memory import MemoryBackend

from .context import TestContext
from .stored import Stored, check

KEYS = st.sampled_from([b"", b"\x00", b"\x00\x00", b"\x00\xff", b"a", b"a\x00", b"a\x00\x00", b"ab", b"\xff" * 9])
VALUES = st.sampled_from([1, "", "text", "long" * 100, [1, 2]])


class Lists(Stored):
    """`seen` is what was added, by key."""

    @initialize(few_keys=st.lists(KEYS, min_size=1, max_size=3))
    def begin(self, few_keys: list[bytes]) -> None:
        self.few_keys = few_keys
        self.seen: dict[bytes, list[Any]] = {}
        self.commit_model()

    def take_over(self) -> None:
        self.seen = {key: list(values) for key, values in self.committed.items()}

    def commit_model(self) -> None:
        self.committed = {key: list(values) for key, values in self.seen.items()}

    def listed(self, low: bytes | None = None, high: bytes | None = None) -> list[tuple[bytes, Any]]:
        keys = (key for key in sorted(self.seen) if (low or b"") <= key and (high is None or key <= high))
        return [(key, value) for key in keys for value in self.seen[key]]

    @rule(data=st.data(), values=st.lists(VALUES, min_size=1, max_size=3))
    def add(self, data: st.DataObject, values: list[Any]) -> None:
        key = data.draw(st.sampled_from(self.few_keys))
        for value in values:
            self.store.add(key, value)
            self.seen.setdefault(key, []).append(value)

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.few_keys))
        assert self.store.get(key) == self.seen.get(key, [])

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.store.delete(key)
        self.seen.pop(key, None)

    @rule(start=KEYS | st.none(), end=KEYS | st.none())
    def scan(self, start: bytes | None, end: bytes | None) -> None:
        with self.store.range(start, end) as entries:
            assert list(entries) == self.listed(start, end)

    @rule()
    def look(self) -> None:
        everything = self.listed()
        assert list(self.store.all()) == everything
        assert self.store.first() == (everything[0] if everything else None)
        assert self.store.approximate_count() == len(everything)

    @rule(count=st.integers(0, 4))
    def poll(self, count: int) -> None:
        """Take what comes first, and delete it while iterating."""
        taken = []
        with self.store.all() as entries:
            for number, (key, value) in enumerate(entries):
                if number == count:
                    break
                taken.append((key, value))
                self.store.delete(key)
        assert [key for key, _ in taken] == sorted(key for key, _ in taken)
        for key, _ in taken:
            self.seen.pop(key, None)


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_any_history(backend: str) -> None:
    check(Lists, list_store("s", key_serde="bytes"), backend)


def test_any_history_of_more_values_than_are_known_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_store_layer, "_MOST_KNOWN", 2)
    test_any_history("memory")


def test_wrong_use_names_the_store(tmp_path: Path) -> None:
    buffer = CommitBuffer(MemoryBackend(tmp_path, ["s"]), "s")
    store: Any = list_store("s").build(buffer, TestContext())
    for method, arguments, message in (
        ("add", (None, 1), "key of None"),
        ("add", ("a", None), "value of None"),
        ("get", (None,), "key of None"),
        ("delete", (None,), "key of None"),
    ):
        with pytest.raises(StoreError, match=f"'s'.*{message}"):
            getattr(store, method)(*arguments)
    assert store.first() is None
