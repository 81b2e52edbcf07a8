"""Open LMDB environments: each directory once per process, with locking, map growth and trust after a crash."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import lmdb

from penstock.errors import StaleStoreError, StoreError, StoreLockedError

from .writer_lock import WriterLock

T = TypeVar("T")

_log = logging.getLogger("penstock.stores")

_DATA, _LOCK, _WRITER, _TRUST = "data.mdb", "lock.mdb", "writer.lock", "trust"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_CLEAN = "clean"
_META = b"meta"
_MAX_DATABASES = 256
_MAX_READERS = 1024


class Reader(Protocol):
    """Who keeps read transactions between calls."""

    def release(self) -> None:
        """Let go of them; the next call begins a new one."""
        ...


class SharedEnvironment:
    """One open environment. All backends of this process that opened its directory share it.

    Files in the directory: LMDB's own two, `writer.lock` (taken around every write transaction, because a waiter can give
    up on it and cannot on LMDB's own lock), and `trust`: the word "clean" after a clean close, otherwise the id of
    the boot under which somebody wrote.
    """

    def __init__(self, directory: str, map_size: int, largest_map_size: int, read_only: bool) -> None:
        self.directory = directory
        self.read_only = read_only
        self.databases: dict[str, Any] = {}
        self.readers: WeakSet[Reader] = WeakSet()
        self.users = 0
        self.trusted = True
        self._map_size = map_size
        self._largest_map_size = largest_map_size
        self._wrote = False
        self._environment: Any = None
        self._meta: Any = None
        self._lock: WriterLock | None = None
        self._opening = threading.Lock()
        self._inode = -1
        self._ended = False

    # ------------------------------------------------------------------ opening and closing

    def open(self, stores: Sequence[str], timeout: float) -> None:
        """Open, or open more stores; `timeout` (seconds) bounds the wait for a writer."""
        if self._ended:
            self._running()
        if self.read_only:
            if self._environment is None:
                self._open_environment()
            self._open_databases(stores)
            return
        if self._lock is None:
            self._lock = self._guard(lambda: WriterLock(self._path(_WRITER)))
        if self._environment is None or any(name not in self.databases for name in stores):
            self._locked(timeout, lambda: self._open_for_writing(stores))

    def allow_writing(self) -> None:
        """Make an environment that readers opened one that can be written."""
        if self.read_only:
            self._close_environment()
            self.read_only = False

    def close(self) -> None:
        """Close. If this process wrote, sync and leave the mark that says so, unless another process is writing."""
        self._ended = True
        if self._environment is None:
            return
        if self._wrote and self._is_here():
            try:
                self._environment.sync(True)  # most of it without the lock
                self._mark_clean()
            except (lmdb.Error, OSError) as error:
                # Without the mark the next one trusts the copy as long as the machine stays up.
                _log.warning("store directory %s: closed without a sync: %s", self.directory, error)
        self._close_environment()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def destroy(self) -> None:
        """Close and delete the files."""
        self._wrote = False
        here = self._is_here()
        self.close()
        if here:
            for name in (_DATA, _LOCK, _TRUST, _WRITER):
                Path(self._path(name)).unlink(missing_ok=True)

    def forget(self) -> None:
        """Let go without closing, in a process that was forked: the environment is the parent's."""
        for reader in self.readers:
            reader.release()
        self._ended = True
        self._environment = self._meta = None
        self._inode = -1
        self.databases.clear()

    # ------------------------------------------------------------------ transactions

    def begin(self) -> Any:
        """Begin a read transaction."""
        try:
            return self._running().begin()
        except lmdb.MapResizedError:  # another process made the map larger
            self._release_readers()
            self._running().set_mapsize(0)
            return self._guard(lambda: self._running().begin())
        except lmdb.ReadersFullError:
            self._running().reader_check()
            return self._guard(lambda: self._running().begin())
        except lmdb.Error as error:
            raise self._explain(error) from error

    def version(self) -> str | None:
        """Return the version that the last write transaction recorded."""
        self._running()
        if self._meta is None and self.read_only:
            self._open_databases(())
        if self._meta is None:
            return None
        transaction = self.begin()
        try:
            version = transaction.get(b"version", None, self._meta)
        finally:
            transaction.abort()
        return None if version is None else version.decode()

    def write(self, change: Callable[[Any], None], previous: str | None, version: str, timeout: float) -> None:
        """Let `change` use a write transaction, from version `previous` to `version`."""
        self._running()
        self._locked(timeout, lambda: self._write(change, previous, version))

    def _write(self, change: Callable[[Any], None], previous: str | None, version: str) -> None:
        if not self._is_here():
            raise StaleStoreError(
                f"store directory {self.directory}: its files were removed or rebuilt since it was opened: re-open the task"
            )
        while True:
            try:
                transaction = self._running().begin(write=True)
                try:
                    self._check_version(transaction, previous)
                    self._distrust()
                    change(transaction)
                    transaction.put(b"version", version.encode(), db=self._meta)
                    transaction.commit()
                except BaseException:
                    transaction.abort()
                    raise
            except lmdb.MapResizedError:
                self._release_readers()
                self._running().set_mapsize(0)
            except lmdb.MapFullError as error:
                size = self._running().info()["map_size"]
                if 2 * size > self._largest_map_size:
                    raise StoreError(
                        f"store directory {self.directory}: its {size:,} bytes are full; open it with a larger largest_map_size, "
                        "or spread the task's state over more partitions"
                    ) from error
                self._release_readers()
                self._running().set_mapsize(2 * size)
            else:
                break
        self._release_readers()

    def _check_version(self, transaction: Any, previous: str | None) -> None:
        found = transaction.get(b"version", None, self._meta)
        found = None if found is None else found.decode()
        if found != previous:
            raise StaleStoreError(
                f"store directory {self.directory}: expected version {previous}, found {found}; another process wrote it: "
                "re-open the task"
            )

    # ------------------------------------------------------------------ helpers

    def _open_for_writing(self, stores: Sequence[str]) -> None:
        if self._environment is None:
            assert self._lock is not None
            # Who has it open was there when the files were last checked, and has not seen the machine go down since.
            if self._lock.alone():
                self._check_trust()
            self._open_environment()
        self._open_databases(stores)

    def _check_trust(self) -> None:
        """Delete files that a crash of the machine may have left in pieces: LMDB would not notice, and crash."""
        if os.path.exists(self._path(_DATA)):
            trust = self._read_trust()
            if trust == _CLEAN or (trust is not None and trust == _boot_id()):
                return
            self.trusted = False
            _log.warning(
                "store directory %s: the machine may have gone down since it was last written; it is rebuilt",
                self.directory,
            )
            Path(self._path(_DATA)).unlink()
        # Without its data the lock file would describe another environment.
        Path(self._path(_LOCK)).unlink(missing_ok=True)
        self._distrust()

    def _open_environment(self) -> None:
        if self.read_only:
            if not os.path.exists(self._path(_DATA)):
                raise StoreError(
                    f"store directory {self.directory}: nothing to read there yet; start the task that writes it"
                )
            if _boot_id() is not None and self._read_trust() not in (_CLEAN, _boot_id()):
                raise StoreError(
                    f"store directory {self.directory}: the machine went down since it was written; "
                    "start the task that writes it, which rebuilds it"
                )
        self._environment = self._guard(
            lambda: lmdb.open(
                self.directory,
                map_size=self._map_size,
                max_dbs=_MAX_DATABASES,
                max_readers=_MAX_READERS,
                # A forked child that lets go of an environment with spare transactions ends those of its parent.
                max_spare_txns=0,
                readonly=self.read_only,
                create=not self.read_only,
                # The changelog is the durable copy; what a crash of the machine leaves here is not trusted.
                sync=False,
                metasync=False,
                readahead=False,
                meminit=False,
            )
        )
        self._inode = os.stat(self._path(_DATA)).st_ino
        self._guard(self._environment.reader_check)  # killed readers pin pages

    def _open_databases(self, stores: Sequence[str]) -> None:
        """Open databases; for readers only those that are there yet."""
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
            return self._running().open_db(name, create=not self.read_only)
        except lmdb.NotFoundError:
            return None
        except lmdb.Error as error:
            raise self._explain(error) from error

    def _close_environment(self) -> None:
        self._release_readers()
        if self._environment is not None:
            self._environment.close()
        self._environment = self._meta = None
        self.databases.clear()

    def _release_readers(self) -> None:
        for reader in list(self.readers):
            reader.release()

    def _running(self) -> Any:
        if self._environment is None:
            raise StoreError(
                f"store directory {self.directory}: used after it was closed or destroyed, or in a forked process: open it again"
            )
        return self._environment

    def _is_here(self) -> bool:
        """Return whether the files in the directory are still those that are open."""
        try:
            return os.stat(self._path(_DATA)).st_ino == self._inode
        except FileNotFoundError:
            return False

    def _locked(self, timeout: float, action: Callable[[], T]) -> T:
        lock = self._lock
        assert lock is not None
        if not lock.acquire(timeout):
            raise StoreLockedError(
                f"store directory {self.directory}: process {lock.holder()} has held its write lock for {timeout:g} s (stopped?): "
                "end that process, or restore into another directory"
            )
        try:
            return self._guard(action)
        finally:
            lock.release()

    def _guard(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (lmdb.Error, OSError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> StoreError:
        text = str(error)
        code = getattr(error, "errno", None)
        if isinstance(error, lmdb.DiskError) or code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or _says(text, _FULL):
            fix = (
                "the disk is full, or failed, or a limit is reached: free some space, or set state_dir to another disk"
            )
        elif isinstance(error, (lmdb.ReadonlyError, PermissionError)) or code == errno.EROFS or _says(text, _REFUSED):
            fix = f"make it writable for user {os.getuid()}, or set state_dir to another directory"
        elif isinstance(error, FileNotFoundError) or _says(text, ("No such file",)):
            fix = "it does not exist: make it"
        elif isinstance(error, (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError)):
            fix = "its files are damaged: delete them, and the state is restored from the changelog"
        elif isinstance(error, lmdb.VersionMismatchError):
            fix = "another version of LMDB wrote it: delete it, and the state is restored from the changelog"
        elif isinstance(error, lmdb.ReadersFullError):
            fix = f"more than {_MAX_READERS} readers have it open: end some"
        elif "already open" in text:
            fix = "this process was forked while it was open: close it before forking, or start processes with `spawn`"
        else:
            fix = "if this stays, delete the directory, and the state is restored from the changelog"
        return StoreError(f"store directory {self.directory}: {text}; {fix}")

    # ------------------------------------------------------------------ trust

    def _mark_clean(self) -> None:
        """Sync, and say so, while nobody writes; who writes next takes it back first."""
        assert self._lock is not None
        if self._lock.acquire(1.0):
            try:
                self._environment.sync(True)
                self._write_trust(_CLEAN)
            finally:
                self._lock.release()

    def _distrust(self) -> None:
        """Before the first write since a clean close: say that from now on a crash of the machine does harm."""
        self._wrote = True
        boot = _boot_id() or "unknown"
        if self._read_trust() != boot:
            self._write_trust(boot)

    def _read_trust(self) -> str | None:
        try:
            return Path(self._path(_TRUST)).read_text().strip()
        except FileNotFoundError:
            return None

    def _write_trust(self, text: str) -> None:
        path = self._path(_TRUST)
        aside = f"{path}.{os.getpid()}"
        with open(aside, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


_FULL = ("No space left", "File too large", "quota exceeded", "Input/output error")  # the last after half a page
_REFUSED = ("Permission denied", "Read-only file system", "Operation not permitted")


def _says(text: str, phrases: Sequence[str]) -> bool:
    return any(phrase in text for phrase in phrases)


def _boot_id() -> str | None:
    """Return what identifies this boot of the machine, or None where there is no such thing."""
    try:
        return Path(_BOOT_ID).read_text().strip() or None
    except OSError:
        return None


# ---------------------------------------------------------------------- the environments of this process

_environments: dict[str, SharedEnvironment] = {}
_registry = threading.RLock()


def acquire(
    directory: Path, stores: Sequence[str], map_size: int, largest_map_size: int, read_only: bool, timeout: float
) -> SharedEnvironment:
    """Return the environment of `directory`, opening it if this process has not; `release` it later."""
    path = os.path.realpath(directory)
    with _registry:
        shared = _environments.get(path)
        if shared is not None and not shared._is_here():  # removed or rebuilt under us: theirs is another file
            del _environments[path]
            shared = None
        if shared is None:
            shared = SharedEnvironment(path, map_size, largest_map_size, read_only)
        elif not read_only:
            shared.allow_writing()
        try:
            shared.open(stores, timeout)
        except BaseException:
            if not shared.users:
                shared.close()
                _environments.pop(path, None)
            raise
        _environments[path] = shared
        shared.users += 1
        return shared


def release(shared: SharedEnvironment) -> None:
    """Give an environment back; the last one closes it."""
    with _registry:
        shared.users -= 1
        if shared.users == 0:
            if _environments.get(shared.directory) is shared:
                del _environments[shared.directory]
            shared.close()


def destroy(shared: SharedEnvironment) -> None:
    """Close an environment for everybody in this process, and delete it."""
    with _registry:
        if _environments.get(shared.directory) is shared:
            del _environments[shared.directory]
        shared.destroy()


def _forget_all() -> None:
    global _registry
    _registry = threading.RLock()  # another thread of the parent may have held it
    for shared in _environments.values():
        shared.forget()
    _environments.clear()


os.register_at_fork(after_in_child=_forget_all)
