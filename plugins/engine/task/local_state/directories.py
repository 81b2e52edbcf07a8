"""Which directories of tasks are in use on this machine, and the removal of unused ones."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from penstock import StoreError, StoreLockedError, World
from penstock.support.file_lock import lock_open_file
from penstock.support.private_files import FILE_MODE, make_private_directory
from penstock.support.system_errors import what_to_do

from ..locations import making_state_directory

_log = logging.getLogger("penstock.state")

_SUFFIX, _WANTED, _REMOVED = ".lock", ".wanted", ".removed"
_LEAVE_SECONDS = 5.0
"""How long a task waits for a standby to give way: it does at its next portion."""
_LOOK_SECONDS = 0.01
_HOLDER_BYTES = 20


class _Use:
    """A lock file beside a directory, locked until `close`: `remove_unused` of no process removes the directory then.

    Its time says when the directory was used last. It outlives the directory, or one process could lock a file that
    another has just deleted.
    """

    def __init__(self, directory: Path, world: World) -> None:
        self._clock = world.clock
        self._path = directory.with_name(directory.name + _SUFFIX)
        self._wanted = directory.with_name(directory.name + _WANTED)
        with making_state_directory(directory):
            make_private_directory(directory.parent)
            self._file: int | None = self._open()

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def _is_there(self) -> bool:
        """Return whether the open file still is the lock file: a task replaces it if a standby does not answer."""
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except OSError:
            return False

    def close(self) -> None:
        """Record the time of use, and release the lock; idempotent."""
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


class DirectoryUse(_Use):
    """A task's use of the directory of its local state. Tasks share the lock: a frozen process may have it as well.

    A standby that has the directory gives way: the task leaves a file that asks for it, and waits some seconds. If the
    standby does not answer, the task makes a new lock file. What the standby writes when it wakes, the backend refuses.
    """

    def __init__(self, directory: Path, world: World) -> None:
        super().__init__(directory, world)
        assert self._file is not None
        until = world.seconds() + _LEAVE_SECONDS
        while not (lock_open_file(self._file, shared=True) and self._is_there()):
            is_late = world.seconds() >= until and self._is_there()
            os.close(self._file)
            with making_state_directory(directory):
                if is_late:
                    until = world.seconds() + _LEAVE_SECONDS
                    _log.warning("%s: a standby has this directory and does not answer: using it anyway", directory)
                    self._path.unlink(missing_ok=True)
                self._wanted.touch(FILE_MODE)
                self._file = self._open()
            world.sleep(_LOOK_SECONDS)
        self._wanted.unlink(missing_ok=True)
        self._set_time(self._file)


class SoleUse(_Use):
    """A replica's use of its directory: no other process, or object, uses it.

    Waits up to about `seconds` for another one's end. Raises StoreLockedError if it has not ended by then.
    """

    def __init__(self, directory: Path, world: World, seconds: float) -> None:
        super().__init__(directory, world)
        assert self._file is not None
        until = world.seconds() + seconds
        while not (lock_open_file(self._file) and self._is_there()):
            holder = os.pread(self._file, _HOLDER_BYTES, 0).decode(errors="replace").strip()
            os.close(self._file)
            if world.seconds() >= until:
                self._file = None
                raise StoreLockedError(
                    f"{directory}: {f'process {holder}' if holder else 'a task'} has it open: try again when that has "
                    "ended, or choose another directory"
                )
            world.sleep(_LOOK_SECONDS)
            with making_state_directory(directory):
                self._file = self._open()
        os.pwrite(self._file, b"%-*d" % (_HOLDER_BYTES, os.getpid()), 0)
        self._wanted.unlink(missing_ok=True)
        self._set_time(self._file)

    def is_wanted(self) -> bool:
        """Return whether a task waits for the directory, or has taken it."""
        return self._wanted.exists() or not self._is_there()

    def close(self) -> None:
        if self._file is not None:
            os.truncate(self._file, 0)
        super().close()


def is_used(directory: Path) -> bool:
    """Return whether a process of this machine uses a directory of local state."""
    try:
        file = os.open(directory.with_name(directory.name + _SUFFIX), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock_open_file(file)
    finally:
        os.close(file)


def remove_all(root: Path, names: Collection[str] | None = None) -> tuple[list[str], list[str]]:
    """Delete directories under `root` (`names`: only these); return the deleted ones, and the ones in use."""
    removed, used = [], []
    with making_state_directory(root):
        directories = sorted(path for path in root.glob("*") if path.is_dir() and (names is None or path.name in names))
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

    Those in use are marked as used at `now_ms`, for a killed process cannot. A directory is renamed, with the unique
    `token`, under its lock and deleted without it: a frozen process blocks no other. The next call deletes renamed
    directories.
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


def disk_bytes(directory: Path) -> int:
    """Return the disk usage in bytes of the files under a directory; files deleted meanwhile are left out."""
    total = 0
    for path, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(path, name)).st_blocks * 512
    return total
