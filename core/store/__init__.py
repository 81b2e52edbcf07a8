"""State stores: interfaces of backends and of kinds, and the declarations of a topology."""

from .backend import Change, Changes, CountsFiles, OpensAlone, StoreBackend, StoreBackendFactory, StoreView, in_chunks
from .context import BytesStore, IndexStore, StoreContext
from .division import RowKeys
from .state_store import (
    Entries,
    StateStore,
    StoreBuilder,
    StoreKind,
    StoreTraits,
    TopicRows,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VisitableStore,
)

__all__ = [
    "BytesStore",
    "Change",
    "Changes",
    "CountsFiles",
    "Entries",
    "IndexStore",
    "OpensAlone",
    "RowKeys",
    "StateStore",
    "StoreBackend",
    "StoreBackendFactory",
    "StoreBuilder",
    "StoreContext",
    "StoreKind",
    "StoreTraits",
    "StoreView",
    "TopicRows",
    "ValueAndTimestamp",
    "ValueTimestampHeaders",
    "VisitableStore",
    "in_chunks",
]
