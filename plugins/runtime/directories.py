"""Who uses a task's directory on this host, and the removal of those that nobody has used for a while."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from pathlib import Path

from penstock.errors import StoreError

from .locations import making_state_directory

_log = logging.getLogger("penstock.state")

_SUFFIX = ".lock"


class DirectoryUse:
    """Holds a directory as used, from now until `close`, against `remove_unused` of any process on the host.

    A lock file beside the directory is locked (shared) while it is in use; its time says when it last was. Beside and not inside: the file
    must outlive the directory, or one process could lock a file that another has just deleted.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory.with_name(directory.name + _SUFFIX)
        with making_state_directory(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
            self._file: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        """Note the time, and let go; idempotent."""
        if self._file is not None:
            try:
                os.utime(self._file)
            except OSError as error:
                _log.debug("%s: %s", self._path, error)
            os.close(self._file)
            self._file = None


def remove_all(root: Path) -> tuple[list[str], list[str]]:
    """Delete every directory under `root`; return the names of those that went, and of those that stay because they are in use."""
    removed, used = [], []
    for directory in sorted(path for path in root.glob("*") if path.is_dir()):
        file = None
        try:
            lock = directory.with_name(directory.name + _SUFFIX)
            if lock.exists():
                file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
            removed.append(directory.name)
        except BlockingIOError:
            used.append(directory.name)
        except OSError as error:
            raise StoreError(
                f"state directory {directory}: cannot be removed: {error.strerror or error}; make it writable for this user, or remove it"
            ) from error
        finally:
            if file is not None:
                os.close(file)
    return removed, used


def remove_unused(root: Path, delay_ms: int, now_ms: int) -> list[str]:
    """Delete the directories under `root` that nobody has used for `delay_ms`; return their names. What is in use stays."""
    removed = []
    for lock in root.glob("*" + _SUFFIX):
        directory = lock.with_name(lock.name.removesuffix(_SUFFIX))
        try:
            if not directory.is_dir() or now_ms - lock.stat().st_mtime * 1000 < delay_ms:
                continue
            file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever used it meanwhile has set the time anew.
            if now_ms - os.fstat(file).st_mtime * 1000 >= delay_ms:
                shutil.rmtree(directory)
                removed.append(directory.name)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                _log.warning("state directory %s: cannot be removed: %s", directory, error)
        finally:
            os.close(file)
    return removed
