"""Builds the stores of keys and of windows that a program declares, from the kinds beside this file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

from penstock import (
    BytesStore,
    HeadersKeyValueStore,
    KeyValueStoreSpec,
    SessionStoreSpec,
    StateStore,
    StoreContext,
    StoreKind,
    TimestampedKeyValueStore,
    ValueAndTimestamp,
    WindowStoreSpec,
)

from ..rows.headers_form import HeadersForm
from ..rows.value_form import INT64_MAX, TimestampedForm
from .caching import cache_key_value_store, cache_session_store, cache_window_store
from .duplicates import DuplicatesStore, HeadersDuplicatesStore, StampedDuplicatesStore
from .expiring import ExpiringStore
from .plain import PlainStore
from .session import BucketSessionStore, SessionTopicRows
from .window import BucketWindowStore, HeadersBucketWindowStore, StampedBucketWindowStore, WindowTopicRows

_HINT = "entries have no TTL; declare it as key_value_store(NAME, expires=True) or with ttl=... for the whole store"


def build_key_value_store(spec: KeyValueStoreSpec, bytes_store: BytesStore, context: StoreContext) -> StateStore:
    """Return the store that `spec` declares, on top of `bytes_store`."""
    store = _build(spec, bytes_store, context)
    return cache_key_value_store(store, context.record_cache) if spec.cached else store


def _build(spec: KeyValueStoreSpec, bytes_store: BytesStore, context: StoreContext) -> PlainStore:
    key_serde = context.serde(spec.key_serde, spec.name)
    if spec.traits.expires or context.expires:
        return (HeadersExpiringStore if spec.headers else ExpiringStore)(bytes_store, key_serde, spec, context)
    kind = HeadersStore if spec.headers else StampedStore if spec.timestamped else PlainStore
    store = kind(bytes_store, key_serde, context.serde(spec.value_serde, spec.name))
    # For `put(key, value, ttl=...)` Python itself makes the error, of the function's name: no check slows down a put.
    if not isinstance(store.get, MethodType):
        setattr(store.get, "__qualname__", f"store {spec.name!r}: get")  # noqa: B010
    setattr(store.put, "__qualname__", f"store {spec.name!r}: {_HINT}: put")  # noqa: B010
    return store


class StampedStore(PlainStore, TimestampedKeyValueStore[Any]):
    """A TimestampedKeyValueStore: values are ValueAndTimestamp."""

    form_of_values = TimestampedForm

    def _compile_put(self) -> Callable[[Any, Any], None]:
        pending, clean, slow = self.pending, self.clean, self._put
        key_types, free_types, fits = self.keys.types, self.values.free_types, self.values.fits
        puts = 0
        self.calls.add_total("puts", lambda: puts)

        def put(key: Any, value: Any) -> None:
            nonlocal puts
            puts += 1
            if type(value) is ValueAndTimestamp and type(key) in key_types and (key in pending or key in clean):
                content, timestamp = value
                if (
                    (type(content) in free_types or fits(content))
                    and type(timestamp) is int
                    and 0 <= timestamp <= INT64_MAX
                ):
                    pending[key] = value
                    return
            slow(key, value)

        return self._compiled_put(put)


class HeadersStore(PlainStore, HeadersKeyValueStore[Any]):
    """A HeadersKeyValueStore: values are ValueTimestampHeaders."""

    form_of_values = HeadersForm

    def _compile_put(self) -> Callable[[Any, Any], None]:
        pending, clean, slow = self.pending, self.clean, self._put
        key_types, can_wait = self.keys.types, self.values.compile_test()
        puts = 0
        self.calls.add_total("puts", lambda: puts)

        def put(key: Any, value: Any) -> None:
            nonlocal puts
            puts += 1
            if type(key) in key_types and (key in pending or key in clean) and can_wait(value):
                pending[key] = value
            else:
                slow(key, value)

        return put


class HeadersExpiringStore(ExpiringStore, HeadersKeyValueStore[Any]):
    """An ExpiringKeyValueStore, and a HeadersKeyValueStore: values are ValueTimestampHeaders."""


@partial(StoreKind, topic_rows=WindowTopicRows)
def build_window_store(spec: WindowStoreSpec, below: BytesStore, context: StoreContext) -> StateStore:
    """Return the store that `spec` declares, on top of `below`."""
    kind: type[BucketWindowStore]
    if context.fixed_options["duplicates"]:
        stamped = StampedDuplicatesStore if spec.timestamped else DuplicatesStore
        kind = HeadersDuplicatesStore if spec.headers else stamped
    else:
        kind = StampedBucketWindowStore if spec.timestamped else BucketWindowStore
        kind = HeadersBucketWindowStore if spec.headers else kind
    key_serde = context.serde(spec.key_serde, spec.name)
    value_serde = context.serde(spec.value_serde, spec.name)
    store = kind(spec, below, key_serde, value_serde, context)
    return cache_window_store(store, context.record_cache) if spec.cached else store


@partial(StoreKind, topic_rows=SessionTopicRows)
def build_session_store(spec: SessionStoreSpec, below: BytesStore, context: StoreContext) -> StateStore:
    """Return the store that `spec` declares, on top of `below`."""
    key_serde = context.serde(spec.key_serde, spec.name)
    value_serde = context.serde(spec.value_serde, spec.name)
    store = BucketSessionStore(spec, below, key_serde, value_serde, context)
    return cache_session_store(store, context.record_cache) if spec.cached else store
