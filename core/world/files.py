"""Files: the file system that a changelog in a directory writes to, by the calls of an operating system."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

from ..support.private_files import make_private_directory, private_opener


class StoredFile(NamedTuple):
    """A file as a listing shows it; `modified_ms` is milliseconds since the epoch."""

    name: str
    size: int
    modified_ms: int


class WrittenFile(ABC):
    """An open file that is written at its end. What was written may be lost with the machine until it is synced."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes that the file has now."""

    @abstractmethod
    def write(self, data: memoryview) -> int:
        """Write at the end; return the number of bytes written, which may be fewer."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Cut the file off after `size` bytes."""

    @abstractmethod
    def sync(self, *, data_only: bool = False) -> None:
        """Make all writes durable; `data_only` leaves out the file's times."""

    @abstractmethod
    def close(self) -> None:
        """Close the file, which syncs nothing."""


class Files(ABC):
    """A file system. Paths are absolute; every method raises OSError.

    A name in a directory, whether it is new, changed or removed, may be lost with the machine until `sync_directory`.
    """

    @abstractmethod
    def scan(self, directory: str) -> list[StoredFile]:
        """Return all files of a directory, in any order; none for one that does not exist."""

    @abstractmethod
    def folders(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory, in any order; none for one that does not exist."""

    @abstractmethod
    def make_directory(self, path: str) -> list[str]:
        """Make a directory and missing ones above it, for this user alone. Return the new ones, the uppermost first."""

    @abstractmethod
    def create(self, path: str) -> WrittenFile:
        """Make a file, for this user alone, that must not exist."""

    @abstractmethod
    def open_end(self, path: str) -> WrittenFile:
        """Open a file that exists, to write at its end."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open a file to read it."""

    @abstractmethod
    def replace(self, path: str, by: str) -> None:
        """Give the file `by` the name `path`, in one step, whether or not there is a file of that name."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    @abstractmethod
    def remove_tree(self, directory: str) -> None:
        """Remove a directory, if it exists, and everything in it."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Return when the names in a directory are durable as they are now."""

    def remote(self, url: str) -> tuple[Any, str] | None:
        """Return a file system for a URL, with the methods of `pyarrow.fs.FileSystem`, and the path in it.

        None: pyarrow's own.
        """
        return None


class LocalFiles(Files):
    """The file system of this machine."""

    def scan(self, directory: str) -> list[StoredFile]:
        files = []
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # renamed or deleted by another process since the scan
                    status = entry.stat()
                    files.append(StoredFile(entry.name, status.st_size, status.st_mtime_ns // 1_000_000))
        return files

    def folders(self, directory: str) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
        return []

    def make_directory(self, path: str) -> list[str]:
        return [str(each) for each in make_private_directory(path)]

    def create(self, path: str) -> WrittenFile:
        return _LocalFile(private_opener(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))

    def open_end(self, path: str) -> WrittenFile:
        return _LocalFile(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb", buffering=1024 * 1024)

    def replace(self, path: str, by: str) -> None:
        os.replace(by, path)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, directory: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)

    def sync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# Not on every system. It leaves out the time of the last change, which no restore needs.
_sync_data = getattr(os, "fdatasync", os.fsync)


class _LocalFile(WrittenFile):
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def write(self, data: memoryview) -> int:
        return os.write(self._handle, data)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._handle, size)

    def sync(self, *, data_only: bool = False) -> None:
        if data_only:
            _sync_data(self._handle)
        else:
            os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)
