"""Serdes of keys and values: as far as a DSL program knows them, and once the settings are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from penstock import Serde, TopologyError
from penstock.program.serdes import DEFAULTS, NodeDefaults, SerdeLike, resolve_serde

from .windowed_serdes import SessionWindowedSerde, TimeWindowedSerde


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
        """Return what these serdes and `other` have in common."""
        return Serdes(self.key if self.key == other.key else None, self.value if self.value == other.value else None)

    def else_of(self, other: Serdes) -> Serdes:
        """Return these serdes, where they are known, else those of `other`."""
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
