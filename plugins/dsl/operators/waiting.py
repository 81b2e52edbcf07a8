"""Serdes of records and updates that wait in a store: their keys by time, and their headers."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

from penstock import Headers, Serde, SerdeError, WrappingSerde

_HEAD, _TIME, _LENGTH = Struct(">q?"), Struct(">q"), Struct(">i")
_NONE = -1
_NO_HEADERS = _LENGTH.pack(0)


@dataclass(eq=False)
class WaitingKeySerde(WrappingSerde[tuple[int, bool, Any]]):
    """(time, whether it is the left side's, key): in the order of time, the right side before the left one.

    With False and a key of None it is before all others of its time.
    """

    key: Serde[Any]

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
class SideSerde(WrappingSerde[tuple[bool, Any]]):
    """(whether it is the left side's, value): each side has a serde of its own."""

    left: Serde[Any]
    right: Serde[Any]

    def serialize(self, value: tuple[bool, Any]) -> bytes:
        """Return the side and the value's bytes."""
        is_left, content = value
        return b"\1" + self.left.serialize(content) if is_left else b"\0" + self.right.serialize(content)

    def deserialize(self, data: bytes) -> tuple[bool, Any]:
        if data[:1] == b"\1":
            return True, self.left.deserialize(data[1:])
        return False, self.right.deserialize(data[1:])


@dataclass(eq=False)
class TimedKeySerde(WrappingSerde[tuple[int, Any]]):
    """(time, key), in the order of time. With a key of None it is before all others of its time."""

    key: Serde[Any]

    def serialize(self, value: tuple[int, Any]) -> bytes:
        """Return the time and the key's bytes."""
        time, key = value
        return _TIME.pack(time) + (b"" if key is None else self.key.serialize(key))

    def deserialize(self, data: bytes) -> tuple[int, Any]:
        if len(data) < _TIME.size:
            raise SerdeError(f"TimedKeySerde expects at least {_TIME.size} bytes, found {len(data)}")
        return _TIME.unpack_from(data)[0], self.key.deserialize(data[_TIME.size :])


@dataclass(eq=False)
class ValueAndHeadersSerde(WrappingSerde[tuple[Any, Headers]]):
    """(value, headers): the number of headers, each one's name and value with their lengths, then the value."""

    value: Serde[Any]

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


def sized(part: bytes | None) -> bytes:
    """Return a part of a row with its length in front; -1 is None."""
    return _LENGTH.pack(_NONE) if part is None else _LENGTH.pack(len(part)) + part


def part_at(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the part whose length is at `at`, and the position behind it."""
    (length,), start = _LENGTH.unpack_from(data, at), at + _LENGTH.size
    return (None, start) if length == _NONE else (data[start : start + length], start + length)


def headers_bytes(headers: Headers) -> bytes:
    """Return the name and the value of each header, with their lengths."""
    parts: list[bytes] = []
    for name, data in headers:
        raw = name.encode()
        parts += (_LENGTH.pack(len(raw)), raw, _LENGTH.pack(_NONE if data is None else len(data)), data or b"")
    return b"".join(parts)


def headers_at(data: bytes, at: int, count: int) -> tuple[Headers, int]:
    """Return `count` headers that begin at `at`, and the position behind them."""
    headers = []
    for _ in range(count):
        name, at = part_at(data, at)
        value, at = part_at(data, at)
        headers.append(((name or b"").decode(), value))
    return tuple(headers), at
