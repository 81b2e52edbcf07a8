"""The part of `ChangelogContract` about what a changelog keeps: rows and commits as large as real ones."""

from __future__ import annotations

import itertools
import os
from collections import deque
from pathlib import Path
from random import Random

import pytest

from penstock import ChangelogError, Commit, TopicPartition
from penstock.store import Changes

from .changelog_tests import ChangelogTests, append_each, clean, failing, restored
from .expectations import expect, expect_no_descriptors
from .histories import State, applied

_STORES = ("s", "S", "a.b", "a_b", "a-b", "...", "-", "9", "n" * 249, "n" * 248 + "N", "snapshot", "delta", "None")
_TOPICS = ("in", "In", "a.b-c_d", "-", "9", "t" * 249)


class ContentTests(ChangelogTests):
    """Deltas, snapshots and commits come back as they were, whatever is in them."""

    @pytest.mark.parametrize("way", ["deltas", "a snapshot"])
    def test_any_rows_of_any_store(self, tmp_path: Path, way: str) -> None:
        """Every byte, empty keys and values, some megabytes, thousands of rows, and stores of any name."""
        random = Random(1)
        rows: dict[bytes, bytes] = {bytes([byte]): bytes([byte, byte]) for byte in range(256)}
        rows |= {b"": b"", b"empty": b"", b"\x00" * 300: b"\x00" * 300, b"k" * 10_000: b"long key", b"K" * 70_000: b""}
        rows |= {b"large%d" % size: random.randbytes(size) for size in (65_535, 65_536, 1 << 20, 5 << 20)}
        rows |= {b"row%06d" % row: b"%d" % row for row in range(10_000)}
        log = self.open(tmp_path)
        first: Changes = {"s": sorted(rows.items()), **{store: [(b"name", store.encode())] for store in _STORES[1:]}}
        second: Changes = {
            "s": [(key, None) for key in sorted(rows)[::3]],
            **{
                store: [(b"", b""), (b"empty", b""), (b"name", None if store == "S" else b"")] for store in _STORES[1:4]
            },
            # A row without content is the last one of all.
            max(_STORES): [(b"", b""), (b"name", None)],
        }
        log.append(first, None, "0-v")
        log.append(second, "0-v", "1-v")
        known: dict[str, State] = {"0-v": applied({}, first)}
        known["1-v"] = applied(known["0-v"], second)
        if way == "a snapshot":
            log.snapshot("1-v", iter([(store, *row) for store in sorted(known["1-v"]) for row in
                                      sorted(known["1-v"][store].items())]))  # fmt: skip
        for each in (log, self.open(tmp_path)):
            for have in (None, "0-v"):
                state = restored(each, "1-v", have, known)
                for store in _STORES:
                    rule = f"rows of {store[:20]!r} restored by {way} for a copy at {have}"
                    expect(state.get(store, {}), known["1-v"][store], rule)

    def test_commits_of_real_size(self, tmp_path: Path) -> None:
        """Engine states of any bytes and some megabytes, hundreds of positions, and names with every character."""
        positions = {
            TopicPartition(topic, number): (1 << 40) + number for topic in _TOPICS for number in (0, 1, 99, 5000)
        }
        kept: dict[str, Commit] = {}
        log = self.open(tmp_path)
        previous = None
        for number, size in enumerate((0, 1, 300, 70_000, 3 << 20)):
            state = bytes(range(256)) * (size // 256) + os.urandom(size % 256)
            version = f"{number:012d}-{number:08x}_0123abcd"
            if previous is not None:
                kept[previous] = Commit(positions, previous, state)
            log.append({"s": [(b"key", b"%d" % number)]}, previous, version, kept.get(str(previous)))
            previous = version
        last = str(previous)
        kept[last] = Commit(positions, last, os.urandom(2 << 20))
        log.snapshot(last, iter([("s", b"key", b"4")]), kept[last])
        for each in (log, self.open(tmp_path)):
            for version, commit in kept.items():
                found = each.kept(version)
                rule = f"the commit of {version}, with {len(commit.engine_state)} bytes of engine state, comes back"
                assert found is not None, f"{rule}: nothing was found"
                expect(found.positions, commit.positions, f"{rule}: positions")
                expect(found.engine_state, commit.engine_state, f"{rule}: engine state")
                expect(found, commit, rule)

    def test_a_later_commit_of_a_version_is_kept(self, tmp_path: Path) -> None:
        """Commits without changes stay at their version: the delta after them, or a snapshot, keeps the last one."""
        log = self.open(tmp_path)
        far, near = TopicPartition("in", 0), TopicPartition("in", 1)
        first, second, third, last = (
            Commit({far: 900, near: position}, "0-v", b"%d" % position) for position in (9, 10, 100, 101)
        )
        log.append({"s": [(b"a", b"1")]}, None, "0-v", first)
        expect(log.kept("0-v"), first, "the commit of a first version")
        log.append({"s": [(b"a", b"2")]}, "0-v", "1-lost", second)
        log.append({"s": [(b"a", b"2")]}, "0-v", "1-v", third)
        for each in (log, self.open(tmp_path)):
            expect(each.kept("0-v"), third, "of several commits of a version, the one with the highest positions")
            expect(each.kept("1-v"), None, "a version of which no commit was kept")
            expect(each.kept("1"), None, "a version that never was")
        log.snapshot("0-v", iter([("s", b"a", b"1")]), last)
        for each in (log, self.open(tmp_path)):
            expect(each.kept("0-v"), last, "of a snapshot's commit and those before deltas, that of highest positions")

    def test_a_late_orphan_changes_nothing(self, tmp_path: Path) -> None:
        """A process that was replaced appends after the version that it knows, when others have followed it."""
        log = self.open(tmp_path)
        zombie = self.open(tmp_path)
        known: dict[str, State] = {}
        previous: str | None = None
        for version in ("000000000000-a", "000000000001-a", "000000000002-a"):
            log.append({"s": [(version.encode(), b"1")]}, previous, version)
            known[version] = applied(known.get(str(previous), {}), {"s": [(version.encode(), b"1")]})
            previous = version
        orphan = "000000000001-z"
        zombie.append({"s": [(b"orphan", b"1")]}, "000000000000-a", orphan)
        known[orphan] = applied(known["000000000000-a"], {"s": [(b"orphan", b"1")]})
        for each in (log, self.open(tmp_path)):
            for have in (None, "000000000000-a", "000000000001-a", orphan):
                rule = f"an orphan is no part of the chain; a copy at {have}"
                expect(restored(each, "000000000002-a", have, known), known["000000000002-a"], rule)
            expect(each.restore("000000000002-a", orphan).base, None, "base of a plan for the copy of an orphan")

    def test_nothing_is_deleted_within_the_grace_period(self, tmp_path: Path) -> None:
        """Another process may still restore an earlier version, or be about to commit what looks like an orphan."""
        log = self.open(tmp_path)
        append_each(log, None, "0-v", "1-v", "2-v")
        log.snapshot("2-v", iter([("s", b"key", b"2-v")]))
        append_each(log, "2-v", "3-v")
        for grace_days, days in ((None, 0), (2, 1), (400, 399)):
            grace_ms = 60_000 if grace_days is None else grace_days * 24 * 3_600_000
            clean(log, "3-v", grace_ms=grace_ms, days=(days,))
            rule = f"after clean of what is {days} days old, within a grace period of {grace_ms} ms"
            for version in ("0-v", "1-v", "2-v", "3-v"):
                expect(restored(self.open(tmp_path), version, None, {}), {"s": {b"key": version.encode()}}, rule)

    def test_what_is_as_new_as_the_last_version_stays(self, tmp_path: Path) -> None:
        """A delta of another process with the counter of the version that is cleaned for, and one with the next."""
        log, other = self.open(tmp_path), self.open(tmp_path)
        append_each(log, None, "0-v", "1-v")
        other.restore("1-v", None)
        append_each(other, "1-v", "2-other", "3-other")
        append_each(log, "1-v", "2-v")
        log.snapshot("2-v", iter([("s", b"key", b"2-v")]))
        clean(log, "2-v", days=(10, 20))
        known = {"1-v": {"s": {b"key": b"1-v"}}}
        for version in ("2-other", "3-other"):
            rule = f"{version} stays when what is older than 2-v is cleaned"
            try:
                expect(restored(self.open(tmp_path), version, "1-v", known), {"s": {b"key": version.encode()}}, rule)
            except ChangelogError as error:
                raise AssertionError(f"{rule}: {error}") from error

    def test_what_is_given_is_not_kept(self, tmp_path: Path) -> None:
        """The engine clears its buffers after a commit: a delta is what it was when it was appended."""
        rows: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"b", b"2")]
        changes = {"s": rows, "empty": []}
        log = self.open(tmp_path)
        log.append(changes, None, "0-v")
        expect(changes, {"s": [(b"a", b"1"), (b"b", b"2")], "empty": []}, "append must not change what it is given")
        rows.clear()
        changes.clear()
        for each in (log, self.open(tmp_path)):
            state = restored(each, "0-v", None, {})
            expect(state, {"s": {b"a": b"1", b"b": b"2"}}, "a delta whose changes its caller has cleared")

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors where Linux lists them")
    def test_closing_frees_descriptors(self, tmp_path: Path) -> None:
        """A runner opens and closes tasks for months, and drops restores half-way."""
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        for number in range(3):
            log.append({"s": [(b"%d" % number, b"1")]}, f"{number}-v", f"{number + 1}-v")
        log.snapshot("2-v", iter([("s", b"0", b"1"), ("s", b"1", b"1")]))
        log.close()

        def restore_and_append() -> None:
            log = self.open(tmp_path)
            steps = log.restore("3-v", None).steps
            next(iter(steps))
            del steps
            log.append({"s": [(b"more", b"1")]}, "3-v", f"4-v{next(numbers)}")
            log.wants_snapshot()
            log.close()

        def fail_and_clean() -> None:
            log = self.open(tmp_path)
            deque(log.restore("3-v", None).steps, 0)
            with pytest.raises(RuntimeError):
                log.snapshot("3-v", failing([("s", b"0", b"1")]))
            with pytest.raises(ChangelogError):
                log.restore("ghost", None)
            clean(log, "3-v")
            _ = log.proven(), log.beginnings(), log.kept("2-v"), log.least_commit_interval()
            log.sync()
            log.close()

        numbers = itertools.count()
        expect_no_descriptors(restore_and_append, "close")
        expect_no_descriptors(fail_and_clean, "calls that fail, and those that clean and look,")
