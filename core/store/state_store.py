"""StateStore: a store as a processor sees it, and StoreBuilder: how a topology declares one."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

from .context import BytesStore, StoreContext
from .record_cache import RecordCache
from .traits import StoreTraits

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

    record_cache: RecordCache | None = None
    """The cache of updates that a store has if it was declared with one."""

    def flush(self) -> None:
        """Serialize what is kept as objects into the BytesStore below; called before a commit."""
        return None

    def unflushed(self) -> int:
        """Return about how many changes `flush` would write now."""
        return 0

    def discard(self) -> None:
        """Drop what is kept as objects; called when the commit failed, or the task is re-opened."""
        return None

    def close(self) -> None:
        """Release the store's resources; called once."""
        return None


class ValueAndTimestamp(NamedTuple):
    """A stored value and the timestamp (ms) it was put with."""

    value: Any
    timestamp: int


ValueAndTimestamp.__module__ = "penstock.store"  # pickled values name it, so it does not follow the file


class Entries(Protocol[K_co, V_co]):
    """An iterator of (key, value) pairs that ends by itself, or with `close()` or a `with` block."""

    def __iter__(self) -> Iterator[tuple[K_co, V_co]]: ...
    def __next__(self) -> tuple[K_co, V_co]: ...

    def close(self) -> None:
        """End here; idempotent."""
        ...

    def __enter__(self) -> Iterator[tuple[K_co, V_co]]: ...
    def __exit__(self, *error: object) -> None: ...


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
        """What the engine has to know of its content."""
        ...

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        """Return the store that a processor sees, on top of `bytes_store`."""
        ...
