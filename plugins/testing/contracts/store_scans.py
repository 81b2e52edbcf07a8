"""The part of `StoreBackendContract` about range scans, iterators beside writes, and views."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import pytest

from penstock import StoreBackend, StoreError, StoreView

from .expectations import expect, expect_no_descriptors
from .store_children import STORES
from .store_rows import LENGTHS
from .store_tests import NOTHING, StoreTests, check_reads, committed

_UNCHANGED = "a range yields each entry that is not changed meanwhile once, in order"


class ScanTests(StoreTests):
    """Ranges in both directions, which nothing disturbs, and views."""

    def test_bounds_of_a_range(self, tmp_path: Path) -> None:
        """The start is included, the end is not, and a range whose end is before its start is empty."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(key, b"") for key in (b"a", b"aa", b"b", b"c")]}, None, "v1")
            for start, end, expected in (
                (b"a", b"b", [b"a", b"aa"]),
                (b"a", b"a", []),
                (b"b", b"a", []),
                (b"d", None, []),
                (None, b"", []),
                (b"a\x00", b"\xff" * 600, [b"aa", b"b", b"c"]),
                (b"", None, [b"a", b"aa", b"b", b"c"]),
            ):
                rule = f"range from {start!r} to {end and end[:9]!r}: the start is included, the end is not"
                expect([key for key, _ in backend.range("first", start, end)], expected, rule)
                reverse = [key for key, _ in backend.range("first", start, end, reverse=True)]
                expect(reverse, expected[::-1], f"reversed {rule}")

    def test_many_entries(self, tmp_path: Path) -> None:
        """A scan in several steps inside the backend neither skips nor repeats an entry, and keeps to its bounds."""
        entries = [(b"%05d" % number, bytes([number % 256]) * (number % 700)) for number in range(5000)]
        with self.opened(tmp_path) as backend:
            backend.write({"first": entries, "second": [(b"0", b""), (b"zz", b"")]}, None, "v1")
            check_reads(backend, ("v1", {"first": dict(entries)}), "a scan of 5000 entries")
            for first, last in ((0, 5000), (1, 4999), (700, 3300), (2047, 4097), (4990, 5000), (3, 35)):
                for start, end in (
                    (b"%05d" % first, b"%05d" % last),
                    (b"%05d" % first + b"\x00", b"%05d" % last + b"a"),
                ):
                    expected = [entry for entry in entries if start <= entry[0] < end]
                    rule = f"a range of {len(expected)} of 5000 entries from {start!r} to {end!r}"
                    expect(list(backend.range("first", start, end)), expected, rule)
                    expect(list(backend.range("first", start, end, reverse=True)), expected[::-1], f"reversed, {rule}")
            count = backend.approximate_count("first")
            assert 2500 <= count <= 10_000, f"approximate_count of 5000 keys estimates them, and returned {count}"

    def test_iterators_do_not_share_a_place(self, tmp_path: Path) -> None:
        """Several at once over one store and over two, in both directions, with gets between their steps."""
        entries = [(b"%05d" % number, b"%d" % number) for number in range(1500)]
        with self.opened(tmp_path) as backend:
            backend.write({"first": entries, "second": entries[::2]}, None, "v1")
            ways = [("first", False), ("first", True), ("second", False), ("first", False), ("second", True)]
            iterators = [backend.range(store, reverse=reverse) for store, reverse in ways]
            found: list[list[tuple[bytes, bytes]]] = [[] for _ in ways]
            for step in range(len(entries)):
                for place, iterator in enumerate(iterators):
                    found[place] += [entry for entry in [next(iterator, None)] if entry is not None]
                key, value = entries[-step]
                expect(backend.get("first", key), value, "get between the steps of iterators")
            for (store, reverse), each in zip(ways, found, strict=True):
                expected = entries if store == "first" else entries[::2]
                rule = f"an iterator of {store!r}, reverse={reverse}, beside others"
                expect(each, expected[::-1] if reverse else expected, rule)

    def test_an_iterator_may_be_dropped(self, tmp_path: Path) -> None:
        """Hundreds of unfinished iterators block nothing."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"%04d" % number, b"") for number in range(2000)]}, None, "v0")
            kept = []
            for number in range(300):
                entries = backend.range("first", reverse=bool(number % 2))
                found = next(entries, None)
                assert found is not None, (
                    f"range number {number} of 2000 entries, beside unfinished ones: it yields none"
                )
                if number % 3:
                    kept.append(entries)
                backend.write({"first": [(b"%04d" % number, b"new")]}, f"v{number}", f"v{number + 1}")
            expect(backend.get("first", b"0299"), b"new", "get after a write beside unfinished iterators")
            expect(len(kept), 200, "unfinished iterators")

    def test_writing_while_iterating(self, tmp_path: Path) -> None:
        """It never fails, and yields each unchanged entry once, in order."""
        with self.opened(tmp_path) as backend:
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
                expect(seen, sorted(set(seen), reverse=reverse), f"{_UNCHANGED}, while others are written")
                missing = before - touched - set(seen)
                assert not missing, f"{_UNCHANGED}: {len(missing)} missing, such as {min(missing)!r}"
                assert set(seen) <= before | touched, f"{_UNCHANGED}: it yielded keys that were never there"

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("ahead", [1, 7, 40, 2000])
    def test_deletions_ahead_of_an_iterator(self, tmp_path: Path, reverse: bool, ahead: int) -> None:
        """Stores that expire delete while they scan: the iterator goes on with what was not deleted."""
        entries = [(b"%04d" % number, b"old") for number in range(2000)]
        order = entries[::-1] if reverse else entries
        with self.opened(tmp_path) as backend:
            backend.write({"first": entries, "second": entries}, None, "v0")
            version, deleted, seen = "v0", set[bytes](), list[bytes]()
            iterator = backend.range("first", reverse=reverse)
            for number in range(0, 400, 20):
                following = self._next(iterator, 10)
                seen += following
                if len(following) < 10:
                    break
                at = next((place for place, (key, _) in enumerate(order) if key == seen[-1]), 0)
                # What comes next, what was yielded last, and what comes later.
                gone = {key for key, _ in order[at : at + 1 + ahead] if len(deleted) < 1900 or ahead == 2000}
                deleted |= gone
                backend.write({"first": [(key, None) for key in sorted(gone)]}, version, version := f"v{number + 1}")
            seen += self._next(iterator, 2000)
            expect(seen, sorted(set(seen), reverse=reverse), f"{_UNCHANGED}, while entries ahead are deleted")
            missing = {key for key, _ in entries} - deleted - set(seen)
            assert not missing, f"{_UNCHANGED}: {len(missing)} are missing, such as {min(missing)!r}"
            left = {key: value for key, value in entries if key not in deleted}
            check_reads(backend, (version, {"first": left, "second": dict(entries)}), "after deletions in a scan")

    def _next(self, iterator: Iterator[tuple[bytes, bytes]], count: int) -> list[bytes]:
        try:
            return [key for key, _ in islice(iterator, count)]
        except Exception as error:
            raise AssertionError(f"an iterator must not fail when entries are deleted, and raised {error!r}") from error

    # ------------------------------------------------------------------ views

    def test_a_view_stays_as_it_is(self, tmp_path: Path) -> None:
        """Another thread reads one version from it, whatever is written meanwhile."""
        with self.opened(tmp_path) as backend:
            version: str | None = None
            for number in range(3):
                changes = [(b"%05d" % row, b"%d" % number) for row in range(number, 3000)]
                backend.write({"first": changes, "second": [(b"k", b"%d" % number)]}, version, f"v{number}")
                version = f"v{number}"
            expected = {store: list(backend.range(store)) for store in STORES}
            view = backend.view(STORES)
            if view is None:
                return  # the engine reads without one
            rule = "a view shows the version at which it was made, whatever is written later"
            with closing(view), ThreadPoolExecutor(1) as thread:
                expect(view.version, "v2", rule)
                entries = view.range("first")
                found = [thread.submit(next, entries).result()]
                backend.write({"first": [(b"%05d" % row, None) for row in range(1, 3000, 2)]}, "v2", "v3")
                backend.write({"first": [(b"%05d" % row, b"new") for row in range(4000)], "second": []}, "v3", "v4")
                backend.release()
                found += thread.submit(list, entries).result()
                backend.write({"second": [(b"k", None)]}, "v4", "v5")
                expect(found, expected["first"], f"{rule}: one that was half read")
                expect(thread.submit(list, view.range("second")).result(), expected["second"], f"{rule}: second store")
                expect(thread.submit(list, view.range("first")).result(), expected["first"], f"{rule}: read twice")
                expect(view.version, "v2", rule)
            new = {b"%05d" % row: b"new" for row in range(4000)}
            check_reads(backend, ("v5", {"first": new, "second": {}}), "after a view was closed")
            view.close()

    def test_a_view_has_every_key_in_order(self, tmp_path: Path) -> None:
        """Also long ones, and empty values, of some of the stores, and of several versions at once."""
        rows: dict[bytes, bytes] = {}
        for length in LENGTHS:
            for fill in (b"a", b"\x00", b"\xff"):
                rows |= {fill * length + tail: b"%d" % length for tail in (b"", b"\x00", b"b")}
        rows |= dict.fromkeys(list(rows)[::5], b"")
        with self.opened(tmp_path) as backend:
            made = []
            now = NOTHING
            for number in range(3):
                changes = {store: [(key, None if (at + number) % 4 == 0 else value) for at, (key, value) in
                                   enumerate(sorted(rows.items()))] for store in STORES[number % 2 :]}  # fmt: skip
                backend.write(changes, now[0], f"v{number}")
                now = committed(now, changes, f"v{number}")
                made.append((backend.view(STORES[1:] if number == 1 else STORES), now))
            for view, (version, content) in made:
                if view is None:
                    continue
                rule = f"a view of {version} has every entry in key order"
                for store in STORES[1:] if version == "v1" else STORES:
                    expect(list(view.range(store)), sorted(content[store].items()), f"{rule}: {store!r}")
                    check_view(view, store, content[store], list(rows)[::7])
                expect(view.version, version, rule)
                view.close()
            check_reads(backend, now, "after views were closed")

    def test_a_view_of_nothing(self, tmp_path: Path) -> None:
        """Of a new directory it has no version and no rows."""
        with self.opened(tmp_path) as backend:
            view = backend.view(STORES)
            if view is not None:
                with closing(view):
                    backend.write({"first": [(b"a", b"1")]}, None, "v1")
                    found = (view.version, [list(view.range(store)) for store in STORES])
                    expect(found, (None, [[], []]), "a view of a new directory has no version and no rows")

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
            with self.opened(tmp_path) as again:
                with suppress(StoreError):
                    found += reading
                    expect(found, entries, f"a view is read to its end after {end.__name__}, or raises StoreError")
                expected = None if end is StoreBackend.destroy else f"v{number}"
                expect(again.version(), expected, f"version of a directory opened after {end.__name__}, beside a view")
                view.close()
                again.destroy()

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors where Linux lists them")
    def test_what_is_closed_frees_descriptors(self, tmp_path: Path) -> None:
        """A runner opens, closes and snapshots tasks for months, and refuses, reads and fails beside."""
        rows = [(b"%04d" % row, b"1") for row in range(1000)]
        with self.opened(tmp_path) as backend:
            backend.write({"first": rows}, None, "v1")
        (tmp_path / "a file").write_text("")

        def opening() -> None:
            with self.opened(tmp_path) as backend:
                backend.write({"first": rows[:1]}, "v1", "v1")

        def views() -> None:
            for _ in range(3):
                view = kept.view(STORES)
                if view is not None:
                    next(view.range("first"))
                    list(view.range("first"))
                    view.close()

        def scans() -> None:
            for iterator in (kept.range("first"), kept.range("first", reverse=True)):
                next(iterator)
            del iterator
            list(kept.range("first"))
            kept.release()

        def reader() -> None:
            if not self.in_one_process:
                with closing(type(self).open(tmp_path, STORES, read_only=True)) as reader:
                    next(reader.range("first"))
                    reader.get("first", b"0000")

        def refusals() -> None:
            with suppress(StoreError):
                kept.write({"first": rows}, "v0", "v2")
            with suppress(StoreError):
                kept.write({"unknown": rows}, "v1", "v2")

        def failure() -> None:
            if not self.in_one_process:
                with suppress(StoreError):
                    type(self).open(tmp_path / "a file", STORES)

        def nothing_to_read() -> None:
            if not self.in_one_process:
                with suppress(StoreError):
                    type(self).open(tmp_path / "new", STORES, read_only=True).close()

        def destroying() -> None:
            type(self).open(tmp_path / "new", STORES).destroy()

        expect_no_descriptors(opening, "close")
        (tmp_path / "new").mkdir()
        expect_no_descriptors(nothing_to_read, "a reader that finds nothing")
        expect_no_descriptors(destroying, "destroy")
        with self.opened(tmp_path) as kept:
            for act, what in (
                (views, "close of a view"),
                (scans, "the end of a range scan, or release,"),
                (refusals, "a refused write"),
                (reader, "close of a reader"),
                (failure, "an opening that fails"),
            ):
                expect_no_descriptors(act, what)


def check_view(view: StoreView, store: str, content: Mapping[bytes, bytes], keys: Sequence[bytes]) -> None:
    """Check `get` of keys, and ranges between them in both directions."""
    rows = sorted(content.items())
    for key in keys:
        expect(view.get(store, key), content.get(key), f"get of {key[:20]!r} from a view of {store!r}")
    for start, end in [*zip([None, *keys], [*keys[1:], None], strict=False), *zip(keys, reversed(keys), strict=True)]:
        found = [row for row in rows if (start is None or row[0] >= start) and (end is None or row[0] < end)]
        rule = "a view's range has every entry in key order, of start <= key < end"
        expect(list(view.range(store, start, end)), found, rule)
        expect(list(view.range(store, start, end, reverse=True)), found[::-1], f"{rule}, reversed")
