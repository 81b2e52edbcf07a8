"""The commit buffer reads as if its changes were in the backend already."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.store import BytesStore
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend

from ..rotation import examples

KEY = st.binary(max_size=2) | st.sampled_from([b"a", b"b", b"c", b"d"])
VALUE = st.binary(max_size=3)


class Buffered(RuleBasedStateMachine):
    """A buffer over a memory backend, and two dicts: what is committed, what is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = MemoryBackend.ephemeral(["s"])
        self.buffer = CommitBuffer(self.backend, "s")
        self.committed: dict[bytes, bytes] = {}
        self.seen: dict[bytes, bytes] = {}
        self.touched: set[bytes] = set()

    @rule(key=KEY, value=VALUE | st.none())
    def put(self, key: bytes, value: bytes | None) -> None:
        self.buffer.put(key, value)
        self.note(key, value)

    @rule(entries=st.dictionaries(KEY, VALUE | st.none(), max_size=5))
    def put_all(self, entries: dict[bytes, bytes | None]) -> None:
        self.buffer.put_all(entries)
        for key, value in entries.items():
            self.note(key, value)

    def note(self, key: bytes, value: bytes | None) -> None:
        self.touched.add(key)
        self.seen.pop(key, None)
        if value is not None:
            self.seen[key] = value

    @rule(key=KEY)
    def get(self, key: bytes) -> None:
        assert self.buffer.get(key) == self.seen.get(key)

    @rule(start=KEY | st.none(), end=KEY | st.none(), reverse=st.booleans())
    def scan(self, start: bytes | None, end: bytes | None, reverse: bool) -> None:
        expected = [
            (key, value)
            for key, value in sorted(self.seen.items(), reverse=reverse)
            if (start is None or start <= key) and (end is None or key < end)
        ]
        assert list(self.buffer.range(start, end, reverse=reverse)) == expected

    @rule(
        reverse=st.booleans(),
        changes=st.lists(st.tuples(KEY, VALUE | st.none()), max_size=8),
        commit_after=st.integers(0, 20),
    )
    def change_while_scanning(
        self, reverse: bool, changes: list[tuple[bytes, bytes | None]], commit_after: int
    ) -> None:
        before = dict(self.seen)
        found = []
        for number, entry in enumerate(self.buffer.range(reverse=reverse)):
            found.append(entry)
            if number < len(changes):
                self.put(*changes[number])
            if number == commit_after:
                self.commit()
        touched = {key for key, _ in changes[: len(found)]}
        keys = [key for key, _ in found]
        assert keys == sorted(set(keys), reverse=reverse)
        assert {key: value for key, value in found if key not in touched} == {
            key: value for key, value in before.items() if key not in touched
        }

    @rule(reverse=st.booleans())
    def drop_half_way(self, reverse: bool) -> None:
        half = len(self.seen) // 2
        assert (
            list(islice(self.buffer.range(reverse=reverse), half)) == sorted(self.seen.items(), reverse=reverse)[:half]
        )

    @rule()
    def count(self) -> None:
        assert self.buffer.approximate_count() == len(self.seen)

    @rule()
    def commit(self) -> None:
        changes = self.buffer.changes()
        assert [key for key, _ in changes] == sorted(self.touched)
        assert len(self.buffer) == len(self.touched)
        assert (self.buffer.size_bytes > 0) == bool(self.touched)
        version = self.backend.version() or ""
        self.backend.write({"s": changes}, self.backend.version(), version + "x")
        self.buffer.clear()
        self.committed = dict(self.seen)
        self.touched.clear()
        assert self.buffer.size_bytes == 0
        assert self.buffer.changes() == []

    @rule()
    def fail(self) -> None:
        self.buffer.clear()
        self.seen = dict(self.committed)
        self.touched.clear()


TestBuffered = Buffered.TestCase
TestBuffered.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("written", [True, False])
def test_a_commit_in_the_middle_of_a_scan(written: bool, begun: bool) -> None:
    """What it deletes does not come back, and what it gives up does."""
    backend = MemoryBackend.ephemeral(["s"])
    backend.write({"s": [(b"a", b"1"), (b"b", b"2")]}, backend.version(), "v1")
    buffer = CommitBuffer(backend, "s")
    buffer.put(b"b", None)
    buffer.put(b"c", b"3")
    scan = buffer.range()
    first = [next(scan)] if begun else []
    if written:
        backend.write({"s": buffer.changes()}, "v1", "v2")
    buffer.clear()
    assert first + list(scan) == [(b"a", b"1"), (b"c", b"3") if written else (b"b", b"2")]


def test_the_size_follows_what_is_held(tmp_path: Path) -> None:
    buffer = CommitBuffer(MemoryBackend(tmp_path, ["s"]), "s")
    buffer.put(b"key", b"x" * 1000)
    once = buffer.size_bytes
    assert 1000 < once < 1300
    buffer.put(b"key", b"y" * 1000)
    assert buffer.size_bytes == once
    buffer.put(b"key", None)
    assert buffer.size_bytes == once - 1000
    buffer.put(b"other", b"")
    assert buffer.size_bytes > once - 1000


def test_scanning_after_each_new_key_does_not_sort_anew(tmp_path: Path) -> None:
    """What a windowed operator does for each record."""
    buffer: BytesStore = CommitBuffer(MemoryBackend(tmp_path, ["s"]), "s")
    assert isinstance(buffer, CommitBuffer)
    for number in range(20_000):
        buffer.put(b"%08d" % (number * 7919 % 100_003), b"")
    list(buffer.range(b"5", b"5"))
    sorted_before = buffer._order._blocks
    for number in range(200):
        key = b"%08d" % (number * 7919 % 100_003) + b"x"
        buffer.put(key, b"")
        assert [found for found, _ in buffer.range(key, key + b"\x00")] == [key]
    assert buffer._order._blocks is sorted_before


def test_what_is_freed_is_deleted_on_this_host_and_in_topics_only() -> None:
    backend = MemoryBackend.ephemeral(["s"])
    backend.write({"s": [(key, b"1") for key in (b"a", b"b", b"c")]}, None, "v1")
    buffer = CommitBuffer(backend, "s")
    buffer.put(b"b", b"2")
    buffer.free([b"a", b"b", b"c"])
    buffer.put(b"c", b"3")
    changes = buffer.changes()
    # What was put since the last commit is a deletion like any other: the backend does not have it.
    assert changes == [(b"b", None), (b"c", b"3")]
    assert buffer.local_changes(changes) == [(b"a", None), (b"b", None), (b"c", b"3")]
    assert buffer.topic_changes(changes) == [(b"a", None), (b"b", None), (b"c", b"3")]
    buffer.clear()
    buffer.sweep(None, b"b", 5)
    assert buffer.local_changes([]) == buffer.topic_changes([]) == [(b"a", None)]
