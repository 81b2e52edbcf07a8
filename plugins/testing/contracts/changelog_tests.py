"""The settings of `ChangelogContract`, and its parts about a changelog's content and surroundings."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from penstock import Changelog, ChangelogError, Commit, DeltaChangelog, SystemClock, TaskChangelog, TopicPartition
from penstock.store import Changes

from .child import CleanChildren, children_for
from .expectations import (
    CrashImages,
    DiskWitness,
    State,
    applied,
    expect,
    expect_no_descriptors,
    expect_no_error,
    on_disk,
)

_DAY_MS = 24 * 60 * 60 * 1000


class ChangelogTests:
    """The settings of `ChangelogContract`."""

    changelog: Changelog
    """Opens the changelog of a task: its class, or a `staticmethod`. Other processes import it."""
    in_one_process: ClassVar[bool] = False
    """Whether the changelog ends with the process; tests that need a second process are then skipped."""

    def location(self, directory: Path) -> str:
        """Return the location to open in a test that may use the empty `directory`; by default its path."""
        return str(directory)

    def open(self, directory: Path) -> DeltaChangelog:
        """Open the changelog of one task."""
        return type(self).changelog(self.location(directory), "application", "0_0")

    def children(self) -> CleanChildren:
        """Return a starter of processes new to the changelog; skip the test if they cannot see its data."""
        if self.in_one_process:
            pytest.skip("this changelog has no other processes")
        return children_for(str(type(self).changelog.__module__))


def commit_of(version: str, position: int) -> Commit:
    """Return a commit of a version, with that position in one of two inputs."""
    return Commit({TopicPartition("in", 3): position, TopicPartition("other", 3): 7}, version, b"%d" % position)


def append_each(log: DeltaChangelog, previous: str | None, *versions: str) -> None:
    """Append a delta for each version, which sets one key to the version's name."""
    for version in versions:
        log.append({"s": [(b"key", version.encode())]}, previous, version)
        previous = version


def clean(
    log: DeltaChangelog,
    version: str,
    is_current: Callable[[], bool] = lambda: True,
    *,
    grace_ms: int = 60_000,
    days: Sequence[int] = (1, 2),
) -> None:
    """Clean so many days from now: files that one call finds useless may be deleted by the next only."""
    now_ms = SystemClock().now_ms()
    for each in days:
        log.clean(version, grace_ms, now_ms + each * _DAY_MS, is_current)


def entries_of(state: State) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the entries of a state as a snapshot takes them."""
    for store, rows in sorted(state.items()):
        for row in sorted(rows.items()):
            yield store, *row


def failing(entries: Sequence[tuple[str, bytes, bytes]]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield a store's entries until it fails."""
    yield from entries
    raise RuntimeError("the store went away")


def restored(log: TaskChangelog, target: str, have: str | None, known: Mapping[str, State]) -> State:
    """Return the state that `log` restores at `target` for a copy at `have`, whose state `known` has.

    Asserts what a plan must keep: where it starts, that it ends in `target`, that each step on the way is in key
    order and leads to the state that `known` has for its version, or to a version that `known` does not have.
    """
    plan = log.restore(target, have)
    assert plan.base in (None, have), f"a plan for a copy at {have!r} starts at {plan.base!r}"
    at = plan.base
    state: State = {} if at is None else known[at]
    for changes, version in plan.steps:
        for rows in changes.values():
            keys = [key for key, _ in rows]
            assert keys == sorted(set(keys)), "changes of a step must be in key order, each key once"
        state = applied(state, changes)
        assert version != at, "a step must lead to another version"
        at = version
        if version in known:
            expect(filled(state), filled(known[version]), f"the state at {version} on the way to {target} from {have}")
    expect(at, target, f"the version that the steps of a restore to {target} end in")
    return filled(state)


def filled(state: State) -> State:
    """Return a state without stores that have no entries."""
    return {store: rows for store, rows in state.items() if rows}


_STORES = ("s", "S", "a.b", "a_b", "a-b", "...", "-", "9", "n" * 249, "n" * 248 + "N", "snapshot", "delta", "None")
_TOPICS = ("in", "In", "a.b-c_d", "-", "9", "t" * 249)


class ContentTests(ChangelogTests):
    """Deltas, snapshots and commits are read back unchanged, whatever their content."""

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
            log.snapshot("1-v", entries_of(known["1-v"]))
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
        """Nothing is deleted within the grace period: another process may restore it, or commit an apparent orphan."""
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
            with expect_no_error(f"{rule}"):
                expect(restored(self.open(tmp_path), version, "1-v", known), {"s": {b"key": version.encode()}}, rule)

    def test_what_is_given_is_not_kept(self, tmp_path: Path) -> None:
        """`append` keeps no reference to its arguments: the engine clears its buffers after a commit."""
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


