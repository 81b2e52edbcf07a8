"""The LMDB environment of a local log: one per process and directory, its transactions, and its errors."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import lmdb

from penstock import LogError, duration_ms
from penstock.support.file_lock import FileLock
from penstock.support.private_files import FILE_MODE, make_private_directory
from penstock.support.system_errors import error_number, free_bytes, what_to_do

from .transaction import Transaction

DATABASES = ("system", "topics", "ends", "batches", "positions", "commits", "meta", "leases", "cleaned")
_FORMAT = b"1"
_MAX_READERS = 1022
_SETTINGS = {"map_size": str(1 << 40), "lock_timeout": "30s"}
_LOOSE_PAGES = 32
_ELSEWHERE = "give the log another directory on a local disk"
_LOCATION = re.compile(r"(?P<directory>.*?)(?:\?(?P<settings>\w+=[^&=/]*(?:&\w+=[^&=/]*)*))?", re.DOTALL)


@dataclass(frozen=True)
class Options:
    """`map_size`: the log's largest size in bytes, sparse until used. `lock_timeout_ms`: the wait for a writer."""

    map_size: int
    lock_timeout_ms: int

    @classmethod
    def parse(cls, of_location: Mapping[str, str], settings: Mapping[str, str]) -> Options:
        """Return options from a location's settings, over which those among the application's have precedence.

        Raises LogError for a bad one, and for an unknown one in the location.
        """
        for name in of_location:
            if name not in _SETTINGS:
                raise LogError(f"local log: unknown setting {name!r}; known: {', '.join(_SETTINGS)}")
        given = {name: settings.get(name, of_location.get(name, default)) for name, default in _SETTINGS.items()}
        if not given["map_size"].isdigit() or int(given["map_size"]) < 1 << 16:
            raise LogError(
                f"local log: setting 'map_size' is {given['map_size']!r}, expected a number of bytes, 65536 or more"
            )
        return cls(int(given["map_size"]), duration_ms(given["lock_timeout"], "local log: setting 'lock_timeout'"))


def split_location(location: str) -> tuple[str, dict[str, str]]:
    """Return the directory and the settings of a location.

    >>> split_location("data/log?lock_timeout=60s")
    ('data/log', {'lock_timeout': '60s'})
    """
    match = _LOCATION.fullmatch(location)
    directory, settings = match.groups() if match else (location, None)
    pairs = (pair.partition("=") for pair in settings.split("&")) if settings else ()
    return directory, {name: value for name, _, value in pairs}


