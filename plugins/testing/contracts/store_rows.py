"""The part of `StoreBackendContract` about rows: how many, how long, and which bytes."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from penstock import StoreBackend, StoreError, version_counter
from penstock.store import Changes

from .expectations import expect
from .store_children import STORES
from .store_tests import (
    NOTHING,
    Committed,
    StoreTests,
    check_count,
    check_reads,
    check_refused,
    committed,
)

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
    """Any bytes of any length come back, in writes of any size."""

    @pytest.mark.parametrize("length", LENGTHS)
    def test_a_key_of_any_length(self, tmp_path: Path, length: int) -> None:
        """It is found, it sorts among its neighbours, and it can be deleted."""
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
        """Of 64 KiB and more: it is kept whole, or refused with StoreError, and nothing is changed."""
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
        """Of any number: each row of each is there, replaced or deleted, and nothing else."""
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
        """It differs in one byte, at its beginning, in its middle or at its end."""
        sizes = (1, 3, 255, 4096, 65_535, 65_536, 1 << 20)
        values = {size: bytearray(os.urandom(size)) for size in sizes}
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
        """They come back as they were, and two that are almost equal are two."""
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
        """The engine has written the same changes to the changelog, and counts them afterwards."""
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

    # ------------------------------------------------------------------ helpers

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
