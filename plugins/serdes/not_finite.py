"""Numbers that JSON does not have: nan and infinity, which libraries write as null."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .typed.read_back import field_names


def check_finite(value: Any, data: bytes) -> None:
    """Check that no nan or infinity in `value` became null in its JSON text `data`. Raises ValueError with the path."""
    if b"null" not in data:
        return
    for path, number in _not_finite(value, ""):
        raise ValueError(f"{path.removeprefix('.') or 'the value'} is {number}, which JSON does not have")


def _not_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield the path of each nan or infinity in `value`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _not_finite(each, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _not_finite(each, f"{path}[{index}]")
    elif isinstance(value, (set, frozenset)):
        for each in value:
            yield from _not_finite(each, path)
    else:
        for name in field_names(type(value)) or ():
            yield from _not_finite(getattr(value, name, None), f"{path}.{name}")
