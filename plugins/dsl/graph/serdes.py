"""Serdes of streams and tables, of windowed keys too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import Any

from penstock import Serde, SerdeError, TopologyError, Windowed, WrappingSerde, duration_ms
from penstock.program.serdes import DEFAULTS, NodeDefaults, SerdeLike, resolve_serde
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
        return self._windowed(data, self.inner.from_json)

    def key_from_json(self, data: Any) -> Windowed:
        return self._windowed(data, self.inner.key_from_json)

    def _windowed(self, data: Any, read_key: Callable[[Any], Any]) -> Windowed:
        fields = data.get("!windowed", data) if isinstance(data, dict) else {}
        if not isinstance(fields, dict) or fields.keys() != set(Windowed._fields):
            raise SerdeError(f"{type(self).__name__}: expected an object with key, start and end, found {data!r}")
        key = read_key(fields["key"])
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


class Default(Enum):
    """The application's serde for keys or values of topics, which is known only when the program is built."""

    TOPIC = "topic"


@dataclass(frozen=True)
class WindowedKey:
    """The serde of windowed keys: `inner` is that of the key, `size_ms` the length of time windows, None: sessions.

    `end_of` returns the end of a window by its start, and `form` says which windows these are, where windows are not of
    one length.
    """

    inner: str | Serde[object] | Default | None
    size_ms: int | None
    form: str = ""
    end_of: Callable[[int], int | None] | None = field(default=None, compare=False)


KnownSerde = str | Serde[object] | Default | WindowedKey | None
"""A serde, its name, or how it follows from the settings; None: not known, because a function made the data."""


@dataclass(frozen=True)
class Serdes:
    """The serdes of a stream's or table's keys and values, as far as they are known."""

    key: KnownSerde = None
    value: KnownSerde = None

    def given(self, key: KnownSerde, value: KnownSerde) -> Serdes:
        """Return these serdes with `key` and `value` in their place, where they are not None."""
        return Serdes(self.key if key is None else key, self.value if value is None else value)

    def common(self, other: Serdes) -> Serdes:
        """Return the serdes that are the same in these and `other`."""
        return Serdes(self.key if self.key == other.key else None, self.value if self.value == other.value else None)

    def else_of(self, other: Serdes) -> Serdes:
        """Return these serdes, with the ones of `other` in place of unknown ones."""
        return other.given(self.key, self.value)


def key_of_topic(serde: KnownSerde, settings: NodeDefaults) -> SerdeLike:
    """Return the serde of a topic's keys; None is the application's default."""
    if isinstance(serde, WindowedKey):
        inner = key_of_topic(serde.inner, settings) or settings.key_serde
        if serde.size_ms is None:
            return SessionWindowedSerde(inner)
        return TimeWindowedSerde(inner, serde.size_ms, end_of=serde.end_of)
    return None if isinstance(serde, Default) else serde


def value_of_topic(serde: KnownSerde) -> SerdeLike:
    """Return the serde of values in a topic outside; None is the application's default."""
    return None if isinstance(serde, (Default, WindowedKey)) else serde


def value_of_internal_topic(serde: KnownSerde, settings: NodeDefaults) -> SerdeLike:
    """Return the serde of values in a repartition topic: that of the state where no other is known."""
    return settings.state_serde if serde is None else value_of_topic(serde)


def key_of_store(serde: KnownSerde, settings: NodeDefaults) -> SerdeLike:
    """Return the serde of a store's keys; None is the default of the state."""
    return settings.key_serde if isinstance(serde, Default) else key_of_topic(serde, settings)


def value_of_store(serde: KnownSerde, settings: NodeDefaults) -> SerdeLike:
    """Return the serde of a store's values; None is the default of the state."""
    return settings.value_serde if isinstance(serde, Default) else value_of_topic(serde)


def check_same_keys(
    verb: str,
    left: KnownSerde,
    right: KnownSerde,
    settings: NodeDefaults | None = None,
    *,
    sides: tuple[str, str] = ("the left side", "the right side"),
    how: str = 'send one side through repartition("NAME", key_serde=...) with the serde of the other',
) -> None:
    """Refuse to join by keys that have different serdes: equal keys would be in different partitions.

    What depends on the settings is not compared without them. `how` says what to do. Raises TopologyError.
    """
    if (different := different_keys(verb, left, right, settings)) is not None:
        one, two = different
        raise TopologyError(
            f"{verb}: the keys of {sides[0]} have the serde {_shown(one)}, and those of {sides[1]} {_shown(two)}, "
            f"so equal keys would be in different partitions: {how}"
        )


def different_keys(
    verb: str, left: KnownSerde, right: KnownSerde, settings: NodeDefaults | None = None
) -> tuple[Serde[Any], Serde[Any]] | None:
    """Return the serdes of keys that are known to write other bytes for one key; None if that is not known."""
    if _is_unknown(left) or _is_unknown(right) or left == right:
        return None
    if settings is None and (_depends_on_settings(left) or _depends_on_settings(right)):
        return None
    one, two = (resolve_serde(_key(each, settings), None, verb) for each in (left, right))
    return None if one.written_form() == two.written_form() else (one, two)


def _is_unknown(serde: KnownSerde) -> bool:
    return serde is None or (isinstance(serde, WindowedKey) and serde.inner is None)


def _key(serde: KnownSerde, settings: NodeDefaults | None) -> SerdeLike:
    found = key_of_topic(serde, DEFAULTS if settings is None else settings)
    return settings.key_serde if found is None and settings is not None else found


def _depends_on_settings(serde: KnownSerde) -> bool:
    return isinstance(serde, Default) or (isinstance(serde, WindowedKey) and _depends_on_settings(serde.inner))


def _shown(serde: Serde[Any]) -> str:
    return type(serde).__name__
