"""Disk: a file system in memory that several machines share; what a machine has not synced is lost or torn with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from .timeline import Timeline

Edge = Callable[[str, Callable[[], Any], bool, bool], Any]
"""Called with the name of an operation, what does it, whether it changes the disk, and whether the story tells it: does
it, or a fault strikes."""

DAMAGES = "is missing", "is cut off", "has a wrong byte"
CHANGELOG = "/changelog"
"""The directory of the changelogs, where the setting names none."""


class SimulatedFile:
    """`durable` is what was synced; `machine` has written since."""

    def __init__(self, now_ms: int) -> None:
        self.data = self.durable = b""
        self.machine = -1
        self.modified_ms = now_ms


class _Change(NamedTuple):
    """New names of a directory that are not synced; None: the name is gone. A rename is one change of two names."""

    machine: int
    names: Mapping[str, SimulatedFile | _Directory | None]


class _Directory:
    """`durable` has the names that were synced."""

    def __init__(self) -> None:
        self.names: dict[str, SimulatedFile | _Directory] = {}
        self.durable: dict[str, SimulatedFile | _Directory] = {}
        self.unsynced: list[_Change] = []

    def change(self, machine: int, names: Mapping[str, SimulatedFile | _Directory | None]) -> None:
        self.unsynced.append(_Change(machine, names))
        _apply(self.names, names)


class Disk:
    """Directories and files, by their paths. All machines see what each of them writes, synced or not.

    Of files that are `damaged`, whoever reads gets a part, other bytes, or none: until they are repaired.

    A machine that goes down (`lose`) takes with it what it has not synced: of a file's new end a part stays, all, or
    zeros in place of it; of new, changed and removed names any stay.
    """

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self._timeline = timeline
        self.random = random
        self._root = _Directory()
        self.has_lost_directory = False
        """Whether a machine that went down took a directory with it that other machines may use."""
        self.damaged: dict[str, str] = {}
        """Paths of files, and how each is damaged: one of `DAMAGES`."""

    def read(self, path: str) -> bytes:
        """Return the content of a file, as far as it is not damaged. Raises FileNotFoundError."""
        data, how = self.file(path).data, self.damaged.get(path)
        if how == "is missing":
            raise _error(errno.ENOENT, path)
        if how == "is cut off":
            return data[: len(data) // 2]
        if how == "has a wrong byte" and data:
            at = len(data) * 2 // 3
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    def files(self, directory: str = "/") -> list[str]:
        """Return the paths of all files in a directory and below it."""
        try:
            names = self.directory(directory).names
        except FileNotFoundError:
            return []
        found = []
        for name, node in sorted(names.items()):
            path = os.path.join(directory, name)
            found += [path] if isinstance(node, SimulatedFile) else self.files(path)
        return found

    def lose(self, machine: int) -> None:
        """Let a machine go down, with what it has not synced."""
        for node in list(_walk(self._root)):
            if isinstance(node, SimulatedFile):
                if node.machine == machine and node.data != node.durable:
                    node.data = node.durable = self._torn(node)
            elif node.unsynced:
                kept = [each for each in node.unsynced if each.machine != machine or self.random.randrange(2)]
                before, node.names = node.names, dict(node.durable)
                for each in kept:
                    _apply(node.names, each.names)
                    if each.machine == machine:
                        _apply(node.durable, each.names)
                node.unsynced = [each for each in kept if each.machine != machine]
                gone = [each for name, each in before.items() if name not in node.names]
                self.has_lost_directory |= any(isinstance(each, _Directory) for each in gone)

    def _torn(self, file: SimulatedFile) -> bytes:
        if not file.data.startswith(file.durable):  # it was cut off
            return self.random.choice((file.durable, file.data))
        lost = len(file.data) - len(file.durable)
        kept = file.data[: len(file.durable) + self.random.randrange(lost + 1)]
        # Its new length may be on the disk before its bytes are.
        return kept + self.random.choice((b"", bytes(len(file.data) - len(kept))))

    # ------------------------------------------------------------------ what a machine does

    def directory(self, path: str) -> _Directory:
        """Return a directory. Raises FileNotFoundError."""
        node: SimulatedFile | _Directory | None = self._root
        for name in filter(None, path.split("/")):
            node = node.names.get(name) if isinstance(node, _Directory) else None
        if not isinstance(node, _Directory):
            raise _error(errno.ENOENT, path)
        return node

    def file(self, path: str) -> SimulatedFile:
        """Return a file. Raises FileNotFoundError."""
        directory, name = os.path.split(path)
        node = self.directory(directory).names.get(name)
        if not isinstance(node, SimulatedFile):
            raise _error(errno.ENOENT, path)
        return node

    def make_directory(self, machine: int, path: str) -> list[str]:
        """Make a directory and those above it."""
        made, at, above = [], "", self._root
        for name in filter(None, path.split("/")):
            at = f"{at}/{name}"
            if name not in above.names:
                above.change(machine, {name: _Directory()})
                made.append(at)
            above = self.directory(at)
        return made

    def create(self, machine: int, path: str) -> SimulatedFile:
        """Make a file."""
        directory, name = os.path.split(path)
        if name in (parent := self.directory(directory)).names:
            raise _error(errno.EEXIST, path)
        file = SimulatedFile(self._timeline.now_ms())
        parent.change(machine, {name: file})
        return file

    def write(self, machine: int, file: SimulatedFile, data: bytes) -> None:
        """Change the content of a file."""
        file.data, file.machine, file.modified_ms = data, machine, self._timeline.now_ms()

    def replace(self, machine: int, path: str, by: str) -> None:
        """Give a file the name of another one in the same directory."""
        directory, name = os.path.split(path)
        self.directory(directory).change(machine, {os.path.basename(by): None, name: self.file(by)})

    def put(self, path: str, data: bytes) -> None:
        """Make a file or replace it, with all of its content and durably, as an object store does."""
        self.make_directory(-1, os.path.dirname(path))
        file = SimulatedFile(self._timeline.now_ms())
        file.data = file.durable = data
        self.directory(os.path.dirname(path)).change(-1, {os.path.basename(path): file})

    def take(self, path: str) -> None:
        """Remove a file durably. Raises FileNotFoundError."""
        self.file(path)
        self.remove(-1, path)

    def remove(self, machine: int, path: str) -> None:
        """Remove a file, or a directory with what is in it, if it exists."""
        directory, name = os.path.split(path)
        try:
            above = self.directory(directory)
        except FileNotFoundError:
            return
        if name in above.names:
            above.change(machine, {name: None})


def _apply(to: dict[str, SimulatedFile | _Directory], names: Mapping[str, SimulatedFile | _Directory | None]) -> None:
    for name, node in names.items():
        if node is None:
            to.pop(name, None)
        else:
            to[name] = node


def _walk(directory: _Directory) -> Iterator[SimulatedFile | _Directory]:
    """Yield a directory and everything in it, also what has no name any more but would have it after a crash."""
    yield directory
    nodes = {id(node): node for node in (*directory.names.values(), *directory.durable.values())}
    for node in nodes.values():
        if isinstance(node, _Directory):
            yield from _walk(node)
        else:
            yield node


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def shown(path: str) -> str:
    """Return a path in the words of the story: the task and the number of the version."""
    directory, name = os.path.split(path)
    counter, _, _ = name.partition("-")
    if counter.isdigit() and "." in name:
        return f"{int(counter)}.{name.rpartition('.')[2]} of task {os.path.basename(directory)}"
    return f"the changelog of task {name}"
