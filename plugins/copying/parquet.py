"""ParquetFiles: a Parquet file, or the Parquet files of a directory in the order of their names."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.support.packages import needed

from .arrow_rows import rows_of
from .source import CopyError, Row, RowBatch, Source, SourceReader

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAGIC = b"PAR1"
_TAIL = 8
"""Bytes behind the footer: its length, and `PAR1`."""
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class ParquetFiles(Source):
    """A Parquet file, or all files `*.parquet` below a directory, in the order of their paths.

    Folders `NAME=VALUE` are columns of text. Names that begin with `_` or `.` are skipped. The position is the path of
    a file and the number of a row in it, with a SHA-256 of the sizes and footers of the files up to it. A footer has
    the size, the place and the statistics of each column.
    """

    kind = "parquet"

    def __init__(self, path: str | Path) -> None:
        """Take the path of the file or the directory."""
        self.path = Path(path)

    def __str__(self) -> str:
        return f"{'directory' if self.path.is_dir() else 'file'} {str(self.path)!r}"

    @property
    def name(self) -> str:
        return self.path.name

    def files(self) -> list[str]:
        """Return the paths of the files, relative to the directory, in order. Raises CopyError if there is nothing."""
        if self.path.is_dir():
            found = (each.relative_to(self.path) for each in self.path.rglob("*.parquet"))
            return sorted(each.as_posix() for each in found if not any(part[0] in "_." for part in each.parts))
        if not self.path.is_file():
            raise CopyError(f"there is no file or directory {str(self.path)!r}")
        return [""]

    def check(self) -> None:
        self.files()

    def open(self, position: Any, *, follow: bool) -> SourceReader:
        with needed("a copy of Parquet files"):
            import pyarrow.parquet  # noqa: F401
        return _Reader(self, position, follow=follow)


class _Reader(SourceReader):
    """`_copied` are the files before the present one, and `_before` their digest."""

    def __init__(self, source: ParquetFiles, position: Any, *, follow: bool) -> None:
        self._source, self._follow = source, follow
        self._copied: list[str] = []
        self._before = ""
        self._row = 0
        self._present: str | None = None
        self._identity = ""
        self._parquet: pq.ParquetFile | None = None
        self._batches: Iterator[Any] | None = None
        if position is not None:
            self._go_to(position)
        elif not follow and not source.files():
            raise CopyError(f"{source} has no file *.parquet")

    def _go_to(self, position: Any) -> None:
        present, files = position["file"], self._source.files()
        changed = f"{self._source}: the files up to {self._shown(present)} are not those that were copied"
        if present not in files:
            raise CopyError(f"{changed}: this one is gone")
        for name in files[: files.index(present)]:
            self._before = _joined(self._before, name, self._identify(name))
            self._copied.append(name)
        if self._before != position["before"]:
            raise CopyError(f"{changed}: one before it was added, removed or changed")
        self._open(present)
        if self._identity != position["footer"]:
            raise CopyError(f"{changed}: this one was written again")
        self._row = position["row"]

    def read(self, most: int) -> RowBatch | None:
        while True:
            if self._present is None and not self._open_next():
                return None
            batch = self._next_batch(most)
            if batch is not None:
                return batch
            assert self._present is not None
            name = self._present
            if not self._open_next():
                return None
            assert self._present != name

    def _open_next(self) -> bool:
        """Open the next file. Return whether there is one."""
        present, files = self._present, self._source.files()
        known = self._copied if present is None else [*self._copied, present]
        if files[: len(known)] != known:
            other = next((each for each in files if known and each <= known[-1] and each not in known), None)
            what = f"{self._shown(other)} was added before" if other is not None else "a file is gone up to"
            raise CopyError(f"{self._source}: {what} {self._shown(known[-1])}, which was copied already")
        if len(files) == len(known):
            return False
        name = files[len(known)]
        if self._follow and not self._is_whole(name):
            return False
        if present is not None:
            self._before = _joined(self._before, present, self._identity)
            self._copied.append(present)
        self._open(name)
        return True

    def _open(self, name: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.close()
        self._identity = self._identify(name)
        try:
            self._parquet = pq.ParquetFile(self._path(name))
        except (OSError, pa.ArrowException) as error:
            raise CopyError(f"{self._shown(name)} cannot be read as Parquet: {error}") from error
        self._present, self._row = name, 0

    def _next_batch(self, most: int) -> RowBatch | None:
        import pyarrow as pa

        name, parquet = self._present, self._parquet
        assert name is not None and parquet is not None
        try:
            if self._batches is None:
                self._batches = _batches_from(parquet, self._row, most)
            batch = next(self._batches, None)
        except (OSError, pa.ArrowException) as error:
            raise CopyError(f"{self._shown(name)}, row {self._row + 1}: {error}") from error
        if batch is None:
            return None
        shown, first = self._shown(name), self._row
        folders = _columns_of_folders(name)
        rows: list[Row] = [{**row, **folders} for row in rows_of(batch, shown)] if folders else rows_of(batch, shown)
        self._row += len(rows)
        position = {"file": name, "row": self._row, "before": self._before, "footer": self._identity}
        return RowBatch(rows, position, lambda index: f"{shown}, row {first + index + 1}")

    def _path(self, name: str) -> Path:
        return self._source.path / name if name else self._source.path

    def _shown(self, name: str) -> str:
        return f"file {str(self._path(name))!r}"

    def _identify(self, name: str) -> str:
        """Return a digest of a file's size and footer. Raises CopyError for one that is no whole Parquet file."""
        try:
            with self._path(name).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL))
                tail = file.read()
                length = int.from_bytes(tail[:4], "little")
                if tail[4:] != _MAGIC or length > size - _TAIL:
                    raise CopyError(f"{self._shown(name)} is no whole Parquet file: it has no footer")
                file.seek(size - _TAIL - length)
                return sha256(b"%d:" % size + file.read(length)).hexdigest()
        except OSError as error:
            raise CopyError(f"{self._shown(name)}: {error.strerror}") from error

    def _is_whole(self, name: str) -> bool:
        """Return whether a file has its footer, which is written last."""
        try:
            self._identify(name)
        except CopyError:
            return False
        return True

    def close(self) -> None:
        parquet, self._parquet, self._batches = self._parquet, None, None
        if parquet is not None:
            parquet.close()


def _joined(before: str, name: str, identity: str) -> str:
    return sha256(f"{before}\0{name}\0{identity}".encode()).hexdigest()


def _batches_from(parquet: pq.ParquetFile, row: int, most: int) -> Iterator[Any]:
    """Yield batches from a row on. Row groups before it are not read."""
    groups = list(range(parquet.metadata.num_row_groups))
    while groups and row >= (size := parquet.metadata.row_group(groups[0]).num_rows):
        row -= size
        del groups[0]
    if not groups:
        return
    for batch in parquet.iter_batches(batch_size=most, row_groups=groups):
        if row < len(batch):
            yield batch.slice(row)
        row = max(0, row - len(batch))


def _columns_of_folders(name: str) -> dict[str, str | None]:
    """Return the columns that the folders of a path are.

    >>> _columns_of_folders("day=2024-05-01/place=a%2Fb/part-0.parquet")
    {'day': '2024-05-01', 'place': 'a/b'}
    """
    pairs = [each.partition("=") for each in name.split("/")[:-1] if "=" in each]
    return {unquote(column): None if value == _NO_PARTITION else unquote(value) for column, _, value in pairs}
