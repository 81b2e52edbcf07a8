"""Validation of results of users' code: timestamps, headers and partitions."""

from __future__ import annotations

import reprlib
from typing import Any

from ..errors import ProductionError

NO_TIMESTAMP = "no int of milliseconds from 0 to 2**63 - 1"


def is_timestamp(value: object) -> bool:
    """Return whether a value is an int that 64 bits hold; it may be below 0."""
    return type(value) is int and value >> 63 <= 0


def wrong_headers(headers: Any) -> str | None:
    """Return the fault of a record's headers; None if they are right."""
    if type(headers) is tuple:
        for header in headers:
            if not isinstance(header, tuple) or len(header) != 2:
                break
            name, value = header
            if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
                break
        else:
            return None
    return f"the headers {reprlib.repr(headers)} are no tuple of pairs (name as str, value as bytes or None)"


def valid_partitions(chosen: Any, count: int, sink: str) -> tuple[int, ...] | None:
    """Return a partitioner's answer as a tuple of valid partitions, or None for the default."""
    if chosen is None:
        return None
    partitions = (chosen,) if isinstance(chosen, int) else tuple(chosen)
    for partition in partitions:
        if not isinstance(partition, int) or not 0 <= partition < count:
            raise ProductionError(f"sink {sink!r}: its partitioner chose {partition!r}, expected 0 to {count - 1}")
    return partitions
