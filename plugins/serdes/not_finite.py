"""Numbers that JSON does not have: nan and infinity, which libraries write as null."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def check_finite(value: Any, data: bytes, again: Any = None) -> None:
    """Check that no nan or infinity in `value` became null in its JSON text `data`. Raises ValueError with the path.

    `again`: what was read from the text, of the type of `value`; None where it has none of these numbers.
    """
    if b"null" not in data:
        return
    for path, number in _not_finite(value, again, ""):
        raise ValueError(f"{path.removeprefix('.') or 'the value'} is {number}, which JSON does not have")


def _not_finite(value: Any, again: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield the path of each nan or infinity in `value` that is no float in `again`."""
    if isinstance(value, float):
        if not math.isfinite(value) and not isinstance(again, float):
            yield path, value
    elif isinstance(value, Mapping):
        by_key = again if isinstance(again, Mapping) else {}
        for key, each in value.items():
            yield from _not_finite(each, by_key.get(key), f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        others = again if isinstance(again, (list, tuple)) and len(again) == len(value) else [None] * len(value)
        for index, (each, other) in enumerate(zip(value, others, strict=True)):
            yield from _not_finite(each, other, f"{path}[{index}]")
    elif isinstance(value, (set, frozenset)):
        by_text = {repr(each): each for each in again} if isinstance(again, (set, frozenset)) else {}
        for each in value:  # a nan is not found by its hash
            yield from _not_finite(each, by_text.get(repr(each)), path)
    else:
        for name in _fields(type(value)):
            yield from _not_finite(getattr(value, name, None), getattr(again, name, None), f"{path}.{name}")


def _fields(kind: Any) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(each.name for each in fields(kind))
    # msgspec's, pydantic's
    return tuple(getattr(kind, "__struct_fields__", None) or getattr(kind, "model_fields", None) or ())
