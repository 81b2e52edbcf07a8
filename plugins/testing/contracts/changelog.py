"""The tests that every changelog must pass; subclass `ChangelogContract` to run them over yours."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from penstock.changelog import Changelog, TaskChangelog
from penstock.clock import SystemClock
from penstock.errors import ChangelogError
from penstock.store import Change, Changes

State = dict[str, dict[bytes, bytes]]
"""All stores of a task, as a test's model holds them."""

_DAY_MS = 24 * 60 * 60 * 1000


class ChangelogContract:
    """What any changelog must keep; a test class of yours runs it.

    >>> from penstock.plugins.changelogs.memory import MemoryChangelog
    >>> class TestMemory(ChangelogContract):
    ...     changelog = MemoryChangelog

    Needs pytest and hypothesis (`pip install 'penstock[testing]'`).
    """

    changelog: Changelog
    """Opens the changelog of a task: its class, or a `staticmethod`."""
    examples: ClassVar[int] = 50
    """How many random histories are tried."""

    def location(self, directory: Path) -> str:
        """Return the location to open in a test that may use the empty `directory`; by default its path."""
        return str(directory)

    def test_any_history_is_restored(self) -> None:
        """Whatever was appended, lost, snapshotted, cleaned, reopened: each committed version comes back as it was."""
        contract = self

        class History(_History):
            def __init__(self) -> None:
                super().__init__(contract)

        run_state_machine_as_test(
            History,
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )

    def test_many_deltas_ask_for_a_snapshot_and_go_with_it(self, tmp_path: Path) -> None:
        """So the cost of a restore, and the space, stay a constant factor of the state's size."""
        log = self._open(tmp_path)
        log.append({}, None, "v0")
        assert not log.wants_snapshot()
        value = Random(1).randbytes(64 * 1024)  # incompressible
        last, count = "v0", 0
        while not log.wants_snapshot():
            count += 1
            assert count < 2000, "128 MB of changes to one key of 64 kB, and no snapshot is wanted"
            log.append({"s": [(b"key", value)]}, last, f"v{count}")
            last = f"v{count}"
        log.snapshot(last, iter([("s", b"key", value)]))
        assert not log.wants_snapshot()
        now_ms = SystemClock().now_ms()
        for days in (1, 2):
            log.clean(last, 60_000, now_ms + days * _DAY_MS)
        log.append({"s": [(b"other", b"1")]}, last, "next")
        reopened = self._open(tmp_path)
        assert restored(reopened, "next", None, {}) == {"s": {b"key": value, b"other": b"1"}}
        with pytest.raises(ChangelogError):
            reopened.restore("v0", None)

    def test_a_large_snapshot_comes_in_steps(self, tmp_path: Path) -> None:
        """A state need not fit into memory, neither on the way out nor back."""
        rows = 2000
        log = self._open(tmp_path)
        log.append({}, None, "v0")

        def entries() -> Iterator[tuple[str, bytes, bytes]]:
            for store in ("a", "b"):
                for row in range(rows):
                    yield store, b"%08d" % row, b"%08d" % row * 1000

        log.snapshot("v0", entries())
        log.append({"b": [(b"%08d" % 0, None)]}, "v0", "v1")
        plan = self._open(tmp_path).restore("v1", "elsewhere")
        assert plan.base is None
        seen: dict[str, set[bytes]] = {"a": set(), "b": set()}
        versions = []
        for changes, version in plan.steps:
            versions.append(version)
            size = 0
            for store, changed in changes.items():
                for key, value in changed:
                    size += len(value or b"")
                    if value is None:
                        seen[store].discard(key)
                    else:
                        assert value == key * 1000
                        seen[store].add(key)
            assert size < 12_000_000, "one step holds most of the state"
        assert versions[-1] == "v1"
        assert len(versions) == len(set(versions)) >= 3
        assert {"v0", "v1"} >= set(versions[-2:])
        assert len(seen["a"]) == rows and len(seen["b"]) == rows - 1

    def test_a_snapshot_that_failed_is_none(self, tmp_path: Path) -> None:
        """The failure comes out as it is, and restoring goes by what was there before."""
        log = self._open(tmp_path)
        log.append({"s": [(b"key", b"1")]}, None, "v0")

        def entries() -> Iterator[tuple[str, bytes, bytes]]:
            for row in range(100):
                yield "s", b"wrong%08d" % row, b"x" * 100_000
            raise RuntimeError("the store went away")

        with pytest.raises(RuntimeError, match="the store went away"):
            log.snapshot("v0", entries())
        for reader in (log, self._open(tmp_path)):
            assert restored(reader, "v0", None, {}) == {"s": {b"key": b"1"}}

    def test_a_snapshot_that_failed_leaves_the_one_before(self, tmp_path: Path) -> None:
        """Of the same version: the deltas that led there may be gone."""
        log = self._open(tmp_path)
        log.append({}, None, "v0")
        log.append({"s": [(b"key", b"1")]}, "v0", "v1")
        log.snapshot("v1", iter([("s", b"key", b"1")]))
        now_ms = SystemClock().now_ms()
        for days in (1, 2):
            log.clean("v1", 60_000, now_ms + days * _DAY_MS)

        def entries() -> Iterator[tuple[str, bytes, bytes]]:
            raise RuntimeError("the store went away")
            yield

        with pytest.raises(RuntimeError, match="the store went away"):
            log.snapshot("v1", entries())
        assert restored(self._open(tmp_path), "v1", None, {}) == {"s": {b"key": b"1"}}
        log.snapshot("v1", iter([("s", b"key", b"1")]))
        assert restored(self._open(tmp_path), "v1", None, {}) == {"s": {b"key": b"1"}}

    def test_a_version_that_nobody_appended_is_an_error(self, tmp_path: Path) -> None:
        """An empty state in its place would be a silent loss."""
        log = self._open(tmp_path)
        with pytest.raises(ChangelogError, match="ghost"):
            log.restore("ghost", None)
        log.append({}, None, "v0")
        log.append({"s": [(b"key", b"1")]}, "v0", "v1")
        for have in (None, "v0", "v1"):
            with pytest.raises(ChangelogError, match="ghost"):
                log.restore("ghost", have)

    def test_a_chain_with_a_gap_is_an_error_that_names_it_until_a_snapshot_mends_it(self, tmp_path: Path) -> None:
        """A partial state in its place would be a silent loss; who still has a copy is asked for a snapshot."""
        log = self._open(tmp_path)
        log.append({"s": [(b"key", b"1")]}, None, "v0")
        log.append({"s": [(b"key", b"2")]}, "gone", "v2")
        with pytest.raises(ChangelogError, match="gone"):
            log.restore("v2", None)
        with pytest.raises(ChangelogError, match="gone"):
            log.restore("v2", "v0")
        assert log.wants_snapshot()
        log.clean("v2", 0, SystemClock().now_ms() + _DAY_MS)
        log.snapshot("v2", iter([("s", b"key", b"2")]))
        assert not log.wants_snapshot()
        assert restored(self._open(tmp_path), "v2", "v0", {}) == {"s": {b"key": b"2"}}

    def test_tasks_and_applications_are_apart(self, tmp_path: Path) -> None:
        """The same version name elsewhere is another state."""
        where = self.location(tmp_path)
        places = [("one", "0_0"), ("one", "0_1"), ("two", "0_0")]
        for number, place in enumerate(places):
            type(self).changelog(where, *place).append({"s": [(b"key", b"%d" % number)]}, None, "v0")
        for number, place in enumerate(places):
            log = type(self).changelog(where, *place)
            assert restored(log, "v0", None, {}) == {"s": {b"key": b"%d" % number}}

    def test_a_destroyed_one_never_was(self, tmp_path: Path) -> None:
        """Neither version nor snapshot is left, a new chain begins in its place, and others stay as they are."""
        where = self.location(tmp_path)
        log, other = self._open(tmp_path), type(self).changelog(where, "application", "0_1")
        log.destroy()
        for each in (log, other):
            each.append({"s": [(b"key", b"old")]}, None, "v0")
            each.append({"s": [(b"more", b"old")]}, "v0", "v1")
            each.snapshot("v0", iter([("s", b"key", b"old")]))
        log.destroy()
        log.destroy()
        for reader in (log, self._open(tmp_path)):
            for version in ("v0", "v1"):
                with pytest.raises(ChangelogError, match=version):
                    reader.restore(version, None)
        log.append({}, None, "w0")
        log.append({"s": [(b"other", b"new")]}, "w0", "w1")
        for reader in (log, self._open(tmp_path)):
            # A copy of the old chain is recognised as of no use.
            assert restored(reader, "w1", "v1", {"v1": {"s": {b"key": b"old", b"more": b"old"}}}) == {
                "s": {b"other": b"new"}
            }
        assert restored(other, "v1", None, {}) == {"s": {b"key": b"old", b"more": b"old"}}

    def test_closing_twice_is_fine(self, tmp_path: Path) -> None:
        """`close` may come from an error path that ran already."""
        log = self._open(tmp_path)
        log.append({}, None, "v0")
        log.close()
        log.close()

    def _open(self, directory: Path) -> TaskChangelog:
        return type(self).changelog(self.location(directory), "application", "0_0")


