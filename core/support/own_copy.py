"""Copies of values, so that each place a value goes to has one of its own; what cannot be changed is not copied."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import is_
from typing import Any
from uuid import UUID

_new = tuple.__new__

IMMUTABLE: frozenset[type] = frozenset(
    {type(None), str, bytes, int, float, bool, complex, Decimal, Fraction, datetime, date, time, timedelta, UUID}
)
"""Types whose values cannot be changed. Look here first: it costs a tenth of a call of `own_copy`."""


def own_copy(value: Any) -> Any:
    """Return a value that is equal to `value` and shares nothing that can be changed with it.

    Dicts, lists, tuples and sets are copied with what is in them, objects by `copy.deepcopy`. What cannot be changed is
    returned as it is: values of IMMUTABLE types, tuples and frozen dataclasses of such. So is an object that cannot be
    copied, such as a lock.

    >>> order = {"lines": [1, 2]}
    >>> copied = own_copy(order)
    >>> copied["lines"].append(3)
    >>> order
    {'lines': [1, 2]}
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        return _copied(value)
    except RecursionError:  # it contains itself, which only deepcopy knows how to copy
        return _deep(value)


def own_record(record: Any) -> Any:
    """Return a record, or a plain tuple of its parts, with a key and a value of its own."""
    key, value, timestamp, headers = record
    return _new(type(record), (key if type(key) in IMMUTABLE else own_copy(key), own_copy(value), timestamp, headers))


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is dict:  # a copy of which some items are replaced is made in half the time of a new dict
        made = value.copy()
        for key, item in value.items():
            if type(item) not in IMMUTABLE:
                made[key] = _copied(item)
        return made
    if kind is list:
        return [item if type(item) in IMMUTABLE else _copied(item) for item in value]
    if kind in IMMUTABLE or kind is frozenset:
        return value
    if kind is set or kind is bytearray:
        return value.copy()
    return _copy_other(value)


def _copy_other(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, tuple) and not hasattr(value, "__dict__"):
        copied = [_copied(item) for item in value]
        return value if all(map(is_, copied, value)) else _new(kind, copied)
    return value if is_dataclass(kind) and _is_frozen(value) else _deep(value)


def _is_frozen(value: Any) -> bool:
    """Return whether a dataclass and all its fields cannot be changed."""
    if not getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009 (no type stub has it)
        return False
    parts = (getattr(value, each.name) for each in fields(value))
    return all(_copied(part) is part for part in parts)


def _deep(value: Any) -> Any:
    try:
        return deepcopy(value)
    except Exception:
        return value
