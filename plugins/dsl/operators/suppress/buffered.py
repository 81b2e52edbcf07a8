"""Buffered: an update that a suppression keeps, and its form in the store."""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from penstock.errors import SerdeError
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.record import Headers
from penstock.serde import Serde, WrappingSerde

from ..waiting import headers_at, headers_bytes, part_at, sized

_HEAD = Struct(">qqi")


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
        serialize = self.inner.serialize
        values = [sized(None if each is None else serialize(each)) for each in (prior, old, new)]
        head = _HEAD.pack(time, timestamp, len(headers))
        return b"".join((head, headers_bytes(headers) if headers else b"", *values))

    def deserialize(self, data: bytes) -> Buffered:
        try:
            time, timestamp, count = _HEAD.unpack_from(data)
            headers, at = headers_at(data, _HEAD.size, count)
            values = []
            for _ in range(3):
                part, at = part_at(data, at)
                values.append(None if part is None else self.inner.deserialize(part))
        except (ValueError, IndexError) as error:
            raise SerdeError(f"BufferedSerde: not an update of a suppression: {data[:40]!r}") from error
        return Buffered(time, timestamp, headers, *values)
