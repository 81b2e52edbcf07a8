"""The `list` serde: lists of values of another serde."""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock import (
    ConfigError,
    Float32Serde,
    FloatSerde,
    Int16Serde,
    Int32Serde,
    IntSerde,
    Serde,
    SerdeError,
    WrappingSerde,
)
from penstock.program.serdes import SerdeLike, resolve_serde

from .uuid import UuidSerde

_INT = struct.Struct(">i")
_ONE_WIDTH, _OWN_LENGTHS = b"\x00", b"\x01"
_NULL = -1
_WIDTHS: Mapping[type, int] = {Int16Serde: 2, Int32Serde: 4, IntSerde: 8, Float32Serde: 4, FloatSerde: 8, UuidSerde: 36}
"""Serde of entries that have no lengths of their own -> their width. Kafka's ListSerializer has the same six."""


class ListSerde(WrappingSerde[list[Any]]):
    """Lists with entries of `inner` (a serde, or the name of one) or None, as Kafka's ListSerializer writes them.

    All integers are 4 bytes, big-endian. For numbers of one width and UUIDs: a byte 0, how many entries are None, the
    index of each of them, how many entries there are, and the others. For anything else: a byte 1, how many entries
    there are, and for each its length and its bytes, or the length -1 for None (KIP-466; Kafka 4.4's classes
    `ListSerializer` and `ListDeserializer`).

    >>> serde = ListSerde("int32")
    >>> serde.deserialize(serde.serialize([1, None, 3]))
    [1, None, 3]
    """

    def __init__(self, inner: SerdeLike) -> None:
        """Take the serde of the entries. Raises ConfigError for None, and PluginError for a name not installed."""
        self.inner: Serde[Any] = resolve_serde(inner, None, "serde of a list's entries")
        entry = self.inner.value_type
        self.value_type = None if entry is None else list[entry | None]  # type: ignore[valid-type]

    def serialize(self, value: list[Any]) -> bytes:
        """Return the list as bytes. Raises SerdeError for another type, and with the index of a wrong entry."""
        if not isinstance(value, list):
            raise SerdeError(
                f"serde 'list': expected list, found {type(value).__name__} {reprlib.repr(value)}; "
                "name a serde that fits (`penstock plugins` lists them)"
            )
        written = [None if entry is None else self._written(index, entry) for index, entry in enumerate(value)]
        present = [data for data in written if data is not None]
        if type(self.inner) in _WIDTHS:
            nulls = [index for index, data in enumerate(written) if data is None]
            return b"".join((_ONE_WIDTH, *map(_INT.pack, (len(nulls), *nulls, len(written))), *present))
        entries = (_INT.pack(_NULL) if data is None else _INT.pack(len(data)) + data for data in written)
        return b"".join((_OWN_LENGTHS, _INT.pack(len(written)), *entries))

    def deserialize(self, data: bytes) -> list[Any]:
        """Return the list. Raises SerdeError for bytes that are no list, and with the index of an unreadable entry."""
        form, width = data[:1], _WIDTHS.get(type(self.inner))
        try:
            if form == _OWN_LENGTHS:
                raw = list(_of_own_lengths(data))
            elif form == _ONE_WIDTH and width is not None:
                raw = list(_of_one_width(data, width))
            else:
                raise ValueError(f"a first byte {'0 or 1' if width else '1'}")
        except (ValueError, struct.error) as error:
            raise SerdeError(
                f"serde 'list': expected {error}, found {len(data)} bytes: {data[:40]!r}; "
                "name the serde they were written with"
            ) from error
        return [None if entry is None else self._read(index, entry) for index, entry in enumerate(raw)]

    def to_json(self, value: list[Any]) -> Any:
        return [None if entry is None else self.inner.to_json(entry) for entry in value]

    def from_json(self, data: Any) -> list[Any]:
        return self._entries(data, self.inner.from_json)

    def key_from_json(self, data: Any) -> list[Any]:
        return self._entries(data, self.inner.key_from_json)

    def _entries(self, data: Any, read: Callable[[Any], Any]) -> list[Any]:
        if not isinstance(data, list):
            raise SerdeError(f"serde 'list': expected a list, found {type(data).__name__} {reprlib.repr(data)}")
        return [None if entry is None else read(entry) for entry in data]

    def _written(self, index: int, entry: Any) -> bytes:
        try:
            return self.inner.serialize(entry)
        except SerdeError as error:
            raise SerdeError(f"serde 'list': entry {index}: {error}") from error

    def _read(self, index: int, data: bytes) -> Any:
        try:
            return self.inner.deserialize(data)
        except SerdeError as error:
            raise SerdeError(f"serde 'list': entry {index}: {error}") from error


def list_serde(inner: str) -> ListSerde:
    """Return the serde named "list:INNER".

    >>> list_serde("list:str").deserialize(ListSerde(ListSerde("str")).serialize([["a"], [], None]))
    [['a'], [], None]
    """
    if not inner:
        raise ConfigError("expected the serde of the entries after the colon, e.g. list:str")
    return ListSerde(inner)


def _of_one_width(data: bytes, width: int) -> Iterator[bytes | None]:
    """Yield the bytes of each entry, None for None. Raises ValueError or struct.error."""
    (count,) = _INT.unpack_from(data, 1)
    if not 0 <= count <= len(data) // _INT.size:
        raise ValueError(f"a number of None entries that fits, not {count}")
    nulls = set(struct.unpack_from(f">{count}i", data, 5))
    start = 5 + count * _INT.size
    (size,) = _INT.unpack_from(data, start)
    start += _INT.size
    if len(nulls) < count or not all(0 <= index < size for index in nulls):
        raise ValueError(f"each index of a None entry once, and below {size}")
    if len(data) - start != (size - count) * width:
        raise ValueError(f"{size - count} entries of {width} bytes")
    for index in range(size):
        if index in nulls:
            yield None
        else:
            yield data[start : start + width]
            start += width


def _of_own_lengths(data: bytes) -> Iterator[bytes | None]:
    """Yield the bytes of each entry, None for None. Raises ValueError or struct.error."""
    (size,) = _INT.unpack_from(data, 1)
    if size < 0:
        raise ValueError(f"a number of entries, not {size}")
    at = 5
    for index in range(size):
        (length,) = _INT.unpack_from(data, at)
        at += _INT.size
        if length == _NULL:
            yield None
            continue
        if not 0 <= length <= len(data) - at:
            raise ValueError(f"a length of entry {index} that fits, not {length}")
        yield data[at : at + length]
        at += length
    if at != len(data):
        raise ValueError(f"{at} bytes of {size} entries")
