"""contrib.rocksdb and contrib.sqlite keep the published contract, and what they promise beyond it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import MissingPackageError, StoreError, StoreLockedError
from penstock.contrib.rocksdb.backend import RocksDbBackend
from penstock.contrib.sqlite.backend import SqliteBackend
from penstock.plugins.testing.contracts.store_backend import StoreBackendContract
from penstock.plugins.testing.contracts.store_kinds import StoreKindsContract

from ..processes import Child
from ..rotation import by_turns

both = pytest.mark.parametrize("backend", [RocksDbBackend, SqliteBackend])
OPEN = "contrib.rocksdb", "contrib.sqlite"


@by_turns(0, 4)
class TestSqlite(StoreBackendContract):
    open = staticmethod(partial(SqliteBackend, lock_timeout="1s"))
    examples = 8


@by_turns(1, 4)
class TestKindsOverSqlite(StoreKindsContract):
    open = staticmethod(SqliteBackend)
    examples = 3


@by_turns(2, 4)
class TestRocksDb(StoreBackendContract):
    open = staticmethod(partial(RocksDbBackend, lock_timeout="1s"))
    examples = 8


@by_turns(3, 4)
class TestKindsOverRocksDb(StoreKindsContract):
    open = staticmethod(RocksDbBackend)
    examples = 3


WRITER = """
import sys
from pathlib import Path
from penstock.hooks import registry
backend = registry().load("store backend", sys.argv[1])(Path(sys.argv[2]), ["first", "second"])
number = 0
while True:
    value = b"%d" % number
    rows = [(b"%04d" % row, value * 50) for row in range(300)]
    backend.write({"first": rows, "second": [(value, value)]}, backend.version(), f"v{number}")
    print(number, flush=True)
    number += 1
    sys.stdin.read(1)
