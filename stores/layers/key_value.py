"""What a declared key-value store becomes: a PlainStore or a StampedStore over the layers below."""

from __future__ import annotations

from penstock.store import BytesStore, StateStore, StoreContext
from penstock.store_kinds.key_value import KeyValueStoreSpec

from .caching import cache_key_value_store
from .plain import PlainStore
from .stamped import StampedStore
from .ttl import TtlStore


def build_key_value_store(spec: KeyValueStoreSpec, bytes_store: BytesStore, context: StoreContext) -> StateStore:
    """Return the store that `spec` declares, on top of `bytes_store`."""
    key_serde = context.serde(spec.key_serde, spec.name)
    value_serde = context.serde(spec.value_serde, spec.name)
    kind = StampedStore if spec.timestamped else PlainStore
    below: BytesStore = bytes_store
    if spec.ttl_ms is not None:
        below = TtlStore(bytes_store, spec.ttl_ms, context.stream_time)
    store = kind(below, key_serde, value_serde)
    return cache_key_value_store(store, context.record_cache) if spec.cached else store
