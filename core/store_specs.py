"""Declared stores: how a topology declares a store, as inert data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .clock import Duration, duration_ms
from .errors import ConfigError, StoreError
from .hooks import registry
from .names import is_topic_name
from .serde import Serde
from .store import BAD_NAME, BytesStore, StateStore, StoreContext


@dataclass(frozen=True)
class StoreSpec:
    """Declares a store of the installed store kind that `kind` names; base class of all our declared stores.

    A subclass sets `kind` and adds the options of its kind as fields. `backend` and `logged` are as in `StoreBuilder`.
    Fields named `key_serde` and `value_serde` are checked with the topology, and saved with the state. Fields named
    `timestamped` and `ttl_ms` are reserved: they mean what they mean for a key-value store. The name of the class is
    saved with the state, too: do not rename it.
    """

    kind: ClassVar[str]

    name: str
    backend: str | None = field(default=None, kw_only=True)
    logged: bool = field(default=True, kw_only=True)

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        """Return the store that a processor sees. Raises PluginError when nothing installed brings its kind."""
        store: StateStore = registry().load("store kind", self.kind)(self, bytes_store, context)
        return store


@dataclass(frozen=True)
class KeyValueStoreSpec(StoreSpec):
    """Declares a key-value store.

    `key_serde` and `value_serde` are serdes or names of installed ones (None: the default state serde,
    msgpack). `timestamped` stores hold `ValueAndTimestamp`. `ttl_ms` (milliseconds of stream time; written
    as a duration in `key_value_store`) hides and removes entries that old.
    """

    kind = "key_value"

    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None
    timestamped: bool = False
    ttl_ms: int | None = None


def key_value_store(
    name: str,
    *,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    timestamped: bool = False,
    ttl: Duration | None = None,
    backend: str | None = None,
    logged: bool = True,
) -> KeyValueStoreSpec:
    """Declare a key-value store, for `Topology.add_processor(..., stores=[...])` or `Topology.add_store`.

    Serdes are those of the state (None: the application's `state_serde`). A `timestamped` store holds
    `ValueAndTimestamp`. `ttl` is a duration of stream time after which an entry is gone, counted from when it was put.
    `backend` names an installed store backend (None: the application's). A store that is not `logged` is lost with this
    host. `name` is 1 to 249 letters, digits, '.', '_' or '-'; names that differ in case only are different stores.
    Raises StoreError for another name, and ConfigError for a `ttl` that is not a duration above 0.

    >>> key_value_store("visits", ttl="1h").ttl_ms
    3600000
    """
    if not is_topic_name(name):
        raise StoreError(f"key_value_store: {BAD_NAME}, found {name!r}")
    ttl_ms = None if ttl is None else duration_ms(ttl, f"ttl of store {name!r}")
    if ttl_ms is not None and ttl_ms < 1:
        raise ConfigError(
            f"ttl of store {name!r}: expected a duration of at least 1ms, found {ttl!r}; None keeps entries for ever"
        )
    return KeyValueStoreSpec(name, key_serde, value_serde, timestamped, ttl_ms, backend=backend, logged=logged)
