"""Location: a directory, or a folder of an object store, in which a file appears complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from penstock import ConfigError, SinkError, SinkUnavailableError
from penstock.contrib.arrow.library import load

TEMPORARY = "_temporary"
"""The folder in which files are written before they get their names. Readers of directories leave `_` out."""
_OBJECT_STORES = ("s3", "gcs", "abfs")
_NEVER_RIGHT = (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, NotImplementedError)
SINK = "sink 'contrib.parquet'"
_DENIED = ("ACCESS_DENIED", "ACCESS DENIED", "NO_SUCH_BUCKET", "FORBIDDEN", "INVALID_ACCESS_KEY")
_written: set[str] = set()
"""Locations that this process could write: after that, one that refuses is away."""


class Location:
    """Where the files are. It is pickled. `filesystem`: one of pyarrow.fs, for which `location` is a path."""

    def __init__(self, location: str, filesystem: Any = None) -> None:
        if not isinstance(location, str) or not location:
            raise ConfigError(f"{SINK}: location: expected a path or a URL such as 's3://bucket/folder': {location!r}")
        parts = urlsplit(location)
        self.is_local = filesystem is None and parts.scheme in ("", "file")
        if self.is_local:
            location = os.path.abspath(unquote(parts.path) if parts.scheme else os.path.expanduser(location))
        self.text = location
        self._filesystem = filesystem

    def __str__(self) -> str:
        if self.is_local or self._filesystem is not None:
            return self.text
        parts = urlsplit(self.text)  # without a user, a password and options
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def open(self) -> Folder:
        """Connect. Raises SinkError for a location that pyarrow does not know."""
        if self.is_local:
            return LocalFolder(self.text, str(self))
        if self._filesystem is not None:
            return RemoteFolder(self._filesystem, self.text.rstrip("/"), str(self))
        with _explained(str(self), "open it"):
            filesystem, root = load().fs.FileSystem.from_uri(self.text)
        if not root.strip("/"):
            raise SinkError("it names no bucket or folder")
        return RemoteFolder(filesystem, root.rstrip("/"), str(self))


class Folder:
    """An open location. Names are paths in it. All methods raise SinkUnavailableError for a location that is away.

    And SinkError, as long as this process could not write there.
    """

    def __init__(self, named: str) -> None:
        self._named = named

    def explained(self, doing: str) -> Any:
        """Return the context in which errors are those of a sink."""
        return _explained(self._named, doing)

    def check(self, temporary: str) -> None:
        """Check that the location is there and can be written; delete what killed processes have left there."""
        with self.explained("write there"):
            self._check_there()
            for name in self._list(f"{TEMPORARY}/{temporary}"):
                self._delete(f"{TEMPORARY}/{temporary}/{name}")
            name = f"{TEMPORARY}/{temporary}/{uuid4().hex}"
            self._write(name, b"x", name)
            self._delete(name)
        _written.add(self._named)

    def write(self, name: str, data: Any, temporary: str) -> None:
        """Write a file, durably; one that is there is replaced."""
        with self.explained(f"write {name}"):
            self._write(name, data, f"{TEMPORARY}/{temporary}/{uuid4().hex}")

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        with self.explained(f"look for {name}"):
            return self._exists(name)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.explained(f"read {name}"):
            return self._read(name)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if it is not there."""
        with self.explained(f"list {folder}"):
            return sorted(self._list(folder))

    def _check_there(self) -> None:
        raise NotImplementedError

    def _write(self, name: str, data: Any, aside: str) -> None:
        raise NotImplementedError

    def _exists(self, name: str) -> bool:
        raise NotImplementedError

    def _read(self, name: str) -> bytes:
        raise NotImplementedError

    def _list(self, folder: str) -> list[str]:
        raise NotImplementedError

    def _delete(self, name: str) -> None:
        raise NotImplementedError


class LocalFolder(Folder):
    """A directory on this host, without pyarrow: its local file system does not fsync."""

    def __init__(self, root: str, named: str) -> None:
        super().__init__(named)
        self._root = root

    def _check_there(self) -> None:
        if not os.path.isdir(self._root):
            raise FileNotFoundError("there is no such directory: make it, or mount it, or correct the location")

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _write(self, name: str, data: Any, aside: str) -> None:
        """Write aside, fsync, rename, fsync the directory."""
        path, aside_path = self._path(name), self._path(aside)
        self._make(os.path.dirname(aside))
        self._make(os.path.dirname(name))
        try:
            with open(aside_path, "wb") as file:
                _write_all(file, data)
            os.replace(aside_path, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(aside_path)
            raise
        _sync(os.path.dirname(path))

    def _make(self, folder: str) -> None:
        """Make a folder in the location, but not the location: it may be a file system that is not mounted."""
        if not folder or os.path.isdir(self._path(folder)):
            return
        above = os.path.dirname(folder)
        self._make(above)
        with suppress(FileExistsError):
            os.mkdir(self._path(folder))
        _sync(self._path(above))

    def _exists(self, name: str) -> bool:
        return os.path.exists(self._path(name))

    def _read(self, name: str) -> bytes:
        with open(self._path(name), "rb") as file:
            return file.read()

    def _list(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._path(folder))
        except FileNotFoundError:
            return []

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(name))


def _write_all(file: BinaryIO, data: Any) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RemoteFolder(Folder):
    """A folder of a file system of pyarrow. An object appears complete; a file is written aside, and moved."""

    def __init__(self, filesystem: Any, root: str, named: str) -> None:
        super().__init__(named)
        self._filesystem = filesystem
        self._root = root
        self._has_objects = filesystem.type_name in _OBJECT_STORES

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _type(self, path: str) -> Any:
        return self._filesystem.get_file_info(path).type

    def _check_there(self) -> None:
        root = self._root.partition("/")[0] if self._has_objects else self._root
        if self._type(root) != load().fs.FileType.Directory:
            what = f"bucket {root!r}" if self._has_objects else "directory"
            raise FileNotFoundError(f"there is no such {what}: make it, or correct the location")

    def _write(self, name: str, data: Any, aside: str) -> None:
        path = self._path(name)
        written = path if self._has_objects else self._path(aside)
        if not self._has_objects:
            for each in (written, path):
                self._filesystem.create_dir(each.rpartition("/")[0], recursive=True)
        try:
            with self._filesystem.open_output_stream(written) as stream:
                stream.write(data)
            if written != path:
                self._filesystem.move(written, path)
        except BaseException:
            # pyarrow cannot abandon an upload: closing it may make a short object, which must not stay.
            with suppress(OSError):
                self._filesystem.delete_file(written)
            raise

    def _exists(self, name: str) -> bool:
        return bool(self._type(self._path(name)) != load().fs.FileType.NotFound)

    def _read(self, name: str) -> bytes:
        with self._filesystem.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read())

    def _list(self, folder: str) -> list[str]:
        selector = load().fs.FileSelector(self._path(folder), allow_not_found=True)
        return [each.base_name for each in self._filesystem.get_file_info(selector)]

    def _delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._path(name))


@contextmanager
def _explained(named: str, doing: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, NotImplementedError) as error:
        text = getattr(error, "strerror", None) or " ".join(str(error).split())
        said = f"cannot {doing}: {text}"
        is_denied = isinstance(error, _NEVER_RIGHT) or any(each in text.upper() for each in _DENIED)
        if is_denied and named not in _written:
            raise SinkError(said) from error
        raise SinkUnavailableError(said) from error
