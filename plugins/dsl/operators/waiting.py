"""Serdes of records and updates that wait in a store: their keys by time, and their headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from penstock import Headers, Serde, SerdeError
from penstock.program.row_serde import RowSerde
from penstock.support.parts import headers_at, headers_bytes

_HEAD, _TIME, _LENGTH = Struct(">q?"), Struct(">q"), Struct(">i")
_NO_HEADERS = _LENGTH.pack(0)


@dataclass(eq=False)
class WaitingKeySerde(RowSerde[tuple[int, bool, Any]]):
    """(time, whether it is the left side's, key): in the order of time, the right side before the left one.

    With False and a key of None it is before all others of its time.
    """

    key: Serde[Any]

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {2: self.key}

    def serialize(self, value: tuple[int, bool, Any]) -> bytes:
        """Return the time, the side and the key's bytes."""
        time, is_left, key = value
        return _HEAD.pack(time, is_left) + (b"" if key is None else self.key.serialize(key))

    def deserialize(self, data: bytes) -> tuple[int, bool, Any]:
        if len(data) < _HEAD.size:
            raise SerdeError(f"WaitingKeySerde expects at least {_HEAD.size} bytes, found {len(data)}")
        time, is_left = _HEAD.unpack_from(data)
        return time, is_left, self.key.deserialize(data[_HEAD.size :])


@dataclass(eq=False)
class SideSerde(RowSerde[tuple[bool, Any]]):
    """(whether it is the left side's, value): each side has a serde of its own."""

    left: Serde[Any]
    right: Serde[Any]

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {1: self.left if parts and parts[0] else self.right}

    def serialize(self, value: tuple[bool, Any]) -> bytes:
        """Return the side and the value's bytes."""
        is_left, content = value
        return b"\1" + self.left.serialize(content) if is_left else b"\0" + self.right.serialize(content)

    def deserialize(self, data: bytes) -> tuple[bool, Any]:
        if data[:1] == b"\1":
            return True, self.left.deserialize(data[1:])
        return False, self.right.deserialize(data[1:])


@dataclass(eq=False)
class TimedKeySerde(RowSerde[tuple[int, Any]]):
    """(time, key), in the order of time. With a key of None it is before all others of its time."""

    key: Serde[Any]

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {1: self.key}

    def serialize(self, value: tuple[int, Any]) -> bytes:
        """Return the time and the key's bytes."""
        time, key = value
        return _TIME.pack(time) + (b"" if key is None else self.key.serialize(key))

    def deserialize(self, data: bytes) -> tuple[int, Any]:
        if len(data) < _TIME.size:
            raise SerdeError(f"TimedKeySerde expects at least {_TIME.size} bytes, found {len(data)}")
        return _TIME.unpack_from(data)[0], self.key.deserialize(data[_TIME.size :])


@dataclass(eq=False)
class ValueAndHeadersSerde(RowSerde[tuple[Any, Headers]]):
    """(value, headers): the number of headers, each one's name and value with their lengths, then the value."""

    value: Serde[Any]

    def serdes(self, parts: Sequence[Any]) -> Mapping[int, Serde[Any]]:
        return {0: self.value}

    def serialize(self, value: tuple[Any, Headers]) -> bytes:
        """Return the headers and the value's bytes."""
        content, headers = value
        data = self.value.serialize(content)
        return _LENGTH.pack(len(headers)) + headers_bytes(headers) + data if headers else _NO_HEADERS + data

    def deserialize(self, data: bytes) -> tuple[Any, Headers]:
        (count,), at = _LENGTH.unpack_from(data), _LENGTH.size
        headers: Headers = ()
        if count:
            headers, at = headers_at(data, at, count)
        return self.value.deserialize(data[at:]), headers
