"""Fields in JSON that a type does not have: msgspec refuses them for its own classes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import inspect

_WITH_FIELDS = inspect.DataclassType | inspect.TypedDictType | inspect.StructType


def unknown_field(info: inspect.Type, raw: Any, path: str = "") -> str:
    """Return the path of the first field in `raw` that its type does not have; "" if it has all."""
    if isinstance(info, inspect.UnionType):
        found = [unknown_field(each, raw, path) for each in info.types if _fits(each, raw)]
        return min(found, key=len, default="")
    if isinstance(raw, Mapping):
        if isinstance(info, _WITH_FIELDS):
            known = {field.encode_name: field.type for field in info.fields}
            tag = info.tag_field if isinstance(info, inspect.StructType) else None
            for name, each in raw.items():
                below = f"{path}.{name}" if path else name
                if name not in known and name != tag:
                    return below
                if name in known and (inner := unknown_field(known[name], each, below)):
                    return inner
        elif isinstance(info, inspect.DictType):
            return _first((info.value_type, each, f"{path}[{name!r}]") for name, each in raw.items())
    elif isinstance(raw, list):
        if isinstance(info, inspect.NamedTupleType):
            types = [field.type for field in info.fields]
        elif isinstance(info, inspect.TupleType):
            types = list(info.item_types)
        elif isinstance(info, inspect.CollectionType):
            types = [info.item_type] * len(raw)
        else:
            return ""
        entries = enumerate(zip(types, raw, strict=False))
        return _first((each, value, f"{path}[{index}]") for index, (each, value) in entries)
    return ""


def _first(parts: Any) -> str:
    return next(filter(None, (unknown_field(*part) for part in parts)), "")


def _fits(info: inspect.Type, raw: Any) -> bool:
    """Return whether an alternative of a union is that of an object or array."""
    if isinstance(raw, Mapping):
        if isinstance(info, inspect.StructType) and info.tag_field is not None:
            return bool(raw.get(info.tag_field) == info.tag)
        return isinstance(info, _WITH_FIELDS | inspect.DictType | inspect.AnyType)
    return isinstance(info, inspect.NamedTupleType | inspect.TupleType | inspect.CollectionType | inspect.AnyType)
