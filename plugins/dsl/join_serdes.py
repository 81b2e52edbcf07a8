"""Serdes of what waits in a left or outer stream-stream join."""

from __future__ import annotations

from struct import Struct
from typing import Any

from penstock.errors import SerdeError
from penstock.serde import Serde

_HEAD = Struct(">q?")


class WaitingKeySerde(Serde[tuple[int, bool, Any]]):
    """(time, whether it is the left side's, key): in the order of time, the right side before the left one."""

    def __init__(self, key: Serde[Any]) -> None:
        self.key = key

    def serialize(self, value: tuple[int, bool, Any]) -> bytes:
        """Return the time, the side and the key's bytes."""
        time, is_left, key = value
        return _HEAD.pack(time, is_left) + self.key.serialize(key)

    def deserialize(self, data: bytes) -> tuple[int, bool, Any]:
        """Return time, side and key."""
        if len(data) < _HEAD.size:
            raise SerdeError(f"WaitingKeySerde expects at least {_HEAD.size} bytes, found {len(data)}")
        time, is_left = _HEAD.unpack_from(data)
        return time, is_left, self.key.deserialize(data[_HEAD.size :])

    def written_form(self) -> str:
        """Return a name for the bytes that this serde writes."""
        return f"WaitingKeySerde({self.key.written_form()})"


class SideSerde(Serde[tuple[bool, Any]]):
    """(whether it is the left side's, value): each side has a serde of its own."""

    def __init__(self, left: Serde[Any], right: Serde[Any]) -> None:
        self.left = left
        self.right = right

    def serialize(self, value: tuple[bool, Any]) -> bytes:
        """Return the side and the value's bytes."""
        is_left, content = value
        return b"\1" + self.left.serialize(content) if is_left else b"\0" + self.right.serialize(content)

    def deserialize(self, data: bytes) -> tuple[bool, Any]:
        """Return side and value."""
        if data[:1] == b"\1":
            return True, self.left.deserialize(data[1:])
        return False, self.right.deserialize(data[1:])

    def written_form(self) -> str:
        """Return a name for the bytes that this serde writes."""
        return f"SideSerde({self.left.written_form()}, {self.right.written_form()})"
