"""What expires in a window or session store is freed in portions, and costs nothing where nothing expires."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.record import Windowed
from penstock.store import Changes
from penstock.store.kinds.session import session_store
from penstock.store.kinds.window import window_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.memory import MemoryBackend
from penstock.stores.rows import retention

from .windowed_machine import CountingContext

RETENTION = 1000
PORTION = 50


class CountingBackend(MemoryBackend):
    """Counts the rows that are read and deleted."""

    read = deleted = 0

    def get(self, store: str, key: bytes) -> bytes | None:
        self.read += 1
        return super().get(store, key)

    def range(
        self, store: str, start: bytes | None = None, end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for row in super().range(store, start, end, reverse=reverse):
            self.read += 1
            yield row

    def write(self, changes: Changes, previous: str | None, version: str) -> None:
        self.deleted += sum(value is None for rows in changes.values() for _, value in rows)
        super().write(changes, previous, version)


class Kept:
    """A store of either kind, committed at will."""

    def __init__(self, kind: str) -> None:
        spec: Any = {
            "window": window_store("s", retention=f"{RETENTION}ms", window_size="10ms", key_serde="str"),
            "session": session_store("s", retention=f"{RETENTION}ms", key_serde="str"),
            "duplicates": window_store(
                "s", retention=f"{RETENTION}ms", window_size="10ms", key_serde="str", retain_duplicates=True
            ),
        }[kind]
        self.kind = kind
        self.context = CountingContext()
        self.context.fixed_options = spec.traits.fixed_options
        self.backend = CountingBackend.ephemeral(["s"])
        self.buffer = CommitBuffer(self.backend, "s")
        self.store: Any = spec.build(self.buffer, self.context)
        self.logged: list[tuple[bytes, bytes | None]] = []

    def put(self, key: str, at: int) -> None:
        if self.kind != "session":
            self.store.put(key, 1, at)
        else:
            self.store.put(Windowed(key, at, at), 1)

    def commit(self) -> None:
        self.store.flush()
        logged = self.buffer.changes()
        self.logged += logged
        changes = self.buffer.local_changes(logged)
        version = self.backend.version()
        self.backend.write({"s": changes} if changes else {}, version, (version or "") + "x")
        self.buffer.clear()

    def rows(self) -> int:
        return self.backend.approximate_count("s")

    def content(self) -> list[Any]:
        return list(self.store.fetch_range(None, None) if self.kind == "session" else self.store.all())


@pytest.fixture(params=["window", "session", "duplicates"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setattr(retention, "_SWEPT_ENTRIES", PORTION)
    return Kept(request.param)


def fill(kept: Kept, old: int, live: int) -> None:
    """Put `old` entries at time 0, which expire first, and `live` ones later; then let the old ones expire."""
    for number in range(old):
        kept.put(f"old{number}", 0)
    for number in range(live):
        kept.put(f"live{number}", RETENTION - 1)
    kept.commit()
    kept.put("now", RETENTION + RETENTION // 2)
    kept.backend.read = kept.backend.deleted = 0


def test_the_work_is_in_proportion_to_what_expires(kept: Kept) -> None:
    """Not to what is live, and never over live entries."""
    work = {}
    for old, live in itertools.product((100, 400), (10, 3000)):
        each = Kept(kept.kind)
        fill(each, old, live)
        for _ in range(20):
            each.commit()
        assert each.rows() == live + 2  # "now", and the store's own row
        assert each.backend.deleted == old
        work[old, live] = each.backend.read
    assert work[100, 10] == work[100, 3000]
    assert work[400, 10] == work[400, 3000] < 400 + 5 * 20


def test_a_commit_frees_a_portion(kept: Kept) -> None:
    fill(kept, 10 * PORTION, 10)
    rows = kept.rows()
    for number in range(1, 11):
        kept.backend.read = kept.backend.deleted = 0
        kept.commit()
        # As many as it writes, which is one in the first commit, and a portion.
        assert number == 10 or PORTION <= kept.backend.deleted <= PORTION + 1
        assert kept.backend.read <= PORTION + 6
        assert kept.rows() <= rows + 1 - number * PORTION
    kept.commit()
    kept.backend.read = kept.backend.deleted = 0
    kept.commit()
    assert (kept.backend.deleted, kept.backend.read) == (0, 0)


def test_a_large_commit_frees_more_than_it_writes(kept: Kept) -> None:
    """So expired entries do not pile up in a store with many puts."""
    for step in range(100):
        for number in range(200):
            kept.put(f"k{number % 20}", step * RETENTION // 4 + number // 20)
        kept.commit()
    kept.commit()
    live = len(kept.content())
    assert 3 * 200 <= live <= 4 * 200
    assert kept.rows() <= 3 * live


@pytest.mark.parametrize("reads_ranges", [False, True])
def test_what_has_expired_when_it_is_committed_is_never_written(kept: Kept, reads_ranges: bool) -> None:
    """A task that catches up commits hours of stream time at once."""
    for step in range(40):
        for number in range(10):
            if reads_ranges and kept.kind != "session":
                list(kept.store.fetch(f"k{number}", step * RETENTION // 4, step * RETENTION // 4 + 10))
            kept.put(f"k{number}", step * RETENTION // 4 + number)
    content = kept.content()
    kept.commit()
    assert len(kept.logged) == len(content) + 1 == kept.rows()  # and the store's own row
    assert kept.content() == content
    kept.put("late", 0)
    assert kept.context.drops == 1


@pytest.mark.parametrize("reads_ranges", [False, True])
def test_a_deletion_is_written_even_if_the_entry_has_expired_by_the_commit(reads_ranges: bool) -> None:
    """The store below may have the entry, and would count it until it is freed."""
    kept = Kept("window")
    kept.put("k", 0)
    kept.commit()
    if reads_ranges:
        assert list(kept.store.fetch("k", 0, 10)) == [(0, 1)]
    kept.store.put("k", None, 0)
    kept.put("now", 2 * RETENTION)
    assert kept.store.approximate_count() == 1


def test_freeing_is_not_in_the_changelog_and_hides_nothing_that_was_not_hidden(kept: Kept) -> None:
    fill(kept, 120, 10)
    content = kept.content()
    assert len(content) == 11
    for _ in range(10):
        kept.commit()
        assert kept.content() == content
    assert not [key for key, value in kept.logged if value is None]


def test_a_restored_copy_hides_what_the_changelog_still_has(kept: Kept) -> None:
    fill(kept, 120, 10)
    for _ in range(10):
        kept.commit()
    content = kept.content()
    restored = Kept(kept.kind)
    restored.backend.write({"s": sorted(dict(kept.logged).items())}, None, "restored")
    assert restored.rows() == 120 + 12
    assert restored.content() == content
    restored.put("late", 1)
    assert restored.context.drops == 1
    for _ in range(10):
        restored.commit()
    assert restored.rows() == 12
    assert restored.content() == content


def test_a_failed_commit_frees_nothing(kept: Kept) -> None:
    fill(kept, PORTION, 10)
    rows = kept.rows()
    kept.store.flush()
    kept.store.discard()
    kept.buffer.clear()
    kept.commit()
    assert kept.rows() == rows
    assert len(kept.content()) == PORTION + 10  # the time did not move on either
