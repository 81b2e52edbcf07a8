"""Locks between processes: one for a writer, which a waiter can give up on, and one that shows who has a directory open."""

from __future__ import annotations

import fcntl
import os
import threading
import time

_LONGEST_NAP = 0.02
_WRITER, _OPEN = 0, 1
"""The bytes of the file that are locked."""


class WriterLock:
    """Held by one thread of one process at a time; the system takes it from a process that ends.

    `alone` is another lock of the same file: shared by all processes that called it, until they close.

    It is a POSIX record lock, which unlike `flock` a forked child does not inherit, beside a lock for this process's
    threads, for whom a record lock is no obstacle. A process may open one file once only: closing any descriptor of
    a file ends the record locks on it.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._threads = threading.Lock()

    def acquire(self, timeout: float) -> bool:
        """Wait up to about `timeout` seconds; return whether the lock is held now."""
        if not self._threads.acquire(timeout=timeout):
            return False
        nap, waited = 0.0005, 0.0
        try:
            while True:
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _WRITER)
                except (BlockingIOError, PermissionError):
                    # Naps are counted instead of reading a clock: in a stopped process the deadline stops as well.
                    if waited >= timeout:
                        self._threads.release()
                        return False
                    time.sleep(nap)
                    waited += nap
                    nap = min(2 * nap, _LONGEST_NAP)
                else:
                    os.pwrite(self._file, b"%-10d" % os.getpid(), 0)
                    return True
        except BaseException:
            self._threads.release()
            raise

    def release(self) -> None:
        """Let others have it."""
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _WRITER)
        self._threads.release()

    def alone(self) -> bool:
        """Note that this process has the directory open; return whether no other has."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _OPEN)
        except (BlockingIOError, PermissionError):
            fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _OPEN)
            return False
        fcntl.lockf(self._file, fcntl.LOCK_SH, 1, _OPEN)
        return True

    def holder(self) -> str:
        """Return the process id of who took it last."""
        return os.pread(self._file, 10, 0).decode(errors="replace").strip() or "unknown"

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
