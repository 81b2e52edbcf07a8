"""JsonLines: a file with a JSON object on each line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from .source import CopyError, Row, RowBatch, Source, SourceReader

_BATCH_BYTES = 8 * 1024 * 1024
"""A batch ends after so many bytes."""
_PIECE_BYTES = 1024 * 1024
_LINE_BYTES = 256 * 1024 * 1024
"""A longer line is refused before it fills the memory: a file of one JSON array has one."""


class JsonLines(Source):
    """A file with a JSON object on each line, in UTF-8. Empty lines are skipped.

    The position is the byte offset behind a line, with a SHA-256 of all bytes before it. A last line without its end
    is a row, unless the copy follows the file: then the line waits for its end.
    """

    kind = "json lines"

    def __init__(self, path: str | Path) -> None:
        """Take the path of the file."""
        self.path = Path(path)

    def __str__(self) -> str:
        return f"file {str(self.path)!r}"

    @property
    def name(self) -> str:
        return self.path.name

    def check(self) -> None:
        if not self.path.exists():
            raise CopyError(f"there is no file {str(self.path)!r}")
        if not self.path.is_file():
            raise CopyError(
                f"{self} is no file that can be read again from a position; a pipe is for `penstock produce`"
            )

    def open(self, position: Any, *, follow: bool) -> SourceReader:
        self.check()
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise CopyError(f"{self}: {error.strerror}") from error
        try:
            return _Reader(self, file, position, follow=follow)
        except BaseException:
            file.close()
            raise


class _Reader(SourceReader):
    def __init__(self, source: JsonLines, file: BinaryIO, position: Any, *, follow: bool) -> None:
        self._source, self._file, self._follow = source, file, follow
        self._offset, self._line, self._digest = 0, 0, sha256()
        self._refused: CopyError | None = None
        if position is not None:
            self._go_to(position["byte"], position["line"], position["sha256"])

    def _go_to(self, offset: int, line: int, digest: str) -> None:
        rest = offset
        while rest:
            piece = self._file.read(min(rest, _PIECE_BYTES))
            if not piece:
                raise CopyError(
                    f"{self._source} has {offset - rest:,} bytes, and {offset:,} were copied: it was cut, or "
                    "is another file"
                )
            self._digest.update(piece)
            rest -= len(piece)
        if self._digest.hexdigest() != digest:
            raise CopyError(
                f"{self._source}: its first {offset:,} bytes ({line:,} lines) are not those that were copied: it was "
                "changed there, or is another file"
            )
        self._offset, self._line = offset, line

    def read(self, most: int) -> RowBatch | None:
        """Return the rows of lines, up to the first line that is no JSON object, which the next call refuses."""
        if self._refused is not None:
            raise self._refused
        self._file.seek(self._offset)
        rows: list[Row] = []
        texts: list[bytes] = []
        numbers: list[int] = []
        start = self._offset
        while len(rows) < most and self._offset - start < _BATCH_BYTES:
            line = self._file.readline(_LINE_BYTES)
            if len(line) == _LINE_BYTES:
                self._refused = CopyError(f"{self._source}, line {self._line + 1} has {_LINE_BYTES:,} bytes or more")
                break
            if not line or (self._follow and not line.endswith(b"\n")):
                break
            text = line.rstrip(b"\r\n")
            if text.strip():
                try:
                    rows.append(parse(text))
                except (ValueError, RecursionError) as error:
                    self._refused = CopyError(f"{self._source}, line {self._line + 1}: {error}")
                    break
                texts.append(text)
                numbers.append(self._line + 1)
            self._offset += len(line)
            self._line += line.endswith(b"\n")
            self._digest.update(line)
        if self._offset == start:
            if self._refused is not None:
                raise self._refused
            self._check_that_it_is_the_same_file()
            return None
        position = {"byte": self._offset, "line": self._line, "sha256": self._digest.hexdigest()}
        return RowBatch(rows, position, lambda index: f"{self._source}, line {numbers[index]}", texts)

    def _check_that_it_is_the_same_file(self) -> None:
        try:
            there = os.stat(self._source.path)
        except OSError as error:
            raise CopyError(f"{self._source} is gone: {error.strerror}") from error
        ours = os.fstat(self._file.fileno())
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise CopyError(f"{self._source} was replaced by another file while it was copied")
        if there.st_size < self._offset:
            raise CopyError(f"{self._source} has {there.st_size:,} bytes, and {self._offset:,} were copied: it was cut")

    def close(self) -> None:
        self._file.close()


class JsonNumber(Decimal):
    """A number of JSON that is no integer, with all its digits."""

    __slots__ = ()


def parse(text: bytes) -> Row:
    """Return a JSON object, with a JsonNumber for each number that is no integer. Raises ValueError.

    >>> parse(b'{"a": 9007199254740993, "b": 1.50}')
    {'a': 9007199254740993, 'b': Decimal('1.50')}
    """
    try:
        row = parse_json(text.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of the line is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"the line is no JSON: {error.msg} at character {error.colno}, in {_short(text)}") from error
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a JSON object, found {_short(text)}")
    return row


def parse_json(text: str) -> Any:
    """Return JSON with a JsonNumber for each number that is no integer. Raises ValueError for text that is no JSON."""
    return json.loads(
        text, parse_float=JsonNumber, parse_constant=_no_constant, object_pairs_hook=_without_repeated_names
    )


def exact(value: Any) -> Any:
    """Return a parsed value with floats for JsonNumbers. Raises ValueError for one that a float does not hold.

    >>> exact({"a": [JsonNumber("1.50")]})
    {'a': [1.5]}
    """
    kind = type(value)
    if kind is JsonNumber:
        number = float(value)
        if Decimal(repr(number)) != value:
            raise ValueError(f"the number {value} is not a float's: copy the lines as they are, or write it as text")
        return number
    if kind is dict:
        return {name: exact(each) for name, each in value.items()}
    if kind is list:
        return [exact(each) for each in value]
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _without_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return row


def _short(text: bytes) -> str:
    shown = repr(text.decode(errors="replace"))
    return shown if len(shown) <= 60 else shown[:57] + "..."
