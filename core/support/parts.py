"""Parts of rows: bytes with their length in front, and headers."""

from __future__ import annotations

from struct import Struct

from ..record import Headers

_LENGTH = Struct(">i")
_NONE = -1


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
