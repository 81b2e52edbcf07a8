"""Whether two keys are one, for verbs that compare keys and have no serde for them."""

from __future__ import annotations

import re
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of an object that is shown as Python does by default: an equal one has another address."""


def is_same_key(one: Any, other: Any) -> bool:
    """Return whether two keys are equal and written alike, as far as Python shows.

    1 and True, 1.5 and 1.50 as Decimal, and datetimes of one instant in two zones are equal for Python, and have other
    bytes: they are other keys of stores, in other partitions.

    >>> is_same_key(("x", 1), ("x", 1)), is_same_key(("x", 1), ("x", True))
    (True, False)
    """
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return _shown(one) == _shown(other)


def _shown(key: Any) -> str:
    if isinstance(key, tuple):
        return f"{type(key).__qualname__}({', '.join(map(_shown, key))})"
    if isinstance(key, (set, frozenset)):  # equal ones have other orders
        return f"{type(key).__qualname__}({', '.join(sorted(map(_shown, key)))})"
    return _ADDRESS.sub("", repr(key))
