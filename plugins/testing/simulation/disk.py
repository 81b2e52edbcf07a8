"""Disk: a file system in memory that machines share, a host's way to it, and the local state of a machine."""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple, TypeVar

from penstock import Files, StoredFile, WrittenFile
from penstock.stores.memory import MemoryBackend, Saved

from .host_world import Timeline

T = TypeVar("T")
Edge = Callable[[str, Callable[[], Any], bool, bool], Any]
"""Called with the name of an operation, what does it, whether it changes the disk, and whether the story tells it: does
it, or a fault strikes."""

DAMAGES = "is missing", "is cut off", "has a wrong byte"
CHANGELOG = "/changelog"
"""The directory of the changelogs, where the setting names none."""


class SimulatedFile:
    """A file. `durable`: its synced content; `machine`: the machine with later writes."""

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
        """Return the undamaged content of a file. Raises FileNotFoundError."""
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
        found = []
        for name, node in sorted(self.names(directory).items()):
            path = os.path.join(directory, name)
            found += [path] if isinstance(node, SimulatedFile) else self.files(path)
        return found

    def lose(self, machine: int) -> None:
        """Let a machine go down, and lose its unsynced writes."""
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

    def names(self, path: str) -> dict[str, SimulatedFile | _Directory]:
        """Return the content of a directory, by name; empty if there is no such directory."""
        with suppress(FileNotFoundError):
            return self.directory(path).names
        return {}

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
        """Remove a file, or a directory and its content, if it exists."""
        directory, name = os.path.split(path)
        if name in self.names(directory):
            self.directory(directory).change(machine, {name: None})


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


_MOST_BYTES = 100
"""The most bytes that one call writes, so that there are crashes in the middle of a delta."""


class HostFiles(Files):
    """A host's way to the disk of the simulation: at each operation a fault of this host may strike (`edge`)."""

    def __init__(self, disk: Disk, machine: int, edge: Edge) -> None:
        self.disk = disk
        self._machine = machine
        self._edge = edge
        self.has_read_damage = False
        """Whether it has read a damaged file."""

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
        result: T = self._edge(f"{what} {shown(path)}", call, changes, tells)
        return result

    def remote(self, url: str) -> tuple[Any, str]:
        scheme, _, path = url.partition("://")
        return Bucket(self.disk, self._edge, self._read, scheme), path.partition("?")[0]

    def scan(self, directory: str) -> list[StoredFile]:
        return self._do("lists", directory, lambda: self._scan(directory), changes=False)

    def _scan(self, directory: str) -> list[StoredFile]:
        found = []
        for name, node in self.disk.names(directory).items():
            if isinstance(node, SimulatedFile):
                with suppress(FileNotFoundError):
                    size = len(self._read(os.path.join(directory, name)))
                    found.append(StoredFile(name, size, node.modified_ms))
        return found

    def folders(self, directory: str) -> list[str]:
        return self._do("lists", directory, lambda: self._folders(directory), changes=False)

    def _folders(self, directory: str) -> list[str]:
        return [name for name, node in self.disk.names(directory).items() if not isinstance(node, SimulatedFile)]

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


_TYPES = {"gs": "gcs"}


class _Info(NamedTuple):
    base_name: str
    is_file: bool
    size: int = 0
    mtime_ns: int = 0


