"""StateStore: a store as a processor sees it, and its values; StoreBuilder: how a topology declares one; StoreKind."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from ..errors import ConfigError
from ..record import Headers
from .calls import StoreCalls
from .context import BytesStore, StoreContext
from .record_cache import Forwarding, RecordCache

K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


class StateStore(ABC):
    """A store that a processor can be connected to.

    A global store can be read by tasks through the methods of a base class `class ReadX(StateStore, reads_only=True)`.
    """

    name: str
    reading_half: ClassVar[type[StateStore] | None] = None

    def __init_subclass__(cls, *, reads_only: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if reads_only:
            cls.reading_half = cls

    calls: StoreCalls | None = None
    """How often the store was asked for single entries; None: it does not count."""
    record_cache: RecordCache | None = None
    """The cache of updates that a store has if it was declared with one."""
    forwarding: Forwarding | None = None
    """The update that the store's processor forwards, if a processor below asked for it."""

    def flush(self) -> None:
        """Serialize cached objects into the BytesStore below; called before a commit."""
        return None

    def unflushed(self) -> int:
        """Return about how many changes `flush` would write now."""
        return 0

    def discard(self) -> None:
        """Drop cached objects; called when rows below an open store were replaced.

        Only the copy of a global store is replaced while open. A task that fails closes its stores.
        """
        return None

    def close(self) -> None:
        """Release the store's resources; called once."""
        return None


@runtime_checkable
class VisitableStore(Protocol):
    """A store whose entries a `visitor` may be called with."""

    @property
    def name(self) -> str:
        """The store's name."""
        ...

    def entries_from(self, row: bytes) -> Iterator[tuple[bytes, Any, Any]]:
        """Yield row, key and value of each entry whose row is `row` or follows it, in the order of the rows.

        A row is what the entry is under in the BytesStore below. The value is read when it is yielded, so it is what
        was put last; None if there is none any more. Entries may be put and deleted meanwhile.
        """
        ...


class ValueAndTimestamp(NamedTuple):
    """A stored value and the timestamp (ms) it was put with."""

    value: Any
    timestamp: int


ValueAndTimestamp.__module__ = "penstock.store"  # pickled values name it, so it does not follow the file


class ValueTimestampHeaders(NamedTuple):
    """A stored value, the timestamp (ms) it was put with, and headers: (name, bytes or None) pairs (KIP-1271)."""

    value: Any
    timestamp: int
    headers: Headers = ()


ValueTimestampHeaders.__module__ = "penstock"  # pickled values name it, so it does not follow the file


class Entries(Protocol[K_co, V_co]):
    """An iterator of (key, value) pairs that ends by itself, or with `close()` or a `with` block."""

    def __iter__(self) -> Iterator[tuple[K_co, V_co]]: ...
    def __next__(self) -> tuple[K_co, V_co]: ...

    def close(self) -> None:
        """End here; idempotent."""
        ...

    def __enter__(self) -> Iterator[tuple[K_co, V_co]]: ...
    def __exit__(self, *error: object) -> None: ...


@dataclass(frozen=True)
class StoreTraits:
    """Facts about a store's content for the engine.

    `timestamped`: values are envelopes with timestamps. `expires`: entries may carry an expiry. `is_indexed`: the store
    has an index beside it, `StoreContext.index`, also if its entries do not expire. `fixed_options`: numbers that the
    form of its keys depends on; those of the program that declared the store first hold for as long as it has content.
    `form`: further properties, as text, that a program must not change while there is content; it is part of the
    store's kind. `topic_config`: settings of its changelog topic beside the usual ones, as Kafka names them.
    `is_extra`: an operator keeps it beside the stores that Kafka Streams has there, and `describe()` leaves it out: so
    both describe a program alike.
    """

    timestamped: bool = False
    expires: bool = False
    is_indexed: bool = False
    fixed_options: Mapping[str, int] = field(default_factory=dict)
    form: str = ""
    topic_config: Mapping[str, str] = field(default_factory=dict)
    is_extra: bool = False

    @property
    def has_index(self) -> bool:
        """Whether the store has an index beside it."""
        return self.is_indexed or self.expires


@runtime_checkable
class StoreBuilder(Protocol):
    """A declared store: inert data until a task builds it.

    `backend` names a store backend (None: the application's default). A `logged` store is in the changelog and survives
    the loss of this host; one that is not starts empty elsewhere.
    """

    @property
    def name(self) -> str:
        """The store's name."""
        ...

    @property
    def backend(self) -> str | None:
        """The store backend that keeps it; None for the application's default."""
        ...

    @property
    def logged(self) -> bool:
        """Whether it is in the changelog."""
        ...

    @property
    def traits(self) -> StoreTraits:
        """Facts about its content for the engine."""
        ...

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        """Return the store that a processor sees, on top of `bytes_store`."""
        ...


def built_store(builder: StoreBuilder, bytes_store: BytesStore, context: StoreContext) -> StateStore:
    """Return the store that `builder` builds. Raises ConfigError, naming it, if that is no StateStore."""
    store: object = builder.build(bytes_store, context)
    if not isinstance(store, StateStore):
        raise ConfigError(
            f"store {builder.name!r}: {type(builder).__name__} built {store!r}, expected a StateStore: let "
            "its `build`, or the function of its kind, return the store that it makes"
        )
    return store


class TopicRows(Protocol):
    """The rows of one store as records of its changelog topic, and back."""

    def record_of(self, row_key: bytes, data: bytes | None) -> tuple[bytes, bytes | None, int | None]:
        """Return key and content of the record for a row, and its timestamp in ms (None: any)."""
        ...

    def row_of(self, key: bytes, data: bytes | None, timestamp: int) -> tuple[bytes, bytes | None]:
        """Return key and content of the row for a record."""
        ...


@dataclass(frozen=True)
class StoreKind:
    """A store kind with rows of its own in a changelog topic. A kind without is the function `build` alone.

    `topic_rows` is called with the store's fixed options. It returns the same for the same options in every later
    version, because its records are in the topic.
    """

    build: Callable[[Any, BytesStore, StoreContext], StateStore]
    topic_rows: Callable[[Mapping[str, int]], TopicRows]

    def __call__(self, spec: Any, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        """Return the store that `spec` declares, on top of `bytes_store`."""
        return self.build(spec, bytes_store, context)
