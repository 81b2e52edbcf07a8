"""One open LMDB environment: its files, transactions, locks, growth, and trust after a crash of the machine."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import lmdb

from penstock import StaleStoreError, StoreError, StoreLockedError
from penstock.support.file_lock import FileLock
from penstock.support.private_files import FILE_MODE, private_opener
from penstock.support.system_errors import what_to_do

DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
"""Raised for files that are damaged, of another LMDB version, or not LMDB's."""

STALE = (
    *DAMAGE, lmdb.BadTxnError, lmdb.BadRslotError, lmdb.PanicError, lmdb.MapResizedError, lmdb.MemoryError,
)  # fmt: skip
"""Raised to a reader also where only what it has open is spoiled, such as by a writer that no longer knew of it."""


def explain(directory: str, error: Exception) -> StoreError:
    """Return the StoreError for an error of LMDB or of the operating system."""
    text = str(error)
    known = None if isinstance(error, DAMAGE) else what_to_do(error, "set state_dir to another directory", directory)
    if known is not None:
        fix = known
    elif isinstance(error, lmdb.ReadonlyError):
        fix = f"make it writable for user {os.getuid()}, or set state_dir to another directory"
    elif isinstance(error, (*DAMAGE, lmdb.PanicError)):
        fix = "its files are damaged: delete them, and the state is restored from the changelog"
    elif isinstance(error, lmdb.ReadersFullError):
        fix = "too many readers have it open: end some"
    elif "already open" in text:
        fix = "this process was forked while it was open: close it before forking, or start processes with `spawn`"
    else:
        fix = "if this stays, delete the directory, and the state is restored from the changelog"
    return StoreError(f"store directory {directory}: {text}; {fix}")


DATA, LOCK, WRITER = "data.mdb", "lock.mdb", "writer.lock"
_MAX_DATABASES = 256
_MAX_READERS = 1024
"""How many stores of a task, and how many readers at once, there may be."""


def check_readable(directory: str, mark: TrustMark) -> None:
    """Raise StoreError where a reader would find nothing, or files that may be damaged."""
    if not os.path.exists(os.path.join(directory, DATA)):
        raise StoreError(f"store directory {directory}: nothing to read there yet; start the task that writes it")
    if mark.is_stale():
        raise StoreError(
            f"store directory {directory}: the machine went down since it was written, or its disk refused a part: "
            "start the task that writes it, which rebuilds it"
        )


def open_files(directory: str, map_size: int, *, read_only: bool) -> Any:
    """Open the environment in a directory, of `map_size` bytes of address space. Raises lmdb.Error."""
    return lmdb.open(
        directory,
        map_size=map_size,
        max_dbs=_MAX_DATABASES,
        max_readers=_MAX_READERS,
        # With spare transactions, a forked child that drops the environment would end its parent's.
        max_spare_txns=0,
        readonly=read_only,
        create=not read_only,
        # The changelog is the durable copy; after a crash of the machine these files are not trusted.
        sync=False,
        metasync=False,
        readahead=False,
        meminit=False,
        mode=FILE_MODE,
    )


def fill_up(environment: Any, directory: str) -> None:
    """Extend the file to the size that LMDB expects: reading beyond the end of the file would be a SIGBUS.

    No other process writes meanwhile. An intact file may lack a few pages that were never written. A part of a page is
    damage: LMDB would read it as a page without some of its rows.
    """
    path, page_size = os.path.join(directory, DATA), environment.stat()["psize"]
    size, found = (environment.info()["last_pgno"] + 1) * page_size, os.path.getsize(path)
    if found < size and found % page_size:
        raise lmdb.CorruptedError(f"{DATA} has {found} bytes, and should have {size}")
    if found < size:
        os.truncate(path, size)


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CLEAN = "clean"
_UNKNOWN = "unknown"
_NOT_SYNCED = "not synced"


