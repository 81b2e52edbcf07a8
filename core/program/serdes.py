"""Serdes by name, and the defaults of nodes and stores that name none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..checked_serde import checked
from ..errors import ConfigError
from ..hooks import registry
from ..names import function_name
from ..serde import Serde

SerdeLike = str | Serde[Any] | None
"""A serde, the name of an installed one, or None for the application's default."""


class NodeDefaults(Protocol):
    """The defaults of sources, sinks and stores: the part of `Settings` that a program depends on."""

    @property
    def key_serde(self) -> SerdeLike:
        """Serde of topic keys."""
        ...

    @property
    def value_serde(self) -> SerdeLike:
        """Serde of topic values."""
        ...

    @property
    def state_serde(self) -> SerdeLike:
        """Serde of keys and values in stores."""
        ...

    @property
    def store_backend(self) -> str:
        """The store backend."""
        ...


@dataclass(frozen=True)
class _Defaults:
    key_serde: SerdeLike = "str"
    value_serde: SerdeLike = "str"
    state_serde: SerdeLike = "msgpack"
    store_backend: str = "lmdb"


DEFAULTS = _Defaults()
"""The defaults of an application that sets none of them."""


def resolve_serde(given: str | Serde[Any] | None, default: str | Serde[Any] | None, what: str) -> Serde[Any]:
    """Return the serde that `given` names, or `default` does. Raises ConfigError with `what`."""
    chosen = default if given is None else given
    if isinstance(chosen, str):
        made = registry().load("serde", chosen)()
        if isinstance(made, Serde):
            return checked(made)
        raise ConfigError(f"{what}: the serde named {chosen!r} made a {type(made).__name__}, expected a penstock.Serde")
    if isinstance(chosen, Serde):
        return checked(chosen)
    raise ConfigError(f"{what}: expected a serde or the name of an installed one, found {chosen!r}")


def serde_name(serde: SerdeLike) -> str | None:
    """Return the name of a serde: the one it was given by, or that of its class; None for the default."""
    return serde if serde is None or isinstance(serde, str) else function_name(type(serde))