"""


def writer_of(backend: Any, directory: Path) -> Child:
    """Start a process that writes one version after another, one for each character that it is sent."""
    return Child("-c", WRITER, "contrib.rocksdb" if backend is RocksDbBackend else "contrib.sqlite", directory)


@both
@pytest.mark.parametrize("steps", [0, 3, 40])
def test_a_killed_process_loses_nothing(backend: Any, tmp_path: Path, steps: int) -> None:
    """It is killed while it writes on; what it said that it wrote is there, as a whole."""
    with writer_of(backend, tmp_path) as writer:
        writer.tell("." * (steps + 20))
        for _ in range(steps + 1):
            last = int(writer.line())
    with closing(backend(tmp_path, ["first", "second"], lock_timeout="1s")) as opened:
        assert opened.trusted()
        reached = int(opened.version()[1:])
        assert reached >= last
        assert {value for _, value in opened.range("first")} == {b"%d" % reached * 50}
        assert len(list(opened.range("second"))) == reached + 1


@both
def test_a_reader_in_another_process_that_was_not_forked(backend: Any, tmp_path: Path) -> None:
    with writer_of(backend, tmp_path) as writer:
        assert int(writer.line()) == 0
        with closing(backend(tmp_path, ["first", "second", "third"], read_only=True)) as reader:
            for number in range(5):
                assert reader.version() == f"v{number}"
                assert reader.get("second", b"%d" % number) == b"%d" % number
                scan = reader.range("first")
                seen = [next(scan)]
                writer.tell(".")
                assert int(writer.line()) == number + 1
                assert reader.version() == f"v{number + 1}"
                seen += scan
                assert {value for _, value in seen} == {b"%d" % number * 50}, "a scan shows one commit"
            assert list(reader.range("third")) == []
            assert reader.approximate_count("third") == 0
            with pytest.raises(StoreError, match="read_only"):
                reader.write({}, "v5", "v6")


@pytest.mark.parametrize("look", ["version", "get", "range", "count"])
@both
def test_an_open_reader_goes_on_where_the_writer_has_one_more_store(backend: Any, look: str, tmp_path: Path) -> None:
    with closing(backend(tmp_path, ["first"])) as writer:
        writer.write({"first": [(b"a", b"1")]}, None, "v1")
    with closing(backend(tmp_path, ["first"], read_only=True)) as reader:
        assert reader.get("first", b"a") == b"1"
        for number in range(1, 4):  # RocksDB flushes a family when it is opened again
            with closing(backend(tmp_path, ["first", f"more{number}"])) as writer:
                rows = [(b"a", b"%d" % (number + 1))]
                writer.write({"first": rows, f"more{number}": rows}, f"v{number}", f"v{number + 1}")
            looks: dict[str, Callable[[], object]] = {
                "version": reader.version,
                "get": lambda: reader.get("first", b"a"),
                "range": lambda: list(reader.range("first")),
                "count": lambda: reader.approximate_count("first"),
            }
            found = looks[look]()
            value = b"%d" % (number + 1)
            assert found == {"version": f"v{number + 1}", "get": value, "range": [(b"a", value)], "count": 1}[look]


def test_rocksdb_is_locked_while_another_process_has_it_open(tmp_path: Path) -> None:
    with writer_of(RocksDbBackend, tmp_path) as writer:
        writer.line()
        with pytest.raises(StoreLockedError, match=rf"process {writer.pid} has it open.*lock_timeout"):
            RocksDbBackend(tmp_path, ["first"], lock_timeout="50ms")


def test_sqlite_is_locked_while_another_connection_writes(tmp_path: Path) -> None:
    import sqlite3

    with closing(SqliteBackend(tmp_path, ["first"], lock_timeout="50ms")) as backend:
        backend.write({"first": [(b"k", b"1")]}, None, "v1")
        with closing(sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreLockedError, match="lock_timeout"):
                backend.write({"first": [(b"k", b"2")]}, "v1", "v2")
            with pytest.raises(StoreLockedError, match="lock_timeout"):
                SqliteBackend(tmp_path, ["first"], lock_timeout="50ms")
        backend.write({"first": [(b"k", b"2")]}, "v1", "v2")


def test_rocksdb_in_one_process_twice(tmp_path: Path) -> None:
    with closing(RocksDbBackend(tmp_path, ["first"])) as backend:
        with pytest.raises(StoreLockedError, match="another thread of this process"):
            RocksDbBackend(tmp_path, ["first"], lock_timeout="20ms")
        backend.write({}, None, "v1")
    with closing(RocksDbBackend(tmp_path, ["first"], lock_timeout="20ms")) as backend:
        assert backend.version() == "v1"


@both
def test_a_damaged_directory_is_rebuilt(backend: Any, tmp_path: Path) -> None:
    with closing(backend(tmp_path, ["first"])) as opened:
        opened.write({"first": [(b"k", b"1")]}, None, "v1")
    name = "MANIFEST-*" if backend is RocksDbBackend else "state.sqlite"
    for file in tmp_path.glob(name):
        file.write_bytes(b"damaged" * 1000)
    with closing(backend(tmp_path, ["first"])) as opened:
        assert not opened.trusted()
        assert opened.version() is None
        opened.write({"first": [(b"k", b"2")]}, None, "v1")
    with closing(backend(tmp_path, ["first"])) as opened:
        assert opened.trusted()
        assert opened.get("first", b"k") == b"2"


@pytest.mark.parametrize(
    "read",
    [
        lambda reader: reader.version() == "v1",
        lambda reader: reader.get("first", b"k") == b"1",
        lambda reader: list(reader.range("first")) == [(b"k", b"1")],
        lambda reader: reader.approximate_count("first") == 1,
        lambda reader: viewed(reader) == b"1",
    ],
)
def test_a_reader_of_sqlite_opens_the_file_anew_before_it_calls_it_damaged(
    tmp_path: Path, read: Callable[[SqliteBackend], bool]
) -> None:
    """What it has open may be spoiled while the file is healthy; here that is another file."""
    with closing(SqliteBackend(tmp_path, ["first"])) as opened:
        opened.write({"first": [(b"k", b"1")]}, None, "v1")
    (tmp_path / "spoiled").write_bytes(b"damaged" * 1000)
    with closing(SqliteBackend(tmp_path, ["first"], read_only=True)) as reader:
        reader._connection.close()
        reader._connection._db = sqlite3.connect(tmp_path / "spoiled")
        assert read(reader)
    (tmp_path / "state.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(StoreError, match="damaged: delete it"):
        SqliteBackend(tmp_path, ["first"], read_only=True)


def viewed(reader: SqliteBackend) -> bytes | None:
    with closing(reader.view(["first"])) as view:
        return view.get("first", b"k")


@pytest.mark.parametrize("reverse", [False, True])
def test_a_damaged_block_is_not_taken_for_the_end(tmp_path: Path, reverse: bool) -> None:
    rows = [(b"%05d" % number, b"v" * 100) for number in range(20_000)]
    for version in ("v1", "v2"):  # an opening moves what is in the log to a table file
        with closing(RocksDbBackend(tmp_path, ["first"])) as opened:
            opened.write({"first": rows if version == "v1" else []}, opened.version(), version)
    table = max(tmp_path.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 255
    table.write_bytes(data)
    with closing(RocksDbBackend(tmp_path, ["first"])) as opened:
        with pytest.raises(StoreError, match="damaged: delete them"):
            list(opened.range("first", reverse=reverse))
        view = opened.view(["first"])
        assert view is not None
        with pytest.raises(StoreError, match="damaged: delete them"):
            list(view.range("first"))


@both
def test_files_that_were_removed_are_stale(backend: Any, tmp_path: Path) -> None:
    """A process that was frozen continues after its directory was removed."""
    with closing(backend(tmp_path, ["first"])) as opened:
        opened.write({"first": [(b"k", b"1")]}, None, "v1")
        for file in tmp_path.iterdir():
            file.unlink()
        with pytest.raises(StoreError, match="removed or rebuilt"):
            opened.write({"first": [(b"k", b"2")]}, "v1", "v2")


def test_without_the_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingPackageError, match=r"rocksdict.*pip install '.*\[rocksdb\]'"):
        RocksDbBackend(tmp_path, ["first"])