class PlaceTests(ChangelogTests):
    """The place is shared: with other tasks and processes, before and after, and through crashes of the machine."""

    def test_a_crash_of_the_machine_loses_no_name(self, tmp_path: Path) -> None:
        """A file is synced before it is renamed, then its folder; new files are durable before old ones are deleted."""
        with DiskWitness(tmp_path) as disk:
            log = self.open(tmp_path)
            for number in range(3):
                log.append({"s": [(b"key", b"%d" % number)]}, f"{number - 1}-v" if number else None, f"{number}-v")
                disk.check("when append returns, its delta lasts")
        with DiskWitness(tmp_path) as disk:
            log.snapshot("2-v", iter([("s", b"key", b"2")]))
            clean(log, "2-v")
            disk.check("a snapshot lasts before clean deletes what it replaces")
        log.close()

    def test_a_crash_of_the_machine_takes_no_append(self, tmp_path: Path) -> None:
        """A crash loses neither the append nor the snapshot before it, whichever unsynced data is lost."""
        if self.in_one_process:
            pytest.skip("this changelog keeps nothing in files")
        with on_disk(tmp_path) as place:
            disk, log = CrashImages(place), self.open(place)
            known: State = {}
            for number in range(6):
                version, previous = f"{number}-v", f"{number - 1}-v" if number else None
                changes: Changes = {"s": [(b"%d" % number, b"v" * 5000), (b"key", b"%d" % number)]}
                log.append(changes, previous, version)
                known = applied(known, changes)
                if not any(each.is_file() for each in place.rglob("*")):
                    pytest.skip("this changelog keeps no files in the directory that it is given")
                if number == 3:
                    log.snapshot(version, iter([("s", *row) for row in sorted(known["s"].items())]))
                disk.look()
                where = (
                    f"a crash of the machine took a part of what was not synced when append of {version} had returned"
                )
                for image in disk.write_images(tmp_path, f"image-{number}"):
                    with expect_no_error(f"{where}"):
                        expect(restored(self.open(image), version, None, {}), known, where)
            log.close()

    @pytest.mark.parametrize("beside_writer", [False, True])
    def test_an_object_that_looked_sees_what_others_write(self, tmp_path: Path, beside_writer: bool) -> None:
        """A changelog that was read before another process wrote sees the later writes."""
        log, early, late = (self.open(tmp_path) for _ in range(3))
        early.beside_writer = late.beside_writer = beside_writer
        with pytest.raises(ChangelogError):
            early.restore("0-v", None)

        def check_restored(reader: DeltaChangelog, target: str, have: str | None, value: bytes, rule: str) -> None:
            known = {} if have is None else {have: {"s": {b"key": have.encode()}}}
            with expect_no_error(f"{rule}: restored from {have}"):
                expect(restored(reader, target, have, known), {"s": {b"key": value}}, f"{rule}: restored from {have}")

        log.append({"s": [(b"key", b"0-v")]}, None, "0-v", commit_of("0-v", 1))
        check_restored(late, "0-v", None, b"0-v", "an object that was opened before another one appended")
        _ = late.proven(), late.beginnings(), late.wants_snapshot(), late.kept("0-v")
        append_each(log, "0-v", "1-v", "2-v")
        log.snapshot("2-v", iter([("s", b"key", b"2-v")]), commit_of("2-v", 3))
        log.append({"s": [(b"key", b"3-v")]}, "2-v", "3-v", commit_of("2-v", 4))
        for rule in ("before another one", "before, and looked, and after that another one"):
            reader = early if rule == "before another one" else late
            rule = f"an object that was opened {rule} appended and wrote a snapshot"
            for have in (None, "0-v", "2-v"):
                check_restored(reader, "3-v", have, b"3-v", rule)
            expect(reader.proven(), {"0-v", "1-v", "2-v"}, f"{rule}: proven")
            expect(reader.beginnings(), {"0-v"}, f"{rule}: beginnings")
            expect(reader.kept("2-v"), commit_of("2-v", 4), f"{rule}: kept")
        log.destroy()
        log.append({"s": [(b"key", b"new")]}, None, "0-w")
        for reader in (early, late):
            rule = "an object that has looked, after another one destroyed the changelog and began anew"
            check_restored(reader, "0-w", None, b"new", rule)
            expect((reader.proven(), reader.beginnings()), (set(), {"0-w"}), rule)

    def test_the_working_directory_changes(self, tmp_path: Path) -> None:
        """The program may change the working directory between any two calls: a changelog stays the opened one."""
        place, here, there = (tmp_path / name for name in ("place", "here", "over/there"))
        for each in (place, here, there):
            each.mkdir(parents=True)
        with chdir(here):
            log = self.open(place)
            log.append({"s": [(b"key", b"0-v")]}, None, "0-v")
        rule = "the working directory has changed since it was opened"
        with chdir(there):
            append_each(log, "0-v", "1-v")
            log.snapshot("1-v", iter([("s", b"key", b"1-v")]))
            clean(log, "1-v")
            for reader in (log, self.open(place)):
                expect(restored(reader, "1-v", None, {}), {"s": {b"key": b"1-v"}}, rule)
            log.destroy()
            expect(self.open(place).beginnings(), set(), f"destroyed, when {rule}")
            left = [each.name for each in there.iterdir()]
            assert not left, f"{rule}: it left {left} there"
            log.close()

    def test_processes_that_append_once_ask_for_a_snapshot(self, tmp_path: Path) -> None:
        """Processes that end after one commit each count the deltas of earlier ones."""
        value = Random(1).randbytes(64 * 1024)
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        count = 0
        while not log.wants_snapshot():
            count += 1
            assert count < 2000, "128 MB of changes to one key of 64 kB, and no snapshot is wanted"
            log.append({"s": [(b"key", value)]}, f"{count - 1}-v", f"{count}-v")
        log.destroy()
        log.append({}, None, "0-v")
        for number in range(1, 2 * count + 3):
            log.close()
            log = self.open(tmp_path)
            log.restore(f"{number - 1}-v", f"{number - 1}-v")
            log.append({"s": [(b"key", value)]}, f"{number - 1}-v", f"{number}-v")
            if log.wants_snapshot():
                break
        else:
            raise AssertionError(
                f"one process wants a snapshot after {count} deltas, and of {2 * count + 2} processes that append one "
                "each, none does: the deltas that others wrote count, too"
            )
        log.close()

    def test_other_files_are_no_part_of_it(self, tmp_path: Path) -> None:
        """An editor's, a file system's or a backup's, in each of its folders."""
        log = self.open(tmp_path)
        append_each(log, None, "0-v", "1-v")
        log.close()
        for folder in [tmp_path, *(each for each in tmp_path.rglob("*") if each.is_dir())]:
            for name in ("notes.txt", ".nfs00000001", "README", "2-v.bak", "core"):
                (folder / name).write_bytes(b"of somebody else")
            (folder / "lost+found").mkdir()
        rule = "files of others are in its folders"
        with expect_no_error(f"{rule}"):
            log = self.open(tmp_path)
            expect(restored(log, "1-v", None, {}), {"s": {b"key": b"1-v"}}, rule)
            expect((log.proven(), log.beginnings()), ({"0-v"}, {"0-v"}), rule)
            append_each(log, "1-v", "2-v")
            log.snapshot("2-v", iter([("s", b"key", b"2-v")]))
            clean(log, "2-v")
            expect(restored(self.open(tmp_path), "2-v", None, {}), {"s": {b"key": b"2-v"}}, rule)
            log.destroy()

    def test_nothing_is_left_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Failed snapshots and measurements leave no files; `destroy` leaves none at all."""
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        monkeypatch.setattr(tempfile, "tempdir", None)
        value = Random(1).randbytes(200_000)
        found: list[tuple[int, int]] = []
        for failures in (0, 5):
            place = tmp_path / f"place{failures}"
            place.mkdir()
            log = self.open(place)
            log.append({"s": [(b"key", value)]}, None, "0-v")
            for _ in range(failures):
                with pytest.raises(RuntimeError):
                    log.snapshot("0-v", failing([("s", b"%d" % row, value) for row in range(10)]))
                assert 0 <= log.least_commit_interval() < 60, "least_commit_interval returns some seconds"
            log.snapshot("0-v", iter([("s", b"key", value)]))
            clean(log, "0-v")
            log.close()
            found.append(size_of(place))
        (files, size), (more_files, more_size) = found
        assert more_files <= files and more_size < size + 5_000_000, (
            f"after 5 snapshots that failed and `clean` there are {more_files} files of {more_size:,} bytes, and "
            f"without them {files} of {size:,}"
        )
        random = Random(2)
        sizes = []
        for _ in range(4):
            log = self.open(place)
            log.append({"s": [(b"key", random.randbytes(1_000_000))]}, None, "0-w")
            log.destroy()
            log.close()
            sizes.append(size_of(place)[1])
        assert sizes[-1] < sizes[0] + 1_500_000, (
            f"destroy deletes everything, and leaves more each time, with 1 MB in it: {sizes} bytes"
        )
        left = [each.name for each in temporary.rglob("*")]
        assert not left, f"files are left in the temporary directory: {left[:3]}"

    def test_its_size_is_that_of_its_state(self, tmp_path: Path) -> None:
        """Over a long run with snapshots that `clean` goes by, also where each process makes a few commits."""
        random = Random(1)
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        sizes: list[int] = []
        for number in range(30):
            previous, version = f"{number}-v", f"{number + 1}-v"
            value = random.randbytes(100_000)
            log.append({"s": [(b"key", value)]}, previous, version)
            log.snapshot(version, iter([("s", b"key", value)]))
            clean(log, version, days=(2 * number, 2 * number + 1))
            if number % 5 == 4:
                log.close()
                sizes.append(size_of(tmp_path)[1])
                log = self.open(tmp_path)
                log.restore(version, version)
        log.close()
        assert sizes[-1] < 2 * sizes[0] + 500_000, (
            f"a state of 100 kB, written 30 times with a snapshot and `clean` each, has {sizes} bytes on disk"
        )


def size_of(directory: Path) -> tuple[int, int]:
    """Return the number of files with content, and their bytes."""
    sizes = [size for file in directory.rglob("*") if file.is_file() and (size := file.stat().st_size)]
    return len(sizes), sum(sizes)
