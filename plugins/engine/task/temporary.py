"""Temporary directories that a later process removes if their own process was killed."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import weakref
from contextlib import suppress
from pathlib import Path

from penstock.support.file_lock import lock_open_file
from penstock.support.private_files import temporary_top

_PREFIX, _SUFFIX = "penstock-", ".lock"

_log = logging.getLogger("penstock.state")
_swept: set[str] = set()
"""Directories that this process has cleaned."""


class TemporaryDirectory:
    """A directory under the system's temporary one, which is also removed when its process was killed.

    It goes with `close`, at the end of a `with` block, or with this object or process; else a later process removes it.
    A file beside it is locked for as long as the process runs: the kernel ends the lock, however the process ends. The
    first directory that a process makes removes those whose lock is free.
    Raises RuntimeUnavailableError where no temporary directory can be written.
    """

    def __init__(self, purpose: str) -> None:
        top = Path(temporary_top())
        if str(top) not in _swept:
            _swept.add(str(top))
            remove_abandoned(top)
        while True:
            self.path = top / f"{_PREFIX}{purpose}-{secrets.token_hex(6)}"
            file = os.open(_lock_of(self.path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            lock_open_file(file, wait=True)
            if _lock_of(self.path).exists():
                break
            # Another process removed it before it was locked.
            os.close(file)
        self.path.mkdir(0o700)
        self._remove = weakref.finalize(self, _remove, self.path, file, os.getpid())

    def close(self) -> None:
        """Remove it; idempotent."""
        self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.close()


def remove_abandoned(top: Path) -> None:
    """Remove the temporary directories under `top` whose process is gone; other users' directories stay."""
    for lock in top.glob(f"{_PREFIX}*{_SUFFIX}"):
        # Gone meanwhile, or another user's.
        with suppress(OSError):
            file = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if not lock_open_file(file):
                    continue
                directory = lock.with_name(lock.name.removesuffix(_SUFFIX))
                shutil.rmtree(directory, ignore_errors=True)
                if directory.exists():
                    _log.warning("%s is left of a process that was killed, and cannot be removed: remove it", directory)
                else:
                    lock.unlink()
            finally:
                os.close(file)


def _remove(directory: Path, file: int, process: int) -> None:
    # A forked child has the object, too, and must not remove what its parent uses.
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
        _lock_of(directory).unlink(missing_ok=True)
    os.close(file)


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + _SUFFIX)