def restored(log: TaskChangelog, target: str, have: str | None, known: dict[str, State]) -> State:
    """Return the state that `log` restores at `target` for a copy at `have`, whose state `known` has.

    Asserts what a plan must keep: where it starts, that it ends in `target`, that each step on the way is in key
    order and leads to the state that `known` has for its version, or to a version that `known` does not have.
    """
    plan = log.restore(target, have)
    assert plan.base in (None, have), f"a plan for a copy at {have!r} starts at {plan.base!r}"
    at = plan.base
    state: State = {} if at is None else {store: dict(rows) for store, rows in known[at].items()}
    for changes, version in plan.steps:
        for store, rows in changes.items():
            keys = [key for key, _ in rows]
            assert keys == sorted(set(keys)), "changes of a step must be in key order, each key once"
            _apply(state, store, rows)
        assert version != at, "a step must lead to another version"
        at = version
        if version in known:
            assert _filled(state) == _filled(known[version]), f"wrong state at {version} on the way to {target}"
    assert at == target
    return _filled(state)


def _apply(state: State, store: str, rows: Any) -> None:
    held = state.setdefault(store, {})
    for key, value in rows:
        if value is None:
            held.pop(key, None)
        else:
            held[key] = value


def _filled(state: State) -> State:
    return {store: rows for store, rows in state.items() if rows}


