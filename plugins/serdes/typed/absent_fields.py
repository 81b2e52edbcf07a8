"""Fields of dataclasses that were absent: in a key they are written with their defaults, as in equal ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, time
from decimal import Decimal
from types import MemberDescriptorType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from .set_order import SETS, fitting, inside, of_items, of_value, rank


def has_defaults_in_class(info: inspect.Type) -> bool:
    """Return whether a type is a dataclass whose values, when they are read, may lack attributes.

    msgspec sets none for an absent field with a default: the class has the default, as an attribute of its own.
    """
    if not isinstance(info, inspect.DataclassType):
        return False
    own = [(each, getattr(info.cls, each.name, None)) for each in info.fields if each.default is not msgspec.NODEFAULT]
    return any(not isinstance(found, MemberDescriptorType) for _, found in own)  # those of slots are always set


def names_in_order(info: inspect.DataclassType) -> tuple[str, ...]:
    """Return the fields of a dataclass as they are written; `info` has those with a default last."""
    kind: Any = getattr(info.cls, "__origin__", info.cls)  # of a generic class
    names = {each.name for each in info.fields}
    return tuple(each.name for each in fields(kind) if each.name in names)


_NATURAL = (bytes, date, datetime, time, Decimal, UUID)


def to_builtins(info: inspect.Type, value: Any) -> Any:
    """Return a value in dicts, lists and Python's own types, with all fields of its dataclasses."""
    plain = msgspec.to_builtins(value, builtin_types=_NATURAL)
    return _complete(info, plain, lambda default: msgspec.to_builtins(default, builtin_types=_NATURAL), False)


def with_all_fields(info: inspect.Type, plain: Any) -> Any:
    """Return the JSON data of a value, with the defaults of absent fields, in the order of the fields."""
    return _complete(info, plain, _in_json, True)


def _in_json(default: Any) -> Any:
    return msgspec.to_builtins(default, str_keys=True, order="deterministic")


def _complete(info: inspect.Type, plain: Any, of_default: Callable[[Any], Any], sorts: bool) -> Any:
    if isinstance(info, inspect.Metadata):
        return _complete(info.type, plain, of_default, sorts)
    if isinstance(info, inspect.UnionType):
        return _complete(fitting(info, plain), plain, of_default, sorts)
    if isinstance(plain, list | tuple):
        types = of_items(info, plain)
        parts = [_complete(each, part, of_default, sorts) for each, part in zip(types, plain, strict=True)]
        # Without the defaults they may have been in another order.
        is_sorted = sorts and isinstance(info, SETS) and any(map(has_defaults_in_class, inside(info.item_type, set())))
        return sorted(parts, key=rank) if is_sorted else parts
    if not isinstance(plain, dict):
        return plain
    made = {name: _complete(of_value(info, name), each, of_default, sorts) for name, each in plain.items()}
    if not isinstance(info, inspect.DataclassType):
        return made
    defaults = {
        each.name: _complete(each.type, of_default(each.default), of_default, sorts)
        for each in info.fields
        if each.name not in made and each.default is not msgspec.NODEFAULT
    }
    return {name: (made | defaults)[name] for name in names_in_order(info) if name in made or name in defaults}
