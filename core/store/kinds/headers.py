"""ValueTimestampHeaders: a stored value with a timestamp and headers, as those of a record."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...record import Headers


class ValueTimestampHeaders(NamedTuple):
    """A stored value, the timestamp (ms) it was put with, and headers: (name, bytes or None) pairs (KIP-1271)."""

    value: Any
    timestamp: int
    headers: Headers = ()


ValueTimestampHeaders.__module__ = "penstock"  # pickled values name it, so it does not follow the file
