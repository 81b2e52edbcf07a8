"""State stores: what a backend author writes, what a kind of store is built on, and what a topology declares."""

from .backend import Change, Changes, StoreBackend, StoreBackendFactory
from .context import BytesStore, IndexStore, StoreContext
from .state_store import Entries, StateStore, StoreBuilder, ValueAndTimestamp

__all__ = [
    "BytesStore",
    "Change",
    "Changes",
    "Entries",
    "IndexStore",
    "StateStore",
    "StoreBackend",
    "StoreBackendFactory",
    "StoreBuilder",
    "StoreContext",
    "ValueAndTimestamp",
]
