"""Buffered: an update that a suppression keeps, and its form in the store."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from penstock.errors import SerdeError
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.record import Headers
from penstock.serde import Serde, WrappingSerde

_HEAD, _LENGTH = Struct(">qqi"), Struct(">i")
_NONE = -1


class Buffered(NamedTuple):
    """The last update of a key: its place in time (ms), timestamp and headers, and new and old value.

    `prior` is the value before the first update that the buffer kept: what the table had when it last let one go.
    """

    time: int
    timestamp: int
    headers: Headers
    prior: Any
    old: Any
    new: Any


class BufferedSerde(WrappingSerde[Buffered]):
    """Buffered updates; `inner` is the serde of the table's values.

    >>> serde = BufferedSerde("str")
    >>> serde.deserialize(serde.serialize(Buffered(5, 7, (("h", None),), None, "", "x")))
    Buffered(time=5, timestamp=7, headers=(('h', None),), prior=None, old='', new='x')
    """

    def __init__(self, inner: SerdeLike) -> None:
        self.inner: Serde[Any] = resolve_serde(inner, None, "BufferedSerde: inner")

    def serialize(self, value: Buffered) -> bytes:
        """Return times, headers and values, each with its length (-1: None)."""
        time, timestamp, headers, prior, old, new = value
        parts = [_HEAD.pack(time, timestamp, len(headers))]
        for name, data in headers:
            parts += _sized(name.encode()), _sized(data)
        serialize = self.inner.serialize
        parts += [_sized(None if each is None else serialize(each)) for each in (prior, old, new)]
        return b"".join(parts)

    def deserialize(self, data: bytes) -> Buffered:
        try:
            time, timestamp, count = _HEAD.unpack_from(data)
            at, headers = _HEAD.size, []
            for _ in range(count):
                name, at = _part(data, at)
                value, at = _part(data, at)
                headers.append(((name or b"").decode(), value))
            values = []
            for _ in range(3):
                part, at = _part(data, at)
                values.append(None if part is None else self.inner.deserialize(part))
        except (ValueError, IndexError) as error:
            raise SerdeError(f"BufferedSerde: not an update of a suppression: {data[:40]!r}") from error
        return Buffered(time, timestamp, tuple(headers), *values)


def _sized(part: bytes | None) -> bytes:
    return _LENGTH.pack(_NONE) if part is None else _LENGTH.pack(len(part)) + part


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    return (None, at) if length == _NONE else (data[at : at + length], at + length)
