"""What a serde has written, compared with what it reads back: what JSON, or a rule of a type, would lose."""

from __future__ import annotations

import enum
import math
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from decimal import Decimal
from typing import Any, get_args, get_type_hints, is_typeddict

import msgspec

_TEXT = (str, bytes, bytearray, memoryview)
_ABSENT = object()


def check_same(value: Any, again: Any) -> None:
    """Check that `again`, which was read from the bytes of `value`, has all that is in it.

    A list may come back as a tuple, and an int as a float that is equal. Raises ValueError with the path of the first
    field that differs.
    """
    for path, was, now in _differences(value, again, ""):
        named = path.removeprefix(".") or "the value"
        if isinstance(was, float) and not math.isfinite(was) and not isinstance(now, float):
            raise ValueError(f"{named} is {was}, which JSON does not have")
        shown = "nothing" if now is _ABSENT else reprlib.repr(now)
        raise ValueError(f"{named} is {reprlib.repr(was)}, and {shown} would be read back")


def lost_field(data: Any, kept: Any, path: str = "") -> str:
    """Return the path of the first field in JSON data that other JSON data, `kept`, lacks; "" if it has all.

    >>> lost_field({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]})
    'a[0].c'
    """
    if isinstance(data, Mapping) and isinstance(kept, Mapping):
        for name, each in data.items():
            below = f"{path}.{name}" if path else str(name)
            if name not in kept:
                return below
            if found := lost_field(each, kept[name], below):
                return found
    elif isinstance(data, list | tuple) and isinstance(kept, list | tuple):
        pairs = enumerate(zip(data, kept, strict=False))
        return next(filter(None, (lost_field(*pair, f"{path}[{index}]") for index, pair in pairs)), "")
    return ""


def equality_is_exact(kind: Any) -> bool:
    """Return whether `==` compares all fields of values of a type: no class inside has an equality of its own."""
    waiting: list[Any] = [kind]
    seen: dict[int, Any] = {}  # keeps them: another one may get the id of one that is gone
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        waiting += get_args(each)
        if each is time:  # one in a zone is equal to one without
            return False
        if not isinstance(each, type) or get_args(each) or issubclass(each, enum.Enum):
            continue
        model_fields = getattr(each, "__pydantic_fields__", None)
        if model_fields is None and not any(vars(base).get("__annotations__") for base in each.__mro__):
            continue
        if not is_typeddict(each) and not _compares_fields(each):
            return False
        try:
            found = {name: field.annotation for name, field in (model_fields or {}).items()} or get_type_hints(each)
        except (NameError, TypeError):
            return False
        waiting += found.values()
    return True


def field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields that values of a class have written; None for a class without fields."""
    model_fields = getattr(kind, "__pydantic_fields__", None)
    if model_fields is not None:
        return tuple(name for name, field in model_fields.items() if not field.exclude)
    if is_dataclass(kind):
        return tuple(each.name for each in fields(kind))
    return getattr(kind, "__struct_fields__", None)


def _compares_fields(kind: Any) -> bool:
    equal = kind.__eq__
    if is_dataclass(kind):  # `dataclass` makes the method from text
        made = getattr(getattr(equal, "__code__", None), "co_filename", "") == "<string>"
        return made and all(field.compare for field in fields(kind))
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__struct_config__.eq and equal is msgspec.Struct.__eq__)
    if hasattr(kind, "__pydantic_fields__"):
        return bool(equal.__module__ == "pydantic.main")
    return equal is tuple.__eq__


def _differences(value: Any, again: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each part of `value` that `again` lacks or has otherwise, with both parts."""
    names = field_names(type(value))
    if names is not None:
        if type(value) is not type(again):
            yield path, value, again
            return
        for name in names:
            yield from _differences(getattr(value, name, None), getattr(again, name, None), f"{path}.{name}")
        extra = getattr(value, "__pydantic_extra__", None)
        if extra:
            yield from _differences(extra, again.__pydantic_extra__, path)
    elif isinstance(value, Mapping) and isinstance(again, Mapping):
        for key, each in value.items():
            yield from _differences(each, again.get(key, _ABSENT), f"{path}.{key}")
        for key in again.keys() - value.keys():
            yield f"{path}.{key}", _ABSENT, again[key]
    elif isinstance(value, Set) and isinstance(again, Set):
        found = {repr(each) for each in again}  # a nan, and what has no equality of its own, is not found by its hash
        lost = [each for each in value if each not in again and repr(each) not in found]
        if lost or len(value) != len(again):
            yield path, lost[0] if lost else value, _only(again, value) if lost else again
    elif _is_sequence(value) and _is_sequence(again) and len(value) == len(again):
        for index, (each, other) in enumerate(zip(value, again, strict=True)):
            yield from _differences(each, other, f"{path}[{index}]")
    elif not _same(value, again):
        yield path, value, again


def _only(those: Collection[Any], others: Collection[Any]) -> Any:
    return next((each for each in those if each not in others), _ABSENT)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, _TEXT)


def _same(value: Any, again: Any) -> bool:
    if isinstance(value, Decimal) and isinstance(again, Decimal):
        return str(value) == str(again) or value == again
    if isinstance(value, time) and isinstance(again, time) and (value.tzinfo is None) != (again.tzinfo is None):
        return False
    if value == again:
        return True
    if type(value) is not type(again):
        return False
    if isinstance(value, (datetime, time)):  # in an hour that a change of clocks repeats, zones are never equal
        is_same_clock = value.replace(tzinfo=None) == again.replace(tzinfo=None)
        return bool(is_same_clock and value.utcoffset() == again.utcoffset())
    if value != value:  # nan
        return bool(again != again)
    # Values of a class without an equality of its own.
    no_equality: Any = object.__eq__
    return type(value).__eq__ is no_equality and hasattr(value, "__dict__") and vars(value) == vars(again)
