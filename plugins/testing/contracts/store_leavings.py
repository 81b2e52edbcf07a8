"""The part of `StoreBackendContract` about readers beside a writer, files, memory, threads, clocks and damage."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from penstock import StoreBackend, StoreError
from penstock.store import Change, Changes

from .child import CleanChildren, answer, ask
from .expectations import CrashImages, expect, expect_no_error, on_disk
from .store_tests import (
    NOTHING,
    STORES,
    Committed,
    StoreTests,
    check_reads,
    committed,
    open_after_crash,
    open_damaged,
    read_when_told,
    write_much,
)

_LOOKS = 5
"""At how many steps of a large write a reader looks."""


class ReaderTests(StoreTests):
    """A backend that was opened with `read_only=True` sees the last commit, and writes nothing."""

    def test_a_reader_in_another_process(self, tmp_path: Path) -> None:
        """A reader in another process sees whole commits, and cannot write."""
        with self._reader(tmp_path) as connection, self.opened(tmp_path) as backend:
            now = NOTHING
            for number in range(8):
                value = b"%d" % number
                filling = [(b"x%04d" % row, value) for row in range(300)]
                changes = {"first": [(b"n", value), *filling], "second": [(value, value)]}
                backend.write(changes, now[0], f"v{number}")
                now = committed(now, changes, f"v{number}")
                rule = f"a reader in another process sees the last commit, v{number}, and all of it"
                expect(ask(connection, "get"), value, f"get: {rule}")
                if number % 3 != 1:
                    expect(ask(connection, "look"), now, rule)
            refused = ask(connection, "write")
            assert refused == "StoreError", f"write of a read_only backend must raise StoreError: {refused}"
            backend.write({"first": [(b"n", b"last")]}, "v7", "v8")
            ended = ask(connection, "close")
            assert ended == "closed", f"close of a read_only backend, beside a writer, must not fail: {ended}"

    def test_a_reader_where_nothing_is_yet(self, tmp_path: Path) -> None:
        """A reader of a missing store is empty or raises StoreError, and makes no file.

        A reader that is opened after the first commit reads.
        """
        where = "a reader of a directory in which nothing was written yet"
        with self._reader(tmp_path) as connection:
            found = ask(connection, "look closely")
            assert found in (NOTHING, "StoreError"), f"{where} finds nothing, or raises StoreError: {found}"
        made = sorted(each.name for each in tmp_path.rglob("*"))
        assert not made, f"{where} makes no files, and made {made}"
        with self.opened(tmp_path) as backend:
            check_reads(backend, NOTHING, f"a directory stays new after {where}")
            changes = {"first": [(b"a", b"1")]}
            now = committed(NOTHING, changes, "v1")
            with self._reader(tmp_path) as connection:
                found = ask(connection, "look closely")
                assert found in (NOTHING, "StoreError"), (
                    f"a reader beside a writer that has not committed yet finds nothing, or raises StoreError: {found}"
                )
                backend.write(changes, None, "v1")
                expect(
                    ask(connection, "look closely"), now, "a reader that was opened before the first commit reads it"
                )
            # A store that no writer has opened yet.
            with self._reader(tmp_path, ("first", "third")) as connection:
                found = ask(connection, "look closely")
                expected = ("v1", {"first": {b"a": b"1"}, "third": {}})
                assert found in (expected, "StoreError"), (
                    f"a reader of a store that was not written yet finds it empty, or raises StoreError: {found}"
                )
            check_reads(backend, now, "after readers of what was not there yet")

    def test_a_reader_that_names_some_stores(self, tmp_path: Path) -> None:
        """A reader may name some of the stores, or more, in any order: another program's version reads them."""
        with self.opened(tmp_path) as backend:
            changes = {"first": [(b"a", b"1")], "second": [(b"b", b"2")]}
            backend.write(changes, None, "v1")
            content = {**committed(NOTHING, changes, "v1")[1], "third": {}}
            for stores in (("second",), ("second", "first"), ("third", "second", "first"), ("first", "third")):
                with self._reader(tmp_path, stores) as connection:
                    expected: Committed = ("v1", {store: content[store] for store in stores})
                    found = ask(connection, "look")
                    if "third" not in stores or found != "StoreError":
                        expect(found, expected, f"a reader that was opened with the stores {stores}")

    def test_a_reader_looks_again(self, tmp_path: Path) -> None:
        """A reader sees each write, also without a new version, to a new store, or after a restore."""
        stores = ("first", "third")
        with self.opened(tmp_path) as backend, self._reader(tmp_path, stores) as connection:
            backend.write({"first": [(b"a", b"1"), (b"b", b"1")]}, None, "v1")
            now: Committed = ("v1", {"first": {b"a": b"1", b"b": b"1"}, "third": {}})
            self._expect_look(connection, now, "a reader")
            backend.write({"first": [(b"a", None), (b"c", b"2")]}, "v1", "v1")
            now = ("v1", {"first": {b"b": b"1", b"c": b"2"}, "third": {}})
            self._expect_look(connection, now, "a reader that looks again after a write that stayed at its version")
            backend.close()
            with self.opened(tmp_path, (*STORES, "third")) as backend:
                backend.write({"third": [(b"z", b"3")]}, "v1", "v2")
                now = ("v2", {"first": now[1]["first"], "third": {b"z": b"3"}})
                self._expect_look(connection, now, "a reader of a store that was made since it looked")
                has_view = ask(connection, "make a view") is True
                backend.write({"first": [(b"b", b"4"), (b"d", b"4")], "third": [(b"z", None)]}, "v2", "v3")
                before, now = now, ("v3", {"first": {b"b": b"4", b"c": b"2", b"d": b"4"}, "third": {}})
                if has_view:
                    self._expect_look(connection, before, "a reader's view stays as it is", "look at the view")
                self._expect_look(connection, now, "a reader looks again")
                backend.destroy()
            with self.opened(tmp_path, stores) as backend:
                restored = {"first": [(b"a", b"5")], "third": [(b"y", b"5")]}
                backend.write(restored, None, "v4")
                after = committed((None, {store: {} for store in stores}), restored, "v4")
                found = ask(connection, "look")
                assert found in (now, after, "StoreError"), (
                    "a reader that was opened before the stores were destroyed and restored sees one state, whole, or "
                    f"raises StoreError: found {found}"
                )
                with self._reader(tmp_path, stores) as another:
                    self._expect_look(another, after, "a reader that was opened after stores were restored")

    def test_a_reader_is_half_through(self, tmp_path: Path) -> None:
        """The writer need not wait for it, and it never fails but with StoreError."""
        rows = [(b"%04d" % row, b"old") for row in range(3000)]
        with self._reader(tmp_path, STORES) as connection:
            with self.opened(tmp_path) as backend:
                backend.write({"first": rows, "second": rows[:10]}, None, "v1")
                begun = ask(connection, "begin")
                where = "while a reader was half through its scan"
                changes: Changes = {"first": [(key, None) for key, _ in rows[1::2]], "second": [(b"new", b"new")]}
                with expect_no_error(f"a write {where} must not wait for it"):
                    backend.write(changes, "v1", "v2")
            now = committed(committed(NOTHING, {"first": rows, "second": rows[:10]}, "v1"), changes, "v2")
            with self.opened(tmp_path) as backend:
                check_reads(backend, now, f"opened again {where}")
            rest = ask(connection, "go on")
            if "StoreError" in (begun, rest):
                return
            assert isinstance(rest, dict), f"{where}, the writer wrote: its iterator must go on, and raised {rest}"
            keys = [key for key, _ in begun["first"] + rest["first"]]
            assert keys == sorted(set(keys)) and set(keys) >= {key for key, _ in rows[::2]}, (
                f"{where}, every other row was deleted: it yields each other row once, in order: {len(keys)} keys"
            )

    def test_a_reader_beside_a_large_write(self, tmp_path: Path) -> None:
        """A reader sees all or nothing of a write of 55,000 rows, at any step of that write."""
        rows: list[Change] = [(b"%06d" % row, b"new") for row in range(50_000)]
        large: list[Change] = [(b"%06d" % row, b"new") for row in range(5_000)]
        large += [(b"large%d" % row, b"new" * 500_000) for row in range(6)]
        changes: Changes = {"first": rows, "second": large}
        children = self.children()
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"000000", b"old")], "second": [(b"000000", b"old")]}, None, "v1")
        content = {store: {b"000000": b"old"} for store in STORES}
        before: Committed = ("v1", content)
        after = committed(before, changes, "v2")
        work = write_much, type(self).open, tmp_path, changes, _LOOKS
        with children.started(*work) as writer, self._reader(tmp_path, STORES) as reader:
            while answer(writer) == "stopped":
                found = ask(reader, "look")
                sizes = found if isinstance(found, str) else (found[0], [len(each) for each in found[1].values()])
                assert found in (before, after, "StoreError"), (
                    f"a reader beside a write of 55,000 rows sees all of it or nothing: found {sizes} rows"
                )
                writer.send("go on")
            self._expect_look(reader, after, "a reader after a write of 55,000 rows")

    def test_a_reader_is_killed(self, tmp_path: Path) -> None:
        """A reader that is killed in its scan does not disturb the writer, and `destroy` leaves nothing."""
        rows = [(b"%04d" % row, b"old") for row in range(3000)]
        with self.opened(tmp_path) as backend:
            backend.write({"first": rows}, None, "v1")
            with self._reader(tmp_path, STORES, kill=True) as connection:
                ask(connection, "begin")
            backend.write({"first": [(b"0000", None)]}, "v1", "v2")
        with self.opened(tmp_path) as backend:
            check_reads(backend, ("v2", {"first": dict(rows[1:])}), "after a reader was killed in its scan")
        self.check_destroyed(tmp_path, "a reader was killed in its scan")

    def _reader(
        self, directory: Path, stores: Sequence[str] = STORES, kill: bool = False
    ) -> AbstractContextManager[Connection]:
        return self.children().started(read_when_told, type(self).open, directory, tuple(stores), kill=kill)

    def _expect_look(self, connection: Connection, expected: Committed, who: str, order: str = "look") -> None:
        found = ask(connection, order)
        is_early = "third" in expected[1] and not expected[1]["third"] and found == "StoreError"
        if not is_early:
            expect(found, expected, f"{who} sees the last commit, {expected[0]}" if order == "look" else who)


