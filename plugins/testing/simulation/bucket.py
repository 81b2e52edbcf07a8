"""Bucket: a simulated object store, with those methods of `pyarrow.fs.FileSystem` that a changelog calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

from .disk import Disk, Edge, shown

T = TypeVar("T")
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
        found: T = self._edge(f"{what} {shown(path)}", call, changes, changes)
        return found

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
        """Upload a part."""
        self._do("begins", self._path, lambda: self._parts.append(data))
