"""Copies of mutable values, so that each receiver has a copy of its own. Immutable values are shared."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import is_
from typing import Any
from uuid import UUID

_new = tuple.__new__

Memo = dict[int, Any]
"""What `copy.deepcopy` has copied so far, by id."""

IMMUTABLE: frozenset[type] = frozenset(
    {
        type(None),
        str,
        bytes,
        int,
        float,
        bool,
        complex,
        Decimal,
        Fraction,
        datetime,
        date,
        time,
        timedelta,
        UUID,
        object,
    }
)
"""Types whose values cannot be changed. Look here first: it costs a tenth of a call of `own_copy`."""


def own_copy(value: Any) -> Any:
    """Return a value that is equal to `value` and shares nothing that can be changed with it.

    Dicts, lists, tuples and sets are copied with what is in them, objects by `copy.deepcopy`, and one that is in the
    value twice once. What cannot be changed is returned as it is: values of IMMUTABLE types, tuples and frozen
    dataclasses of such. So is an object that cannot be copied, such as a lock.

    >>> order = {"lines": [1, 2]}
    >>> copied = own_copy(order)
    >>> copied["lines"].append(3)
    >>> order
    {'lines': [1, 2]}
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        return _copied(value, {})
    except RecursionError:  # it contains itself, which only deepcopy knows how to copy
        return _deep(value, {})


def own_record(record: Any) -> Any:
    """Return a record, or a plain tuple of its parts, with a key and a value of its own."""
    key, value, timestamp, headers = record
    return _new(type(record), (key if type(key) in IMMUTABLE else own_copy(key), own_copy(value), timestamp, headers))


def _copied(value: Any, memo: Memo) -> Any:
    kind = type(value)
    if kind is dict:  # a copy of which some items are replaced is made in half the time of a new dict
        made = value.copy()
        for key, item in value.items():
            if type(key) is not str and type(key) not in IMMUTABLE:
                return {_copied(each, memo): _copied(item, memo) for each, item in value.items()}
            if type(item) not in IMMUTABLE:
                made[key] = _copied(item, memo)
        return made
    if kind is list:
        return [item if type(item) in IMMUTABLE else _copied(item, memo) for item in value]
    return value if kind in IMMUTABLE else _copy_other(value, memo)


def _copy_other(value: Any, memo: Memo) -> Any:
    kind = type(value)
    if kind is set or kind is frozenset:
        items = [item if type(item) in IMMUTABLE else _copied(item, memo) for item in value]
        return value if kind is frozenset and all(map(is_, items, value)) else kind(items)
    if isinstance(value, tuple) and not hasattr(value, "__dict__"):
        copied = [_copied(item, memo) for item in value]
        return value if all(map(is_, copied, value)) else _new(kind, copied)
    return value if _is_frozen(value, memo) else _deep(value, memo)


def _is_frozen(value: Any, memo: Memo) -> bool:
    """Return whether `value` is a frozen dataclass with immutable attributes only, those beside its fields included."""
    parameters = vars(type(value)).get("__dataclass_params__")  # a subclass may have others
    if parameters is None or not parameters.frozen:
        return False
    parts = [getattr(value, field.name, None) for field in fields(value)]
    return all(_copied(part, memo) is part for part in (*parts, *getattr(value, "__dict__", {}).values()))


def _deep(value: Any, memo: Memo) -> Any:
    known = len(memo)
    try:
        return deepcopy(value, memo)
    except Exception:
        while len(memo) > known:  # what was half made
            memo.popitem()
        return value
