"""KeptStore: how a task keeps a store, and the layout of all its stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..support.names import index_name
from .specs import KEY_VALUE, StoreSpec
from .state_store import StoreBuilder


@dataclass(frozen=True)
class KeptStore:
    """How a task keeps a store.

    `backend` is the store backend with its entries on the host. A `logged` store is in the changelog. `timestamped`:
    entries had timestamps when the history in the changelog began. `expires`: entries may carry an expiry, because the
    store has a TTL or had one. `generation` counts how often a store of this name was dropped: two generations have no
    content in common. `kind` is the store kind; it says how entries look in a changelog topic. `fixed_options`: the
    fixed options of the store's traits in the first program that named it. `is_indexed`: it has an index beside it
    although its entries do not expire.
    """

    backend: str
    logged: bool = True
    timestamped: bool = False
    expires: bool = False
    generation: int = 0
    kind: str = KEY_VALUE
    fixed_options: Mapping[str, int] = field(default_factory=dict)
    is_indexed: bool = False

    @property
    def has_index(self) -> bool:
        """Whether there is an index beside the store, on its backend."""
        return self.is_indexed or self.expires

    def tables(self, store: str) -> list[str]:
        """Return the names that the backend keeps for a store: the store, and its index if it has one."""
        return [store, index_name(store)] if self.has_index else [store]

    @classmethod
    def of(cls, store: StoreBuilder, default_backend: str) -> KeptStore:
        """Return the saved description of a store that no earlier program named."""
        return cls(
            store.backend or default_backend,
            store.logged,
            store.traits.timestamped,
            store.traits.expires,
            kind=store.kind if isinstance(store, StoreSpec) else KEY_VALUE,
            fixed_options=dict(store.traits.fixed_options),
            is_indexed=store.traits.is_indexed,
        )

    def followed_by(self, after: KeptStore) -> KeptStore:
        """Return the saved description of the store after a program that keeps it as `after`."""
        if self.generation != after.generation:
            return after
        return replace(
            after,
            timestamped=self.timestamped,
            expires=self.expires or after.expires,
            fixed_options=self.fixed_options,
            is_indexed=self.is_indexed or after.is_indexed,
        )


Layout = Mapping[str, KeptStore]
"""The stores of a task by name, also those that the program no longer names and that are parked."""