_OPENINGS, _WRITES = 24, 5
_MOST_BYTES, _MOST_FILES = 1 << 20, 8
"""What engines keep beside the rows: logs, pages that are free, files of settings."""
_LONG_RUN_BYTES, _LONG_RUN_WRITES = 128 << 20, 64
"""What a backend writes that stays open; engines keep up to 64 MiB of that in their log."""
_ROUNDS = 400
_LEAK_BYTES = 60
"""So much memory a call is a leak."""


class LeavingTests(StoreTests):
    """A backend leaves nothing, grows with its rows alone, and asks neither clock nor working directory."""

    def test_destroying_where_some_stores_are_named(self, tmp_path: Path) -> None:
        """A program that names fewer stores than one before destroys all of them: they are of one task."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"a", b"1")], "second": [(b"b", b"1")]}, None, "v1")
        self.check_destroyed(tmp_path, "it was opened with one store of two", ["second"])
        with self.opened(tmp_path) as backend:
            check_reads(backend, NOTHING, "destroyed by a program that names one store of two, and opened again")

    def test_nothing_is_left_around(self, tmp_path: Path) -> None:
        """No files in the working directory, in the temporary one or beside its own, and no thread."""
        place, working, temporary = (tmp_path / name for name in ("tasks", "working", "temporary"))
        for each in (place / "0_0", working, temporary):
            each.mkdir(parents=True)
        threads = {each for each in threading.enumerate() if each.is_alive()}
        in_other_place = patch.object(tempfile, "tempdir", str(temporary))
        with chdir(working), in_other_place, patch.dict(os.environ, TMPDIR=str(temporary)):
            self._use(place / "0_0")
        left = {what: sorted(each.name for each in where.iterdir() if each.name != "0_0") for what, where in
                (("beside its directory", place), ("in the working directory", working),
                 ("in the temporary directory", temporary))}  # fmt: skip
        for what, names in left.items():
            assert not names, f"close and destroy must leave no files {what}, and left {names[:9]}"
        new = [each for each in threading.enumerate() if each not in threads and each.is_alive()]
        assert not new, f"close and destroy must end the backend's threads, and left {new}"

    def _use(self, directory: Path) -> None:
        rows = [(b"%04d" % row, b"value" * 20) for row in range(3000)]
        for number in range(2):
            backend = type(self).open(directory, STORES)
            try:
                version = backend.version()
                backend.write({"first": rows, "second": rows[::2]}, version, f"v{number}")
                with suppress(StoreError):
                    backend.write({"first": []}, "another", "never")
                for reverse in (False, True):
                    next(backend.range("first", reverse=reverse))
                    list(backend.range("second", rows[10][0], None, reverse=reverse))
                view = backend.view(STORES)
                if view is not None:
                    list(view.range("first"))
                    view.close()
                if not self.in_one_process:
                    reader = type(self).open(directory, STORES, read_only=True)
                    list(reader.range("first"))
                    reader.close()
                backend.release()
            finally:
                backend.close()
        type(self).open(directory, STORES).destroy()

    def test_the_working_directory_changes(self, tmp_path: Path) -> None:
        """The program may change the working directory between any two calls: a directory stays the opened one."""
        place, here, there = (tmp_path / name for name in ("stores", "here", "over/there"))
        for each in (place, here, there):
            each.mkdir(parents=True)
        now: Committed = NOTHING
        rule = "the working directory has changed since it was opened"
        for number in range(2):
            with chdir(here):
                backend = type(self).open(place, STORES)
            with chdir(there):
                changes: Changes = {"first": [(b"%d" % number, b"1")], "second": [(b"k", b"%d" % number)]}
                backend.write(changes, now[0], f"v{number}")
                now = committed(now, changes, f"v{number}")
                backend.release()
                check_reads(backend, now, rule)
                view = backend.view(STORES)
                if view is not None:
                    expect(view.version, now[0], f"the version of a view; {rule}")
                    expect(dict(view.range("first")), now[1]["first"], f"the rows of a view; {rule}")
                    view.close()
                if number:
                    backend.destroy()
                backend.close()
        with self.opened(place) as backend:
            check_reads(backend, NOTHING, f"destroyed, when {rule}")

    def test_files_do_not_grow(self, tmp_path: Path) -> None:
        """Files do not grow when the same rows are written, and the directory is opened, again and again."""
        if self.in_one_process:
            pytest.skip("this backend keeps no files")
        sizes: list[tuple[int, int]] = []
        content = 0
        for number in range(_OPENINGS):
            with self.opened(tmp_path) as backend:
                for write in range(_WRITES):
                    rows = [(b"%04d" % row, b"%04d" % (number + write) * 50) for row in range(100)]
                    changes: Changes = {"first": rows, "second": [(b"%d" % number, b"1"), (b"%d" % (number - 1), None)]}
                    changes = {"first": rows, "second": sorted(changes["second"])}
                    backend.write(changes, backend.version(), f"{number:06d}-{write}")
                    content = sum(len(key) + len(value) for key, value in rows)
            files = [file for file in tmp_path.rglob("*") if file.is_file()]
            sizes.append((len(files), sum(file.stat().st_size for file in files)))
        last, early = sizes[-1], sizes[_OPENINGS // 4]
        assert last[1] <= 20 * content + _MOST_BYTES, (
            f"files must not grow where the same {content:,} bytes of rows are written again and again: after "
            f"{_OPENINGS} openings with {_WRITES} writes each they have {last[1]:,} bytes"
        )
        assert last[0] <= early[0] + _MOST_FILES, (
            f"an opening must leave no file of its own: after {_OPENINGS // 4} openings there were {early[0]} files, "
            f"after {_OPENINGS} there are {last[0]}"
        )

    def test_files_do_not_grow_while_it_is_open(self, tmp_path: Path) -> None:
        """Replaced rows free their space while the backend is open: a task stays open for months."""
        if self.in_one_process:
            pytest.skip("this backend keeps no files")
        values = [Random(row).randbytes(_LONG_RUN_BYTES // _LONG_RUN_WRITES // 64) for row in range(64)]
        with self.opened(tmp_path) as backend:
            for number in range(_LONG_RUN_WRITES):
                rows = [(b"%04d" % row, b"%04d" % number + value) for row, value in enumerate(values)]
                backend.write({"first": rows}, backend.version(), f"v{number}")
                expect(backend.get("first", b"0000"), rows[0][1], "get of a row that is written again and again")
                backend.release()
            size = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        assert size < _LONG_RUN_BYTES * 3 // 4, (
            f"files must not grow while a backend is open: it wrote the same {_LONG_RUN_BYTES // _LONG_RUN_WRITES:,} "
            f"bytes of rows {_LONG_RUN_WRITES} times, {_LONG_RUN_BYTES:,} in all, and its files have {size:,}: free "
            "what was replaced (a log that is never cut, a reader that is never ended)"
        )

    def test_memory_does_not_grow(self, tmp_path: Path) -> None:
        """Memory does not grow with lookups of missing keys, writes of the same rows, scans, refusals and views."""
        rows = [(b"%04d" % row, b"value") for row in range(50)]
        with self.opened(tmp_path) as backend:
            backend.write({"first": rows}, None, "v")
            numbers = count()

            def view() -> None:
                found = backend.view(STORES)
                if found is not None:
                    next(found.range("first"))
                    found.close()

            def refused() -> None:
                with suppress(StoreError):
                    backend.write({"first": rows}, "another", "never")

            calls: dict[str, Callable[[], object]] = {
                "a get of a key that is not there": lambda: backend.get("first", b"absent%d" % next(numbers)),
                "a write of rows that are there": lambda: backend.write({"first": rows}, "v", "v"),
                "a scan that is dropped": lambda: next(backend.range("first")),
                "a view": view,
                "a refused write": refused,
            }
            for what, call in calls.items():
                leaked = _leaked(call, backend)
                assert leaked < _LEAK_BYTES, f"{what} must leave nothing in memory, and leaves {leaked} bytes each time"

    def test_a_clock_that_is_set_back(self, tmp_path: Path) -> None:
        """The clock may be set back between writes and openings: it does not decide which write is the last."""
        now: Committed = NOTHING
        for hour in (12, 11, 9, 10):
            with self._clock_at(1_700_000_000 + hour * 3600), self.opened(tmp_path) as backend:
                check_reads(backend, now, "opened by a clock that was set back")
                for number in range(2):
                    changes: Changes = {"first": [(b"hour", b"%d" % hour), (b"%d-%d" % (hour, number), b"1")]}
                    changes = {"first": sorted(changes["first"])}
                    version = f"v{hour}-{number}"
                    backend.write(changes, now[0], version)
                    now = committed(now, changes, version)
                    check_reads(backend, now, "written by a clock that was set back")
        with self.opened(tmp_path) as backend:
            check_reads(backend, now, "opened by a clock that was put right")

    @contextmanager
    def _clock_at(self, seconds: float) -> Iterator[None]:
        began = time.monotonic()

        def now() -> float:
            return seconds + time.monotonic() - began

        with patch.object(time, "time", now), patch.object(time, "time_ns", lambda: int(now() * 1e9)):
            yield

    def test_a_crash_of_the_machine(self, tmp_path: Path) -> None:
        """After a crash of the machine loses any unsynced data, a trusted state is a committed one.

        Linux 6.5 and later reports the unsynced pages of a file; the next boot has another id.
        """
        children = self.children()
        (tmp_path / "boot_id").write_text("of-the-next-boot\n")
        known: list[Committed] = [NOTHING]
        with on_disk(tmp_path) as place:
            disk, random = CrashImages(place), Random(1)
            for opening in range(2):
                with self.opened(place) as backend:
                    for number in range(6):
                        keys = sorted({b"%04d" % random.randrange(400) for _ in range(150)})
                        rows: list[Change] = [(key, random.choice((None, random.randbytes(150)))) for key in keys]
                        changes: Changes = {"first": rows, "second": [(b"number", b"%d-%d" % (opening, number))]}
                        version = f"v{opening}-{number}"
                        backend.write(changes, known[-1][0], version)
                        known.append(committed(known[-1], changes, version))
                        disk.look()
                        if opening and number == 3:
                            self._check_images(children, disk, known, tmp_path)
                if not opening:  # time passes, and the system writes everything
                    for file in (each for each in place.rglob("*") if each.is_file()):
                        handle = os.open(file, os.O_RDONLY)
                        os.fsync(handle)
                        os.close(handle)
                disk.look()
            self._check_images(children, disk, known, tmp_path)

    def _check_images(
        self, children: CleanChildren, disk: CrashImages, known: list[Committed], directory: Path
    ) -> None:
        last = known[-1][0]
        where = f"a crash of the machine took a part of what was not synced, when {last} was the last version"
        rule = "trusted() is True; sync what is written, or do not trust it after another boot"
        for place in disk.write_images(directory, f"image-{last}"):
            work = open_after_crash, type(self).open, place, directory / "boot_id"
            with children.started(*work) as connection:
                self._check_opened(connection, place, known, where, rule)

    def _check_opened(
        self, connection: Connection, place: Path, known: list[Committed], where: str, rule: str = "trusted() is True"
    ) -> None:
        """Check the result of opening: an error with the directory, an untrusted copy, or a committed state."""
        found = answer(connection, f"{where}: opening and reading it")
        if isinstance(found, str):
            assert found.startswith("StoreError: ") and place.name in found, (
                f"{where}: expected StoreError with the directory, found {found}"
            )
        elif found[2]:
            states = [state for state in known if state[0] == found[0]]
            expect(found[:2], states[0] if states else known[-1], f"{where}, and {rule}")

    @pytest.mark.parametrize("damage", ["cut", "emptied", "lost"])
    def test_damaged_files(self, tmp_path: Path, damage: str) -> None:
        """A damaged file leads to an error with the directory, no trust, a committed state, or a new directory.

        Engines need not notice changed bytes in the middle of a file; a truncated one is often noticed by its length.
        """
        children = self.children()
        rows = [(b"%04d" % row, b"value" * 20) for row in range(400)]
        whole = tmp_path / "whole"
        whole.mkdir()
        known: list[Committed] = [NOTHING]
        with self.opened(whole) as backend:
            for number in range(3):
                changes: Changes = {"first": rows[: 200 + 100 * number], "second": rows[number:200]}
                backend.write(changes, known[-1][0], f"v{number}")
                known.append(committed(known[-1], changes, f"v{number}"))
        for file in sorted(each for each in whole.rglob("*") if each.is_file()):
            for number, part in enumerate((0.5, 0.9) if damage == "cut" else (0,)):
                copy = tmp_path / f"{number}-{file.name}"
                shutil.copytree(whole, copy)
                place = copy / file.relative_to(whole)
                place.unlink() if damage == "lost" else os.truncate(place, int(place.stat().st_size * part))
                with children.started(open_damaged, type(self).open, copy) as connection:
                    self._check_opened(connection, copy, known, f"{file.name} was {damage}")


def _leaked(call: Callable[[], object], backend: StoreBackend) -> int:
    """Return the bytes of Python's memory that each call leaks.

    What leaks grows in each part of the calls alike; what grows in one part only is of another thread of the process.
    """
    is_traced = tracemalloc.is_tracing()
    if not is_traced:
        tracemalloc.start()
    try:
        sizes: list[int] = []
        for _ in range(3):
            for _ in range(_ROUNDS):
                call()
            backend.release()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        if not is_traced:
            tracemalloc.stop()
    return min(sizes[1] - sizes[0], sizes[2] - sizes[1]) // _ROUNDS
