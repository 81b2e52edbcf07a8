"""Layers of settings, one for each origin: program, file, environment, command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, PluginError
from .names import MAPPINGS, Key, translate
from .secret import ClientSettings, Secret, hidden_in_errors

CODE = "code"
"""The origin of settings in the program itself."""

Given = tuple[str, Any, str]
"""A name in any vocabulary, a value, and its origin ("code", "penstock.toml, line 3", "PENSTOCK_LOG")."""


@dataclass(frozen=True)
class Layer:
    """The given settings with their origins; settings that were not given are absent."""

    values: Mapping[Key, Any] = field(default_factory=dict, repr=False)
    origins: Mapping[Key, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls, given: Iterable[Given], own: Collection[str], convert: Callable[[Key, Any], Any] = lambda key, value: value
    ) -> Layer:
        """Return the layer of names and values; `own` are the names of all settings, `convert` makes values of texts.

        Raises ConfigError with the origin for a name that is unknown or has no counterpart, and when two names give one
        setting different values.
        """
        values: dict[Key, Any] = {}
        origins: dict[Key, str] = {}
        names: dict[Key, str] = {}
        # As in Kafka Streams, main.consumer. wins over consumer.
        for name, value, origin in sorted(given, key=lambda each: str(each[0]).startswith("main.consumer.")):
            if not isinstance(name, str):
                raise ConfigError(f"expected the name of a setting, found {name!r}")
            with add_origin_to_errors(origin):
                found = _translate(name, value, own)
                for key, raw in _parts(*found) if found else ():
                    one = convert(key, raw)
                    if key in values and values[key] != one and not name.startswith("main.consumer."):
                        raise ConfigError(
                            f"{names[key]!r} and {name!r} set the same, and differently: keep one of them"
                        )
                    values[key], origins[key], names[key] = one, origin, name
        return cls(values, origins)

    def over(self, other: Layer) -> Layer:
        """Return both layers merged, this one winning; mappings such as `clients` are merged name by name."""
        return Layer({**other.values, **self.values}, {**other.origins, **self.origins})

    def without(self, names: Collection[str]) -> Layer:
        """Return this without some fields, all names of `clients` or another mapping among them."""

        def stays(key: Key) -> bool:
            return (key if isinstance(key, str) else key[0]) not in names

        return Layer(
            {key: value for key, value in self.values.items() if stays(key)},
            {key: origin for key, origin in self.origins.items() if stays(key)},
        )


@contextmanager
def add_origin_to_errors(origin: str) -> Iterator[None]:
    """Prefix an error of the block with the origin of the setting, unless the program itself set it."""
    try:
        yield
    except (ConfigError, PluginError) as error:
        if origin == CODE:
            raise
        raise type(error)(f"{origin}: {error}") from error


def _translate(name: str, value: Any, own: Collection[str]) -> tuple[Key, Any] | None:
    """Translate a name and its value. A translated secret is a Secret, too, and appears in no error."""
    if not isinstance(value, Secret):
        return translate(name, value, own)
    with hidden_in_errors(repr(value.reveal())):
        found = translate(name, value.reveal(), own)
    return None if found is None else (found[0], Secret(found[1]) if isinstance(found[1], str) else found[1])


def _parts(key: Key, value: Any) -> list[tuple[Key, Any]]:
    """Return the settings of a mapping one by one."""
    if not isinstance(key, str) or key not in MAPPINGS or not isinstance(value, Mapping):
        return [(key, value)]
    each = ClientSettings(value).marked() if key == "clients" else value
    return [((key, name), one) for name, one in each.items()]
