"""The lock around write transactions: one writer at a time on this host, and no waiting for ever."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from penstock.errors import LogError

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.005


class FileLock:
    """A lock between threads and processes that says who holds it.

    LMDB has a lock of its own, and waits for it without limit: a writer that was stopped (SIGSTOP, a debugger) would
    hang every other process without a word. This one is taken first, so nobody ever waits for LMDB's.
    It is an fcntl lock: the kernel drops it when its process ends, however it ends.
    """

    def __init__(self, directory: str, timeout_ms: int, name: str) -> None:
        self._path = os.path.join(directory, name)
        self._timeout_s = timeout_ms / 1000
        self._threads = threading.Lock()
        self._file: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for a block. Raises LogError naming the holder's process when it is not free in time."""
        if not self._threads.acquire(timeout=self._timeout_s):
            raise self._error(f"another thread of this process ({os.getpid()})")
        try:
            file = self._open()
            waited, pause = 0.0, _FIRST_PAUSE_S
            while not _try_lock(file):
                # Counts its own pauses instead of reading a clock: a process that was itself stopped has not waited.
                if waited >= self._timeout_s:
                    raise self._error(f"process {self._holder(file)}")
                sleep(pause)
                waited += pause
                pause = min(pause * 1.5, _LONGEST_PAUSE_S)
            try:
                os.pwrite(file, b"%-20d" % os.getpid(), 0)
                yield
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    @contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """Hold the lock for a block if it can be had at once; the block is told whether."""
        if not self._threads.acquire(blocking=False):
            yield False
            return
        try:
            file = self._open()
            if not _try_lock(file):
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Close the file; it opens again when needed."""
        with self._threads:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._file

    def _holder(self, file: int) -> str:
        return os.pread(file, 20, 0).decode("ascii", "replace").strip() or "unknown"

    def _error(self, holder: str) -> LogError:
        return LogError(
            f"local log {os.path.dirname(self._path)}: {holder} has been writing for more than {self._timeout_s:g} s and holds "
            f"the lock {self._path}. If it was stopped, let it go on (`kill -CONT`) or end it (`kill -9`, which loses nothing that "
            "was committed); if the disk is just slow, raise the time-out (`local:DIRECTORY?lock_timeout=60s`)"
        )


def _try_lock(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
