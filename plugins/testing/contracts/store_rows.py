"""The part of `StoreBackendContract` about rows, range scans, iterators beside writes, and views."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from penstock import StoreBackend, StoreError, StoreView, version_counter
from penstock.store import Changes

from .expectations import expect, expect_no_descriptors
from .store_tests import NOTHING, STORES, Committed, StoreTests, check_count, check_reads, check_refused, committed

LENGTHS = (0, 1, 255, 256, 509, 510, 511, 512, 513, 1012, 1013, 1014, 4096, 10_000)
"""Lengths of keys, in bytes, around those at which engines store them in another way."""
_VALUE_LENGTHS = (
    0, 1, 127, 128, 255, 256, 4095, 4096, 4097, 16_383, 16_384, 32_767, 32_768, 65_535, 65_536, 65_537, 1 << 20,
)  # fmt: skip
_ORDERS: tuple[Literal["big", "little"], ...] = ("big", "little")
_COUNTS = (1, 2, 99, 100, 101, 255, 256, 257, 499, 500, 501, 511, 512, 513, 999, 1000, 1001, 1023, 1024, 1025,
           2047, 2048, 2049, 4095, 4096, 4097, 4999, 5000, 5001, 10_000, 40_000)  # fmt: skip
"""How many rows a write has, around the sizes of pages and batches."""

VERSIONS = (
    "000000000000-1a2b3c4d", "000000000012-00e10000", "000000000001-1e5", "000000000013-ffffffff_0123456789abcdef",
    "000000000013-ffffffff_0123456789abcdeF", "000000000013-ffffffff_0123456789abcdef-5e6f7890",
    "restoring:000000000013-ffffffff_0123456789abcdef:12", "000000000000000000000000000000",
    "999999999999-" + "0" * 200 + "_a", "999999999999-" + "0" * 200 + "_b", "999999999999-" + "0" * 1000,
    "12", "1e5", "0012", "v", "None", "null", "-",
)  # fmt: skip
"""Names like those that the engine gives: long, almost equal, and like numbers."""


class RowTests(StoreTests):
    """Any bytes of any length are read back, from writes of any size."""

    @pytest.mark.parametrize("length", LENGTHS)
    def test_a_key_of_any_length(self, tmp_path: Path, length: int) -> None:
        """A key of any length is found, sorted among its neighbours, and deleted."""
        keys = sorted(
            {b"k" * length, b"k" * length + b"\x00", b"k" * length + b"\xff", b"k" * max(length - 1, 0), b"k"}
        )
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(key, b"v" + key[-1:]) for key in keys]}, None, "v1")
            for at, key in enumerate(keys):
                expect(backend.get("first", key), b"v" + key[-1:], f"get of a key of {len(key)} bytes")
                for bounds, expected in (((key, None), keys[at:]), ((None, key), keys[:at])):
                    rule = f"range from or to a key of {len(key)} bytes, in order"
                    expect([found for found, _ in backend.range("first", *bounds)], expected, rule)
                    expect([found for found, _ in backend.range("first", *bounds, reverse=True)], expected[::-1], rule)
            backend.write({"first": [(key, None) for key in keys]}, "v1", "v2")
            check_reads(backend, ("v2", {"first": {}}), f"after keys of about {length} bytes were deleted")
            assert all(backend.get("first", key) is None for key in keys), f"get of a deleted key of {length} bytes"

    def test_a_key_that_may_be_too_long(self, tmp_path: Path) -> None:
        """A key of 64 KiB or more is stored whole, or refused with StoreError without any change."""
        with self.opened(tmp_path) as backend:
            backend.write({"first": [(b"k", b"1")]}, None, "v1")
            now: Committed = ("v1", {"first": {b"k": b"1"}, "second": {}})
            for length in (32_768, 65_535, 65_536, 100_000):
                rows = [(b"k" * length, b"2"), (b"k" * length + b"\x00", b"3"), (b"k" * length + b"a", b"4")]
                changes: Changes = {"first": rows, "second": rows[:1]}
                version = f"v{length}"
                try:
                    backend.write(changes, now[0], version)
                    now = committed(now, changes, version)
                except StoreError:
                    pass
                rule = f"a key of {length} bytes is kept whole, or refused, and then nothing is changed"
                check_reads(backend, now, rule)
                for key, _ in rows:
                    expect(backend.get("first", key), now[1]["first"].get(key), rule)

    def test_the_order_of_keys(self, tmp_path: Path) -> None:
        """That of bytes, where others are near: numbers with a sign, text, separators, keys of 8 or 16 bytes."""
        signs = [
            bytes([byte]) for byte in (0, 1, 9, 10, 32, 44, 47, 48, 57, 65, 92, 97, 127, 128, 159, 169, 195, 237, 255)
        ]
        keys = {b"", *signs, *(one + other for one in signs for other in signs)}
        texts = ("é", "e\u0301", "ÿ", "日本", "\ud7ff", "\uffff", "\U0001f600")
        keys |= {text.encode() + rest for text in texts for rest in (b"", b"\x00", b"\xff")}
        everything = dict.fromkeys(keys, b"v")
        fixed: dict[bytes, bytes] = {}
        with self.opened(tmp_path) as backend:
            backend.write({"first": sorted(everything.items())}, None, "v0")
            check_reads(backend, ("v0", {"first": everything}), "keys of one and two bytes, in order")
            version = "v0"
            for width in (4, 8, 16, 20):
                numbers = [0, 1, 255, 256, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1]
                rows = {number.to_bytes(width, order): b"%d" % width for number in numbers for order in _ORDERS}
                changes = {"second": sorted([*((key, None) for key in fixed if key not in rows), *rows.items()])}
                backend.write(changes, version, version := f"v{width}")
                fixed = rows
                check_reads(backend, (version, {"second": fixed}), f"numbers in {width} bytes, in the order of bytes")
                for start, end in pairwise(sorted(fixed)):
                    found = list(backend.range("second", start, end))
                    expect(found, [(start, fixed[start])], f"range of numbers in {width} bytes from one to the next")

    def test_any_byte_and_any_length_of_a_value(self, tmp_path: Path) -> None:
        """No value is an engine's own mark, and none is cut."""
        rows = {bytes([byte]): bytes([byte]) for byte in range(256)}
        rows |= {b"\x00" + bytes([byte, 255 - byte]): bytes([byte]) * 3 for byte in range(256)}
        texts = ("", "0", "1", "12", "1e5", "null", "None", "NULL", "\0", "DELETED", "tombstone", "é", "a\0b")
        rows |= {b"text" + text.encode(): text.encode() for text in texts}
        rows |= {b"length%07d" % size: Random(size).randbytes(size) for size in _VALUE_LENGTHS}
        rows |= {b"zeros%07d" % size: bytes(size) for size in _VALUE_LENGTHS}
        with self.opened(tmp_path) as backend:
            changes = {store: sorted(rows.items()) for store in STORES}
            backend.write(changes, None, "v1")
            now = committed(NOTHING, changes, "v1")
            check_reads(backend, now, "after a write of every byte")
            for key, value in rows.items():
                expect(backend.get("first", key), value, f"get of {key!r}, whose value has {len(value)} bytes")
        with self.opened(tmp_path) as backend:
            check_reads(backend, now, "opened again after a write of every byte")

    def test_writes_of_thousands_of_rows(self, tmp_path: Path) -> None:
        """A write of any number of rows is complete: its rows are there, replaced or deleted, and no others."""
        with self.opened(tmp_path) as backend:
            now = NOTHING
            for number, count in enumerate(_COUNTS):
                new = [(b"%02d-%06d" % (number, row), b"%d" % row) for row in range(count)]
                replaced = [(b"%06d" % row, b"%d" % number) for row in range(count)]
                now = self._write(backend, now, {"first": new, "second": replaced}, f"a write of {count} rows")
                bounds = b"%02d" % number, b"%02d-" % number + b"\xff"
                for reverse in (False, True):
                    found = list(backend.range("first", *bounds, reverse=reverse))
                    expect(found, new[::-1] if reverse else new, f"a range over a write of {count} rows")
            check_reads(backend, now, "after writes of thousands of rows")
            for number, count in enumerate(_COUNTS[:-1]):
                gone = [(b"%02d-%06d" % (number, row), None) for row in range(count)]
                mixed = [(b"%06d" % row, None if row % 2 else b"%d" % number) for row in range(count)]
                now = self._write(backend, now, {"first": gone, "second": mixed}, f"a write that deletes {count} rows")
            check_reads(backend, now, "after deletions of thousands of rows")
        with self.opened(tmp_path) as backend:
            check_reads(backend, now, "opened again after deletions of thousands of rows")

    def test_many_small_writes(self, tmp_path: Path) -> None:
        """Hundreds of commits, with gets between: no read shows an earlier one, and nothing fills up."""
        random = Random(7)
        keys = [b"%d" % number for number in range(40)] + [b"k" * 600 + b"%d" % number for number in range(5)]
        backend, now = type(self).open(tmp_path, STORES), NOTHING
        try:
            for number in range(700):
                store, few = random.choice(STORES), sorted(random.sample(keys, 3))
                for key in few:
                    rule = "get returns what the last write left"
                    expect(backend.get(store, key), now[1][store].get(key), f"{rule}: commit {number}, {key[:40]!r}")
                changes: Changes = {store: [(key, random.choice([None, b"%d" % number])) for key in few]}
                version = f"{number:012d}-x"
                backend.write(changes, now[0], version)
                now = committed(now, changes, version)
                if number % 97 == 0:
                    check_reads(backend, now, f"after {number + 1} commits")
                if number % 233 == 0:
                    backend.close()
                    backend = type(self).open(tmp_path, STORES)
            check_reads(backend, now, "after hundreds of commits")
        finally:
            backend.close()

    def test_a_large_value(self, tmp_path: Path) -> None:
        """Some megabytes, several times over, and one of more than 16 MiB."""
        value = os.urandom(3 << 20)
        with self.opened(tmp_path) as backend:
            version = None
            for number in range(4):
                backend.write({"first": [(b"large", value), (b"other%d" % number, value)]}, version, f"v{number}")
                version = f"v{number}"
            assert backend.get("first", b"large") == value, "a value of 3 MiB came back as another one"
            expect(sum(1 for _ in backend.range("first")), 5, "values of 3 MiB in a range")
            largest = value * 6
            backend.write({"second": [(b"largest", largest)]}, version, "v5")
            assert backend.get("second", b"largest") == largest, "a value of 18 MiB came back as another one"

    def test_a_value_is_replaced_by_one_as_long(self, tmp_path: Path) -> None:
        """A value is replaced by one of equal length that differs in one byte, at any place."""
        values = {size: bytearray(os.urandom(size)) for size in (1, 3, 255, 4096, 65_535, 65_536, 1 << 20)}
        version = None
        for number, place in enumerate((None, 0, 0.5, -1)):
            for size, value in values.items():
                if place is not None:
                    value[int(size * place) if place == 0.5 else int(place)] ^= 1 << number
            with self.opened(tmp_path) as backend:
                rows: Changes = {"first": sorted((b"%d" % size, bytes(value)) for size, value in values.items())}
                backend.write(rows, version, f"v{number}")
                version = f"v{number}"
                for size, value in values.items():
                    found = backend.get("first", b"%d" % size)
                    assert found == bytes(value), (
                        f"a value of {size} bytes was replaced by one as long: it came back as another"
                    )

    def test_counts_of_stores_that_were_emptied(self, tmp_path: Path) -> None:
        """The engine asks whether a store has entries: 0 says no, and nothing else may."""
        rows = [(b"%05d" % row, b"1") for row in range(3000)]
        deletions = [(key, None) for key, _ in rows]
        absent = [(b"absent%05d" % row, None) for row in range(4000)]
        steps: list[tuple[str, Changes, int]] = [
            ("3000 rows were put", {"first": rows}, 3000),
            ("all were replaced", {"first": rows}, 3000),
            ("all but one were deleted", {"first": deletions[:-1]}, 1),
            ("a row was replaced", {"first": rows[-1:]}, 1),
            ("the last one was deleted", {"first": deletions[-1:]}, 0),
            ("it was deleted again", {"first": deletions[-1:]}, 0),
            ("one was put", {"first": rows[:1]}, 1),
            ("all rows were put", {"first": rows}, 3000),
            ("4000 keys that were not there were deleted", {"first": absent}, 3000),
            ("all were deleted in one write", {"first": deletions}, 0),
            ("other stores were written", {"second": rows}, 0),
            ("keys that are not there were deleted", {"first": absent[:5]}, 0),
        ]
        for is_opened_again in (False, True):
            directory = tmp_path / str(is_opened_again)
            directory.mkdir()
            backend, version = type(self).open(directory, STORES), None
            try:
                for number, (what, changes, count) in enumerate(steps):
                    backend.write(changes, version, version := f"v{number}")
                    check_count(backend, "first", count, f"after {what}")
                    expect(sum(1 for _ in backend.range("first")), count, f"rows after {what}")
                    if is_opened_again:
                        backend.close()
                        backend = type(self).open(directory, STORES)
                        check_count(backend, "first", count, f"after {what}, opened again")
            finally:
                backend.close()

    def test_versions_of_real_length(self, tmp_path: Path) -> None:
        """Versions are read back unchanged, also almost equal ones."""
        with self.opened(tmp_path) as backend:
            version = None
            for following in VERSIONS:
                backend.write({}, version, following)
                version = following
                found = backend.version()
                assert type(found) is str and found == following, (
                    f"version must return what write recorded, {following!r}, and returned {found!r}"
                )
                for other in VERSIONS:
                    if other != version:
                        check_refused(backend, other)
        for number, version in enumerate(VERSIONS):
            directory = tmp_path / str(number)
            directory.mkdir()
            with self.opened(directory) as backend:
                backend.write({"first": [(b"a", b"1")]}, None, version)
            with self.opened(directory) as backend:
                found = backend.version()
                assert type(found) is str and found == version, (
                    f"version must return what write recorded, {version!r}, and returned {found!r} when opened again"
                )
                check_refused(backend, VERSIONS[number - 1])
                backend.write({}, version, version)

    def test_a_write_changes_nothing_of_what_it_is_given(self, tmp_path: Path) -> None:
        """A write does not change its arguments: the engine uses them for the changelog, and counts them."""
        rows = [(b"a", b"1"), (b"b", None), (b"c", b"")]
        changes: dict[str, list[tuple[bytes, bytes | None]]] = {"first": list(rows), "second": []}
        with self.opened(tmp_path) as backend:
            backend.write(changes, None, "v1")
            expect(changes, {"first": rows, "second": []}, "write must not change the changes that it is given")
            changes["first"][0] = (b"a", b"changed")
            changes["first"].append((b"d", b"later"))
            backend.release()
            now = ("v1", {"first": {b"a": b"1", b"c": b""}, "second": {}})
            check_reads(backend, now, "after the caller has changed the changes of a write that has returned")
            backend.write({"first": tuple(rows), "second": ()}, "v1", "v2")
            check_reads(backend, ("v2", now[1]), "after changes in tuples: any sequence will do")

    def _write(self, backend: StoreBackend, now: Committed, changes: Changes, what: str) -> Committed:
        number = 0 if now[0] is None else version_counter(now[0]) + 1
        version = f"{number:012d}-x"
        backend.write(changes, now[0], version)
        now = committed(now, changes, version)
        expect(backend.version(), version, f"{what}: version")
        for store, rows in changes.items():
            for key, value in (rows[0], rows[-1]):
                expect(backend.get(store, key), value, f"{what}: get of {key!r}, first or last in {store!r}")
        return now


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
        """Writing during an iteration never fails, and the iterator yields each unchanged entry once, in order."""
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
        """Rows ahead of an iterator may be deleted: it continues with the others, as expiry needs."""
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
        """A view has every key in order, also long keys and empty values, of some stores and several versions."""
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
        """A view of a new directory has no version and no rows."""
        with self.opened(tmp_path) as backend:
            view = backend.view(STORES)
            if view is not None:
                with closing(view):
                    backend.write({"first": [(b"a", b"1")]}, None, "v1")
                    found = (view.version, [list(view.range(store)) for store in STORES])
                    expect(found, (None, [[], []]), "a view of a new directory has no version and no rows")

    def test_a_view_and_the_end_of_its_backend(self, tmp_path: Path) -> None:
        """After its backend is closed, a view can be read to its end, or raises StoreError."""
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
            with closing(type(self).open(tmp_path, STORES, read_only=True)) as reader:
                next(reader.range("first"))
                reader.get("first", b"0000")

        def refusals() -> None:
            for store, previous in (("first", "v0"), ("unknown", "v1")):
                with suppress(StoreError):
                    kept.write({store: rows}, previous, "v2")

        def opened(name: str, **options: bool) -> None:
            with suppress(StoreError):
                type(self).open(tmp_path / name, STORES, **options).close()

        expect_no_descriptors(opening, "close")
        (tmp_path / "new").mkdir()
        if not self.in_one_process:
            expect_no_descriptors(lambda: opened("new", read_only=True), "a reader that finds nothing")
        expect_no_descriptors(lambda: type(self).open(tmp_path / "new", STORES).destroy(), "destroy")
        with self.opened(tmp_path) as kept:
            expect_no_descriptors(views, "close of a view")
            expect_no_descriptors(scans, "the end of a range scan, or release,")
            expect_no_descriptors(refusals, "a refused write")
            if not self.in_one_process:
                expect_no_descriptors(reader, "close of a reader")
                expect_no_descriptors(lambda: opened("a file"), "an opening that fails")


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
