"""Retention and compaction of a local log's topics."""

from .storage import Storage


def maintain(storage: Storage, now_ms: int) -> None:
    """TODO."""
