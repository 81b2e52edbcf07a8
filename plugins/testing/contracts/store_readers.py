"""The part of `StoreBackendContract` about processes that read beside a writer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.store import Change, Changes

from .child import answer
from .expectations import expect
from .store_children import STORES, look_when_told, read_early, read_on, write_much
from .store_tests import NOTHING, Committed, StoreTests, check_reads, committed

_LOOKS = 5
"""At how many steps of a large write a reader looks."""


class ReaderTests(StoreTests):
    """A backend that was opened with `read_only=True` sees the last commit, and writes nothing."""

    def test_a_reader_in_another_process(self, tmp_path: Path) -> None:
        """Each read sees the whole last commit; writing is refused."""
        opener, children = type(self).open, self.children()
        with (
            children.started(read_on, opener, tmp_path) as connection,
            closing(opener(tmp_path, STORES)) as backend,
        ):
            now = NOTHING
            for number in range(8):
                value = b"%d" % number
                filling = [(b"x%04d" % row, value) for row in range(300)]
                changes = {"first": [(b"n", value), *filling], "second": [(value, value)]}
                backend.write(changes, now[0], f"v{number}")
                now = committed(now, changes, f"v{number}")
                connection.send("get" if number % 3 == 1 else "read")
                rule = f"a reader in another process sees the last commit, v{number}, and all of it"
                if number % 3 == 1:
                    expect(answer(connection), value, f"get: {rule}")
                else:
                    expect(answer(connection), (value, *now), rule)
            connection.send("write")
            refused = answer(connection)
            assert refused == "StoreError", f"write of a read_only backend must raise StoreError: {refused}"
            backend.write({"first": [(b"n", b"last")]}, "v7", "v8")
            connection.send("end")
            ended = answer(connection)
            assert ended == "ended", f"close of a read_only backend, beside a writer, must not fail: {ended}"

    def test_a_reader_where_nothing_is_yet(self, tmp_path: Path) -> None:
        """It finds nothing or raises StoreError, makes nothing, and one that is opened after the first commit reads."""
        opener, children = type(self).open, self.children()
        where = "a reader of a directory in which nothing was written yet"
        with children.started(read_early, opener, tmp_path, STORES) as connection:
            found = answer(connection)
            assert found in (NOTHING, "StoreError"), f"{where} finds nothing, or raises StoreError: {found}"
        made = sorted(each.name for each in tmp_path.rglob("*"))
        assert not made, f"{where} makes no files, and made {made}"
        with self.opened(tmp_path) as backend:
            check_reads(backend, NOTHING, f"a directory stays new after {where}")
            changes = {"first": [(b"a", b"1")]}
            now = committed(NOTHING, changes, "v1")
            with children.started(read_early, opener, tmp_path, STORES) as connection:
                found = answer(connection)
                assert found in (NOTHING, "StoreError"), (
                    f"a reader beside a writer that has not committed yet finds nothing, or raises StoreError: {found}"
                )
                backend.write(changes, None, "v1")
                connection.send("again")
                expect(answer(connection), now, "a reader that was opened before the first commit reads it")
            # A store that no writer has opened yet.
            with children.started(read_early, opener, tmp_path, ("first", "third")) as connection:
                found = answer(connection)
                expected = ("v1", {"first": {b"a": b"1"}, "third": {}})
                assert found in (expected, "StoreError"), (
                    f"a reader of a store that was not written yet finds it empty, or raises StoreError: {found}"
                )
            check_reads(backend, now, "after readers of what was not there yet")

    def test_a_reader_that_names_some_stores(self, tmp_path: Path) -> None:
        """Or in another order, or more: a program of another version looks at what this one writes."""
        with self.opened(tmp_path) as backend:
            changes = {"first": [(b"a", b"1")], "second": [(b"b", b"2")]}
            backend.write(changes, None, "v1")
            content = {**committed(NOTHING, changes, "v1")[1], "third": {}}
            for stores in (("second",), ("second", "first"), ("third", "second", "first"), ("first", "third")):
                with self._looker(tmp_path, stores) as connection:
                    expected: Committed = ("v1", {store: content[store] for store in stores})
                    found = _asked(connection, "look")
                    if "third" not in stores or found != "StoreError":
                        expect(found, expected, f"a reader that was opened with the stores {stores}")

    def test_a_reader_looks_again(self, tmp_path: Path) -> None:
        """It sees each write, also one that stays at the version, of a store that is new, or after a restore."""
        stores = ("first", "third")
        with self.opened(tmp_path) as backend, self._looker(tmp_path, stores) as connection:
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
                has_view = _asked(connection, "make a view") is True
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
                found = _asked(connection, "look")
                assert found in (now, after, "StoreError"), (
                    "a reader that was opened before the stores were destroyed and restored sees one state, whole, or "
                    f"raises StoreError: found {found}"
                )
                with self._looker(tmp_path, stores) as another:
                    self._expect_look(another, after, "a reader that was opened after stores were restored")

    def test_a_reader_is_half_through(self, tmp_path: Path) -> None:
        """The writer need not wait for it, and it never fails but with StoreError."""
        rows = [(b"%04d" % row, b"old") for row in range(3000)]
        with self._looker(tmp_path, STORES) as connection:
            with self.opened(tmp_path) as backend:
                backend.write({"first": rows, "second": rows[:10]}, None, "v1")
                begun = _asked(connection, "begin")
                where = "while a reader was half through its scan"
                changes: Changes = {"first": [(key, None) for key, _ in rows[1::2]], "second": [(b"new", b"new")]}
                try:
                    backend.write(changes, "v1", "v2")
                except Exception as error:
                    raise AssertionError(f"a write {where} must not wait for it, and raised {error!r}") from error
            now = committed(committed(NOTHING, {"first": rows, "second": rows[:10]}, "v1"), changes, "v2")
            with self.opened(tmp_path) as backend:
                check_reads(backend, now, f"opened again {where}")
            rest = _asked(connection, "go on")
            if "StoreError" in (begun, rest):
                return
            assert isinstance(rest, dict), f"{where}, the writer wrote: its iterator must go on, and raised {rest}"
            keys = [key for key, _ in begun["first"] + rest["first"]]
            assert keys == sorted(set(keys)) and set(keys) >= {key for key, _ in rows[::2]}, (
                f"{where}, every other row was deleted: it yields each other row once, in order: {len(keys)} keys"
            )

    def test_a_reader_beside_a_large_write(self, tmp_path: Path) -> None:
        """Of 55,000 rows and some megabytes, wherever it is looked at: nothing of it is there, or all."""
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
        with children.started(*work) as writer, self._looker(tmp_path, STORES) as reader:
            while answer(writer) == "stopped":
                found = _asked(reader, "look")
                sizes = found if isinstance(found, str) else (found[0], [len(each) for each in found[1].values()])
                assert found in (before, after, "StoreError"), (
                    f"a reader beside a write of 55,000 rows sees all of it or nothing: found {sizes} rows"
                )
                writer.send("go on")
            self._expect_look(reader, after, "a reader after a write of 55,000 rows")

    def test_a_reader_is_killed(self, tmp_path: Path) -> None:
        """In its scan: the writer writes, closes and opens as ever, and `destroy` leaves nothing."""
        rows = [(b"%04d" % row, b"old") for row in range(3000)]
        with self.opened(tmp_path) as backend:
            backend.write({"first": rows}, None, "v1")
            with self._looker(tmp_path, STORES, kill=True) as connection:
                _asked(connection, "begin")
            backend.write({"first": [(b"0000", None)]}, "v1", "v2")
        with self.opened(tmp_path) as backend:
            check_reads(backend, ("v2", {"first": dict(rows[1:])}), "after a reader was killed in its scan")
        self.check_destroyed(tmp_path, "a reader was killed in its scan")

    def _looker(self, directory: Path, stores: Sequence[str], kill: bool = False) -> AbstractContextManager[Connection]:
        return self.children().started(look_when_told, type(self).open, directory, tuple(stores), kill=kill)

    def _expect_look(self, connection: Connection, expected: Committed, who: str, order: str = "look") -> None:
        found = _asked(connection, order)
        is_early = "third" in expected[1] and not expected[1]["third"] and found == "StoreError"
        if not is_early:
            expect(found, expected, f"{who} sees the last commit, {expected[0]}" if order == "look" else who)


def _asked(connection: Connection, order: str) -> Any:
    connection.send(order)
    return answer(connection)
