"""ChangeSerde: the form of a table's updates in the repartition topic of its groups."""

from __future__ import annotations

from struct import Struct
from typing import Any

from penstock import Change, Serde, SerdeError, WrappingSerde
from penstock.program.serdes import SerdeLike, resolve_serde

_LENGTH = Struct(">i")
_NONE = -1


class ChangeSerde(WrappingSerde[Change]):
    """New and old value of an update, each written by `inner`: the length of the new one (-1: none), it, the old one.

    The byte after the length says whether there is an old value. Only the application itself reads the topic.

    >>> serde = ChangeSerde("str")
    >>> serde.deserialize(serde.serialize(Change("new", None)))
    Change(new='new', old=None)
    """

    def __init__(self, inner: SerdeLike) -> None:
        self.inner: Serde[Any] = resolve_serde(inner, None, "ChangeSerde: inner")

    def serialize(self, value: Change) -> bytes:
        new = None if value[0] is None else self.inner.serialize(value[0])
        old = b"\x00" if value[1] is None else b"\x01" + self.inner.serialize(value[1])
        return _LENGTH.pack(_NONE if new is None else len(new)) + old[:1] + (new or b"") + old[1:]

    def deserialize(self, data: bytes) -> Change:
        start = _LENGTH.size + 1
        if len(data) < start:
            raise SerdeError(f"ChangeSerde expects at least {start} bytes, found {len(data)}")
        length = _LENGTH.unpack_from(data)[0]
        end = start + max(length, 0)
        if len(data) < end:
            raise SerdeError(f"ChangeSerde expects {length} bytes of the new value, found {len(data) - start}")
        return Change(
            None if length == _NONE else self.inner.deserialize(data[start:end]),
            self.inner.deserialize(data[end:]) if data[_LENGTH.size] else None,
        )
