"""Locks on files, between processes of one host: `FileLock`, which a waiter can give up on, and `lock_open_file`."""

from __future__ import annotations

import fcntl
import os
import threading
import time

from .private_files import FILE_MODE

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.005
"""Seconds between two tries."""
_EXCLUSIVE, _IN_USE = 0, 1
"""The bytes of the file that are locked."""
_HOLDER_BYTES = 20


class FileLock:
    """A lock between threads and processes. The kernel releases it when its process ends, however that ends.

    It is a POSIX record lock, which unlike `flock` a forked child does not inherit, beside a lock for the threads of
    this process, for whom a record lock is no obstacle. Use one object for each file in a process: closing any
    descriptor of a file ends the process's record locks on it. The file is opened when it is first needed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._threads = threading.Lock()
        self._file: int | None = None

    def acquire(self, timeout: float) -> bool:
        """Wait up to about `timeout` seconds; return whether the lock was acquired. Raises OSError."""
        if not self._threads.acquire(timeout=timeout):
            return False
        try:
            file, waited, pause = self._open(), 0.0, _FIRST_PAUSE
            while not _try_record_lock(file, _EXCLUSIVE):
                # Pauses are counted instead of reading a clock: a process that was itself stopped has not waited.
                if waited >= timeout:
                    self._threads.release()
                    return False
                time.sleep(pause)
                waited += pause
                pause = min(pause * 1.5, _LONGEST_PAUSE)
            os.pwrite(file, b"%-*d" % (_HOLDER_BYTES, os.getpid()), 0)
        except BaseException:
            self._threads.release()
            raise
        return True

    def release(self) -> None:
        """Release the lock."""
        fcntl.lockf(self._open(), fcntl.LOCK_UN, 1, _EXCLUSIVE)
        self._threads.release()

    def holder(self) -> str:
        """Return the process, or that it is a thread of this one, that holds the lock, after `acquire` failed."""
        if self._threads.locked():
            return f"another thread of this process ({os.getpid()})"
        return f"process {os.pread(self._open(), _HOLDER_BYTES, 0).decode(errors='replace').strip() or 'unknown'}"

    def is_only_user(self) -> bool:
        """Register this process as a user of the file until `close`; return whether there is no other."""
        file = self._open()
        is_only = _try_record_lock(file, _IN_USE)
        fcntl.lockf(file, fcntl.LOCK_SH, 1, _IN_USE)
        return is_only

    def close(self) -> None:
        """Close the file, unless the lock is held; it is opened again when it is needed."""
        if self._threads.acquire(blocking=False):
            file, self._file = self._file, None
            if file is not None:
                os.close(file)
            self._threads.release()

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        return self._file


def _try_record_lock(file: int, byte: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):
        return False
    return True


def lock_open_file(file: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file until its descriptor is closed; return False if another process, or descriptor, has locked it.

    `wait`: wait without limit instead.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
