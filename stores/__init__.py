"""State stores: backends that keep bytes on this host, and the kinds of stores over them. May import core only."""

from __future__ import annotations

from penstock import Components, hookimpl


@hookimpl
def penstock_store_backends() -> Components:
    """Return the store backends that come with penstock."""
    return {"memory": "penstock.stores.memory:MemoryBackend", "lmdb": "penstock.stores.lmdb:LmdbBackend"}


@hookimpl
def penstock_store_kinds() -> Components:
    """Return the kinds of stores that come with penstock."""
    return {
        "key_value": "penstock.stores.kinds.building:build_key_value_store",
        "window": "penstock.stores.kinds.building:build_window_store",
        "session": "penstock.stores.kinds.building:build_session_store",
        "lru_map": "penstock.stores.kinds.lru_map:build_lru_map",
        "list": "penstock.stores.kinds.list_store:build_list_store",
        "timers": "penstock.stores.kinds.timers:build_timer_store",
        "versioned": "penstock.stores.kinds.versioned:build_versioned_store",
    }
