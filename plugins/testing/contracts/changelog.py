"""The tests that every `DeltaChangelog` must pass; subclass `ChangelogContract` to run them over yours."""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock import ChangelogError, Commit, DeltaChangelog, version_counter
from penstock.store import Changes

from .changelog_processes import DamageTests, RaceTests
from .changelog_tests import (
    ContentTests,
    PlaceTests,
    append_each,
    clean,
    commit_of,
    entries_of,
    failing,
    filled,
    restored,
)
from .expectations import State, applied, expect, run_histories


class ChangelogContract(ContentTests, DamageTests, PlaceTests, RaceTests):
    """The contract of a changelog in a place of its own, as tests; run them in a test class of yours.

    >>> from penstock.plugins.changelogs.memory import MemoryChangelog
    >>> class TestMemory(ChangelogContract):
    ...     changelog = MemoryChangelog

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """

    examples: ClassVar[int] = 50
    """How many random histories are tried."""

    def test_any_history_is_restored(self) -> None:
        """Each committed version is restored, whatever was appended, lost, snapshotted, cleaned or reopened."""
        run_histories(lambda: _History(self), examples=self.examples, steps=30)

    def test_many_deltas_ask_for_a_snapshot_and_go_with_it(self, tmp_path: Path) -> None:
        """Many deltas ask for a snapshot, and are then deleted: restores and space stay in proportion to the state."""
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        assert not log.wants_snapshot(), "an empty delta needs no snapshot"
        value = Random(1).randbytes(64 * 1024)  # incompressible
        last, count = "0-v", 0
        while not log.wants_snapshot():
            count += 1
            assert count < 2000, "128 MB of changes to one key of 64 kB, and no snapshot is wanted"
            log.append({"s": [(b"key", value)]}, last, f"{count}-v")
            last = f"{count}-v"
        log.snapshot(last, iter([("s", b"key", value)]))
        assert not log.wants_snapshot(), "no snapshot is wanted after one of the last version was written"
        clean(log, last)
        log.append({"s": [(b"other", b"1")]}, last, "999999-next")
        reopened = self.open(tmp_path)
        state = restored(reopened, "999999-next", None, {})
        expect(state, {"s": {b"key": value, b"other": b"1"}}, "the state after a snapshot, clean and a delta")
        with pytest.raises(ChangelogError):
            reopened.restore("0-v", None)

    def test_a_large_snapshot_comes_in_steps(self, tmp_path: Path) -> None:
        """A state need not fit into memory, neither for a snapshot nor for a restore."""
        rows = 2000
        log = self.open(tmp_path)
        log.append({}, None, "0-v")

        def entries() -> Iterator[tuple[str, bytes, bytes]]:
            for store in ("a", "b"):
                for row in range(rows):
                    yield store, b"%08d" % row, b"%08d" % row * 1000

        log.snapshot("0-v", entries())
        log.append({"b": [(b"%08d" % 0, None)]}, "0-v", "1-v")
        plan = self.open(tmp_path).restore("1-v", "elsewhere")
        expect(plan.base, None, "base of a plan for a copy that is elsewhere")
        state: State = {}
        versions = []
        for changes, version in plan.steps:
            versions.append(version)
            changed = [change for rows in changes.values() for change in rows]
            assert all(value in (None, key * 1000) for key, value in changed), "rows of a snapshot are mixed up"
            assert sum(len(value or b"") for _, value in changed) < 12_000_000, "one step holds most of the state"
            state = applied(state, changes)
        assert len(versions) == len(set(versions)) >= 3, f"16 MB are restored in steps, each to a name once: {versions}"
        expect(versions[-1], "1-v", "the version after the last step")
        assert {"0-v", "1-v"} >= set(versions[-2:]), f"a snapshot's last step leads to its version: {versions[-2:]}"
        expect((len(state["a"]), len(state["b"])), (rows, rows - 1), "how many rows were restored of two stores")
        self._check_plans_beside_one_another(tmp_path, rows)

    def _check_plans_beside_one_another(self, directory: Path, rows: int) -> None:
        """Two copies are restored at once by one object, and it appends meanwhile."""
        log = self.open(directory)
        steps = [log.restore("1-v", None).steps for _ in range(2)]
        found = [0, 0]
        for number, (one, other) in enumerate(zip(*steps, strict=True)):
            for at, (changes, _) in enumerate((one, other)):
                found[at] += sum(len(change) for change in changes.values())
            if number < 3:
                log.append({"b": [(b"more", b"1")]}, f"{number + 1}-v", f"{number + 2}-v")
        expect(found, [2 * rows + 1] * 2, "rows of two plans of one object, by turns, beside appends")
        log.close()

    def test_a_large_snapshot_is_never_in_memory(self, tmp_path: Path) -> None:
        """A snapshot of 24 MB is written and restored in parts."""
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        count = 3000
        if not self.in_one_process:
            rows = (("s", b"%08d" % row, b"%08d" % row * 1000) for row in range(count))
            peak = _peak_of(lambda: log.snapshot("0-v", rows))
            assert peak < 16_000_000, f"a snapshot of 24 MB has {peak:,} bytes of it in memory; each row is read once"
            peak = _peak_of(lambda: deque(self.open(tmp_path).restore("0-v", None).steps, 0))
            assert peak < 16_000_000, f"a restore of 24 MB has {peak:,} bytes of it in memory"

    def test_a_snapshot_that_failed_is_none(self, tmp_path: Path) -> None:
        """The exception is raised unchanged, and a restore uses the files from before."""
        log = self.open(tmp_path)
        log.append({"s": [(b"key", b"1")]}, None, "0-v")
        wrong = [("s", b"wrong%08d" % row, b"x" * 100_000) for row in range(100)]
        with pytest.raises(RuntimeError, match="the store went away"):
            log.snapshot("0-v", failing(wrong))
        for reader in (log, self.open(tmp_path)):
            expect(restored(reader, "0-v", None, {}), {"s": {b"key": b"1"}})

    def test_a_snapshot_that_failed_leaves_the_one_before(self, tmp_path: Path) -> None:
        """A failed snapshot must not damage the previous one of the same version: its deltas may be deleted already."""
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        log.append({"s": [(b"key", b"1")]}, "0-v", "1-v")
        log.snapshot("1-v", iter([("s", b"key", b"1")]))
        clean(log, "1-v")
        with pytest.raises(RuntimeError, match="the store went away"):
            log.snapshot("1-v", failing([]))
        for again in (False, True):
            if again:
                log.snapshot("1-v", iter([("s", b"key", b"1")]))
            state = restored(self.open(tmp_path), "1-v", None, {})
            expect(state, {"s": {b"key": b"1"}}, "a snapshot that failed leaves the one before of the same version")

    def test_deltas_are_appended_while_snapshots_are_written(self, tmp_path: Path) -> None:
        """The task continues while another thread snapshots and cleans: needed files stay."""
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        states: list[dict[bytes, bytes]] = [{}]

        def append() -> None:
            number = len(states)
            key, value = b"%d" % (number % 7), b"%d" % number
            log.append({"s": [(key, value)]}, f"{number - 1}-v", f"{number}-v")
            states.append({**states[-1], key: value})

        def entries(state: dict[bytes, bytes], is_quiet: bool) -> Iterator[tuple[str, bytes, bytes]]:
            for key, value in sorted(state.items()):
                if not is_quiet:
                    thread.submit(append).result()
                yield "s", key, value

        def is_current() -> bool:
            thread.submit(append).result()
            return True

        with ThreadPoolExecutor(1) as thread:
            for is_quiet in (False, True, False, True):
                append()
                number = len(states) - 1
                log.wants_snapshot()
                log.snapshot(f"{number}-v", entries(states[number], is_quiet))
                clean(log, f"{number}-v", is_current, grace_ms=0)
                last = len(states) - 1
                state = restored(self.open(tmp_path), f"{last}-v", None, {})
                expect(state, {"s": states[-1]}, "deltas that were appended while a snapshot was written or cleaned")

    def test_a_snapshot_of_a_new_version_begins_a_history(self, tmp_path: Path) -> None:
        """Without a delta to it: earlier versions do not count, and no copy of them is caught up."""
        log = self.open(tmp_path)
        log.append({"gone": [(b"key", b"1")]}, None, "000-a")
        log.append({"s": [(b"key", b"1")]}, "000-a", "001-a")
        log.snapshot("002-a", iter([("s", b"key", b"2")]))
        log.append({"s": [(b"more", b"3")]}, "002-a", "003-a")
        for reader in (log, self.open(tmp_path)):
            rule = "a snapshot of a version that no delta leads to begins a history"
            expect(reader.restore("003-a", "001-a").base, None, f"{rule}: base of a plan for an earlier copy")
            expect(restored(reader, "003-a", "001-a", {}), {"s": {b"key": b"2", b"more": b"3"}}, rule)
        log.snapshot("004-a", iter([]))
        expect(restored(self.open(tmp_path), "004-a", None, {}), {}, "a snapshot without rows")

    def test_a_version_that_nobody_appended_is_an_error(self, tmp_path: Path) -> None:
        """An empty state instead would be a silent loss."""
        log = self.open(tmp_path)
        with pytest.raises(ChangelogError, match="ghost"):
            log.restore("ghost", None)
        log.append({}, None, "0-v")
        log.append({"s": [(b"key", b"1")]}, "0-v", "1-v")
        for have in (None, "0-v", "1-v"):
            with pytest.raises(ChangelogError, match="ghost"):
                log.restore("ghost", have)

    def test_a_chain_with_a_gap_is_an_error_that_names_it_until_a_snapshot_mends_it(self, tmp_path: Path) -> None:
        """A partial state instead would be a silent loss; a process that has a copy writes a snapshot."""
        log = self.open(tmp_path)
        log.append({"s": [(b"key", b"1")]}, None, "0-v")
        log.append({"s": [(b"key", b"2")]}, "1-gone", "2-v")
        with pytest.raises(ChangelogError, match="gone"):
            log.restore("2-v", None)
        with pytest.raises(ChangelogError, match="gone"):
            log.restore("2-v", "0-v")
        assert log.wants_snapshot(), "a snapshot is wanted where the chain has a gap"
        clean(log, "2-v", grace_ms=0, days=(1,))
        log.snapshot("2-v", iter([("s", b"key", b"2")]))
        assert not log.wants_snapshot(), "no snapshot is wanted after one has mended the chain"
        state = restored(self.open(tmp_path), "2-v", "0-v", {})
        expect(state, {"s": {b"key": b"2"}}, "a snapshot mends a chain with a gap")

    @pytest.mark.parametrize("successor", ["commits", "snapshots", "starts anew"])
    @pytest.mark.parametrize("frozen", ["before its snapshot", "in its snapshot", "before it deletes"])
    def test_a_frozen_process_deletes_nothing_that_its_successor_needs(
        self, tmp_path: Path, frozen: str, successor: str
    ) -> None:
        """A frozen process deletes none of its successor's data, however long it was frozen."""
        log = self.open(tmp_path)
        append_each(log, None, "0-v", "1-v", "2-v", "3-v")
        newest: list[str] = []

        def is_frozen() -> None:
            if newest:
                return
            other = self.open(tmp_path)
            if successor == "starts anew":
                other.destroy()
                append_each(other, None, "0-s", "1-s", "2-s")
                newest.append("2-s")
                return
            other.restore("3-v", "3-v")
            append_each(other, "3-v", "4-s", "5-s", "6-s")
            if successor == "snapshots":
                other.snapshot("6-s", iter([("s", b"key", b"6-s")]))
                clean(other, "6-s")
            append_each(other, "6-s", "7-s", "8-s")
            newest.append("8-s")

        def entries() -> Iterator[tuple[str, bytes, bytes]]:
            if frozen == "in its snapshot":
                is_frozen()
            yield "s", b"key", b"3-v"

        def is_current() -> bool:
            # A log answers False after a reset; whether it sees a successor that took the task over is not relied upon.
            current = not newest or successor != "starts anew"
            if frozen == "before it deletes":
                is_frozen()
            return current

        if frozen == "before its snapshot":
            is_frozen()
        log.wants_snapshot()
        try:
            log.snapshot("3-v", entries())
        except ChangelogError:
            pass  # The successor may have deleted the unfinished file.
        clean(log, "3-v", is_current, days=(10, 20))
        (last,) = newest
        rule = f"a process that was frozen {frozen}, and whose successor {successor}, deletes nothing that is needed"
        expect(restored(self.open(tmp_path), last, None, {}), {"s": {b"key": last.encode()}}, rule)
        following = self.open(tmp_path)
        following.restore(last, last)
        more = [f"{version_counter(last) + each}-t" for each in (1, 2, 3)]
        append_each(following, last, *more)
        following.snapshot(more[-1], iter([("s", b"key", b"end")]))
        clean(following, more[-1], days=(30, 40))
        expect(restored(self.open(tmp_path), more[-1], None, {}), {"s": {b"key": b"end"}}, f"{rule}, also later")
        with pytest.raises(ChangelogError):
            self.open(tmp_path).restore("3-v", None)

    def test_tasks_and_applications_are_apart(self, tmp_path: Path) -> None:
        """Tasks and applications are separate: the same version name elsewhere is another state."""
        where = self.location(tmp_path)
        places = [
            ("one", "0_0"), ("one", "0_1"), ("one", "0_10"), ("one", "10_0"), ("two", "0_0"), ("one-2", "0_0"),
            ("one.2", "0_0"), ("one_0", "0_0"), ("One", "0_0"),
        ]  # fmt: skip
        for number, place in enumerate(places):
            type(self).changelog(where, *place).append({"s": [(b"key", b"%d" % number)]}, None, "0-v")
        for number, place in enumerate(places):
            log = type(self).changelog(where, *place)
            rule = f"the changelog of application {place[0]!r}, task {place[1]!r} is apart from others"
            expect(restored(log, "0-v", None, {}), {"s": {b"key": b"%d" % number}}, rule)
        for gone in range(3):
            type(self).changelog(where, *places[gone]).destroy()
            for number, place in enumerate(places[gone + 1 :], gone + 1):
                state = restored(type(self).changelog(where, *place), "0-v", None, {})
                expect(state, {"s": {b"key": b"%d" % number}}, f"{place} after {places[gone]} was destroyed")

    def test_a_changelog_keeps_commits(self, tmp_path: Path) -> None:
        """`kept` returns the commit before a delta, the latest of a snapshot, and the first, also later."""
        log = self.open(tmp_path)
        expect((log.proven(), log.beginnings(), log.kept("0-v")), (set(), set(), None), "a new changelog")
        log.append({}, None, "0-v", commit_of("0-v", 1))
        expect((log.proven(), log.beginnings()), (set(), {"0-v"}), "the newest delta proves nothing")
        expect(log.kept("0-v"), commit_of("0-v", 1), "the commit that the first delta keeps")
        log.append({"s": [(b"key", b"1")]}, "0-v", "1-orphan", commit_of("0-v", 2))
        log.append({"s": [(b"key", b"1")]}, "0-v", "1-v", commit_of("0-v", 3))
        reopened = self.open(tmp_path)
        expect(reopened.proven(), {"0-v"}, "versions that a delta follows are proven")
        expect(reopened.kept("0-v"), commit_of("0-v", 3), "the latest commit that a delta keeps")
        expect(reopened.kept("1-v"), None, "the commit of a version that no delta follows")
        log.snapshot("1-v", iter([("s", b"key", b"1")]), commit_of("1-v", 4))
        expect(log.proven(), {"0-v", "1-v"}, "a version with a snapshot is proven")
        expect(log.kept("1-v"), commit_of("1-v", 4), "the commit that a snapshot keeps")
        log.append({}, "1-v", "2-v")
        expect(log.kept("1-v"), commit_of("1-v", 4), "a delta may be appended without a commit")
        late = self.open(tmp_path)
        late.restore("2-v", None)
        log.destroy()
        expect((log.proven(), log.beginnings(), log.kept("1-v")), (set(), set(), None), "after destroy")
        late.append({}, "2-v", "3-late", commit_of("3-late", 5))
        rule = "a delta proves nothing where the version before it is not there: a late one after `destroy`"
        expect(self.open(tmp_path).proven(), set(), rule)
        expect(
            self.open(tmp_path).beginnings(), set(), "a delta that follows a version which is not there begins nothing"
        )
        log.append({}, None, "0-new")
        log.append({}, "0-new", "1-new")
        expect(self.open(tmp_path).proven(), {"0-new"}, "a new chain beside a late delta")

    def test_a_destroyed_one_never_was(self, tmp_path: Path) -> None:
        """No version and no snapshot is left, a new chain can begin, and other changelogs are unchanged."""
        where = self.location(tmp_path)
        log, other = self.open(tmp_path), type(self).changelog(where, "application", "0_1")
        log.destroy()
        for each in (log, other):
            each.append({"s": [(b"key", b"old")]}, None, "0-v")
            each.append({"s": [(b"more", b"old")]}, "0-v", "1-v")
            each.snapshot("0-v", iter([("s", b"key", b"old")]))
        log.destroy()
        log.destroy()
        for reader in (log, self.open(tmp_path)):
            for version in ("0-v", "1-v"):
                with pytest.raises(ChangelogError, match=version):
                    reader.restore(version, None)
        log.append({}, None, "0-w")
        log.append({"s": [(b"other", b"new")]}, "0-w", "1-w")
        for reader in (log, self.open(tmp_path)):
            # A copy of the old chain is recognised as of no use.
            old = {"s": {b"key": b"old", b"more": b"old"}}
            state = restored(reader, "1-w", "1-v", {"1-v": old})
            expect(state, {"s": {b"other": b"new"}}, "a new chain after destroy, for a copy of the old one")
        expect(restored(other, "1-v", None, {}), old, "another task's changelog after destroy of the first")

    def test_closing_twice_is_fine(self, tmp_path: Path) -> None:
        """`close` may come from an error path that ran already."""
        log = self.open(tmp_path)
        log.append({}, None, "0-v")
        log.close()
        log.close()


