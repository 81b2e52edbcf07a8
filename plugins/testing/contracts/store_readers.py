"""The part of `StoreBackendContract` about processes that read beside a writer."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from .child import answer
from .expectations import expect
from .store_children import STORES, read_early, read_on
from .store_tests import NOTHING, StoreTests, check_reads, committed


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
