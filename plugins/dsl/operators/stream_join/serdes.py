"""Serdes of the records that wait in joins."""

from __future__ import annotations

from struct import Struct
from typing import Any

from penstock.errors import SerdeError
from penstock.record import Headers
from penstock.serde import Serde, WrappingSerde

_HEAD, _TIME, _LENGTH = Struct(">q?"), Struct(">q"), Struct(">i")
_NONE = -1


class WaitingKeySerde(WrappingSerde[tuple[int, bool, Any]]):
    """(time, whether it is the left side's, key): in the order of time, the right side before the left one.

    With False and a key of None it is before all others of its time.
    """

    def __init__(self, key: Serde[Any]) -> None:
        self.key = key

    def serialize(self, value: tuple[int, bool, Any]) -> bytes:
        """Return the time, the side and the key's bytes."""
        time, is_left, key = value
        return _HEAD.pack(time, is_left) + (b"" if key is None else self.key.serialize(key))

    def deserialize(self, data: bytes) -> tuple[int, bool, Any]:
        if len(data) < _HEAD.size:
            raise SerdeError(f"WaitingKeySerde expects at least {_HEAD.size} bytes, found {len(data)}")
        time, is_left = _HEAD.unpack_from(data)
        return time, is_left, self.key.deserialize(data[_HEAD.size :])


class SideSerde(WrappingSerde[tuple[bool, Any]]):
    """(whether it is the left side's, value): each side has a serde of its own."""

    def __init__(self, left: Serde[Any], right: Serde[Any]) -> None:
        self.left = left
        self.right = right

    def serialize(self, value: tuple[bool, Any]) -> bytes:
        """Return the side and the value's bytes."""
        is_left, content = value
        return b"\1" + self.left.serialize(content) if is_left else b"\0" + self.right.serialize(content)

    def deserialize(self, data: bytes) -> tuple[bool, Any]:
        if data[:1] == b"\1":
            return True, self.left.deserialize(data[1:])
        return False, self.right.deserialize(data[1:])


class TimedKeySerde(WrappingSerde[tuple[int, Any]]):
    """(time, key), in the order of time. With a key of None it is before all others of its time."""

    def __init__(self, key: Serde[Any]) -> None:
        self.key = key

    def serialize(self, value: tuple[int, Any]) -> bytes:
        """Return the time and the key's bytes."""
        time, key = value
        return _TIME.pack(time) + (b"" if key is None else self.key.serialize(key))

    def deserialize(self, data: bytes) -> tuple[int, Any]:
        if len(data) < _TIME.size:
            raise SerdeError(f"TimedKeySerde expects at least {_TIME.size} bytes, found {len(data)}")
        return _TIME.unpack_from(data)[0], self.key.deserialize(data[_TIME.size :])


class ValueAndHeadersSerde(WrappingSerde[tuple[Any, Headers]]):
    """(value, headers): the number of headers, each one's name and value with their lengths, then the value."""

    def __init__(self, value: Serde[Any]) -> None:
        self.value = value

    def serialize(self, value: tuple[Any, Headers]) -> bytes:
        """Return the headers and the value's bytes."""
        content, headers = value
        parts = [_LENGTH.pack(len(headers))]
        for name, data in headers:
            raw = name.encode()
            parts += (_LENGTH.pack(len(raw)), raw, _LENGTH.pack(_NONE if data is None else len(data)), data or b"")
        return b"".join((*parts, self.value.serialize(content)))

    def deserialize(self, data: bytes) -> tuple[Any, Headers]:
        (count,), at = _LENGTH.unpack_from(data), _LENGTH.size
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            name, at = _part(data, at)
            content, at = _part(data, at)
            headers.append((str(name, "utf-8") if name is not None else "", content))
        return self.value.deserialize(data[at:]), tuple(headers)


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the bytes whose length is at `at`, and where they end."""
    (length,), start = _LENGTH.unpack_from(data, at), at + _LENGTH.size
    return (None, start) if length == _NONE else (data[start : start + length], start + length)
