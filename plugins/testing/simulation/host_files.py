"""HostFiles: the way of a simulated host to the disk of the simulation, and to object stores."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from typing import Any, BinaryIO, TypeVar

from penstock.world import Files, StoredFile, WrittenFile

from .bucket import Bucket
from .disk import Disk, Edge, SimulatedFile, shown

T = TypeVar("T")
_MOST_BYTES = 100
"""The most bytes that one call writes, so that there are crashes in the middle of a delta."""


class HostFiles(Files):
    """A host's way to the disk of the simulation: at each operation a fault of this host may strike (`edge`)."""

    def __init__(self, disk: Disk, machine: int, edge: Edge) -> None:
        self.disk = disk
        self._machine = machine
        self._edge = edge
        self.has_read_damage = False
        """Whether it was given what a damaged file has."""

    def preceded(self, by: Callable[[], object]) -> HostFiles:
        """Return these files, with a call of `by` before each operation."""

        def edge(*operation: Any) -> Any:
            by()
            return self._edge(*operation)

        return HostFiles(self.disk, self._machine, edge)

    def _read(self, path: str) -> bytes:
        self.has_read_damage |= path in self.disk.damaged
        return self.disk.read(path)

    def _do(self, what: str, path: str, call: Callable[[], T], changes: bool = True, tells: bool = False) -> T:
        found: T = self._edge(f"{what} {shown(path)}", call, changes, tells)
        return found

    def remote(self, url: str) -> tuple[Any, str]:
        scheme, _, path = url.partition("://")
        return Bucket(self.disk, self._edge, self._read, scheme), path.partition("?")[0]

    def scan(self, directory: str) -> list[StoredFile]:
        return self._do("lists", directory, lambda: self._scan(directory), changes=False)

    def _scan(self, directory: str) -> list[StoredFile]:
        try:
            names = self.disk.directory(directory).names
        except FileNotFoundError:
            return []
        found = []
        for name, node in names.items():
            if isinstance(node, SimulatedFile):
                with suppress(FileNotFoundError):
                    size = len(self._read(os.path.join(directory, name)))
                    found.append(StoredFile(name, size, node.modified_ms))
        return found

    def folders(self, directory: str) -> list[str]:
        return self._do("lists", directory, lambda: self._folders(directory), changes=False)

    def _folders(self, directory: str) -> list[str]:
        with suppress(FileNotFoundError):
            names = self.disk.directory(directory).names
            return [name for name, node in names.items() if not isinstance(node, SimulatedFile)]
        return []

    def make_directory(self, path: str) -> list[str]:
        return self._do("makes", path, lambda: self.disk.make_directory(self._machine, path))

    def create(self, path: str) -> WrittenFile:
        file = self._do("creates", path, lambda: self.disk.create(self._machine, path))
        return _HostFile(self.disk, self._machine, file, path, self._do)

    def open_end(self, path: str) -> WrittenFile:
        file = self._do("opens", path, lambda: self.disk.file(path), changes=False)
        return _HostFile(self.disk, self._machine, file, path, self._do)

    def open(self, path: str) -> BinaryIO:
        return self._do("reads", path, lambda: BytesIO(self._read(path)), changes=False)

    def replace(self, path: str, by: str) -> None:
        self._do("completes", path, lambda: self.disk.replace(self._machine, path, by), tells=True)

    def remove(self, path: str) -> None:
        self._do("deletes", path, lambda: self.disk.remove(self._machine, path), tells=True)

    def remove_tree(self, directory: str) -> None:
        self.remove(directory)

    def sync_directory(self, path: str) -> None:
        self._do("syncs", path, lambda: self._sync_directory(path))

    def _sync_directory(self, path: str) -> None:
        directory = self.disk.directory(path)
        directory.durable, directory.unsynced = dict(directory.names), []


class _HostFile(WrittenFile):
    def __init__(self, disk: Disk, machine: int, file: SimulatedFile, path: str, do: Callable[..., Any]) -> None:
        self._disk = disk
        self._machine = machine
        self._file = file
        self._path = path
        self._do = do

    def size(self) -> int:
        return len(self._file.data)

    def write(self, data: memoryview) -> int:
        part = bytes(data[:_MOST_BYTES])
        self._do("writes", self._path, lambda: self._disk.write(self._machine, self._file, self._file.data + part))
        return len(part)

    def truncate(self, size: int) -> None:
        self._do("cuts off", self._path, lambda: self._disk.write(self._machine, self._file, self._file.data[:size]))

    def sync(self, *, data_only: bool = False) -> None:
        self._do("appends to" if data_only else "syncs", self._path, self._sync, tells=data_only)

    def _sync(self) -> None:
        self._file.durable = self._file.data

    def close(self) -> None:
        """Do nothing: there is no descriptor to give back."""
