"""Serdes of windowed keys, in the form in which Kafka Streams writes them to topics."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any

from penstock import Serde, SerdeError, Windowed, WrappingSerde, duration_ms
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.support.text_form import from_json, windowed_json

_LONG, _PAIR = Struct(">q"), Struct(">qq")
_MAX_TIME = 2**63 - 1


class _WindowedSerde(WrappingSerde[Windowed]):
    """Keys with their window; `inner` (a serde, or the name of one) is that of the keys."""

    def __init__(self, inner: SerdeLike = "str") -> None:
        self.inner: Serde[Any] = resolve_serde(inner, "str", f"{type(self).__name__}: inner")

    def serialize(self, value: Windowed) -> bytes:
        """Return the bytes of the key, then of the window."""
        if not isinstance(value, Windowed):
            raise SerdeError(f"{type(self).__name__} takes a Windowed key, found {value!r}")
        key = self.inner.serialize(value.key)
        try:
            return key + self._times(value)
        except StructError as error:
            raise SerdeError(
                f"{type(self).__name__}: expected start and end in ms as integers of 64 bits, found {value.start!r} "
                f"and {value.end!r}"
            ) from error

    def to_json(self, value: Windowed) -> Any:
        return windowed_json(self.inner.to_json(value.key), value)

    def from_json(self, data: Any) -> Windowed:
        """Return the key with its window. An object with its fields, without the tag, will do as well."""
        fields = data.get("!windowed", data) if isinstance(data, dict) else {}
        if not isinstance(fields, dict) or fields.keys() != set(Windowed._fields):
            raise SerdeError(f"{type(self).__name__}: expected an object with key, start and end, found {data!r}")
        key = self.inner.from_json(fields["key"])
        return self.deserialize(self.serialize(Windowed(key, from_json(fields["start"]), from_json(fields["end"]))))

    def _times(self, value: Windowed) -> bytes:
        raise NotImplementedError

    def _parts(self, data: bytes, times: int) -> tuple[Any, bytes]:
        if len(data) < times:
            raise SerdeError(f"{type(self).__name__} expects at least {times} bytes, found {len(data)}")
        return self.inner.deserialize(data[:-times]), data[-times:]


class TimeWindowedSerde(_WindowedSerde):
    """Keys of time windows of `size_ms`: the key's bytes and the window's start (Kafka Streams' TimeWindowedSerde).

    The end is not written. `end_of` returns it, from the start, for windows of unequal length (None: `size_ms` later):
    that of their `TimeWindows`.

    >>> serde = TimeWindowedSerde("str", 1000)
    >>> serde.deserialize(serde.serialize(Windowed("a", 5000, 6000)))
    Windowed(key='a', start=5000, end=6000)
    """

    window_bytes = _LONG.size

    def __init__(
        self,
        inner: SerdeLike = "str",
        size_ms: int = _MAX_TIME,
        *,
        end_of: Callable[[int], int | None] | None = None,
    ) -> None:
        super().__init__(inner)
        self.size_ms = size_ms
        self.end_of = end_of

    def deserialize(self, data: bytes) -> Windowed:
        key, times = self._parts(data, _LONG.size)
        start = _LONG.unpack(times)[0]
        end = None if self.end_of is None else self.end_of(start)
        return Windowed(key, start, min(start + self.size_ms if end is None else end, _MAX_TIME))

    def _times(self, value: Windowed) -> bytes:
        return _LONG.pack(value.start)


class SessionWindowedSerde(_WindowedSerde):
    """Keys of sessions: the key's bytes, the end and the start of the session (Kafka Streams' SessionWindowedSerde)."""

    window_bytes = _PAIR.size

    def deserialize(self, data: bytes) -> Windowed:
        key, times = self._parts(data, _PAIR.size)
        end, start = _PAIR.unpack(times)
        return Windowed(key, start, end)

    def _times(self, value: Windowed) -> bytes:
        return _PAIR.pack(value.end, value.start)


def windowed(argument: str = "str") -> TimeWindowedSerde:
    """Return the serde named "windowed:INNER:SIZE": that of the keys, and the length of windows, in ms or as "60s".

    >>> windowed("str:60s").size_ms, windowed("int:5").size_ms
    (60000, 5)

    Without a length the ends of windows are not known.
    """
    inner, colon, size = argument.rpartition(":")
    if not colon:
        return TimeWindowedSerde(argument)
    return TimeWindowedSerde(inner, int(size) if size.isdecimal() else duration_ms(size, "length of windows"))


def session(argument: str = "str") -> SessionWindowedSerde:
    """Return the serde named "session:INNER"."""
    return SessionWindowedSerde(argument)
