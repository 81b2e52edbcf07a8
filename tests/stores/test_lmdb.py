"""What the lmdb backend does beyond the contract: several processes, full disks, crashes of the machine, forks."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import lmdb
import pytest

from penstock.errors import StaleStoreError, StoreError, StoreLockedError
from penstock.plugins.testing.contracts.child import answer, forked
from penstock.plugins.testing.contracts.expectations import expect_no_descriptors
from penstock.stores.lmdb import LmdbBackend, environment
from penstock.stores.lmdb import registry as lmdb_registry
from penstock.stores.lmdb.keys import SHORT

from ..processes import let_everybody_in


def put(backend: LmdbBackend, version: str, *entries: tuple[bytes, bytes | None], store: str = "s") -> None:
    backend.write({store: list(entries)}, backend.version(), version)


@pytest.mark.parametrize("takes_mark", [True, False])
def test_a_copy_that_could_not_be_synced_is_not_trusted(
    takes_mark: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused:
        def __init__(self, environment: Any) -> None:
            self._environment = environment

        def __getattr__(self, name: str) -> Any:
            return getattr(self._environment, name)

        def sync(self, force: bool) -> None:
            raise lmdb.DiskError("mdb_env_sync: Input/output error")

    backend = LmdbBackend(tmp_path, ["s"])
    put(backend, "v1", (b"a", b"1"))
    shared = backend._shared
    assert shared is not None
    shared._environment = Refused(shared._environment)
    with monkeypatch.context() as patched:
        if not takes_mark:
            patched.setattr(environment.TrustMark, "_write", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        backend.close()
    with pytest.raises(StoreError, match="its disk refused a part: start the task that writes it, which rebuilds it"):
        LmdbBackend(tmp_path, ["s"], read_only=True)
    with closing(LmdbBackend(tmp_path, ["s"])) as opened:
        assert not opened.trusted()
        assert opened.version() is None


def wait_until_stopped(connection: Connection) -> int:
    """Return the process id of a child that said it, and has stopped itself since."""
    child = int(answer(connection))
    os.waitpid(child, os.WUNTRACED)
    return child


class Interrupted(list[tuple[bytes, bytes | None]]):
    """Changes, in the middle of which the process sends a signal to itself: inside its write transaction."""

    def __init__(self, entries: list[tuple[bytes, bytes | None]], sent: signal.Signals, connection: Connection) -> None:
        super().__init__(entries)
        self.sent, self.connection, self.passed = sent, connection, False

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        for number, entry in enumerate(super().__iter__()):
            if number == 1 and not self.passed:
                self.passed = True
                self.connection.send(os.getpid())
                os.kill(os.getpid(), self.sent)
            yield entry


# ---------------------------------------------------------------------- several processes


def test_a_view_does_not_hold_up_a_writer_that_needs_a_larger_map(tmp_path: Path) -> None:
    """What is mapped anew cannot be read on: that is said, and another view reads everything."""
    entries = [(b"%05d" % number, b"v" * 100) for number in range(3_000)]
    backend = LmdbBackend(tmp_path, ["s"], map_size=1 << 20)
    put(backend, "v0", *entries)
    view = backend.view(["s"])
    reading = view.range("s")
    assert next(reading) == entries[0]
    put(backend, "v1", (b"large", b"v" * (2 << 20)))
    with pytest.raises(StaleStoreError, match=f"{tmp_path}.*larger"):
        list(reading)
    view.close()
    again = backend.view(["s"])
    assert list(again.range("s")) == [*entries, (b"large", b"v" * (2 << 20))] and again.version == "v1"
    backend.close()
    assert len(list(again.range("s"))) == 3_001
    again.close()
    assert not lmdb_registry._environments


def test_a_writer_that_stopped_inside_its_transaction(tmp_path: Path) -> None:
    """Its successor waits for a bounded time, is told, and reads and writes elsewhere; once awake, it goes on."""

    def stop(connection: Connection) -> None:
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v1", (b"k", b"1"))
        connection.send("open")
        connection.recv()
        backend.write({"s": Interrupted([(b"k", b"2"), (b"l", b"2")], signal.SIGSTOP, connection)}, "v1", "v2")
        connection.send(backend.version())
        connection.recv()

    with forked(stop) as connection:
        assert answer(connection) == "open"
        early = LmdbBackend(tmp_path, ["s"], lock_timeout="200ms")
        assert early.get("s", b"k") == b"1"
        connection.send("stop")
        child = wait_until_stopped(connection)
        try:
            with pytest.raises(StoreLockedError, match=f"(?s){tmp_path}.*process {child} .*0.2 s"):
                early.write({"s": [(b"k", b"3")]}, "v1", "v3")
            early.close()  # though it cannot leave its mark
            with pytest.raises(StoreLockedError, match=f"process {child} "):
                LmdbBackend(tmp_path, ["s"], lock_timeout="200ms")
            reader = LmdbBackend(tmp_path, ["s"], read_only=True)
            assert (reader.version(), reader.get("s", b"k")) == ("v1", b"1")
            reader.close()
            (tmp_path / "elsewhere").mkdir()
            successor = LmdbBackend(tmp_path / "elsewhere", ["s"], lock_timeout="200ms")
            put(successor, "v3", (b"k", b"3"))
            successor.close()
        finally:
            os.kill(child, signal.SIGCONT)
        assert answer(connection) == "v2"
        again = LmdbBackend(tmp_path, ["s"])
        assert (again.version(), again.get("s", b"l")) == ("v2", b"2")
        again.close()
        connection.send("end")


def test_a_writer_that_was_killed_inside_its_transaction(tmp_path: Path) -> None:
    """Leaves the version before, no lock, and no reader that pins pages."""

    def die(connection: Connection) -> None:
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v1", (b"k", b"1"))
        backend.get("s", b"k")
        backend.write({"s": Interrupted([(b"k", b"2"), (b"l", b"2")], signal.SIGKILL, connection)}, "v1", "v2")

    with forked(die, kill=True) as connection:
        assert int(answer(connection))
    backend = LmdbBackend(tmp_path, ["s"], lock_timeout="200ms")
    assert backend.trusted()
    assert (backend.version(), backend.get("s", b"k"), backend.get("s", b"l")) == ("v1", b"1", None)
    assert "no active readers" not in readers(backend)
    put(backend, "v3", (b"k", b"3"))
    assert backend.get("s", b"k") == b"3"
    backend.close()


def readers(backend: LmdbBackend) -> str:
    assert backend._shared is not None
    text: str = backend._shared._environment.readers()
    return text


def test_what_a_write_needs_is_bounded_by_its_changes_and_by_the_pages_of_the_store(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path, ["s", "empty"])
    backend.write({"s": [(b"%06d" % number, b"v" * 100) for number in range(20_000)]}, None, "v1")
    size = (tmp_path / "data.mdb").stat().st_size
    assert 0 < backend.write_bytes("s", 100) <= 100 * 4096
    assert size / 2 < backend.write_bytes("s", 1_000_000) <= size
    assert backend.write_bytes("empty", 1_000_000) == 0
    backend.close()


def test_a_process_that_was_overtaken(tmp_path: Path) -> None:
    """Wakes up late and changes nothing."""

    def sleep(connection: Connection) -> None:
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v1", (b"k", b"1"))
        assert backend.get("s", b"k") == b"1"
        connection.send("asleep")
        connection.recv()
        try:
            backend.write({"s": [(b"k", b"late")]}, "v1", "v2-late")
        except StaleStoreError as error:
            connection.send((str(error), backend.version(), backend.get("s", b"k")))

    with forked(sleep) as connection:
        assert answer(connection) == "asleep"
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v2", (b"k", b"2"))
        connection.send("wake")
        text, version, value = answer(connection)
        assert "expected version v1, found v2" in text
        assert (version, value) == ("v2", b"2")
        assert backend.get("s", b"k") == b"2"
        backend.close()


def test_an_idle_process_pins_no_pages(tmp_path: Path) -> None:
    """Otherwise the file would grow with every commit of the process that took the task over."""

    def write_on(connection: Connection) -> None:
        connection.recv()
        backend = LmdbBackend(tmp_path, ["s"])
        for number in range(100):
            put(backend, f"w{number}", (b"k", os.urandom(200_000)))
        connection.send("done")

    with forked(write_on) as connection:
        idle = LmdbBackend(tmp_path, ["s"])
        put(idle, "v1", (b"k", b"1"))
        assert idle.get("s", b"k") == b"1"
        entries = idle.range("s")
        next(entries)
        idle.release()
        connection.send("go")
        assert answer(connection) == "done"
        assert (tmp_path / "data.mdb").stat().st_size < 4_000_000
        assert len(idle.get("s", b"k") or b"") == 200_000
        idle.close()


@pytest.mark.parametrize("killed", ["before", "after"])
def test_a_reader_that_was_killed_pins_no_pages(tmp_path: Path, killed: str) -> None:
    """Neither one that died before the writer opened the directory, nor one that died beside it."""

    def read(connection: Connection) -> None:
        reader = LmdbBackend(tmp_path, ["s"], read_only=True)
        scan = reader.range("s")
        connection.send(next(scan))
        connection.recv()

    def stay(connection: Connection) -> None:
        """Keep LMDB from starting its table of readers anew, as it does when it finds itself alone."""
        connection.recv()
        reader = LmdbBackend(tmp_path, ["s"], read_only=True)
        connection.send(reader.version())
        connection.recv()

    with forked(stay) as staying:
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v1", *((b"%04d" % number, b"1") for number in range(100)))
        staying.send("open")
        assert answer(staying) == "v1"
        if killed == "before":
            backend.close()
        with forked(read, kill=True) as connection:
            assert answer(connection) == (b"0000", b"1")
        if killed == "before":
            backend = LmdbBackend(tmp_path, ["s"])
        for number in range(200):
            put(backend, f"w{number}", (b"k", os.urandom(200_000)))
            if number == 70:
                after_check = (tmp_path / "data.mdb").stat().st_size
        size = (tmp_path / "data.mdb").stat().st_size
        assert size < 4_000_000 if killed == "before" else size <= after_check + 1_000_000
        backend.close()
        staying.send("end")


def test_a_map_that_is_full_grows_for_everybody(tmp_path: Path) -> None:
    entries = [(b"%04d" % number, bytes(2000)) for number in range(2000)]

    def grow(connection: Connection) -> None:
        connection.recv()
        backend = LmdbBackend(tmp_path, ["s"], map_size=1 << 20)
        backend.write({"s": entries}, backend.version(), "v2")
        connection.send("grown")

    with forked(grow) as connection:
        backend = LmdbBackend(tmp_path, ["s"], map_size=1 << 20)
        reader = LmdbBackend(tmp_path, ["s"], read_only=True)
        put(backend, "v1", *((b"%04d" % number, b"old") for number in range(500)))
        assert backend.get("s", b"0000") == b"old"
        scans = [backend.range("s"), reader.range("s")]
        assert [next(scan)[1] for scan in scans] == [b"old", b"old"]
        connection.send("go")
        assert answer(connection) == "grown"
        assert backend.version() == "v2"
        assert reader.version() == "v2"
        assert backend.get("s", b"1999") == reader.get("s", b"1999") == bytes(2000)
        for scan in scans:
            assert [key for key, _ in scan][-1] in (b"0499", b"1999")
        assert list(backend.range("s")) == list(reader.range("s")) == entries
        put(backend, "v3", *((b"x%04d" % number, bytes(2000)) for number in range(4000)))
        assert sum(1 for _ in backend.range("s")) == 6000
        reader.close()
        backend.close()


def test_readers_and_a_writer_in_one_process(tmp_path: Path) -> None:
    """A reader that was there first goes on when the process begins to write."""
    first = LmdbBackend(tmp_path, ["s"])
    put(first, "v1", (b"k", b"1"), (b"l", b"1"))
    first.close()
    reader = LmdbBackend(tmp_path, ["s", "t"], read_only=True)
    assert reader.get("s", b"k") == b"1"
    assert reader.get("t", b"k") is None
    assert list(reader.range("t")) == []
    assert reader.approximate_count("t") == 0
    scan = reader.range("s")
    assert next(scan) == (b"k", b"1")
    with pytest.raises(StoreError, match="read_only"):
        put(reader, "v2", (b"k", b"2"))
    writer = LmdbBackend(tmp_path, ["s"])
    put(writer, "v2", (b"k", b"2"))
    assert (reader.version(), reader.get("s", b"k")) == ("v2", b"2")
    assert list(scan) == [(b"l", b"1")]
    other = LmdbBackend(tmp_path, ["t"])
    put(other, "v3", (b"k", b"3"), store="t")
    assert reader.get("t", b"k") == b"3"
    assert writer.version() == "v3"
    reader.close()
    writer.close()
    assert other.get("t", b"k") == b"3"
    other.close()


def test_a_reader_does_not_wait_for_stores_that_are_not_there_yet(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"(?s){tmp_path}.*nothing to read"):
        LmdbBackend(tmp_path, ["s"], read_only=True)

    def write(connection: Connection) -> None:
        backend = LmdbBackend(tmp_path, ["s"])
        connection.send("open")
        connection.recv()
        put(backend, "v1", (b"k", b"1"))
        backend.close()
        backend = LmdbBackend(tmp_path, ["t"])
        put(backend, "v2", (b"k", b"2"), store="t")
        connection.send("written")

    with forked(write) as connection:
        assert answer(connection) == "open"
        reader = LmdbBackend(tmp_path, ["s", "t"], read_only=True)
        assert (reader.version(), reader.get("s", b"k"), reader.get("t", b"k")) == (None, None, None)
        connection.send("go")
        assert answer(connection) == "written"
        assert (reader.version(), reader.get("s", b"k"), reader.get("t", b"k")) == ("v2", b"1", b"2")
        reader.close()


# ---------------------------------------------------------------------- one process


def test_a_directory_opened_twice_is_shared(tmp_path: Path) -> None:
    one = LmdbBackend(tmp_path, ["s"])
    (tmp_path / "link").symlink_to(tmp_path)
    two = LmdbBackend(tmp_path / "link", ["s", "t"])
    put(one, "v1", (b"k", b"1"))
    assert two.get("s", b"k") == b"1"
    put(two, "v2", (b"k", b"2"))
    assert one.get("s", b"k") == b"2"
    with pytest.raises(StaleStoreError):
        one.write({}, "v1", "v2")
    one.close()
    assert two.get("s", b"k") == b"2"
    assert (tmp_path / "trust").read_text() != "clean"
    three = LmdbBackend(tmp_path, ["s"])
    two.destroy()
    for use in (lambda: three.get("s", b"k"), lambda: list(three.range("s")), lambda: put(three, "v3"), three.version):
        with pytest.raises(StoreError, match="destroyed"):
            use()
    three.close()
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_files_that_were_rebuilt_by_another(tmp_path: Path) -> None:
    """Are not those that this process has open: its writes are refused, and opening again finds the new ones."""
    directory = tmp_path / "task"
    directory.mkdir()
    old = LmdbBackend(directory, ["s"])
    put(old, "v1", (b"k", b"old"))
    shutil.rmtree(directory)
    with pytest.raises(StaleStoreError, match="removed or rebuilt"):
        put(old, "v2")
    directory.mkdir()

    new = LmdbBackend(directory, ["s"])
    assert new.version() is None
    put(new, "v1", (b"k", b"new"))
    with pytest.raises(StaleStoreError, match="removed or rebuilt"):
        put(old, "v2")
    old.destroy()
    assert new.get("s", b"k") == b"new"
    assert (directory / "data.mdb").exists()
    new.close()
    again = LmdbBackend(directory, ["s"])
    assert again.get("s", b"k") == b"new"
    again.close()


def test_a_forked_child_must_open_its_own(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path, ["s"])
    reader = LmdbBackend(tmp_path, ["s"], read_only=True)
    put(backend, "v1", (b"k", b"1"), (b"l", b"1"))
    assert backend.get("s", b"k") == b"1"
    before = readers(backend)

    def use(connection: Connection) -> None:
        for inherited in (backend, reader):
            for action in (lambda: inherited.get("s", b"k"), lambda: inherited.version(), lambda: put(inherited, "v2")):  # noqa: B023
                with pytest.raises(StoreError, match="fork|reading"):
                    action()
        own = LmdbBackend(tmp_path, ["s"])
        connection.send(own.get("s", b"k"))
        put(own, "v2", (b"k", b"2"))
        own.close()
        backend.destroy()
        reader.close()
        connection.send("end")

    with forked(use) as connection:
        assert answer(connection) == b"1"
        assert answer(connection) == "end"
    assert readers(backend) == before, "the child ended a read transaction of its parent"
    assert backend.version() == "v2"
    assert backend.get("s", b"k") == reader.get("s", b"k") == b"2"
    reader.close()
    backend.close()


def test_unsorted_changes_are_an_error(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path, ["s"])
    with pytest.raises(StoreError, match="'s'.*not sorted"):
        put(backend, "v1", (b"b", b"1"), (b"a", b"1"))
    assert backend.version() is None
    assert list(backend.range("s")) == []
    backend.close()


def test_long_keys_leave_nothing_behind(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path, ["s"])
    keys = sorted(
        b"k" * length + tail for length in (SHORT - 1, SHORT, 1011, 1012, 1013, 5000) for tail in (b"", b"a", b"b")
    )
    put(backend, "v1", *((key, b"1") for key in keys))
    assert backend.approximate_count("s") == len(keys)
    put(backend, "v2", *((key, None) for key in keys[::2]))
    assert [key for key, _ in backend.range("s")] == keys[1::2]
    assert backend.approximate_count("s") == len(keys[1::2])
    put(backend, "v3", *((key, None) for key in keys))
    assert backend.approximate_count("s") == 0
    transaction = backend._begin()
    assert transaction.stat(backend._databases["s"])["entries"] == 1, "only the counter of nodes"
    backend.close()


# ---------------------------------------------------------------------- what a machine does


def test_a_map_that_may_not_grow(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path, ["s"], map_size=1 << 20, largest_map_size=2 << 20)
    put(backend, "v1", (b"k", b"1"))
    with pytest.raises(StoreError, match=f"(?s){tmp_path}.*2,097,152 bytes are full.*largest_map_size"):
        put(backend, "v2", *((b"%04d" % number, bytes(2000)) for number in range(2000)))
    assert backend.version() == "v1"
    assert list(backend.range("s")) == [(b"k", b"1")]
    put(backend, "v2", (b"k", b"2"))
    backend.close()


def test_a_full_disk(tmp_path: Path) -> None:
    """Nothing is lost, and when there is space again the same backend goes on."""

    def fill(connection: Connection) -> None:
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v1", (b"k", b"1"))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            put(backend, "v2", *((b"%04d" % number, bytes(2000)) for number in range(2000)))
        except StoreError as error:
            connection.send(str(error))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        connection.send((backend.version(), list(backend.range("s"))))
        put(backend, "v2", (b"k", b"2"))
        connection.send((backend.version(), list(backend.range("s"))))

    with forked(fill) as connection:
        text = answer(connection)
        assert str(tmp_path) in text and "make room there" in text
        assert answer(connection) == ("v1", [(b"k", b"1")])
        assert answer(connection) == ("v2", [(b"k", b"2")])


def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    let_everybody_in(tmp_path)
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)

    def try_it(connection: Connection) -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            LmdbBackend(closed, ["s"])
        except StoreError as error:
            connection.send(str(error))

    with forked(try_it) as connection:
        text = answer(connection)
    assert str(closed) in text and "make it writable" in text and "state_dir" in text


def test_readers_go_on_when_their_process_may_not_write(tmp_path: Path) -> None:
    let_everybody_in(tmp_path)
    backend = LmdbBackend(tmp_path, ["s"])
    put(backend, "v1", (b"k", b"1"))
    backend.close()
    tmp_path.chmod(0o777)
    for path in tmp_path.iterdir():
        path.chmod(0o666)
    (tmp_path / "data.mdb").chmod(0o444)

    def try_it(connection: Connection) -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        reader = LmdbBackend(tmp_path, ["s"], read_only=True)
        try:
            LmdbBackend(tmp_path, ["s"])
        except StoreError as error:
            connection.send(str(error))
        connection.send(reader.get("s", b"k"))

    with forked(try_it) as connection:
        assert "make it writable" in answer(connection)
        assert answer(connection) == b"1"


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="gone.*make it"):
        LmdbBackend(tmp_path / "gone", ["s"])


def test_a_part_of_a_page_cut_off_is_not_trusted(tmp_path: Path) -> None:
    """LMDB would read the page without some of its rows."""
    with closing(LmdbBackend(tmp_path, ["s"])) as backend:
        backend.write({"s": [(b"%04d" % row, b"v" * 100) for row in range(400)]}, None, "v1")
    os.truncate(tmp_path / "data.mdb", (tmp_path / "data.mdb").stat().st_size - 1000)
    with closing(LmdbBackend(tmp_path, ["s"])) as backend:
        assert not backend.trusted()
        assert not list(backend.range("s"))


@pytest.mark.parametrize("damage", [b"x" * 8192, b"x" * 100])
def test_damaged_files(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Are rebuilt, since the changelog has what they had; a reader is told who does that."""
    backend = LmdbBackend(tmp_path, ["s"])
    put(backend, "v1", (b"k", b"1"))
    backend.close()
    (tmp_path / "data.mdb").write_bytes(damage)
    with pytest.raises(StoreError, match=f"(?s){tmp_path}.*damaged.*changelog"):
        LmdbBackend(tmp_path, ["s"], read_only=True)
    with caplog.at_level(logging.WARNING):
        backend = LmdbBackend(tmp_path, ["s"])
    assert str(tmp_path) in caplog.text
    assert (backend.trusted(), backend.version()) == (False, None)
    put(backend, "v2", (b"k", b"2"))
    assert backend.get("s", b"k") == b"2"
    backend.close()