def _peak_of(act: Callable[[], object]) -> int:
    """Return the peak of Python's additional memory in bytes during a call."""
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


_keys = st.binary(max_size=3)
_values = st.none() | st.binary(max_size=4) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 3000)
_changes = st.dictionaries(
    st.sampled_from(["counts", "names"]), st.dictionaries(_keys, _values, min_size=1, max_size=6), max_size=2
).map(lambda changes: {store: sorted(rows.items()) for store, rows in changes.items()})


class _History(RuleBasedStateMachine):
    """A task's history of commits, lost attempts, snapshots, cleaning and crashes, and its restorable versions."""

    def __init__(self, contract: ChangelogContract) -> None:
        super().__init__()
        self._contract = contract
        self._directory = tempfile.TemporaryDirectory()
        self._known: dict[str, State] = {}
        self._commits: dict[str, Commit] = {}
        self._chain: list[str] = []
        self._sure = 0
        """Number of the oldest versions that `clean` may have deleted."""
        self._count = 0
        self._fenced: list[tuple[DeltaChangelog, str]] = []
        self._reopen()

    def teardown(self) -> None:
        self._log.close()
        self._directory.cleanup()

    def _reopen(self) -> None:
        self._log = type(self._contract).changelog(
            self._contract.location(Path(self._directory.name)), "application", "0_0"
        )

    def _append(self, changes: Changes) -> str:
        previous = self._chain[-1] if self._chain else None
        version = f"{len(self._chain):012d}-{self._count:x}"
        self._count += 1
        commit = commit_of(version, 0) if previous is None else self._commits[previous]
        self._log.append(changes, previous, version, commit)
        self._known[version] = applied(self._known[previous] if previous else {}, changes)
        return version

    @rule(changes=_changes)
    def commit(self, changes: Changes) -> None:
        version = self._append(changes)
        self._chain.append(version)
        self._commits[version] = commit_of(version, self._count)

    @precondition(lambda self: self._chain)
    @rule()
    def commit_without_changes(self) -> None:
        version = self._chain[-1]
        self._count += 1
        self._commits[version] = commit_of(version, self._count)

    @rule(changes=_changes, crash=st.booleans())
    def append_what_is_never_committed(self, changes: Changes, crash: bool) -> None:
        self._append(changes)
        if crash:
            self._reopen()

    @precondition(lambda self: self._chain)
    @rule()
    def is_taken_over(self) -> None:
        """Another process takes the task over while this one is frozen."""
        self._fenced.append((self._log, self._chain[-1]))
        self._reopen()

    @precondition(lambda self: self._fenced)
    @rule(changes=_changes)
    def fenced_process_appends(self, changes: Changes) -> None:
        """Append once more after the last version that a fenced process knows; its commit is refused."""
        log, last = self._fenced.pop()
        version = f"{version_counter(last) + 1:012d}-{self._count:x}"
        self._count += 1
        try:
            log.append(changes, last, version, self._commits.get(last))
        except ChangelogError:
            return  # Its files may have been cleaned up.
        self._known[version] = applied(self._known[last], changes)

    @precondition(lambda self: self._chain)
    @rule()
    def snapshot(self) -> None:
        version = self._chain[-1]
        self._log.snapshot(version, entries_of(self._known[version]), self._commits[version])

    @precondition(lambda self: self._chain)
    @rule(at=st.integers(0, 5))
    def snapshot_fails(self, at: int) -> None:
        entries = list(entries_of(self._known[self._chain[-1]]))
        assume(entries)
        with pytest.raises(RuntimeError):
            self._log.snapshot(self._chain[-1], failing(entries[:at]))

    @rule()
    def reopen(self) -> None:
        self._log.close()
        self._reopen()

    @precondition(lambda self: self._chain)
    @rule(back=st.integers(0, 3) | st.just(0), twice=st.booleans(), current=st.booleans() | st.just(True))
    def clean(self, back: int, twice: bool, current: bool) -> None:
        """Clean, also for an older version: a frozen process cleans after its successor's commits."""
        place = max(0, len(self._chain) - 1 - back)
        clean(self._log, self._chain[place], lambda: current, days=(1, 2) if twice else (1,))
        if current:
            self._sure = max(self._sure, place)

    @precondition(lambda self: self._chain)
    @rule()
    def clean_within_grace(self) -> None:
        clean(self._log, self._chain[-1], days=(0,))

    @precondition(lambda self: self._chain)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(self._chain[self._sure :]), label="target")
        haves = [None, "restoring:000001-x:1", "999999-elsewhere", *self._known]
        have = data.draw(st.sampled_from(haves), label="have")
        reachable = self._chain[self._sure : self._chain.index(target) + 1]
        plan_base = self._log.restore(target, have).base
        if have in reachable:
            assert plan_base == have, "a copy that is on the way must be used"
        if have not in self._chain[: self._chain.index(target) + 1]:
            assert plan_base is None, "a copy that is not on the way must not be used"
        expect(restored(self._log, target, have, self._known), filled(self._known[target]), f"restored from {have}")

    @precondition(lambda self: self._chain)
    @rule()
    def look_for_what_was_committed(self) -> None:
        """`proven` has every committed version except maybe the newest, and no other version."""
        proven = self._log.proven()
        assert proven <= set(self._chain), "a version is proven that no commit names"
        if self._sure == 0:
            assert self._chain[0] in self._log.beginnings(), "a version that follows None is one of the beginnings"
        if len(self._chain) > 1:
            newest = max(proven, key=self._chain.index)
            assert newest in self._chain[-2:], "a version that another follows is proven"
            kept = self._log.kept(newest)
            assert kept is not None and kept.version == newest, f"the commit of {newest}, which is proven: {kept}"
            if newest == self._chain[-2]:
                expect(kept, self._commits[newest], "the delta that follows a commit keeps it")

    @rule()
    def ask_for_a_snapshot(self) -> None:
        wants = self._log.wants_snapshot()
        assert wants in (True, False), f"wants_snapshot returns a bool, and returned {wants!r}"
