"""The tests that every store backend must pass; subclass `StoreBackendContract` to run them over yours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock import StaleStoreError, StoreBackend, StoreError
from penstock.store import Changes

from .child import CleanChildren, answer
from .histories import State, applied, run_histories
from .store_processes import STORES, StoreProcesses, module_of, write_on

NAMES = (
    "counts", "Counts", "a.b", "a_b", "a-b", "...", ".a", "a.", "-", "--", "_", "9", "n" * 249, "n" * 248 + "N",
    "version", "meta", "entries", "table", "select", "rowid", "sqlite_master", "sqlite_x", "con", "data.mdb",
    "lock.mdb", "tmp",
)  # fmt: skip
"""Names that stores may have, and that a table, a file or a part of one may not, or not beside one another."""

_LENGTHS = (0, 1, 255, 256, 509, 510, 511, 512, 513, 1012, 1013, 1014, 4096, 10_000)

KEYS: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=2),
    st.sampled_from([b"", b"a", b"b", b"ab", b"\x00", b"\xff", b"\xff\xff"]),
    # Long keys that differ late, and keys that other keys begin with.
    st.builds(
        lambda fill, length, tail: fill * length + tail,
        st.sampled_from([b"a", b"\x00", b"\xff"]),
        st.sampled_from(_LENGTHS),
        st.binary(max_size=1),
    ),
)
"""Keys of 0 bytes to 10 kB."""

VALUES: st.SearchStrategy[bytes] = st.binary(max_size=3) | st.integers(1, 20_000).map(bytes)
"""Values of 0 bytes to 20 kB."""


class StoreBackendContract(StoreProcesses):
    """The contract of a store backend, as tests; run them in a test class of yours.

    >>> from penstock.stores.memory import MemoryBackend
    >>> class TestMemory(StoreBackendContract):
    ...     open = staticmethod(MemoryBackend)
    ...     in_one_process = True

    Needs pytest and hypothesis (`pip install 'penstock[testing]'`), and Unix.
    """

    examples: ClassVar[int] = 20
    """How many random histories are tried."""

    def test_any_history(self) -> None:
        """Every read answers as a dict would, whatever is written, refused, reopened and killed."""
        with CleanChildren([module_of(type(self).open)]) as children:
            run_histories(lambda: _History(self, children), examples=self.examples, steps=20)

    def test_it_is_opened_and_filled_in_another_thread_than_it_is_used_in(self, tmp_path: Path) -> None:
        """The engine restores a task's stores beside the thread in which the tasks work."""

        def opened() -> StoreBackend:
            backend = type(self).open(tmp_path, ("first", "second"))
            backend.write({"first": [(b"a", b"1"), (b"b", b"2")]}, None, "v1")
            assert backend.get("first", b"a") == b"1" and list(backend.range("second")) == []
            backend.release()
            return backend

        with ThreadPoolExecutor(1) as thread, closing(thread.submit(opened).result()) as backend:
            assert list(backend.range("first")) == [(b"a", b"1"), (b"b", b"2")]
            backend.write({"first": [(b"a", None)], "second": [(b"c", b"3")]}, "v1", "v2")
            backend.release()
            assert thread.submit(lambda: list(backend.range("second"))).result() == [(b"c", b"3")]
            thread.submit(backend.release).result()
            assert (backend.version(), backend.get("first", b"a")) == ("v2", None)

    def test_a_write_may_stay_at_its_version(self, tmp_path: Path) -> None:
        """The engine replaces a store's content this way, and opens a directory with more or fewer stores."""
        with self._opened(tmp_path) as backend:
            backend.write({"first": [(b"key", b"1")], "second": [(b"key", b"1")]}, None, "v1")
            backend.write({"first": [(b"key", None)]}, "v1", "v1")
            backend.write({"first": [(b"more", b"2")]}, "v1", "v1")
            with pytest.raises(StaleStoreError):
                backend.write({"first": [(b"more", b"3")]}, "v0", "v0")
        with self._opened(tmp_path) as backend:
            assert backend.version() == "v1"
            assert list(backend.range("first")) == [(b"more", b"2")]
            assert list(backend.range("second")) == [(b"key", b"1")]

    @pytest.mark.parametrize("length", _LENGTHS)
    def test_a_key_of_any_length(self, tmp_path: Path, length: int) -> None:
        """It is found, it sorts among its neighbours, and it can be deleted."""
        keys = sorted(
            {b"k" * length, b"k" * length + b"\x00", b"k" * length + b"\xff", b"k" * max(length - 1, 0), b"k"}
        )
        with self._opened(tmp_path) as backend:
            backend.write({"first": [(key, b"v" + key[-1:]) for key in keys]}, None, "v1")
            for at, key in enumerate(keys):
                assert backend.get("first", key) == b"v" + key[-1:], f"{len(key)} bytes"
                for bounds, expected in (((key, None), keys[at:]), ((None, key), keys[:at])):
                    assert [found for found, _ in backend.range("first", *bounds)] == expected
                    assert [found for found, _ in backend.range("first", *bounds, reverse=True)] == expected[::-1]
            backend.write({"first": [(key, None) for key in keys]}, "v1", "v2")
            assert list(backend.range("first")) == []
            assert all(backend.get("first", key) is None for key in keys)

    def test_a_new_directory_is_empty(self, tmp_path: Path) -> None:
        """Its version is None, which the first write expects."""
        with self._opened(tmp_path) as backend:
            assert backend.version() is None
            assert backend.trusted() is True
            assert backend.write_bytes("first", 100_000) >= 0
            assert backend.approximate_count("first") == 0
            assert list(backend.range("first")) == []
            backend.write({}, None, "v1")
            assert backend.version() == "v1"

    def test_a_stale_write_changes_nothing(self, tmp_path: Path) -> None:
        """A process that was replaced must not move the store back, not even in part."""
        with self._opened(tmp_path) as backend:
            with pytest.raises(StaleStoreError):
                backend.write({"first": [(b"a", b"0")]}, "v0", "v1")
            backend.write({"first": [(b"a", b"1")], "second": [(b"b", b"1")]}, None, "v1")
            for previous in (None, "v0", "v", "v11"):
                with pytest.raises(StaleStoreError):
                    backend.write({"first": [(b"a", b"2")], "second": [(b"b", None)]}, previous, "v2")
            assert backend.version() == "v1"
            assert backend.get("first", b"a") == b"1"
            assert backend.get("second", b"b") == b"1"
            backend.write({"first": [(b"a", b"2")]}, "v1", "v2")
            assert backend.get("first", b"a") == b"2"

    def test_stores_are_apart(self, tmp_path: Path) -> None:
        """One key in two stores is two entries, and a store that was not opened is an error that names it."""
        with self._opened(tmp_path) as backend:
            backend.write({"first": [(b"k", b"1")], "second": [(b"k", b"2")]}, None, "v1")
            backend.write({"second": [(b"k", None)]}, "v1", "v2")
            assert backend.get("first", b"k") == b"1"
            assert list(backend.range("second")) == []
            with pytest.raises(StoreError, match="third"):
                backend.get("third", b"k")
            with pytest.raises(StoreError, match="third"):
                list(backend.range("third"))
            with pytest.raises(StoreError, match="third"):
                backend.write({"first": [(b"k", b"3")], "third": [(b"k", b"3")]}, "v2", "v3")
            assert (backend.version(), backend.get("first", b"k")) == ("v2", b"1")

    def test_any_name_that_a_store_may_have(self, tmp_path: Path) -> None:
        """Names that differ in case only are different stores, and none is the backend's own."""
        with self._opened(tmp_path, NAMES) as backend:
            for name in NAMES:
                assert list(backend.range(name)) == [], f"store {name!r} is not empty at first"
            backend.write({name: [(b"key", name.encode())] for name in NAMES}, None, "v1")
            backend.write({"counts": [(b"key", None), (b"other", b"1")]}, "v1", "v2")
        # As they are, in another order, and with one that is new.
        with self._opened(tmp_path, ["COUNTS", *reversed(NAMES)]) as backend:
            assert backend.version() == "v2"
            for name in NAMES:
                expected = [(b"other", b"1")] if name == "counts" else [(b"key", name.encode())]
                assert list(backend.range(name)) == expected, f"store {name!r} is mixed up with another"
                assert backend.get(name, b"key") == dict(expected).get(b"key")
                assert backend.approximate_count(name) == 1
            assert list(backend.range("COUNTS")) == []

    def test_stores_may_be_added(self, tmp_path: Path) -> None:
        """Opening with other names keeps existing stores."""
        with self._opened(tmp_path, ["first"]) as backend:
            backend.write({"first": [(b"k", b"1")]}, None, "v1")
        with self._opened(tmp_path, ["second", "first"]) as backend:
            assert backend.version() == "v1"
            assert backend.get("first", b"k") == b"1"
            backend.write({"second": [(b"k", b"2")]}, "v1", "v2")
            assert backend.get("second", b"k") == b"2"

    def test_bounds_of_a_range(self, tmp_path: Path) -> None:
        """The start is included, the end is not, and a range whose end is before its start is empty."""
        with self._opened(tmp_path) as backend:
            backend.write({"first": [(key, b"") for key in (b"a", b"aa", b"b", b"c")]}, None, "v1")

            def keys(start: bytes | None, end: bytes | None) -> list[bytes]:
                forward = [key for key, _ in backend.range("first", start, end)]
                assert [key for key, _ in backend.range("first", start, end, reverse=True)] == forward[::-1]
                return forward

            assert keys(b"a", b"b") == [b"a", b"aa"]
            assert keys(b"a", b"a") == keys(b"b", b"a") == keys(b"d", None) == keys(None, b"") == []
            assert keys(b"a\x00", b"\xff" * 600) == [b"aa", b"b", b"c"]
            assert keys(b"", None) == [b"a", b"aa", b"b", b"c"]

    def test_many_entries(self, tmp_path: Path) -> None:
        """A scan in several steps inside the backend neither skips nor repeats an entry."""
        entries = [(b"%05d" % number, bytes([number % 256]) * (number % 700)) for number in range(5000)]
        with self._opened(tmp_path) as backend:
            backend.write({"first": entries}, None, "v1")
            assert list(backend.range("first")) == entries
            assert list(backend.range("first", reverse=True)) == entries[::-1]
            assert 2500 <= backend.approximate_count("first") <= 10_000

    def test_a_large_value(self, tmp_path: Path) -> None:
        """Some megabytes, several times over."""
        value = os.urandom(3 << 20)
        with self._opened(tmp_path) as backend:
            version = None
            for number in range(4):
                backend.write({"first": [(b"large", value), (b"other%d" % number, value)]}, version, f"v{number}")
                version = f"v{number}"
            assert backend.get("first", b"large") == value
            assert sum(1 for _ in backend.range("first")) == 5

    def test_an_iterator_may_be_dropped(self, tmp_path: Path) -> None:
        """Hundreds of unfinished iterators block nothing."""
        with self._opened(tmp_path) as backend:
            backend.write({"first": [(b"%04d" % number, b"") for number in range(2000)]}, None, "v0")
            kept = []
            for number in range(300):
                entries = backend.range("first", reverse=bool(number % 2))
                next(entries)
                if number % 3:
                    kept.append(entries)
                backend.write({"first": [(b"%04d" % number, b"new")]}, f"v{number}", f"v{number + 1}")
            assert backend.get("first", b"0299") == b"new"
            assert len(kept) == 200

    def test_writing_while_iterating(self, tmp_path: Path) -> None:
        """It never fails, and yields each unchanged entry once, in order."""
        with self._opened(tmp_path) as backend:
            backend.write({"first": [(b"%04d" % number, b"old") for number in range(2000)]}, None, "v0")
            for reverse in (False, True):
                version, seen, touched = backend.version(), [], set()
                before = {key for key, _ in backend.range("first")}
                for number, (key, _) in enumerate(backend.range("first", reverse=reverse)):
                    seen.append(key)
                    if number % 100 == 0:
                        changes: dict[bytes, bytes | None] = {key + b"x": b"new", b"5": b"new", b"": b"new", key: None}
                        touched |= set(changes)
                        following = f"{version}-{number}"
                        backend.write({"first": sorted(changes.items())}, version, following)
                        version = following
                assert seen == sorted(set(seen), reverse=reverse)
                assert before - touched <= set(seen) <= before | touched
                assert len(touched) > 40

    def test_a_view_stays_as_it_is(self, tmp_path: Path) -> None:
        """Another thread reads one version from it, whatever is written meanwhile."""
        with self._opened(tmp_path) as backend:
            version: str | None = None
            for number in range(3):
                changes = [(b"%05d" % row, b"%d" % number) for row in range(number, 3000)]
                backend.write({"first": changes, "second": [(b"k", b"%d" % number)]}, version, f"v{number}")
                version = f"v{number}"
            expected = {store: list(backend.range(store)) for store in STORES}
            view = backend.view(STORES)
            if view is None:
                return  # the engine reads without one
            with closing(view), ThreadPoolExecutor(1) as thread:
                assert view.version == "v2"
                entries = view.range("first")
                found = [thread.submit(next, entries).result()]
                backend.write({"first": [(b"%05d" % row, None) for row in range(1, 3000, 2)]}, "v2", "v3")
                backend.write({"first": [(b"%05d" % row, b"new") for row in range(4000)], "second": []}, "v3", "v4")
                backend.release()
                found += thread.submit(list, entries).result()
                backend.write({"second": [(b"k", None)]}, "v4", "v5")
                assert found == expected["first"]
                assert thread.submit(list, view.range("second")).result() == expected["second"]
                assert view.version == "v2"
            assert dict(backend.range("first")) == {b"%05d" % row: b"new" for row in range(4000)}
            view.close()

    def test_a_view_and_the_end_of_its_backend(self, tmp_path: Path) -> None:
        """It is read to its end, or raises StoreError; the directory can be opened beside it, and destroyed."""
        entries = [(b"%05d" % row, b"value") for row in range(3000)]
        for number, end in enumerate((StoreBackend.close, StoreBackend.destroy)):
            backend = type(self).open(tmp_path, STORES)
            backend.write({"first": entries}, None, f"v{number}")
            view = backend.view(STORES)
            if view is None:
                backend.close()
                return
            reading = view.range("first")
            found = [next(reading)]
            getattr(backend, end.__name__)()
            with self._opened(tmp_path) as again:
                with suppress(StoreError):
                    found += reading
                    assert found == entries
                assert again.version() == (None if end is StoreBackend.destroy else f"v{number}")
                view.close()
                again.destroy()

    def test_closing(self, tmp_path: Path) -> None:
        """`close` is idempotent; using the backend, or an iterator, afterwards is an error."""
        backend = type(self).open(tmp_path, STORES)
        backend.write({"first": [(b"%04d" % number, b"") for number in range(2000)]}, None, "v1")
        entries = backend.range("first")
        next(entries)
        backend.release()
        assert backend.get("first", b"0000") == b""
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
        with self._opened(tmp_path) as again:
            assert again.version() == "v1"
            assert sum(1 for _ in again.range("first")) == 2000

    def test_what_is_returned_has_its_type(self, tmp_path: Path) -> None:
        """Keys and values are bytes and no other buffer, and a count is an int: serdes and stores rely on it."""
        with self._opened(tmp_path) as backend:
            backend.write({"first": [(b"a", b"1"), (b"b", b"")]}, None, "v1")
            for key in (b"a", b"b"):
                got = backend.get("first", key)
                assert type(got) is bytes, f"get({key!r}) must return bytes, and returned {got!r}"
            for reverse in (False, True):
                for pair in backend.range("first", reverse=reverse):
                    assert [type(each) for each in pair] == [bytes, bytes], (
                        f"range must yield bytes, and yielded {pair!r}"
                    )
            count = backend.approximate_count("first")
            assert type(count) is int, f"approximate_count must return an int, and returned {count!r}"

    def test_destroying_leaves_no_files(self, tmp_path: Path) -> None:
        """The directory itself may stay, empty."""
        backend = type(self).open(tmp_path, STORES)
        backend.write({"first": [(b"k", b"1")]}, None, "v1")
        backend.destroy()
        left = sorted(tmp_path.iterdir()) if tmp_path.exists() else []
        assert not left, f"destroy must delete the stores' files, and left {left}"

    def test_closing_frees_descriptors(self, tmp_path: Path) -> None:
        """A runner opens and closes tasks for months."""
        descriptors = Path("/proc/self/fd")
        if not descriptors.exists():
            pytest.skip("this system does not list a process's descriptors")
        counts = []
        for number in range(6):
            with self._opened(tmp_path) as backend:
                backend.write({"first": [(b"k", b"1")]}, backend.version(), f"v{number}")
            counts.append(len(list(descriptors.iterdir())))
        assert counts[-1] <= counts[0], f"close must free all descriptors; open after each close: {counts}"

    def test_destroying(self, tmp_path: Path) -> None:
        """The directory opens as a new one afterwards."""
        backend = type(self).open(tmp_path, STORES)
        backend.write({"first": [(b"k", b"1")]}, None, "v1")
        backend.destroy()
        backend.close()
        with pytest.raises(StoreError):
            backend.get("first", b"k")
        with self._opened(tmp_path) as again:
            assert again.version() is None
            assert list(again.range("first")) == []
            again.write({"first": [(b"k", b"2")]}, None, "other")
            assert again.get("first", b"k") == b"2"

    def test_a_directory_that_cannot_be_one(self, tmp_path: Path) -> None:
        """Is named by the error."""
        if self.in_one_process:
            pytest.skip("this backend needs no directory")
        (tmp_path / "taken").write_text("a file")
        with pytest.raises(StoreError, match="taken"):
            type(self).open(tmp_path / "taken", STORES)

    # ------------------------------------------------------------------ helpers

    def _opened(self, directory: Path, stores: Sequence[str] = STORES) -> closing[StoreBackend]:
        return closing(type(self).open(directory, stores))


