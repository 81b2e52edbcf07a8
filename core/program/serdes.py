"""Serdes by name, the defaults of nodes and stores, and the check of other packages' serdes."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..errors import ConfigError, PluginError, SerdeError
from ..hooks import registry
from ..serde import Serde
from ..support.names import function_name

T = TypeVar("T")

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


class Configured(NodeDefaults, Protocol):
    """The defaults, and the settings that serdes of plugins read."""

    @property
    def of_plugins(self) -> Mapping[str, Any]:
        """Settings that plugins bring, by name, as far as they were given."""
        ...


@dataclass(frozen=True)
class _Defaults:
    key_serde: SerdeLike = "str"
    value_serde: SerdeLike = "str"
    state_serde: SerdeLike = "msgpack"
    store_backend: str = "lmdb"


DEFAULTS = _Defaults()
"""The defaults of an application that sets none of them."""


def resolve_serde(
    given: str | Serde[Any] | None,
    default: str | Serde[Any] | None,
    what: str,
    config: Mapping[str, Any] | None = None,
) -> Serde[Any]:
    """Return the serde that `given` names, or `default` does. Raises ConfigError with `what`.

    `config`: settings of the application that plugins bring, for a serde that will be used.
    """
    chosen = default if given is None else given
    made = make_serde(chosen, what) if isinstance(chosen, str) else chosen
    if isinstance(made, Serde):
        return checked(made if config is None else made.configure(config))
    if isinstance(chosen, str):
        raise ConfigError(f"{what}: the serde named {chosen!r} made a {type(made).__name__}, expected a penstock.Serde")
    raise ConfigError(f"{what}: expected a serde or the name of an installed one, found {chosen!r}")


def make_serde(name: str, what: str) -> Any:
    """Return a serde of that name; the text after a colon in `name` is its argument ("windowed:str:60s").

    Raises PluginError for one that is not installed, and ConfigError with `what` for an argument that cannot be.
    """
    plain, colon, argument = name.partition(":")
    factory = registry().load("serde", plain)
    if not colon:
        try:
            return factory()
        except TypeError as error:
            raise ConfigError(
                f"{what}: serde {name!r} cannot be made without an argument after a colon: {error}"
            ) from error
    try:
        return factory(argument)
    except (ConfigError, PluginError) as error:
        raise ConfigError(f"{what}: serde {name!r}: {error}") from error
    except TypeError as error:
        raise ConfigError(f"{what}: serde {name!r}: {plain!r} takes no argument after a colon ({error})") from error


def find_serde(name: str, what: str) -> None:
    """Check that a serde is installed, and its argument, if any. A serde without argument is not imported."""
    if ":" in name:
        make_serde(name, what)
    else:
        registry().find("serde", name)


def serdes_of_topic(
    key_serde: SerdeLike, value_serde: SerdeLike, settings: Configured, what: str, topic: str
) -> tuple[Serde[Any], Serde[Any]]:
    """Return the serdes of a topic's keys and values, ready to use; those that are None are the application's."""
    key = resolve_serde(key_serde, settings.key_serde, what, settings.of_plugins)
    value = resolve_serde(value_serde, settings.value_serde, what, settings.of_plugins)
    return key.bind(topic, is_key=True), value.bind(topic, is_key=False)


def serde_name(serde: SerdeLike) -> str | None:
    """Return the name of a serde: as it was given, or else its class's; None for the default."""
    return serde if serde is None or isinstance(serde, str) else function_name(type(serde))


def checked(serde: Serde[T]) -> Serde[T]:
    """Return `serde`; if another package made it, in a wrapper that checks its results."""
    return serde if type(serde).__module__.partition(".")[0] == "penstock" else _CheckedSerde(serde)


class _CheckedSerde(Serde[T]):
    """A serde, and a SerdeError where that writes something other than bytes, or shows something other than JSON."""

    def __init__(self, serde: Serde[T]) -> None:
        self._serde = serde
        self.immutable_types = serde.immutable_types
        self.checked_types = serde.checked_types
        self.window_bytes = serde.window_bytes
        self.value_type = serde.value_type
        # Only what is written is checked: reading costs no call more.
        self.deserialize = serde.deserialize  # type: ignore[method-assign]
        self.deserialize_column = serde.deserialize_column  # type: ignore[method-assign]
        self.serialize = self._bytes_of(serde.serialize)  # type: ignore[method-assign, assignment]

    def serialize(self, value: T) -> bytes:
        raise NotImplementedError

    def deserialize(self, data: bytes) -> T:
        raise NotImplementedError

    def serializer(self) -> Callable[[T], bytes]:
        """Return the serde's own fast function, with the same check of its results."""
        return self._bytes_of(self._serde.serializer())

    def configure(self, config: Mapping[str, Any]) -> Serde[T]:
        return checked(self._serde.configure(config))

    def bind(self, topic: str, *, is_key: bool) -> Serde[T]:
        return checked(self._serde.bind(topic, is_key=is_key))

    def for_values(self) -> Serde[T]:
        return checked(self._serde.for_values())

    def prepare(self, *, writes: bool) -> None:
        self._serde.prepare(writes=writes)

    def check_keys(self) -> None:
        self._serde.check_keys()

    def written_form(self) -> str:
        return self._serde.written_form()

    def unreadable(self, form: str) -> str:
        return self._serde.unreadable(form)

    def unfindable(self, form: str) -> str:
        return self._serde.unfindable(form)

    def to_json(self, value: T) -> Any:
        form = self._serde.to_json(value)
        try:
            json.dumps(form, allow_nan=False)  # some writers make null of nan, which is a tombstone then
        except (TypeError, ValueError, RecursionError) as error:
            raise SerdeError(
                f"serde {self._name()} is wrong: its to_json returned {reprlib.repr(form)}, expected JSON data "
                f"(nan is {{'!float': 'nan'}}, and Serde.to_json makes it so): {error}"
            ) from error
        return form

    def from_json(self, data: Any) -> T:
        return self._serde.from_json(data)

    def key_from_json(self, data: Any) -> T:
        return self._serde.key_from_json(data)

    def _name(self) -> str:
        return f"{type(self._serde).__module__}.{type(self._serde).__qualname__}"

    def _bytes_of(self, write: Callable[[T], bytes]) -> Callable[[T], bytes]:
        name = self._name()

        def write_bytes(value: T) -> bytes:
            data = write(value)
            if type(data) is bytes:
                return data
            if isinstance(data, (bytes, bytearray, memoryview)):
                return bytes(data)
            raise SerdeError(
                f"serde {name} is wrong: for {reprlib.repr(value)} it wrote {type(data).__name__} "
                f"{reprlib.repr(data)}, expected bytes"
            )

        return write_bytes
