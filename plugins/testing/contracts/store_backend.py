"""The tests that every store backend must pass; subclass `StoreBackendContract` to run them over yours."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import StaleStoreError, StoreBackend, StoreError, StoreView
from penstock.store import Changes

from .child import CallStep, answer, chosen, places_in
from .expectations import State, applied, expect, expect_no_error, run_histories
from .store_leavings import LeavingTests, ReaderTests
from .store_rows import LENGTHS, RowTests, ScanTests, check_view
from .store_tests import (
    NOTHING,
    STORES,
    Committed,
    StoreTests,
    WriterTests,
    check_count,
    check_reads,
    check_refused,
    committed,
    read_all,
    write_on,
    write_until_killed,
)

_FEW_ROWS, _MANY_ROWS, _LARGE_ROWS = 4, 12_000, 40
_KILLS = {_FEW_ROWS: 60, _MANY_ROWS: 16, _LARGE_ROWS: 8}
"""By the rows of a write: in how many places it is killed at most."""
_LARGE_BYTES = 500_000
"""How long each value is in a write of `_LARGE_ROWS`, of 20 MB: a backend may write in parts of some bytes."""
_OTHER_KILLS = 16
_RULE = "write applies all changes and records the version in one atomic step, which survives its process"


class KillTests(StoreTests):
    """A process may be killed at any step; returned writes are kept, and the next write works."""

    @pytest.mark.parametrize("rows", [*_KILLS])
    def test_a_process_killed_inside_write(self, tmp_path: Path, rows: int) -> None:
        """Wherever it is killed, the store has the version before `write` with its rows, or that after it with its."""
        killing = _Killing(self, tmp_path, rows)
        for place in killing.places("write", _KILLS[rows]):
            killing.kill("write", place)
        self.check_destroyed(tmp_path, "processes were killed inside write")

    @pytest.mark.parametrize("action", ["open", "first write"])
    def test_a_process_killed_in_a_new_directory(self, tmp_path: Path, action: str) -> None:
        """After a kill in a new directory, it is still new, or has the first commit."""
        killing = _Killing(self, tmp_path, _FEW_ROWS)
        for place in killing.places(action, _OTHER_KILLS):
            killing.destroy()
            killing.kill(action, place)
        self.check_destroyed(tmp_path, f"processes were killed in their {action}")

    def test_a_process_killed_while_it_opens_after_a_kill(self, tmp_path: Path) -> None:
        """A process may be killed while it repairs the traces of a kill: the last commit stays."""
        killing = _Killing(self, tmp_path, _FEW_ROWS)
        left: dict[frozenset[str], CallStep] = {}
        for place in killing.places("write", _KILLS[_FEW_ROWS]):
            killing.kill("write", place, check=False)
            # File names with other numbers are as good.
            left[frozenset(re.sub(r"\d+", "#", file.name) for file in tmp_path.rglob("*"))] = place
            killing.check(f"a process was killed at step {place} of write")
        for first in left.values():
            killing.kill("write", first, check=False)
            for place in killing.places("open", _OTHER_KILLS):
                killing.kill("write", first, check=False)
                killing.kill("open", place)

    @pytest.mark.parametrize("action", ["close", "destroy"])
    def test_a_process_killed_while_it_ends(self, tmp_path: Path, action: str) -> None:
        """A kill in `close` loses nothing; after a kill in `destroy`, all is there or nothing."""
        killing = _Killing(self, tmp_path, _FEW_ROWS)
        for place in killing.places(action, _OTHER_KILLS):
            killing.kill(action, place)
        self.check_destroyed(tmp_path, f"processes were killed in {action}")


class _Killing:
    """A directory whose writers are killed one after the other, and the content that it must have."""

    def __init__(self, contract: StoreTests, directory: Path, rows: int) -> None:
        self._opener = type(contract).open
        self._directory = directory
        self._rows = rows
        self._children = contract.children()
        self._allowed: list[Committed] = [NOTHING]
        self._number = 0
        self.check("a new directory")

    def places(self, action: str, most: int) -> list[CallStep]:
        """Return the steps of the action at which to kill it, found in a process that is not killed."""
        if action == "first write":
            self.destroy()
        return chosen(self.kill(action, None), most)

    def kill(self, action: str, place: CallStep | None, *, check: bool = True) -> list[CallStep]:
        """Let a process commit, and kill it at a step of the next action; return its steps if it survives."""
        small = large = version = None
        if action != "open":
            [now] = self._allowed
            version = now[0]
            if action != "first write":
                small = self._following(now, _FEW_ROWS)
                self._allowed = [now := committed(now, *small)]
            if action.endswith("write"):
                large = self._following(now, self._rows)
        where = f"a process {f'was killed at step {place} of' if place else 'ended after'} {action}"
        work = self._opener, self._directory, version, small, large, action, place
        with self._children.started(write_until_killed, *work) as connection:
            if small:
                told = answer(connection, f"{where}: the commit before it")
                assert told == "committed", f"{where}: the commit before it failed: {told}"
            places = places_in(connection, place, action)
        if places:
            place = None
        before = self._allowed[0]
        if large is not None:
            self._allowed = [committed(before, *large)] + [before] * bool(place)
        elif action == "destroy":
            self._allowed = [NOTHING] + [before] * bool(place)
        if check:
            self.check(where)
        return places

    def destroy(self) -> None:
        self._opener(self._directory, STORES).destroy()
        self._allowed = [NOTHING]

    def check(self, where: str) -> None:
        with expect_no_error(f"{where}: the next one must open, read and write"):
            with closing(self._opener(self._directory, STORES)) as backend:
                found = self._check_found(backend, where)
                changes, version = self._following(found, _FEW_ROWS)
                backend.write(changes, found[0], version)
                now = committed(found, changes, version)
                check_reads(backend, now, f"{where}, and the next one wrote")
            with closing(self._opener(self._directory, STORES)) as backend:
                check_reads(backend, now, f"{where}, the next one wrote, and closed")
        self._allowed = [now]

    def _check_found(self, backend: StoreBackend, where: str) -> Committed:
        found = version, content = read_all(backend)
        assert backend.trusted() or (NOTHING in self._allowed and found == NOTHING), (
            f"{where}: trusted() is False, but a killed process damages nothing, except in destroy"
        )
        allowed = dict(self._allowed)
        versions = " or ".join(map(repr, allowed))
        assert version in allowed, f"{where}: found version {version!r}, expected {versions}; {_RULE}"
        expect(content, allowed[version], f"{where}: at version {version!r} rows that do not belong to it; {_RULE}")
        check_reads(backend, found, where)
        return found

    def _following(self, before: Committed, rows: int) -> tuple[Changes, str]:
        """Return changes that put, replace and delete so many rows in both stores, and their version."""
        self._number += 1
        value = b"value %d" % self._number
        if rows == _LARGE_ROWS:
            value = value.ljust(_LARGE_BYTES, b"\0")
        changes: dict[str, list[tuple[bytes, bytes | None]]] = {}
        for store, share in zip(STORES, (rows - rows // 4, rows // 4), strict=True):
            present = before[1][store]
            keys = [b"%05d" % row for row in range(share or rows)]
            changes[store] = [
                (key, None if key in present and at % 3 == self._number % 3 else value) for at, key in enumerate(keys)
            ]
        return changes, f"{self._number:012d}-0123abcd_5e6f7890"


NAMES = (
    "counts", "Counts", "a.b", "a_b", "a-b", "...", ".a", "a.", "-", "--", "_", "9", "n" * 249, "n" * 248 + "N",
    "version", "meta", "entries", "table", "select", "rowid", "sqlite_master", "sqlite_x", "con", "data.mdb",
    "lock.mdb", "tmp",
)  # fmt: skip
"""Names that stores may have, and that a table, a file or a part of one may not, or not beside one another."""

KEYS: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=2),
    st.sampled_from([b"", b"a", b"b", b"ab", b"\x00", b"\xff", b"\xff\xff"]),
    # Long keys that differ late, and keys that other keys begin with.
    st.builds(
        lambda fill, length, tail: fill * length + tail,
        st.sampled_from([b"a", b"\x00", b"\xff"]),
        st.sampled_from(LENGTHS),
        st.binary(max_size=1),
    ),
)
"""Keys of 0 bytes to 10 kB."""

VALUES: st.SearchStrategy[bytes] = st.binary(max_size=3) | st.integers(1, 20_000).map(bytes)
"""Values of 0 bytes to 20 kB."""


class StoreBackendContract(RowTests, ScanTests, ReaderTests, WriterTests, KillTests, LeavingTests):
    """The contract of a store backend, as tests; run them in a test class of yours.

    >>> from penstock.stores.memory import MemoryBackend
    >>> class TestMemory(StoreBackendContract):
    ...     open = staticmethod(MemoryBackend)
    ...     in_one_process = True

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`), and Unix.
    """

    examples: ClassVar[int] = 20
    """How many random histories are tried."""

    def test_any_history(self) -> None:
        """Every read answers as a dict would, whatever is written, refused, reopened and killed."""
        run_histories(lambda: _History(self), examples=self.examples, steps=20)

    def test_it_is_opened_and_filled_in_another_thread_than_it_is_used_in(self, tmp_path: Path) -> None:
        """The engine restores a task's stores beside the thread in which the tasks work."""

        def opened() -> StoreBackend:
            backend = type(self).open(tmp_path, ("first", "second"))
            backend.write({"first": [(b"a", b"1"), (b"b", b"2")]}, None, "v1")
            check_reads(backend, ("v1", {"first": {b"a": b"1", b"b": b"2"}, "second": {}}), "in another thread")
            backend.release()
            return backend

        with ThreadPoolExecutor(1) as thread, closing(thread.submit(opened).result()) as backend:
            check_reads(backend, ("v1", {"first": {b"a": b"1", b"b": b"2"}}), "filled in another thread")
            backend.write({"first": [(b"a", None)], "second": [(b"c", b"3")]}, "v1", "v2")
            backend.release()
            now = ("v2", {"first": {b"b": b"2"}, "second": {b"c": b"3"}})
            thread.submit(check_reads, backend, now, "written in another thread").result()
            thread.submit(backend.release).result()
            check_reads(backend, now, "released in another thread")

    def test_a_write_may_stay_at_its_version(self, tmp_path: Path) -> None:
        """The engine replaces a store's content this way, and opens a directory with more or fewer stores."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"key", b"1")], "second": [(b"key", b"1")]}, None, "v1")
            backend.write({"first": [(b"key", None)]}, "v1", "v1")
            backend.write({"first": [(b"more", b"2")]}, "v1", "v1")
            check_refused(backend, "v0", version="v0")
        with self.opened(tmp_path) as backend:
            now = ("v1", {"first": {b"more": b"2"}, "second": {b"key": b"1"}})
            check_reads(backend, now, "opened again after writes that stayed at a version")

    def test_a_new_directory_is_empty(self, tmp_path: Path) -> None:
        """Its version is None, which the first write expects."""
        with self.opened(tmp_path) as backend:
            check_reads(backend, NOTHING, "a new directory")
            assert backend.trusted() is True, "trusted() of a new directory is True"
            check_refused(backend, "", "in a new directory, whose version is None")
            check_refused(backend, "v0", "in a new directory, whose version is None")
            backend.write({}, None, "v1")
            expect(backend.version(), "v1", "a write without changes records the version")
            check_refused(backend, None, "the version is v1")

    def test_a_stale_write_changes_nothing(self, tmp_path: Path) -> None:
        """A process that was replaced must not move the store back, not even in part."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"a", b"1")], "second": [(b"b", b"1")]}, None, "v1")
            now = ("v1", {"first": {b"a": b"1"}, "second": {b"b": b"1"}})
            for previous in (None, "v0", "v", "v11", "V1", "", "v1 "):
                backend.release()
                check_refused(backend, previous, changes={"first": [(b"a", b"2")], "second": [(b"b", None)]})
                check_reads(backend, now, "after a refused write")
            backend.write({"first": [(b"a", b"2")]}, "v1", "v2")
            expect(backend.get("first", b"a"), b"2", "get after a write that follows refused ones")
        with self.opened(tmp_path) as backend:
            now = ("v2", {"first": {b"a": b"2"}, "second": {b"b": b"1"}})
            check_reads(backend, now, "opened again after refused writes")

    def test_stores_are_apart(self, tmp_path: Path) -> None:
        """One key in two stores is two entries, and a store that was not opened is an error that names it."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"k", b"1")], "second": [(b"k", b"2")]}, None, "v1")
            backend.write({"second": [(b"k", None)]}, "v1", "v2")
            now = ("v2", {"first": {b"k": b"1"}, "second": {}})
            check_reads(backend, now, "after a key was deleted in one of two stores")
            refused: list[Callable[[], object]] = [
                lambda: backend.get("third", b"k"),
                lambda: list(backend.range("third")),
                lambda: backend.approximate_count("third"),
                lambda: backend.write({"first": [(b"k", b"3")], "third": [(b"k", b"3")]}, "v2", "v3"),
                lambda: backend.write({"third": [], "first": [(b"k", b"3")]}, "v2", "v3"),
            ]
            for call in refused:
                with pytest.raises(StoreError, match="third"):
                    call()
            check_reads(backend, now, "after calls for a store that was not opened")
            backend.write({"first": [(b"k", b"4")]}, "v2", "v3")
            now = ("v3", {"first": {b"k": b"4"}, "second": {}})
            check_reads(backend, now, "after a write that follows a call for a store that was not opened")

    def test_any_name_that_a_store_may_have(self, tmp_path: Path) -> None:
        """Names that differ in case only are different stores, and none is the backend's own."""
        with self.opened(tmp_path, NAMES) as backend:
            for name in NAMES:
                assert list(backend.range(name)) == [], f"store {name!r} is not empty at first"
            backend.write({name: [(b"key", name.encode())] for name in NAMES}, None, "v1")
            backend.write({"counts": [(b"key", None), (b"other", b"1")]}, "v1", "v2")
        # As they are, in another order, and with one that is new.
        with self.opened(tmp_path, ["COUNTS", *reversed(NAMES)]) as backend:
            for name in NAMES:
                expected = [(b"other", b"1")] if name == "counts" else [(b"key", name.encode())]
                check_reads(backend, ("v2", {name: dict(expected)}), f"store {name!r} is mixed up with another")
            expect(list(backend.range("COUNTS")), [], "a range of a store whose name is new")

    def test_stores_may_be_added_and_left_out(self, tmp_path: Path) -> None:
        """Opening with other names keeps existing stores."""
        with self.opened(tmp_path, ["first"]) as backend:
            backend.write({"first": [(b"k", b"1")]}, None, "v1")
        with self.opened(tmp_path, ["second", "first"]) as backend:
            check_reads(backend, ("v1", {"first": {b"k": b"1"}, "second": {}}), "opened with one store more")
            backend.write({"second": [(b"k", b"2")]}, "v1", "v2")
        with self.opened(tmp_path, ["second"]) as backend:
            check_reads(backend, ("v2", {"second": {b"k": b"2"}}), "opened with one store less")
            backend.write({"second": [(b"k", b"3")]}, "v2", "v3")
        with self.opened(tmp_path, []) as backend:
            check_reads(backend, ("v3", {}), "opened without stores")
            backend.write({}, "v3", "v4")
        with self.opened(tmp_path) as backend:
            now = ("v4", {"first": {b"k": b"1"}, "second": {b"k": b"3"}})
            check_reads(backend, now, "opened with a store that was left out in between")

    def test_directories_are_apart(self, tmp_path: Path) -> None:
        """Directories are separate: of one name in different places, and names with any character."""
        names = ["one/0_0", "two/0_0", "a b%20c?d#e", "\u00e9", "'quoted\"", "-"]
        backends, version = [], None
        for name in names:
            (tmp_path / name).mkdir(parents=True)
            backends.append(type(self).open(tmp_path / name, STORES))
        try:
            for name, backend in zip(names, backends, strict=True):
                check_reads(backend, NOTHING, f"a new directory {name!r} beside others")
                backend.write({"first": [(b"name", name.encode())]}, version, f"v-{len(name)}")
            for name, backend in zip(names, backends, strict=True):
                now = (f"v-{len(name)}", {"first": {b"name": name.encode()}, "second": {}})
                check_reads(backend, now, f"a directory {name!r} beside others")
            backends[0].destroy()
            check_reads(backends[1], ("v-7", {"first": {b"name": b"two/0_0"}}), "after another directory was destroyed")
        finally:
            for backend in backends:
                backend.destroy()

    def test_closing(self, tmp_path: Path) -> None:
        """`close` is idempotent; using the backend, or an iterator, afterwards is an error."""
        backend = type(self).open(tmp_path, STORES)
        backend.write({"first": [(b"%04d" % number, b"") for number in range(2000)]}, None, "v1")
        entries = backend.range("first")
        next(entries)
        backend.release()
        expect(backend.get("first", b"0000"), b"", "get after release")
        backend.close()
        backend.close()
        with pytest.raises(StoreError):
            backend.get("first", b"0000")
        with pytest.raises(StoreError):
            backend.version()
        with pytest.raises(StoreError):
            backend.write({}, "v1", "v2")
        try:
            rest = list(entries)
        except StoreError:
            pass
        else:
            assert len(rest) == 1999, "ending early would be taken for the end"
        with self.opened(tmp_path) as again:
            rows = {b"%04d" % number: b"" for number in range(2000)}
            check_reads(again, ("v1", {"first": rows}), "opened again after close")

    def test_what_is_returned_has_its_type(self, tmp_path: Path) -> None:
        """Keys and values are bytes and no other buffer, and a count is an int: serdes and stores rely on it."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"a", b"1"), (b"b", b"")]}, None, "v1")
            for key in (b"a", b"b"):
                got = backend.get("first", key)
                assert type(got) is bytes, f"get({key!r}) must return bytes, and returned {got!r}"
            for reverse in (False, True):
                for pair in backend.range("first", reverse=reverse):
                    assert [type(each) for each in pair] == [bytes, bytes], (
                        f"range must yield bytes, and yielded {pair!r}"
                    )
            numbers = {"approximate_count": backend.approximate_count("first")}
            numbers |= {f"write_bytes for {each}": backend.write_bytes("first", each) for each in (0, 1, 100_000)}
            for what, number in numbers.items():
                assert type(number) is int and number >= 0, f"{what} must return an int >= 0, and returned {number!r}"
            expect(type(backend.version()), str, "the type of what version returns")
            expect(type(backend.trusted()), bool, "the type of what trusted returns")

    def test_destroying_leaves_no_files(self, tmp_path: Path) -> None:
        """The directory itself may stay, empty."""
        backend = type(self).open(tmp_path, STORES)
        backend.write({"first": [(b"k", b"1")]}, None, "v1")
        backend.destroy()
        left = sorted(tmp_path.iterdir()) if tmp_path.exists() else []
        assert not left, f"destroy must delete the stores' files, and left {left}"

    def test_destroying(self, tmp_path: Path) -> None:
        """The directory opens as a new one afterwards."""
        backend = type(self).open(tmp_path, STORES)
        backend.write({"first": [(b"k", b"1")]}, None, "v1")
        backend.destroy()
        backend.close()
        with pytest.raises(StoreError):
            backend.get("first", b"k")
        with self.opened(tmp_path) as again:
            check_reads(again, NOTHING, "opened again after destroy")
            again.write({"first": [(b"k", b"2")]}, None, "other")
            check_reads(again, ("other", {"first": {b"k": b"2"}}), "written after destroy")

    def test_a_damaged_side_file(self, tmp_path: Path) -> None:
        """A side file of up to 100 bytes is lost or overwritten: StoreError, an untrusted copy, or no effect."""
        rows = {b"%04d" % number: b"value" for number in range(200)}
        whole = tmp_path / "whole"
        whole.mkdir()
        with self.opened(whole) as backend:
            backend.write({"first": sorted(rows.items())}, None, "v0")
        for file in [each for each in sorted(whole.rglob("*")) if each.is_file() and each.stat().st_size <= 100]:
            for number, content in enumerate((None, b"", b"\xff\x00" * 8)):
                damaged = tmp_path / f"{file.name}-{number}"
                shutil.copytree(whole, damaged)
                place = damaged / file.relative_to(whole)
                place.unlink() if content is None else place.write_bytes(content)
                with suppress(StoreError), self.opened(damaged) as backend:
                    found = backend.version(), dict(backend.range("first"))
                    assert not backend.trusted() or found == ("v0", rows), (
                        f"{file.name} with {content!r} in place of its content: trusted() is True, and the version is "
                        f"{found[0]!r} with {len(found[1])} of {len(rows)} entries"
                    )

    def test_a_directory_that_cannot_be_one(self, tmp_path: Path) -> None:
        """Is named by the error."""
        if self.in_one_process:
            pytest.skip("this backend needs no directory")
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(StoreError, match="taken"):
            type(self).open(tmp_path / "taken", STORES)


def _changes(keys: st.SearchStrategy[bytes]) -> st.SearchStrategy[Changes]:
    rows = st.dictionaries(keys, VALUES | st.none(), max_size=8).map(lambda changed: sorted(changed.items()))
    return st.dictionaries(st.sampled_from(STORES), rows)


class _History(RuleBasedStateMachine):
    """One directory over several openings, beside a dict for each store."""

    def __init__(self, contract: StoreTests) -> None:
        super().__init__()
        self.contract = contract
        self.opener = type(contract).open
        self.model: State = {store: {} for store in STORES}
        self.version: str | None = None
        self.written = 0
        self.temporary = tempfile.TemporaryDirectory(prefix="penstock-contract-")
        self.directory = Path(self.temporary.name)
        self.backend = self.opener(self.directory, STORES)
        self.views: list[tuple[StoreView, str | None, State]] = []

    def teardown(self) -> None:
        self.close_views()
        self.backend.destroy()
        self.temporary.cleanup()

    def next_version(self) -> str:
        self.written += 1
        return f"{self.written:012d}-x"

    @rule(changes=_changes(KEYS))
    def write(self, changes: Changes) -> None:
        version = self.next_version()
        self.backend.write(changes, self.version, version)
        self.version = version
        self.model = applied(self.model, changes)

    @rule(changes=_changes(KEYS), data=st.data())
    def write_what_was_written(self, changes: Changes, data: st.DataObject) -> None:
        """Change keys that exist."""
        keys = sorted(self.model["first"])
        if keys:
            chosen = data.draw(st.lists(st.sampled_from(keys), max_size=4, unique=True))
            value = data.draw(VALUES | st.none())
            self.write({"first": sorted((key, value) for key in chosen)})

    @rule(changes=_changes(KEYS), previous=st.sampled_from([None, "", "other", "000000000000-x"]))
    def stale_write(self, changes: Changes, previous: str | None) -> None:
        if previous != self.version:
            with pytest.raises(StaleStoreError):
                self.backend.write(changes, previous, "never")

    @rule(store=st.sampled_from(STORES), key=KEYS)
    def get(self, store: str, key: bytes) -> None:
        expect(self.backend.get(store, key), self.model[store].get(key), f"get of {key[:40]!r} in {store!r}")

    @rule(store=st.sampled_from(STORES), start=KEYS | st.none(), end=KEYS | st.none(), reverse=st.booleans())
    def scan(self, store: str, start: bytes | None, end: bytes | None, reverse: bool) -> None:
        expected = [
            (key, value)
            for key, value in sorted(self.model[store].items())
            if (start is None or start <= key) and (end is None or key < end)
        ]
        found = list(self.backend.range(store, start, end, reverse=reverse))
        expect(found, expected[::-1] if reverse else expected, f"range of {store!r} with bounds")

    @rule(store=st.sampled_from(STORES), reverse=st.booleans())
    def scan_half(self, store: str, reverse: bool) -> None:
        half = len(self.model[store]) // 2
        found = list(islice(self.backend.range(store, reverse=reverse), half))
        expect(found, sorted(self.model[store].items(), reverse=reverse)[:half], f"half a range of {store!r}")

    @rule()
    def reopen(self) -> None:
        self.close_views()
        self.backend.close()
        self.backend = self.opener(self.directory, STORES)

    @rule()
    def release(self) -> None:
        self.backend.release()

    @rule()
    def destroy(self) -> None:
        self.close_views()
        self.backend.destroy()
        self.backend = self.opener(self.directory, STORES)
        self.version = None
        self.model = {store: {} for store in STORES}

    @precondition(lambda self: not self.contract.in_one_process)
    @rule(plan=st.lists(_changes(KEYS), min_size=1, max_size=4), after=st.integers(0, 4), closed=st.booleans())
    def crash(self, plan: list[Changes], after: int, closed: bool) -> None:
        """Another process continues, and is killed in the write after number `after`."""
        self.close_views()
        self.backend.close()
        version = self.version
        names = [self.next_version() for _ in plan]
        acknowledged = 0
        work = self.opener, self.directory, plan, version, names, closed
        with self.contract.children().started(write_on, *work, kill=True) as connection:
            while acknowledged < min(after, len(plan)):
                expect(answer(connection), names[acknowledged], "a process that writes")
                acknowledged += 1
            if after > len(plan):
                expect(answer(connection), "done", "a process that has written")
        self.backend = self.opener(self.directory, STORES)
        assert self.backend.trusted(), "trusted() after a process was killed: a kill damages nothing"
        found = self.backend.version()
        reached = 0 if found == version else names.index(str(found)) + 1
        assert reached >= acknowledged, "a write that had returned is lost"
        for changes in plan[:reached]:
            self.model = applied(self.model, changes)
        self.version = found
        expect(read_all(self.backend), (found, self.model), "what is there after a process was killed")

    @precondition(lambda self: len(self.views) < 3)
    @rule()
    def view(self) -> None:
        view = self.backend.view(STORES)
        if view is not None:
            self.views.append((view, self.version, self.model))

    @precondition(lambda self: self.views)
    @rule(store=st.sampled_from(STORES))
    def look_at_views(self, store: str) -> None:
        for view, version, model in self.views:
            expect(view.version, version, "the version of a view stays")
            expect(list(view.range(store)), sorted(model[store].items()), f"the rows of {store!r} in a view stay")
            check_view(view, store, model[store], sorted(model[store])[:3])

    def close_views(self) -> None:
        for view, _, _ in self.views:
            view.close()
        self.views.clear()

    @invariant()
    def is_at_version(self) -> None:
        expect(self.backend.version(), self.version, "version of the last write")
        for store in STORES:
            check_count(self.backend, store, len(self.model[store]), "after any history")