_keys = st.binary(max_size=3)
_values = st.none() | st.binary(max_size=4) | st.integers(0, 255).map(lambda byte: bytes([byte]) * 3000)


def _sorted_changes(changes: dict[str, dict[bytes, bytes | None]]) -> Changes:
    return {store: sorted(rows.items()) for store, rows in changes.items()}


_changes = st.dictionaries(
    st.sampled_from(["counts", "names"]), st.dictionaries(_keys, _values, min_size=1, max_size=6), max_size=2
).map(_sorted_changes)


class _History(RuleBasedStateMachine):
    """A task's life: commits, attempts that were lost, snapshots, cleaning, crashes; and what must be restorable."""

    def __init__(self, contract: ChangelogContract) -> None:
        super().__init__()
        self._contract = contract
        self._directory = tempfile.TemporaryDirectory()
        self._known: dict[str, State] = {}
        self._chain: list[str] = []
        self._sure = 0
        """How many versions at the beginning of the chain may have been cleaned away."""
        self._count = 0
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
        version = f"{self._count:06d}-x"
        self._count += 1
        self._log.append(changes, previous, version)
        state: State = {store: dict(rows) for store, rows in self._known[previous].items()} if previous else {}
        for store, rows in changes.items():
            _apply(state, store, rows)
        self._known[version] = state
        return version

    @rule(changes=_changes)
    def commit(self, changes: Changes) -> None:
        self._chain.append(self._append(changes))

    @rule(changes=_changes, crash=st.booleans())
    def append_what_is_never_committed(self, changes: Changes, crash: bool) -> None:
        self._append(changes)
        if crash:
            self._reopen()

    @precondition(lambda self: self._chain)
    @rule()
    def snapshot(self) -> None:
        self._log.snapshot(self._chain[-1], self._entries(self._chain[-1]))

    @precondition(lambda self: self._chain)
    @rule(at=st.integers(0, 5))
    def snapshot_fails(self, at: int) -> None:
        entries = list(self._entries(self._chain[-1]))
        assume(entries)

        def failing() -> Iterator[tuple[str, bytes, bytes]]:
            yield from entries[:at]
            raise RuntimeError("the store went away")

        with pytest.raises(RuntimeError):
            self._log.snapshot(self._chain[-1], failing())

    def _entries(self, version: str) -> Iterator[tuple[str, bytes, bytes]]:
        for store, rows in sorted(self._known[version].items()):
            for key, value in sorted(rows.items()):
                yield store, key, value

    @rule()
    def reopen(self) -> None:
        self._log.close()
        self._reopen()

    @precondition(lambda self: self._chain)
    @rule(back=st.integers(0, 3) | st.just(0), twice=st.booleans())
    def clean(self, back: int, twice: bool) -> None:
        """Also for a version that is not the newest: a process that slept through its successor's commits."""
        place = max(0, len(self._chain) - 1 - back)
        now_ms = SystemClock().now_ms() + _DAY_MS
        for days in range(1 + twice):
            self._log.clean(self._chain[place], 60_000, now_ms + days * _DAY_MS)
        self._sure = max(self._sure, place)

    @precondition(lambda self: self._chain)
    @rule()
    def clean_within_grace(self) -> None:
        self._log.clean(self._chain[-1], 60_000, SystemClock().now_ms())

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
        assert restored(self._log, target, have, self._known) == _filled(self._known[target])

    @rule()
    def ask_for_a_snapshot(self) -> None:
        assert self._log.wants_snapshot() in (True, False)


__all__ = ["Change", "ChangelogContract", "State", "restored"]