class Bucket:
    """A host's way to objects, which are kept on `disk`: an object appears complete, and is durable then.

    Nothing can be appended; a move is a copy and a deletion. `scheme` is that of the URL. At each operation a fault of
    this host may strike (`edge`). `read` returns the content of a path of the disk.
    """

    def __init__(self, disk: Disk, edge: Edge, read: Callable[[str], bytes], scheme: str) -> None:
        self._disk = disk
        self._edge = edge
        self._read = read
        self.type_name = _TYPES.get(scheme, scheme)

    def _do(self, what: str, path: str, call: Callable[[], T], *, changes: bool = False) -> T:
        result: T = self._edge(f"{what} {shown(path)}", call, changes, changes)
        return result

    def create_dir(self, path: str, *, recursive: bool) -> None:
        """Do nothing: a path needs no directory."""

    def get_file_info(self, what: Any) -> Any:
        """Return a list for a `FileSelector`, and one entry for a path."""
        if isinstance(what, str):
            return self._do("looks for", what, lambda: self._info(what))
        paths = self._do("lists", what.base_dir, lambda: self._disk.files(f"/{what.base_dir}"))
        return [info for path in paths if (info := self._info(path[1:])).is_file]

    def _info(self, path: str) -> _Info:
        name = os.path.basename(path)
        try:
            file, size = self._disk.file(f"/{path}"), len(self._read(f"/{path}"))
        except FileNotFoundError:
            return _Info(name, False)
        return _Info(name, True, size, file.modified_ms * 1_000_000)

    def open_output_stream(self, path: str) -> _Upload:
        """Return a stream whose content is there once it is closed."""
        return _Upload(path, self._do, self._disk)

    def move(self, path: str, to: str) -> None:
        """Copy, and delete."""
        self._do("copies", to, lambda: self._disk.put(f"/{to}", self._disk.file(f"/{path}").data), changes=True)
        self.delete_file(path)

    def open_input_stream(self, path: str, *, buffer_size: int = 0) -> BytesIO:
        """Return the content of an object."""
        return self._do("reads", path, lambda: BytesIO(self._read(f"/{path}")))

    def open_input_file(self, path: str) -> _Object:
        """Return the content of an object, with its size."""
        return _Object(self.open_input_stream(path).getvalue())

    def delete_file(self, path: str) -> None:
        """Delete an object. Raises FileNotFoundError."""
        self._do("deletes", path, lambda: self._disk.take(f"/{path}"), changes=True)


class _Object(BytesIO):
    def size(self) -> int:
        return len(self.getvalue())


class _Upload:
    """As pyarrow's: there is no way to abandon it, so one that is closed after an error makes a short object."""

    def __init__(self, path: str, do: Callable[..., Any], disk: Disk) -> None:
        self._path = path
        self._do = do
        self._disk = disk
        self._parts: list[bytes] = []

    def __enter__(self) -> _Upload:
        return self

    def __exit__(self, *error: object) -> None:
        data = b"".join(self._parts)
        self._do("uploads", self._path, lambda: self._disk.put(f"/{self._path}", data), changes=True)

    def write(self, data: bytes) -> None:
        self._do("begins", self._path, lambda: self._parts.append(data))


_KEPT = 3
"""The most earlier contents of a directory that a crash may bring back."""


class LocalState:
    """The stores in memory under `directory`, a machine's disk. Nothing of them is synced.

    So a crash of the machine leaves a content of before, one for each task, or none: as a backend that writes
    atomically does, or one that does not trust what it has after a crash.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.replicas = directory / "replicas"
        self._before: dict[str, deque[Saved]] = {}

    def contents(self) -> dict[str, Saved]:
        """Return the stores' present contents, by directory."""
        return MemoryBackend.saved(self.directory)

    def adopt(self, task: str, application_id: str) -> None:
        """Let the replica of a task, which nobody has open, be the task's local state, in place of what is there."""
        source, target = self.replicas / task, self.directory / application_id / task
        contents = MemoryBackend.saved(source)
        for each in (source, target):
            MemoryBackend.forget(each)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        places = {place: place.replace(str(source.absolute()), str(target.absolute()), 1) for place in contents}
        MemoryBackend.put_back({places[place]: saved for place, saved in contents.items()})

    def note(self) -> None:
        """Record the present contents, and forget those whose directories were removed."""
        for place, version in MemoryBackend.versions(self.directory).items():
            before = self._before.setdefault(place, deque(maxlen=_KEPT))
            if not os.path.exists(place):
                MemoryBackend.forget(Path(place).parent)
                del self._before[place]
            elif not before or before[-1][0] != version:
                before.append(MemoryBackend.saved(Path(place))[place])

    def lose(self, random: Random) -> None:
        """Let the machine go down; no process on it may live."""
        for place, before in sorted(self._before.items()):
            left = random.randrange(len(before) + 1)
            MemoryBackend.forget(Path(place).parent)
            if left < len(before):
                MemoryBackend.put_back({place: before[-1 - left]})
        self._before.clear()