class _Spoiled:
    """An open environment, or a transaction of it, in which LMDB finds no healthy page any more."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole

    def begin(self, **options: Any) -> _Spoiled:
        return _Spoiled(self._whole.begin(**options))

    def get(self, *arguments: Any) -> bytes:
        raise lmdb.PageNotFoundError("mdb_get")

    def cursor(self, *arguments: Any) -> Any:
        raise lmdb.CorruptedError("mdb_cursor_open")

    def stat(self, *arguments: Any) -> Any:
        raise lmdb.BadTxnError("mdb_stat")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


READS: list[Callable[[LmdbBackend], object]] = [
    lambda reader: reader.version() == "v1",
    lambda reader: reader.get("s", b"k0000") == b"1",
    lambda reader: len(list(reader.range("s"))) == 5_000,
    lambda reader: reader.approximate_count("s") == 5_000,
    lambda reader: viewed(reader) == b"1",
]


def viewed(reader: LmdbBackend) -> bytes | None:
    with closing(reader.view(["s"])) as view:
        return view.get("s", b"k0000")


@pytest.mark.parametrize("read", READS)
def test_a_reader_opens_files_anew_before_it_calls_them_damaged(
    tmp_path: Path, read: Callable[[LmdbBackend], bool]
) -> None:
    """What it has open may be spoiled while the files are healthy: the writer did not know of it."""
    with closing(LmdbBackend(tmp_path, ["s"])) as backend:
        put(backend, "v1", *((b"k%04d" % number, b"1") for number in range(5_000)))
    with closing(LmdbBackend(tmp_path, ["s"], read_only=True)) as reader:
        shared = reader._open()
        shared._environment = _Spoiled(shared._environment)
        assert read(reader)
        (tmp_path / "data.mdb").write_bytes(b"x" * (tmp_path / "data.mdb").stat().st_size)
        with pytest.raises(StoreError, match=f"(?s){tmp_path}.*damaged.*changelog"):
            read(reader)


def test_what_a_reader_has_begun_to_read_is_of_one_commit(tmp_path: Path) -> None:
    """After the files were opened anew a scan, or a view, would go on in another one."""
    with closing(LmdbBackend(tmp_path, ["s"])) as backend:
        put(backend, "v1", *((b"k%04d" % number, b"1") for number in range(5_000)))
    with closing(LmdbBackend(tmp_path, ["s"], read_only=True)) as reader, closing(reader.view(["s"])) as view:
        scan = reader.range("s")
        next(scan)
        ((token, transaction),) = reader._snapshots.items()
        reader._snapshots[token] = _Spoiled(transaction)
        with pytest.raises(StaleStoreError, match="scan it again"):
            list(scan)
        assert len(list(reader.range("s"))) == 5_000
        with pytest.raises(StaleStoreError, match="meanwhile"):
            view.get("s", b"k0000")
    with closing(LmdbBackend(tmp_path, ["s"], read_only=True)) as reader, closing(reader.view(["s"])) as view:
        view._transaction = _Spoiled(view._transaction)
        with pytest.raises(StaleStoreError, match="opened anew meanwhile"):
            view.get("s", b"k0000")


def test_files_that_are_damaged_under_somebody_who_has_them_open(tmp_path: Path) -> None:
    """Are left to that process."""

    def hold(connection: Connection) -> None:
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v1", (b"k", b"1"))
        connection.send("open")
        connection.recv()

    with forked(hold, kill=True) as connection:
        answer(connection)
        os.replace(tmp_path / "data.mdb", tmp_path / "aside")
        (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
        with pytest.raises(StoreError, match=f"(?s){tmp_path}.*damaged.*changelog"):
            LmdbBackend(tmp_path, ["s"])
    assert (tmp_path / "data.mdb").read_bytes() == b"x" * 8192


def test_an_opening_that_failed_leaves_nothing_open(tmp_path: Path) -> None:
    def hold(connection: Connection) -> None:
        backend = LmdbBackend(tmp_path, ["s"])
        put(backend, "v1", (b"k", b"1"))
        backend.write({"s": Interrupted([(b"k", b"2"), (b"l", b"2")], signal.SIGSTOP, connection)}, "v1", "v2")

    with forked(hold, kill=True) as connection:
        wait_until_stopped(connection)
        reader = LmdbBackend(tmp_path, ["s"], read_only=True)

        def fail() -> None:
            with pytest.raises(StoreLockedError):
                LmdbBackend(tmp_path, ["s"], lock_timeout="10ms")

        expect_no_descriptors(fail, "an opening that fails")
        assert reader.get("s", b"k") == b"1", "the reader of this process suffered"
        reader.close()
    backend = LmdbBackend(tmp_path, ["s"], lock_timeout="1s")
    assert backend.version() == "v1"
    backend.close()


class TestTrust:
    """Whether the files are believed when they are opened the next time."""

    @pytest.fixture(autouse=True)
    def boot(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.id = tmp_path / "boot_id"
        self.id.write_text("monday")
        monkeypatch.setattr(environment, "_BOOT_ID", str(self.id))
        self.directory = tmp_path / "task"
        self.directory.mkdir()

    def write(self, version: str, *, close: bool) -> None:
        """Write in another process, which is killed afterwards or closes before it is."""

        def run(connection: Connection) -> None:
            backend = LmdbBackend(self.directory, ["s"])
            put(backend, version, (b"k", version.encode()))
            if close:
                backend.close()
            connection.send("done")

        with forked(run, kill=True) as connection:
            answer(connection)

    def check(self, version: str | None, *, trusted: bool) -> None:
        backend = LmdbBackend(self.directory, ["s"])
        assert backend.trusted() is trusted
        assert backend.version() == version
        assert backend.get("s", b"k") == (None if version is None else version.encode())
        put(backend, "next", (b"k", b"next"))
        backend.close()
        again = LmdbBackend(self.directory, ["s"])
        assert again.trusted()
        assert again.get("s", b"k") == b"next"
        again.close()

    def test_killed(self) -> None:
        self.write("v1", close=False)
        self.check("v1", trusted=True)

    def test_killed_and_machine_down(self, caplog: pytest.LogCaptureFixture) -> None:
        self.write("v1", close=False)
        self.id.write_text("tuesday")
        with pytest.raises(StoreError, match="machine went down"):
            LmdbBackend(self.directory, ["s"], read_only=True)
        with caplog.at_level(logging.WARNING):
            self.check(None, trusted=False)
        assert str(self.directory) in caplog.text

    def test_closed_and_machine_down(self) -> None:
        self.write("v1", close=True)
        self.id.write_text("tuesday")
        reader = LmdbBackend(self.directory, ["s"], read_only=True)
        assert reader.get("s", b"k") == b"v1"
        reader.close()
        self.check("v1", trusted=True)

    def test_closed_then_killed_and_machine_down(self) -> None:
        self.write("v1", close=True)
        self.write("v2", close=False)
        self.id.write_text("tuesday")
        self.check(None, trusted=False)

    def test_closed_by_one_while_another_writes_on(self) -> None:
        """The mark of the first must not vouch for what the second writes."""
        ours = LmdbBackend(self.directory, ["s"])
        put(ours, "v1", (b"k", b"v1"))
        self.write("v2", close=True)
        assert (self.directory / "trust").read_text() == "clean"
        put(ours, "v3", (b"k", b"v3"))
        assert (self.directory / "trust").read_text() == "monday"
        ours.close()
        assert (self.directory / "trust").read_text() == "clean"

    def test_no_boot_id(self) -> None:
        self.id.unlink()
        self.write("v1", close=True)
        self.write("v2", close=True)
        self.check("v2", trusted=True)
        self.write("v3", close=False)
        self.check(None, trusted=False)

    def test_no_boot_id_but_somebody_is_there(self) -> None:
        """Who has it open has not seen the machine go down."""
        self.id.unlink()
        ours = LmdbBackend(self.directory, ["s"])
        put(ours, "v1", (b"k", b"v1"))
        self.write("v2", close=False)
        assert ours.get("s", b"k") == b"v2"
        ours.close()

    def test_no_boot_id_but_who_came_second_is_there(self) -> None:
        self.id.unlink()

        def hold(connection: Connection) -> None:
            first = LmdbBackend(self.directory, ["s"])
            put(first, "v1", (b"k", b"v1"))
            connection.send("open")
            connection.recv()

        with forked(hold, kill=True) as connection:
            answer(connection)
            second = LmdbBackend(self.directory, ["s"])
        self.write("v2", close=False)
        assert second.get("s", b"k") == b"v2"
        second.close()

    def test_destroyed(self) -> None:
        self.write("v1", close=False)
        self.id.write_text("tuesday")
        backend = LmdbBackend(self.directory, ["s"])
        backend.destroy()
        assert list(self.directory.iterdir()) == []
        again = LmdbBackend(self.directory, ["s"])
        assert again.trusted()
        again.close()


def test_registry_of_this_process_is_empty_now() -> None:
    """Every test above closed what it opened."""
    assert vars_of_environments() == []


def vars_of_environments() -> list[Any]:
    return list(lmdb_registry._environments)
