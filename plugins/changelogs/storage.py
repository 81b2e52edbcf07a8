"""One folder of files, on this host's disk or wherever pyarrow.fs reaches. Writing a file is atomic."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from penstock import ChangelogError, StoredFile, World, WrittenFile
from penstock.settings.secret import hide_in_places
from penstock.support.packages import needed
from penstock.support.system_errors import what_to_do
from penstock.support.urls import url_scheme, with_small_scheme

TEMPORARY = ".tmp"
"""The end of the name of a file that is still being written."""


class Storage(ABC):
    """A folder of files. Methods raise OSError, which `explaining` turns into an error with what to do."""

    location: str
    """The name of the folder in messages."""
    what: str = "changelog"
    """The kind of folder, in messages."""
    elsewhere: str = "name another place in the setting 'changelog'"
    """How to choose another place, in messages."""
    ways_out: str = (
        "Bring the file back from a backup or from the store's older object versions, or start on a host that still "
        "has a local copy of the state at that version; to give up the state, use a new application id, or "
        "`penstock reset`"
    )
    """Advice for a file that is lost or damaged, in messages."""
    world: World
    """Its threads, random tokens and files."""
    parallel_reads: int = 1
    """How many files are worth reading at once."""
    can_append: bool = False
    """Whether `append` works."""

    @abstractmethod
    def files(self) -> list[StoredFile]:
        """Return all files, in one request; none for a folder that does not exist."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the names of the folders in this one; none for a folder that does not exist."""

    @abstractmethod
    def write(self, name: str, parts: Iterable[bytes], *, may_exist: bool = False) -> int:
        """Write a file durably and return its size; after an error it is missing, or complete and maybe not durable.

        With `may_exist`, an existing file of that name stays unchanged until the new one is complete.
        """

    def append(self, name: str, size: int, data: bytes) -> None:
        """Write `data` durably to the end of a file of `size` bytes; after an error part of it may be there."""
        raise NotImplementedError

    @abstractmethod
    def open(self, name: str, start: int = 0) -> BinaryIO:
        """Open a file to read it once from byte `start` on."""

    @abstractmethod
    def tail(self, name: str, size: int) -> bytes:
        """Return the last `size` bytes of a file, or all of a shorter one."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file if it exists."""

    def sync(self) -> None:  # noqa: B027
        """Let the names of the files survive a crash of the machine, whoever wrote them."""

    @abstractmethod
    def destroy(self) -> None:
        """Delete the folder, if it exists, and all files in it. `write` creates it again."""

    @contextmanager
    def explaining(self, doing: str) -> Iterator[None]:
        """Raise ChangelogError for an OSError of the block, which is `doing` something."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise ChangelogError(f"{self.named}: cannot {doing}: {reason}; {self._advice(error)}") from error

    @property
    def named(self) -> str:
        """The kind of folder, and its place."""
        return f"{self.what} at {self.location}"

    def _advice(self, error: OSError) -> str:
        known = what_to_do(error, self.elsewhere)
        if known is not None and error.errno != errno.ENOENT:
            return f"{known}; what was {'committed' if self.what == 'changelog' else 'written'} before is safe"
        if self.what == "changelog":
            return "check that the place in the setting 'changelog' exists and can be reached from this host"
        return "check that the place exists and can be reached from this host"


def absolute(location: str) -> str:
    """Return a location that does not depend on the process's directory: a URL, or an absolute path.

    Raises ChangelogError for an empty one.
    """
    scheme = url_scheme(location)
    if scheme and scheme != "file":
        return with_small_scheme(location)
    path = unquote(urlsplit(location).path) if scheme else os.path.expanduser(location)
    if not path:
        raise ChangelogError(f"changelog location {location!r}: expected a path or a URL such as 's3://bucket/folder'")
    return os.path.abspath(path)


def open_storage(location: str, *folders: str, world: World) -> Storage:
    """Return the folder `location`/`folders`... . `location` is an absolute path, or a URL that pyarrow.fs knows.

    Raises ChangelogError for a URL that pyarrow.fs does not know or cannot reach.
    """
    scheme = url_scheme(location)
    if not scheme:
        return LocalStorage(Path(location), *folders, world=world)
    file_system, root = world.files.remote(location) or _opened_by_pyarrow(location, scheme)
    folder = "/".join([root.rstrip("/"), *folders])
    # The location itself may hold a secret, and must not get into a message.
    return ArrowStorage(file_system, folder, f"{scheme}://{folder.lstrip('/')}", world=world)


def _opened_by_pyarrow(location: str, scheme: str) -> tuple[Any, str]:
    with needed(f"the location {scheme}://..."):
        from pyarrow import fs
    problem = "it names no bucket or folder"
    try:
        file_system, root = fs.FileSystem.from_uri(location)
    except Exception as error:  # pyarrow raises many kinds: ArrowInvalid, OSError, NotImplementedError, ...
        root, problem = "", hide_in_places((str(error).splitlines() or [type(error).__name__])[0])
    if not root.strip("/"):
        raise ChangelogError(
            f"changelog location {scheme}://...: pyarrow cannot open it: {problem}; "
            "expected a path on this host, or a URL with one of file://, s3://, gs://, hdfs://, abfs://"
        )
    return file_system, root


class LocalStorage(Storage):
    """A directory on this host, without pyarrow: its local file system does not fsync."""

    can_append = True

    def __init__(self, directory: Path, *folders: str, world: World) -> None:
        """Open a folder; `folders` are the ones from the directory down to it."""
        self.world = world
        self._made = False
        self._folders = len(folders)
        self.location = str(directory.joinpath(*folders))

    def files(self) -> list[StoredFile]:
        return self.world.files.scan(self.location)

    def folders(self) -> list[str]:
        return self.world.files.folders(self.location)

    def write(self, name: str, parts: Iterable[bytes], *, may_exist: bool = False) -> int:
        """Write aside, fsync, rename, fsync the directory."""
        files = self.world.files
        if not self._made:
            self._make()
        aside = self._path(f"{name}.{self.world.token(4)}{TEMPORARY}")
        size = 0
        try:
            with closing(files.create(aside)) as file:
                size = sum(_write_all(file, part) for part in parts)
                file.sync()
            files.replace(self._path(name), by=aside)
        except BaseException:
            # The first error says more; `clean` deletes the file later.
            with suppress(OSError):
                files.remove(aside)
            raise
        files.sync_directory(self.location)
        return size

    def _make(self) -> None:
        """Make the directory so that it survives a crash of the machine, also if another process made it just now.

        That process may have died before it synced the names.
        """
        files, path = self.world.files, self.location
        new_paths = files.make_directory(path)
        for number in range(max(len(new_paths), self._folders + 1)):
            above = os.path.dirname(path)
            try:
                files.sync_directory(above)
            except OSError:
                # It is not ours: it may be unreadable, or on a file system that syncs no directory.
                if path not in new_paths and number == self._folders:
                    break
                raise
            path = above
        self._made = True

    def sync(self) -> None:
        self._make()
        self.world.files.sync_directory(self.location)

    def append(self, name: str, size: int, data: bytes) -> None:
        """Append and sync the data. Raises OSError also if the file is gone or another process changed its size."""
        with closing(self.world.files.open_end(self._path(name))) as file:
            if (found := file.size()) != size:
                raise OSError(errno.ESTALE, f"it has {found} bytes, and this process left it with {size}")
            try:
                _write_all(file, data)
                file.sync(data_only=True)
            except BaseException:
                with suppress(OSError):
                    file.truncate(size)
                raise

    def open(self, name: str, start: int = 0) -> BinaryIO:
        file = self.world.files.open(self._path(name))
        file.seek(start)
        return file

    def tail(self, name: str, size: int) -> bytes:
        with self.world.files.open(self._path(name)) as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - size))
            return file.read(size)

    def delete(self, name: str) -> None:
        self.world.files.remove(self._path(name))

    def destroy(self) -> None:
        self._made = False
        self.world.files.remove_tree(self.location)
        above = os.path.dirname(self.location)
        with suppress(FileNotFoundError):
            self.world.files.sync_directory(above)

    def _path(self, name: str) -> str:
        return f"{self.location}/{name}"


class ArrowStorage(Storage):
    """A folder of any pyarrow file system."""

    parallel_reads = 8

    def __init__(self, file_system: Any, folder: str, location: str, *, world: World) -> None:
        """Take a `pyarrow.fs.FileSystem`, the folder in it, and what to call that in messages."""
        self.world = world
        self._file_system = file_system
        self._folder = folder
        self._made = False
        self.location = location

    def files(self) -> list[StoredFile]:
        return [
            StoredFile(each.base_name, each.size or 0, (each.mtime_ns or 0) // 1_000_000)
            for each in self._content()
            if each.is_file
        ]

    def folders(self) -> list[str]:
        return [each.base_name for each in self._content() if not each.is_file]

    def _content(self) -> list[Any]:
        from pyarrow import fs

        found: list[Any] = self._file_system.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return found

    def write(self, name: str, parts: Iterable[bytes], *, may_exist: bool = False) -> int:
        """Write aside and rename; an object store needs no rename for a new file, because it appears complete."""
        objects = self._is_object_store()
        if not self._made and not objects:
            self._file_system.create_dir(self._folder, recursive=True)
            self._made = True
        path = f"{self._folder}/{name}"
        directly = objects and not (may_exist and self._file_system.get_file_info(path).is_file)
        written = path if directly else f"{path}.{self.world.token(4)}{TEMPORARY}"
        size = 0
        try:
            with self._file_system.open_output_stream(written) as stream:
                for part in parts:
                    stream.write(part)
                    size += len(part)
            if not directly:
                self._file_system.move(written, path)
        except BaseException:
            # pyarrow has no way to abandon an upload: closing it makes a short file, which must not stay.
            with suppress(OSError):
                self._file_system.delete_file(written)
            raise
        return size

    def open(self, name: str, start: int = 0) -> BinaryIO:
        path = f"{self._folder}/{name}"
        if not start:
            return cast(BinaryIO, self._file_system.open_input_stream(path, buffer_size=1024 * 1024))
        file = self._file_system.open_input_file(path)
        file.seek(start)
        return cast(BinaryIO, file)

    def tail(self, name: str, size: int) -> bytes:
        with self._file_system.open_input_file(f"{self._folder}/{name}") as file:
            file.seek(max(0, file.size() - size))
            return bytes(file.read(size))

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._file_system.delete_file(f"{self._folder}/{name}")

    def destroy(self) -> None:
        self._made = False
        if self._is_object_store():
            # Its `delete_dir` leaves an object for the parent folder.
            for file in self.files():
                self.delete(file.name)
            return
        with suppress(FileNotFoundError):
            self._file_system.delete_dir(self._folder)

    def _is_object_store(self) -> bool:
        return self._file_system.type_name in ("s3", "gcs", "abfs")


def _write_all(file: WrittenFile, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    return len(data)