def _changes(keys: st.SearchStrategy[bytes]) -> st.SearchStrategy[Changes]:
    rows = st.dictionaries(keys, VALUES | st.none(), max_size=8).map(lambda changed: sorted(changed.items()))
    return st.dictionaries(st.sampled_from(STORES), rows)


class _History(RuleBasedStateMachine):
    """One directory over several openings, beside a dict for each store."""

    def __init__(self, contract: StoreBackendContract, children: CleanChildren) -> None:
        super().__init__()
        self.contract = contract
        self.children = children
        self.opener = type(contract).open
        self.model: State = {store: {} for store in STORES}
        self.version: str | None = None
        self.written = 0
        self.temporary = tempfile.TemporaryDirectory(prefix="penstock-contract-")
        self.directory = Path(self.temporary.name)
        self.backend = self.opener(self.directory, STORES)

    def teardown(self) -> None:
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
        assert self.backend.get(store, key) == self.model[store].get(key)

    @rule(store=st.sampled_from(STORES), start=KEYS | st.none(), end=KEYS | st.none(), reverse=st.booleans())
    def scan(self, store: str, start: bytes | None, end: bytes | None, reverse: bool) -> None:
        expected = [
            (key, value)
            for key, value in sorted(self.model[store].items())
            if (start is None or start <= key) and (end is None or key < end)
        ]
        found = list(self.backend.range(store, start, end, reverse=reverse))
        assert found == (expected[::-1] if reverse else expected)

    @rule(store=st.sampled_from(STORES), reverse=st.booleans())
    def scan_half(self, store: str, reverse: bool) -> None:
        half = len(self.model[store]) // 2
        found = list(islice(self.backend.range(store, reverse=reverse), half))
        assert found == sorted(self.model[store].items(), reverse=reverse)[:half]

    @rule()
    def reopen(self) -> None:
        self.backend.close()
        self.backend = self.opener(self.directory, STORES)

    @rule()
    def release(self) -> None:
        self.backend.release()

    @rule()
    def destroy(self) -> None:
        self.backend.destroy()
        self.backend = self.opener(self.directory, STORES)
        self.version = None
        self.model = {store: {} for store in STORES}

    @precondition(lambda self: not self.contract.in_one_process)
    @rule(plan=st.lists(_changes(KEYS), min_size=1, max_size=4), after=st.integers(0, 4), closed=st.booleans())
    def crash(self, plan: list[Changes], after: int, closed: bool) -> None:
        """Another process continues, and is killed in the write after number `after`."""
        self.backend.close()
        version = self.version
        names = [self.next_version() for _ in plan]
        acknowledged = 0
        work = self.opener, self.directory, plan, version, names, closed
        with self.children.started(write_on, *work, kill=True) as connection:
            while acknowledged < min(after, len(plan)):
                assert answer(connection) == names[acknowledged]
                acknowledged += 1
            if after > len(plan):
                assert answer(connection) == "done"
        self.backend = self.opener(self.directory, STORES)
        assert self.backend.trusted()
        found = self.backend.version()
        reached = 0 if found == version else names.index(str(found)) + 1
        assert reached >= acknowledged, "a write that had returned is lost"
        for changes in plan[:reached]:
            self.model = applied(self.model, changes)
        self.version = found
        for store in STORES:
            assert dict(self.backend.range(store)) == self.model[store]

    @invariant()
    def is_at_version(self) -> None:
        assert self.backend.version() == self.version
        for store in STORES:
            assert (self.backend.approximate_count(store) > 0) == bool(self.model[store])