class TrustMark:
    """A file in the directory: "clean" after a clean close, otherwise the id of the boot of its last write.

    Where the disk refused a sync, it has "not synced", or is not there.

    Writes under this boot are in the system's page cache at least, so a killed process does no harm. A system without
    boot ids only distinguishes a clean close from everything else.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.path = os.path.join(directory, "trust")
        self._boot = _boot_id()

    def is_trusted(self) -> bool:
        """Return whether the files are as they were written."""
        return self._read() in (_CLEAN, self._boot)

    def is_stale(self) -> bool:
        """Return whether the files were last written under another boot, without a clean close."""
        return self._boot is not None and not self.is_trusted()

    def set_clean(self) -> None:
        """Record that everything is on disk."""
        self._write(_CLEAN)

    def set_not_synced(self) -> None:
        """Record that the disk refused a write: later reads may return an older state."""
        try:
            self._write(_NOT_SYNCED)
        except OSError:
            os.unlink(self.path)  # which says the same

    def set_in_use(self) -> None:
        """Record durably, before the first write, that a crash of the machine may damage the files."""
        boot = self._boot or _UNKNOWN
        if self._read() != boot:
            self._write(boot)

    def delete(self) -> None:
        """Delete the file, and what killed processes have left beside it."""
        for file in Path(self._directory).glob("trust*"):
            file.unlink(missing_ok=True)

    def _read(self) -> str:
        try:
            with open(self.path, encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except FileNotFoundError:
            return "none"

    def _write(self, text: str) -> None:
        aside = f"{self.path}.{os.getpid()}"
        with open(aside, "w", opener=private_opener) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _boot_id() -> str | None:
    """Return the id of this boot of the machine; None where the system has none."""
    try:
        return Path(_BOOT_ID).read_text().strip() or None
    except OSError:
        return None


T = TypeVar("T")

_log = logging.getLogger("penstock.stores")

_META = b"meta"
_WRITES_PER_CHECK = 64
"""Writes between two checks for killed readers, which pin the pages of the commit that they read."""


class Reader(Protocol):
    """An object that keeps read transactions between calls."""

    def release(self) -> None:
        """End them; the next call begins a new one."""
        ...


class SharedEnvironment:
    """One open environment. All backends of this process that opened its directory share it.

    Files in the directory: LMDB's own two, `writer.lock` (held during every write transaction, because a waiter can
    give up on it, and cannot give up on LMDB's own lock), and `trust` (see TrustMark).
    """

    def __init__(self, directory: str, map_size: int, largest_map_size: int) -> None:
        self.directory = directory
        self.databases: dict[str, Any] = {}
        self.readers: WeakSet[Reader] = WeakSet()
        self.users = 0
        self.mapping = 0
        """Counts how often the files were unmapped: transactions from before cannot be used any more."""
        self.unmapping = threading.RLock()
        """Held while the files are unmapped, and by threads that must not be in the middle of reading then."""
        self.trusted = True
        self._map_size = map_size
        self._largest_map_size = largest_map_size
        self._read_only = True
        self._wrote = False
        self._writes = 0
        self._environment: Any = None
        self._meta: Any = None
        self._lock: FileLock | None = None
        self._opening = threading.Lock()
        self._inode = -1
        self._ended = False
        self._mark = TrustMark(directory)

    # ------------------------------------------------------------------ opening and closing

    def open(self, stores: Sequence[str], read_only: bool, timeout: float) -> None:
        """Open, or open more stores; `timeout` (seconds) bounds the wait for a writer.

        A reader takes no lock, so a stopped writer does not stop readers, except in a process that writes as well.
        """
        if self._ended:
            self._running()
        if read_only and self._read_only:
            if self._environment is None:
                self._open_environment()
                self._open_databases(stores)
                return
            try:
                self._open_databases(stores)
            except StoreError as error:
                if not isinstance(error.__cause__, STALE):
                    raise
                self.open_anew(error.__cause__, stores)
            return
        if self._lock is None:
            self._lock = FileLock(self._path(WRITER))
        if self._read_only or any(name not in self.databases for name in stores):
            self._locked(timeout, lambda: self._open_for_writing(stores))

    def open_anew(self, error: Exception, stores: Sequence[str] = ()) -> None:
        """Open the environment anew, for a reader that got `error`.

        LMDB calls healthy files corrupt where the pages of an open transaction were used again, because the writer does
        not know of this reader: a lock file was removed, or they are in containers that do not see each other. So no
        reader advises to delete files before it has opened them anew. Raises StoreError for a process that writes, and
        for errors that say nothing about the files.
        """
        if not self._read_only or not isinstance(error, STALE):
            raise self.explain(error) from error
        _log.info("store directory %s: %s; opening it anew", self.directory, error)
        known = [*self.databases, *stores]
        self._close_environment()
        self._open_environment()
        self._open_databases(known)

    def close(self) -> None:
        """Close. If this process wrote, sync and set the mark to clean, unless another process is writing."""
        self._ended = True
        if self._environment is not None and self._wrote and self.is_here():
            try:
                self._environment.sync(True)  # most of it without the lock
                self._mark_clean()
            except (lmdb.Error, OSError) as error:
                # Linux forgets pages that it could not write: who opens the files may read what was there before.
                _log.warning("store directory %s: closed without a sync, so it is rebuilt: %s", self.directory, error)
                with suppress(OSError):
                    self._mark.set_not_synced()
        self._close_environment()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def destroy(self) -> None:
        """Close and delete the files."""
        self._wrote = False
        here = self.is_here()
        self.close()
        if here:
            for name in (DATA, LOCK, WRITER):
                Path(self._path(name)).unlink(missing_ok=True)
            self._mark.delete()

    def forget(self) -> None:
        """Drop the environment without closing it, in a forked process: it belongs to the parent."""
        for reader in self.readers:
            reader.release()
        self._ended = True
        self.mapping += 1
        self._environment = self._meta = None
        self._inode = -1
        self.databases.clear()

    # ------------------------------------------------------------------ transactions

    def begin(self) -> Any:
        """Begin a read transaction."""
        try:
            return self._running().begin()
        except lmdb.MapResizedError:  # another process made the map larger
            before_trying_again = partial(self._map, 0)
        except lmdb.ReadersFullError:
            before_trying_again = self._running().reader_check
        except lmdb.Error as error:
            before_trying_again = partial(self.open_anew, error)
        try:
            before_trying_again()
            return self._running().begin()
        except lmdb.Error as error:
            return self.read_anew(error, lambda: self._running().begin())

    def read_anew(self, error: Exception, read: Callable[[], T]) -> T:
        """Return `read()`, which has failed with `error`, after `open_anew`. Raises StoreError where it fails again."""
        self.open_anew(error)
        return self._guard(read)

    def version(self) -> str | None:
        """Return the version that the last write transaction recorded."""
        self._running()
        if self._meta is None and self._read_only:
            self._open_databases(())
        if self._meta is None:
            return None
        transaction = self.begin()
        try:
            return self.version_in(transaction)
        except lmdb.Error as error:
            return self.read_anew(error, lambda: self.version_in(self.begin()))
        finally:
            transaction.abort()

    def version_in(self, transaction: Any) -> str | None:
        """Return the version that a transaction shows. Raises lmdb.Error."""
        version = transaction.get(b"version", None, self._meta)
        return None if version is None else version.decode()

    def write(self, change: Callable[[Any], None], previous: str | None, version: str, timeout: float) -> None:
        """Let `change` use a write transaction, from version `previous` to `version`."""
        self._running()
        self._locked(timeout, lambda: self._write(change, previous, version))

    def _write(self, change: Callable[[Any], None], previous: str | None, version: str) -> None:
        if not self.is_here():
            raise StaleStoreError(
                f"store directory {self.directory}: its files were removed or rebuilt since it was opened: re-open the "
                "task"
            )
        self._writes += 1
        if self._writes % _WRITES_PER_CHECK == 0:
            self._running().reader_check()
        while True:
            try:
                transaction = self._running().begin(write=True)
                try:
                    self._check_version(transaction, previous)
                    self._wrote = True
                    self._mark.set_in_use()
                    change(transaction)
                    transaction.put(b"version", version.encode(), db=self._meta)
                    transaction.commit()
                except BaseException:
                    transaction.abort()
                    raise
            except lmdb.MapResizedError:
                self._map(0)
            except lmdb.MapFullError as error:
                size = self._running().info()["map_size"]
                if 2 * size > self._largest_map_size:
                    raise StoreError(
                        f"store directory {self.directory}: its {size:,} bytes are full; open it with a larger "
                        "largest_map_size, or spread the task's state over more partitions"
                    ) from error
                self._map(2 * size)
            else:
                break
        self._release_readers()

    def _map(self, size: int) -> None:
        """Map so many bytes; 0: as many as another process has."""
        with self.unmapping:
            self._release_readers()
            self.mapping += 1
            self._running().set_mapsize(size)

    def _check_version(self, transaction: Any, previous: str | None) -> None:
        found = self.version_in(transaction)
        if found != previous:
            raise StaleStoreError(
                f"store directory {self.directory}: expected version {previous}, found {found}; another process wrote "
                "it: re-open the task"
            )

    # ------------------------------------------------------------------ helpers

    def _open_for_writing(self, stores: Sequence[str]) -> None:
        if self._read_only:
            assert self._lock is not None
            had_readers = self._environment is not None
            # Another user opened it under this boot, so the files were checked after the last crash of the machine.
            alone = self._lock.is_only_user() and not had_readers
            if alone and os.path.exists(self._path(DATA)) and not self._mark.is_trusted():
                # LMDB does not notice files that a crash of the machine damaged, and crashes on them.
                self._abandon("since it was last written the machine may have gone down, or its disk refused a part")
            self._close_environment()
            self._read_only = False
            try:
                self._open_or_make()
                self._open_databases(stores)
                self.version()
            except StoreError as error:
                self._close_environment()
                if alone and isinstance(error.__cause__, DAMAGE):
                    self._abandon(str(error.__cause__))
                    self._open_or_make()
                else:
                    self._read_only = True
                    if had_readers:
                        self._open_environment()
                    raise
        self._open_databases(stores)

    def _abandon(self, reason: str) -> None:
        """Delete the data: the engine restores a store that is not trusted from the changelog."""
        _log.warning("store directory %s: %s; it is rebuilt", self.directory, reason)
        self.trusted = False
        Path(self._path(DATA)).unlink()

    def _open_or_make(self) -> None:
        if not os.path.exists(self._path(DATA)):
            # Without its data the lock file would describe another environment.
            Path(self._path(LOCK)).unlink(missing_ok=True)
            self._wrote = True
            self._mark.set_in_use()
        self._open_environment()
        self._guard(lambda: fill_up(self._environment, self.directory))

    def _open_environment(self) -> None:
        if self._read_only:
            check_readable(self.directory, self._mark)
        self._environment = self._guard(lambda: open_files(self.directory, self._map_size, read_only=self._read_only))
        self._inode = os.stat(self._path(DATA)).st_ino
        self._guard(self._environment.reader_check)

    def _open_databases(self, stores: Sequence[str]) -> None:
        """Open databases; a reader opens only existing ones."""
        missing = [name for name in stores if name not in self.databases]
        if self._meta is not None and not missing:
            return
        with self._opening:  # LMDB opens one database at a time
            if self._meta is None:
                self._meta = self._open_database(_META)
            for name in missing:
                database = self._open_database(b"store:" + name.encode())
                if database is not None:
                    self.databases[name] = database

    def _open_database(self, name: bytes) -> Any:
        try:
            return self._running().open_db(name, create=not self._read_only)
        except lmdb.NotFoundError:
            return None
        except lmdb.Error as error:
            raise self.explain(error) from error

    def _close_environment(self) -> None:
        with self.unmapping:
            self._release_readers()
            self.mapping += 1
            if self._environment is not None:
                self._environment.close()
            self._environment = self._meta = None
            self.databases.clear()

    def _release_readers(self) -> None:
        for reader in list(self.readers):
            reader.release()

    def _running(self) -> Any:
        if self._environment is None:
            if self._ended or not self._read_only:
                raise StoreError(
                    f"store directory {self.directory}: used after it was closed or destroyed, or in a forked process: "
                    "open it again"
                )
            self._open_environment()  # the files could not be opened anew the last time
        return self._environment

    def is_here(self) -> bool:
        """Return whether the open files are still in the directory."""
        try:
            return os.stat(self._path(DATA)).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _locked(self, timeout: float, action: Callable[[], T]) -> T:
        lock = self._lock
        assert lock is not None
        if not self._guard(lambda: lock.acquire(timeout)):
            raise StoreLockedError(
                f"store directory {self.directory}: {lock.holder()} has held its write lock for {timeout:g} s "
                "(stopped?): end that process, or restore into another directory"
            )
        try:
            return self._guard(action)
        finally:
            lock.release()

    def _guard(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (lmdb.Error, OSError) as error:
            raise self.explain(error) from error

    def explain(self, error: Exception) -> StoreError:
        """Return the StoreError for an error of LMDB."""
        return explain(self.directory, error)

    def _mark_clean(self) -> None:
        """Sync and set the mark to clean while no process writes; the next writer resets it first."""
        assert self._lock is not None
        if self._lock.acquire(1.0):
            try:
                self._environment.sync(True)
                self._mark.set_clean()
            finally:
                self._lock.release()

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)
