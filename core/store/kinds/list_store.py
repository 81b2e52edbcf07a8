"""List stores: several values for a key. What a processor sees, and how a topology declares one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...serde import Serde
from ...support.topic_config import TopicConfig
from ..specs import StoreSpec, checked_name
from ..state_store import Entries, StateStore

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyListStore(StateStore, Generic[K, V], reads_only=True):
    """The reading half of a list store. Order is that of the serialized keys, and of arrival within a key."""

    @abstractmethod
    def get(self, key: K) -> list[V]:
        """Return the values of `key` in the order they were added."""

    @abstractmethod
    def range(self, start: K | None = None, end: K | None = None) -> Entries[K, V]:
        """Iterate over (key, value) of start <= key <= end, one pair for each value; None is an open end."""

    def all(self) -> Entries[K, V]:
        """Iterate over everything."""
        return self.range()

    def first(self) -> tuple[K, V] | None:
        """Return the first key and the first of its values, or None if the store is empty."""
        with self.all() as entries:
            return next(entries, None)

    @abstractmethod
    def approximate_count(self) -> int:
        """Return about how many values there are."""


class ListStore(ReadOnlyListStore[K, V]):
    """A list of values for each key, such as records that wait.

    A store whose key serde writes the time first is a queue in the order of time: iterate over `all()` and delete what
    is due, until one is not; deleting while iterating is allowed.
    """

    @abstractmethod
    def add(self, key: K, value: V) -> None:
        """Add a value behind those that `key` has. Raises StoreError for a value of None."""

    @abstractmethod
    def delete(self, key: K) -> None:
        """Delete all values of `key`."""


@dataclass(frozen=True)
class ListStoreSpec(StoreSpec):
    """Declares a list store; `list_store` makes one."""

    kind = "list"

    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None


def list_store(
    name: str,
    *,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    backend: str | None = None,
    logged: bool = True,
    topic_config: TopicConfig | None = None,
) -> ListStoreSpec:
    """Declare a store with several values for a key, for `Topology.add_processor(..., stores=[...])` or `add_store`.

    The options are those of `key_value_store`. A changelog topic has a record for each value, where Kafka Streams' list
    stores write the whole list with each. Raises StoreError for a wrong name.

    >>> list_store("waiting", key_serde="str").name
    'waiting'
    """
    return ListStoreSpec(
        checked_name("list_store", name),
        key_serde,
        value_serde,
        backend=backend,
        logged=logged,
        topic_config=topic_config or {},
    )
