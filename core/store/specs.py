"""StoreSpec: the base of all declared stores, with checks for functions that declare them. The kinds are in kinds/."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from ..clock import Duration, duration_ms
from ..errors import ConfigError, StoreError
from ..hooks import registry
from ..serde import Serde
from ..support.names import BAD_NAME, is_topic_name
from ..support.topic_config import TopicConfig, checked_topic_config
from .context import BytesStore, StoreContext
from .division import Division, RowKeys
from .state_store import StateStore, StoreBuilder, StoreTraits

KEY_VALUE = "key_value"
"""The kind of a declared store that is no `StoreSpec`."""
OWN = "own"
"""The kind of a `StoreSpec` that names none: it overrides `build`."""


@dataclass(frozen=True)
class StoreSpec:
    """Declares a store of the installed store kind that `kind` names; base class of all our declared stores.

    A subclass sets `kind`, or overrides `build`, and adds the options of its kind as fields. `backend` and `logged` are
    as in `StoreBuilder`. `topic_config`: settings by Kafka's names with which its changelog topic is created. Fields
    named `key_serde` and `value_serde` are checked with the topology, and saved with the state. The name of the class
    is saved with the state, too: do not rename it. `windows` says in words which windows the rows belong to; a program
    with others is refused. `division`: exceptions of its entries for a division by other partitions. `row_keys`: the
    position of keys in its rows: a subclass whose kind is not penstock's sets it, or `penstock reshard` refuses its
    stores.
    """

    kind: ClassVar[str] = OWN
    row_keys: ClassVar[RowKeys | None] = None

    name: str
    backend: str | None = field(default=None, kw_only=True)
    logged: bool = field(default=True, kw_only=True)
    windows: str = field(default="", kw_only=True)
    topic_config: TopicConfig = field(default_factory=dict, kw_only=True, hash=False)
    division: Division = field(default=Division(), kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Keep the topic's settings as text. Raises ConfigError for other values."""
        checked = checked_topic_config(f"topic_config of store {self.name!r}", self.topic_config)
        object.__setattr__(self, "topic_config", checked)

    @property
    def traits(self) -> StoreTraits:
        """Facts about the store's content for the engine; a kind overrides it if the content is more than bytes."""
        return StoreTraits()

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        """Return the store that a processor sees. Raises PluginError when nothing installed brings its kind.

        A kind that only one program has needs no plugin: override this method instead of setting `kind`.
        """
        store: StateStore = registry().load("store kind", self.kind)(self, bytes_store, context)
        return store


@runtime_checkable
class HasKeySerde(Protocol):
    """A declared store with a serde for its keys: one, the name of an installed one, or None for the default."""

    @property
    def key_serde(self) -> str | Serde[Any] | None:
        """The serde."""
        ...


@runtime_checkable
class HasValueSerde(Protocol):
    """A declared store with a serde for its values."""

    @property
    def value_serde(self) -> str | Serde[Any] | None:
        """The serde."""
        ...


def declared_serdes(store: StoreBuilder) -> dict[str, str | Serde[Any] | None]:
    """Return `key_serde` and `value_serde` of a declared store, as far as its kind has them."""
    keys = {"key_serde": store.key_serde} if isinstance(store, HasKeySerde) else {}
    return keys | ({"value_serde": store.value_serde} if isinstance(store, HasValueSerde) else {})


def checked_name(function: str, name: str) -> str:
    """Return a store's name. Raises StoreError, naming the function that declares the store, for a wrong one."""
    if not is_topic_name(name):
        raise StoreError(f"{function}: {BAD_NAME}, found {name!r}")
    return name


def positive_ms(duration: Duration, option: str, name: str, hint: str = "") -> int:
    """Return a duration in ms. Raises ConfigError, naming option and store, for one below 1 ms; `hint` is its end."""
    ms = duration_ms(duration, f"{option} of store {name!r}", may_be_negative=True)
    if ms < 1:
        raise ConfigError(f"{option} of store {name!r}: expected a duration of at least 1ms, found {duration!r}{hint}")
    return ms


_UNLIMITED = 2**63 - 1
"""The retention of unlimited windows (ms)."""


def bucket_ms(retention_ms: int) -> int:
    """Return how long the buckets are in which a store with this retention keeps its windows.

    A bucket is freed as a whole once all of it has expired, so a store takes room for its retention and one bucket
    more. Each bucket that a fetch touches costs a search.
    """
    if retention_ms == _UNLIMITED:
        return 2**61  # saved so since text of a length of time was read as a float
    return max(1, retention_ms // 4)