class Environment:
    """The environment in one directory. Thread-safe; after a fork the child opens it anew.

    Use `acquire` and `release`: LMDB forbids a process to open a directory twice.
    """

    def __init__(self, directory: str, options: Options) -> None:
        self.directory = directory
        self._options = options
        self._users = 0
        self._open_lock = threading.Lock()
        self._active: set[Any] = set()
        self._databases: dict[str, Any] = {}
        self._lmdb: Any = None
        self._inherited: Any = None
        self._inherited_busy = False
        self._last_seen = -1
        self._make_locks()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    # -- transactions

    def read(self) -> AbstractContextManager[Transaction]:
        """Open a read transaction; it sees the last commit before it began, and never waits."""
        return self._transaction("read", write=False)

    def write(self, what: str) -> AbstractContextManager[Transaction]:
        """Open the one write transaction of this directory and commit it durably at the end of the block.

        Raises LogError when another process holds the write lock for too long. If the block raises, nothing was
        changed.
        """
        return self._transaction(what, write=True)

    @contextmanager
    def alone_in_maintenance(self) -> Iterator[bool]:
        """Keep other processes from maintaining the log during a block; yields False if one does so already."""
        with self._errors("maintain"):
            is_alone = self._maintenance_lock.acquire(0)
            try:
                yield is_alone
            finally:
                if is_alone:
                    self._maintenance_lock.release()

    def check_readers(self) -> None:
        """Free the reader slots of killed processes, which keep the space of deleted records in use."""
        with self._errors("check readers"):
            self._environment().reader_check()

    def last_transaction(self) -> int:
        """Return the number of the last transaction that a read transaction sees; costs about a microsecond."""
        with self._errors("read"):
            # LMDB reports a transaction here a moment before readers see it: until it is durable.
            if self._environment().info()["last_txnid"] != self._last_seen:
                with self.read() as transaction:
                    self._last_seen = transaction.id()
        return self._last_seen

    @property
    def map_size(self) -> int:
        """The most bytes that the log may take."""
        return self._options.map_size

    # -- opening and closing

    def close(self) -> None:
        """Close the environment; it opens again when used again."""
        with self._open_lock:
            if self._lmdb is not None:
                self._lmdb.close()
                self._lmdb = None
            self._write_lock.close()
            self._maintenance_lock.close()

    def after_fork(self) -> None:
        """Drop inherited handles and locks in a child process: LMDB's belong to the parent."""
        if self._lmdb is not None:
            self._inherited, self._inherited_busy = self._lmdb, bool(self._active)
        self._open_lock = threading.Lock()
        self._active = set()
        self._lmdb = None
        self._make_locks()

    def _make_locks(self) -> None:
        self._write_lock = FileLock(os.path.join(self.directory, "write.lock"))
        self._maintenance_lock = FileLock(os.path.join(self.directory, "maintenance.lock"))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the write lock. Raises LogError naming its holder when it is not free in time.

        LMDB has a lock of its own, and waits for it without limit: a writer that was stopped (SIGSTOP, a debugger)
        would hang every other process. This one is acquired first, so no process ever waits for LMDB's.
        """
        lock, timeout = self._write_lock, self._options.lock_timeout_ms / 1000
        if not lock.acquire(timeout):
            raise LogError(
                f"local log {self.directory}: {lock.holder()} has been writing for more than {timeout:g} s and holds "
                f"the lock {lock.path}. If it was stopped, let it go on (`kill -CONT`) or end it (`kill -9`, which "
                "loses nothing that was committed); if the disk is just slow, raise the time-out "
                "(`local:DIRECTORY?lock_timeout=60s`)"
            )
        try:
            yield
        finally:
            lock.release()

    def _environment(self) -> Any:
        return self._lmdb if self._lmdb is not None else self._open()

    def _open(self) -> Any:
        with self._open_lock, self._errors("open"):
            if self._lmdb is not None:
                return self._lmdb
            self._drop_inherited()
            new_paths = make_private_directory(self.directory)
            # No uninitialised memory is ever written here, so clearing it first (meminit) only costs time.
            # No spare transactions: a forked child that closes its copy would free the reader slots of its parent.
            environment: Any = lmdb.open(
                self.directory,
                map_size=self._options.map_size,
                max_dbs=len(DATABASES),
                max_readers=_MAX_READERS,
                max_spare_txns=0,
                meminit=False,
                mode=FILE_MODE,
            )
            try:
                self._check_complete(environment)
                environment.reader_check()
                self._databases = self._open_databases(environment)
                # The one above also for a process that died when it had made this one.
                _sync_names(
                    {self.directory, os.path.dirname(self.directory), *(str(each.parent) for each in new_paths)}
                )
            except BaseException:
                environment.close()
                raise
            self._lmdb = environment
            return environment

    def _drop_inherited(self) -> None:
        if self._inherited is None:
            return
        if self._inherited_busy:
            raise LogError(
                f"local log {self.directory}: this process was forked while another thread of its parent was using the "
                "log, and so cannot use it itself: fork earlier, or start processes with the 'spawn' method"
            )
        self._inherited.close()
        self._inherited = None

    def _check_complete(self, environment: Any) -> None:
        path, page_size = os.path.join(self.directory, "data.mdb"), environment.stat()["psize"]
        with self._writing():
            found, expected = os.path.getsize(path), (environment.info()["last_pgno"] + 1) * page_size
            # Pages that were allocated and freed in one transaction may never have been written. A part of a page is
            # damage: LMDB would read it as a page without some of its rows.
            if found < expected - _LOOSE_PAGES * page_size or (found < expected and found % page_size):
                raise LogError(
                    f"local log {self.directory}: data.mdb is damaged: it has {found} bytes, and should have "
                    f"{expected}. Restore it from a copy, or move the directory away to start with an empty log"
                )
            if found < expected:
                # If they were cut off, LMDB reports zeros as an error; reading past the end of the file is SIGBUS.
                os.truncate(path, expected)

    def _open_databases(self, environment: Any) -> dict[str, Any]:
        # In a write transaction even when they exist: py-lmdb forgets handles that were opened in a read transaction.
        with self._writing(), environment.begin(write=True) as transaction:
            found: dict[str, Any] = {name: environment.open_db(name.encode(), transaction) for name in DATABASES}
            form = transaction.get(b"format", db=found["system"])
            if form is None:
                form = _FORMAT
                transaction.put(b"format", form, db=found["system"])
        if form != _FORMAT:
            raise LogError(
                f"local log {self.directory}: its format is {form!r}, and this version of penstock reads {_FORMAT!r}: "
                "use the version that wrote it"
            )
        return found

    @contextmanager
    def _transaction(self, what: str, *, write: bool) -> Iterator[Transaction]:
        with self._errors(what):
            # Opening takes the write lock itself.
            self._environment()
            with self._writing() if write else nullcontext():
                raw = self._begin(write)
                self._active.add(raw)
                try:
                    # LMDB's transaction commits at the end of its block, and aborts if that raises.
                    with raw:
                        yield Transaction(raw, self._databases)
                finally:
                    self._active.discard(raw)

    def _begin(self, write: bool) -> Any:
        environment = self._environment()
        try:
            return environment.begin(write=write, buffers=True)
        except lmdb.ReadersFullError:
            environment.reader_check()
        except lmdb.MapResizedError:
            # Another process was given a larger map_size. Adopting it is allowed only while no transaction is open
            # here.
            if self._active:
                raise
            environment.set_mapsize(0)
        except lmdb.PanicError:
            # A write of LMDB's own first pages failed (disk full): the environment has to be reopened.
            if self._active:
                raise
            self.close()
            environment = self._environment()
        return environment.begin(write=write, buffers=True)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise LogError(f"local log {self.directory}: cannot {what}: {self._explain(error)}") from error
        except OSError as error:
            raise LogError(
                f"local log {self.directory}: cannot {what}: {error.strerror or error} ({error.filename}): "
                + (what_to_do(error, _ELSEWHERE) or "give the log a directory on a local disk that this user can write")
            ) from error

    def _explain(self, error: lmdb.Error) -> str:
        reason = str(error)
        if isinstance(error, lmdb.MapFullError):
            return (
                f"the log is full: it has reached its 'map_size' of {self._options.map_size} bytes. Raise that setting "
                "(`local:DIRECTORY?map_size=BYTES`), delete topics, or give topics a 'retention.ms' or "
                "'retention.bytes'. Nothing was changed"
            )
        if isinstance(error, lmdb.DiskError) or error_number(error) in (
            errno.ENOSPC,
            errno.EIO,
            errno.EFBIG,
            errno.EDQUOT,
        ):
            return (
                f"{reason}; {what_to_do(error, _ELSEWHERE, self.directory) or 'the disk failed'} "
                f"({free_bytes(self.directory)} bytes are free). "
                "What was being written is not half done: it is there completely or not at all"
            )
        if isinstance(error, lmdb.ReadersFullError):
            return f"more than {_MAX_READERS} processes read it at once: stop some"
        if isinstance(
            error, (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
        ):
            return (
                f"data.mdb is damaged ({reason}): restore it from a copy, or move the directory away to start with an "
                "empty log"
            )
        is_read_only = isinstance(error, lmdb.ReadonlyError)
        known = what_to_do(PermissionError(errno.EACCES, reason) if is_read_only else error, _ELSEWHERE)
        if known is not None:
            return f"{reason}: {known}"
        if isinstance(error, lmdb.MemoryError) or getattr(error, "code", 0) == errno.ENOMEM:
            return (
                f"{reason}: this process may not map {self._options.map_size} bytes: lower it "
                "(`local:DIRECTORY?map_size=BYTES`)"
            )
        return reason


_environments: dict[str, Environment] = {}
_environments_lock = threading.Lock()


def acquire(directory: str, options: Options) -> Environment:
    """Return this process's environment in `directory`; `release` it when done."""
    real = os.path.realpath(directory)
    with _environments_lock:
        environment = _environments.get(real)
        if environment is None:
            environment = _environments[real] = Environment(real, options)
        environment._users += 1
        return environment


def release(environment: Environment) -> None:
    """Give an environment back; the last user closes it."""
    with _environments_lock:
        environment._users -= 1
        if environment._users == 0:
            _environments.pop(environment.directory, None)
            environment.close()


def _after_fork() -> None:
    global _environments_lock
    _environments_lock = threading.Lock()
    for environment in _environments.values():
        environment.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _sync_names(folders: Iterable[str]) -> None:
    """Let the names in folders survive a crash of the machine: LMDB syncs its file only."""
    for folder in folders:
        with suppress(OSError):  # a folder that is not ours may be unreadable, or on a file system that syncs none
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
