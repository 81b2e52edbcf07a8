"""Builds declared window and session stores: a store over the layers below, with a record cache if asked for."""

from __future__ import annotations

from functools import partial

from penstock import BytesStore, SessionStoreSpec, StateStore, StoreContext, StoreKind, WindowStoreSpec

from .caching import cache_session_store, cache_window_store
from .duplicates import DuplicatesStore, HeadersDuplicatesStore, StampedDuplicatesStore
from .session import BucketSessionStore, SessionTopicRows
from .window import BucketWindowStore, HeadersBucketWindowStore, StampedBucketWindowStore, WindowTopicRows


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
