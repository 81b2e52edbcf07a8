"""What a declared key-value store becomes: one of the stores of its kind, over the layers below."""

from __future__ import annotations

from types import FunctionType

from penstock import BytesStore, KeyValueStoreSpec, StateStore, StoreContext

from .caching import cache_key_value_store
from .expiring import ExpiringStore
from .plain import PlainStore
from .stamped import HeadersStore, StampedStore

_HINT = "entries have no TTL; declare it as key_value_store(NAME, expires=True) or with ttl=... for the whole store"


def build_key_value_store(spec: KeyValueStoreSpec, bytes_store: BytesStore, context: StoreContext) -> StateStore:
    """Return the store that `spec` declares, on top of `bytes_store`."""
    store = _build(spec, bytes_store, context)
    return cache_key_value_store(store, context.record_cache) if spec.cached else store


def _build(spec: KeyValueStoreSpec, bytes_store: BytesStore, context: StoreContext) -> PlainStore:
    key_serde = context.serde(spec.key_serde, spec.name)
    if spec.traits.expires or context.expires:
        return ExpiringStore(bytes_store, key_serde, spec, context)
    kind = HeadersStore if spec.headers else StampedStore if spec.timestamped else PlainStore
    store = kind(bytes_store, key_serde, context.serde(spec.value_serde, spec.name))
    # For `put(key, value, ttl=...)` Python itself makes the error, of the function's name: no check slows down a put.
    if isinstance(store.get, FunctionType):
        setattr(store.get, "__qualname__", f"store {spec.name!r}: get")  # noqa: B010
    setattr(store.put, "__qualname__", f"store {spec.name!r}: {_HINT}: put")  # noqa: B010
    return store
