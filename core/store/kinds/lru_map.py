"""Maps of a bounded size: how a topology declares one. A processor sees a KeyValueStore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import StoreError
from ...serde import Serde
from ...support.topic_config import TopicConfig
from ..specs import StoreSpec, checked_name


@dataclass(frozen=True)
class LruMapSpec(StoreSpec):
    """Declares a key-value store of at most `max_entries` entries; `lru_map` makes one."""

    kind = "lru_map"

    max_entries: int
    key_serde: str | Serde[Any] | None = None
    value_serde: str | Serde[Any] | None = None


def lru_map(
    name: str,
    *,
    max_entries: int,
    key_serde: str | Serde[Any] | None = None,
    value_serde: str | Serde[Any] | None = None,
    backend: str | None = None,
    logged: bool = True,
    topic_config: TopicConfig | None = None,
) -> LruMapSpec:
    """Declare a key-value store that drops the least recently used entry when it has more than `max_entries`.

    A put uses an entry, and so does a `get` that finds it; scans do not. The dropped entry is deleted in the changelog
    as well. After the task was opened again, or a commit failed, the order is that of the last puts. The keys of all
    entries are in memory. The other options are those of `key_value_store`. Raises StoreError for a wrong name or
    number. Semantics: Kafka Streams' `Stores.lruMap`.

    >>> lru_map("recent", max_entries=1000).max_entries
    1000
    """
    checked_name("lru_map", name)
    if type(max_entries) is not int or max_entries < 1:
        raise StoreError(f"lru_map {name!r}: expected max_entries as a whole number above 0, found {max_entries!r}")
    return LruMapSpec(
        name,
        max_entries,
        key_serde,
        value_serde,
        backend=backend,
        logged=logged,
        topic_config=topic_config or {},
    )
