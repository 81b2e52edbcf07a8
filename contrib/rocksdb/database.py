"""An open RocksDB: the one process that writes a directory, and readers in other processes."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet, WeakValueDictionary

from penstock import StaleStoreError, StoreError, StoreLockedError
from penstock.support.file_lock import FileLock
from penstock.support.private_files import temporary_top

from .library import Limits, is_damage, load, make_options

_log = logging.getLogger("penstock.stores")

_VERSION = b"version"
_LOCK = "writer.lock"
_FAMILY = "store:"
"""Column families of stores have names that begin so; RocksDB's own, "default", has the version."""


Fill = Callable[[Any, Callable[[str], Any]], None]
"""Gets a batch, and a function that returns the handle of a store's column family."""


class Database(ABC):
    """A directory that is open: one column family for each store.

    A family keeps keys as they are, counts them, and its scans do not meet another store's deletions. What families
    cost is memory for writes, which is limited for all of them together.
    """

    trusted = True
    """Whether the files were intact."""
    writes: ClassVar[bool]
    """Whether this process may write."""

    def __init__(self, directory: str, stores: Sequence[str], limits: Limits) -> None:
        self.directory = directory
        self._stores = tuple(stores)
        self._limits = limits
        self._root: Any = None
        self._families: dict[str, Any] = {}
        _alive.add(self)

    @abstractmethod
    def family(self, store: str) -> Any:
        """Return the column family of a store, as it is now; None if a reader finds that nothing was written yet."""

    @abstractmethod
    def write(self, fill: Fill, previous: str | None, version: str) -> int:
        """Let `fill` put changes into a batch, and write it with the version; return the batch's size in bytes."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""

    def destroy(self) -> None:
        """Close and, if this process may write, delete the files."""
        self.close()

    def version(self) -> str | None:
        """Return the version of the last write."""
        found = self._running().get(_VERSION)
        return None if found is None else found.decode()

    def forget(self) -> None:
        """Drop the database in a forked process: it belongs to the parent, and closing it here would wait for ever."""
        _parents.extend([self._root, *self._families.values()])
        self._root, self._families = None, {}

    def _running(self) -> Any:
        if self._root is None:
            raise StoreError(
                f"store directory {self.directory}: used after it was closed or destroyed, or in a forked process: "
                "open it again"
            )
        return self._root

    def _open(self, path: Path | None = None) -> None:
        """Open with all families that there are; `path`: as a reader that keeps its own notes there."""
        rocksdict, options = load(), make_options(self._limits)
        writes = path is None
        found = rocksdict.Rdict.list_cf(self.directory, options) if self._exists() else []
        names = {*found, *(_FAMILY + store for store in self._stores)} if writes else {*found}
        access = rocksdict.AccessType.read_write() if path is None else rocksdict.AccessType.secondary(str(path))
        root = rocksdict.Rdict(self.directory, options, dict.fromkeys(names, options), access)
        self._root = root
        self._families = {
            store: root.get_column_family(_FAMILY + store) for store in self._stores if _FAMILY + store in names
        }

    def _exists(self) -> bool:
        return os.path.exists(os.path.join(self.directory, "CURRENT"))

    def _unknown(self, store: str) -> StoreError:
        return StoreError(
            f"store {store!r} was not opened in {self.directory}; opened: {', '.join(sorted(self._stores)) or 'none'}"
        )

    def _close(self) -> None:
        self._families.clear()
        root, self._root = self._root, None
        if root is not None:
            try:
                root.close()
            except Exception as error:  # after a write for which the disk had no room
                _log.warning("store directory %s: closed with an error: %s", self.directory, error)


class Writer(Database):
    """The process that writes a directory.

    It holds `writer.lock` in the directory while it is open, because a waiter can give up on that, and learns who has
    it. RocksDB's own LOCK is behind it.
    """

    writes = True

    def __init__(self, directory: str, stores: Sequence[str], limits: Limits, timeout: float) -> None:
        super().__init__(directory, stores, limits)
        self._handles: dict[str, Any] = {}
        self._lock: FileLock | None = self._acquire(timeout)
        try:
            self._inode = os.stat(self._path(_LOCK)).st_ino
            try:
                self._open()
                if self.version() is None and any(map(_has_rows, self._families.values())):
                    self._close()
                    raise StoreError("Corruption: rows without a version")
            except Exception as error:
                if not is_damage(error):
                    raise
                _log.warning("store directory %s: %s; it is rebuilt", directory, error)
                self.trusted = False
                self._delete(but=_LOCK)
                self._open()
            self._handles = {store: self._root.get_column_family_handle(_FAMILY + store) for store in self._stores}
        except BaseException:
            self.close()
            raise

    def family(self, store: str) -> Any:
        try:
            return self._families[store]
        except KeyError:
            self._running()
            raise self._unknown(store) from None

    def write(self, fill: Fill, previous: str | None, version: str) -> int:
        root = self._running()
        if not self._is_here():
            raise StaleStoreError(
                f"store directory {self.directory}: its files were removed or rebuilt since it was opened: re-open the "
                "task"
            )
        found = self.version()
        if found != previous:
            raise StaleStoreError(
                f"store directory {self.directory}: expected version {previous}, found {found}; another process wrote "
                "it: re-open the task"
            )
        batch = load().WriteBatch(raw_mode=True)
        fill(batch, self._handle)
        batch.put(_VERSION, version.encode())
        size: int = batch.size_in_bytes()
        root.write(batch)
        return size

    def close(self) -> None:
        try:
            if self._root is not None and self._is_here():
                self._root.flush_wal(True)
        except Exception as error:
            # What the machine's crash may take is a suffix of the commits, which the changelog has.
            _log.warning("store directory %s: closed without a sync: %s", self.directory, error)
        finally:
            self._close()
            self._handles = {}
            self._release()

    def destroy(self) -> None:
        here = self._lock is not None and self._is_here()
        self._close()
        self._handles = {}
        if here:
            self._delete()
        self._release()

    def forget(self) -> None:
        super().forget()
        _parents.extend(self._handles.values())
        self._handles = {}
        self._lock = None  # a forked process does not inherit it

    def _handle(self, store: str) -> Any:
        try:
            return self._handles[store]
        except KeyError:
            raise self._unknown(store) from None

    def _acquire(self, timeout: float) -> FileLock:
        with _opening:
            lock = _locks.get(self.directory)
            if lock is None:
                lock = _locks[self.directory] = FileLock(self._path(_LOCK))
        if not lock.acquire(timeout):
            raise StoreLockedError(
                f"store directory {self.directory}: {lock.holder()} has it open, and has for {timeout:g} s "
                "(lock_timeout): end it, or restore into another directory"
            )
        return lock

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
            lock.close()

    def _is_here(self) -> bool:
        try:
            return os.stat(self._path(_LOCK)).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _delete(self, but: str = "") -> None:
        for each in Path(self.directory).iterdir():
            if each.name != but:
                each.unlink()

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


class Reader(Database):
    """A reader beside the process that writes: a secondary instance, which reads on in the writer's files.

    Each use catches up with the writer. That costs most of a millisecond: for looking, not for processing records.
    """

    writes = False

    def __init__(self, directory: str, stores: Sequence[str], limits: Limits) -> None:
        # The writer may delete a file that this process has not opened yet, so it opens all.
        super().__init__(directory, stores, Limits(limits.block_cache_bytes, limits.write_buffer_bytes, -1))
        if not self._exists():
            raise StoreError(f"store directory {directory}: nothing to read there yet; start the task that writes it")
        self._notes: str | None = tempfile.mkdtemp(prefix="penstock-rocksdb-", dir=temporary_top())
        self._opened = self._identity()
        try:
            self._open(Path(self._notes))
        except BaseException:
            self.close()
            raise

    def version(self) -> str | None:
        self._catch_up()
        return super().version()

    def family(self, store: str) -> Any:
        if store not in self._stores:
            self._running()
            raise self._unknown(store)
        self._catch_up()
        if store not in self._families:
            self.reopen()
        return self._families.get(store)

    def _catch_up(self) -> None:
        if self._notes is not None and self._identity() != self._opened:
            self.reopen()  # destroyed and restored: of both a part would be read
            return
        try:
            self._running().try_catch_up_with_primary()
        except Exception as error:
            if not is_damage(error):
                raise
            self.reopen()

    def reopen(self) -> None:
        """Open the writer's files anew.

        A secondary instance does not see column families that were made after it was opened, and calls the files
        corrupt once one of these was flushed.
        """
        self._close()
        assert self._notes is not None
        identity = self._identity()
        self._open(Path(self._notes))
        self._opened = identity

    def _identity(self) -> bytes | None:
        """Return the unique identity of the database, which RocksDB wrote when it was made; None if it is gone."""
        try:
            return Path(self.directory, "IDENTITY").read_bytes()
        except FileNotFoundError:
            return None

    def write(self, fill: Fill, previous: str | None, version: str) -> int:
        raise StoreError(f"store directory {self.directory}: opened for reading only; open it without read_only")

    def close(self) -> None:
        self._close()
        notes, self._notes = self._notes, None
        if notes is not None:
            shutil.rmtree(notes, ignore_errors=True)


def _has_rows(family: Any) -> bool:
    return next(iter(family.keys()), None) is not None


_alive: WeakSet[Database] = WeakSet()
_parents: list[Any] = []
"""In a forked process: objects of the parent, which must not be freed here."""
_locks: WeakValueDictionary[str, FileLock] = WeakValueDictionary()
"""One lock object for each directory in this process, as FileLock asks."""
_opening = threading.Lock()


def _forget_all() -> None:
    global _opening
    _opening = threading.Lock()  # another thread of the parent may hold it
    for each in list(_alive):
        each.forget()
    _locks.clear()


os.register_at_fork(after_in_child=_forget_all)
