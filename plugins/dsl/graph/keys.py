"""Whether two keys are one, for verbs that compare keys and have no serde for them."""

from __future__ import annotations

from typing import Any


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
    # An object that shows its address only is not told apart from an equal one.
    shown: object = type(one).__repr__
    return shown is object.__repr__ or repr(one) == repr(other)
