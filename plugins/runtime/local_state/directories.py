"""Which directories of tasks are in use on this machine, and the removal of unused ones."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from penstock.clock import Clock
from penstock.errors import StoreError
from penstock.support.file_lock import lock_open_file
from penstock.support.private_files import FILE_MODE, make_private_directory
from penstock.support.system_errors import what_to_do

from ..locations import making_state_directory

_log = logging.getLogger("penstock.state")

_SUFFIX = ".lock"
_REMOVED = ".removed"


class DirectoryUse:
    """Marks a directory as used, from now until `close`: `remove_unused` of no process on this machine removes it.

    A lock file beside the directory is locked (shared) while it is in use; its time says when it last was: it is set
    when the use begins and ends, and by `remove_unused` meanwhile. It is not inside: the file must outlive the
    directory, or one process could lock a file that another has just deleted.
    """

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._clock = clock
        self._path = directory.with_name(directory.name + _SUFFIX)
        with making_state_directory(directory):
            make_private_directory(directory.parent)
            self._file: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        lock_open_file(self._file, shared=True, wait=True)
        self._set_time(self._file)

    def close(self) -> None:
        """Note the time, and release the lock; idempotent."""
        if self._file is not None:
            self._set_time(self._file)
            os.close(self._file)
            self._file = None

    def _set_time(self, file: int) -> None:
        try:
            now = self._clock.now_ms() / 1000
            os.utime(file, (now, now))
        except OSError as error:
            _log.debug("%s: %s", self._path, error)


def remove_all(root: Path) -> tuple[list[str], list[str]]:
    """Delete every directory under `root`; return the names of those deleted, and of those in use, which stay."""
    removed, used = [], []
    with making_state_directory(root):
        directories = sorted(path for path in root.glob("*") if path.is_dir())
    for directory in directories:
        file = None
        try:
            lock = directory.with_name(directory.name + _SUFFIX)
            if lock.exists():
                file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                if not lock_open_file(file):
                    used.append(directory.name)
                    continue
            shutil.rmtree(directory)
            removed.append(directory.name)
        except OSError as error:
            raise StoreError(
                f"state directory {directory}: cannot be removed: {error.strerror or error}; "
                f"{what_to_do(error, 'remove it') or 'remove it'}"
            ) from error
        finally:
            if file is not None:
                os.close(file)
    return removed, used


def remove_unused(root: Path, delay_ms: float, now_ms: int, token: str) -> list[str]:
    """Delete the directories under `root` that were not used for `delay_ms` (inf: none); return their names.

    Those in use are noted as used at `now_ms`: a process that is killed cannot do so itself.

    A directory is renamed under its lock and deleted without it: a process that is frozen while it deletes keeps no
    other from opening the task. What a killed process has renamed, the next call deletes. `token` is part of the new
    name, and no other call has it.
    """
    removed = []
    with making_state_directory(root):
        locks = list(root.glob("*" + _SUFFIX))
    for lock in locks:
        directory = lock.with_name(lock.name.removesuffix(_SUFFIX))
        try:
            if not directory.is_dir():
                continue
            file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            is_unused = lock_open_file(file)
            age_ms = now_ms - os.fstat(file).st_mtime * 1000
            if not is_unused and age_ms > 0:
                os.utime(file, (now_ms / 1000, now_ms / 1000))
            elif is_unused and age_ms >= delay_ms:
                directory.rename(directory.with_name(f"{directory.name}.{token}{_REMOVED}"))
                removed.append(directory.name)
        except OSError as error:
            _log.warning("state directory %s: cannot be removed: %s", directory, error)
        finally:
            os.close(file)
    for directory in root.glob("*" + _REMOVED):
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            pass  # another process is deleting it, too
        except OSError as error:
            _log.warning("state directory %s: cannot be removed: %s", directory, error)
    return removed
