"""One form for equal values: sets in one order, and fields that were absent with their defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import date, datetime, time
from decimal import Decimal
from types import MemberDescriptorType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

SETS = inspect.SetType | inspect.FrozenSetType
_OF_NAMES = inspect.StructType | inspect.DataclassType
_ANY = inspect.AnyType()


def inside(part: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a type as msgspec describes it, and all types inside it, each once."""
    if isinstance(part, tuple):
        for each in part:
            yield from inside(each, seen)
    elif isinstance(part, msgspec.inspect.Field):
        yield from inside(part.type, seen)
    elif isinstance(part, msgspec.inspect.Type) and id(part) not in seen:
        seen.add(id(part))
        yield part
        for name in part.__struct_fields__:
            yield from inside(getattr(part, name), seen)


def has_sets_inside_sets(info: inspect.Type) -> bool:
    """Return whether a type has sets whose elements have sets.

    Python compares sets by their elements (`<` is a subset), so `sorted` leaves them in any order.
    """
    sets = [each for each in inside(info, set()) if isinstance(each, SETS)]
    return any(isinstance(part, SETS) for each in sets for part in inside(each.item_type, set()))


def in_order(info: inspect.Type, plain: Any) -> Any:
    """Return data that `msgspec.to_builtins` made of a value, with the lists of sets, and dicts, in order.

    Elements are in the order of what is written: null, numbers, text, lists, objects. Fields keep theirs.
    """
    if isinstance(info, inspect.Metadata):
        return in_order(info.type, plain)
    if isinstance(info, inspect.UnionType):
        return in_order(fitting(info, plain), plain)
    if isinstance(plain, list | tuple):
        parts = [in_order(each, part) for each, part in zip(of_items(info, plain), plain, strict=True)]
        return sorted(parts, key=rank) if isinstance(info, SETS) else parts
    if isinstance(plain, dict):
        made = {name: in_order(of_value(info, name), each) for name, each in plain.items()}
        return made if isinstance(info, _OF_NAMES) else dict(sorted(made.items()))
    return plain


def rank(plain: Any) -> tuple[int, Any]:
    """Return a key to sort JSON data by.

    >>> sorted([[2], "b", 10, None, "a b", 2, [1, 2], "a", {"x": 1}], key=rank)
    [None, 2, 10, 'a', 'a b', 'b', [1, 2], [2], {'x': 1}]
    """
    if plain is None:
        return 0, 0
    if isinstance(plain, str):
        return 2, plain
    if isinstance(plain, Mapping):
        return 4, [(name, rank(each)) for name, each in plain.items()]
    return (3, [rank(each) for each in plain]) if isinstance(plain, list | tuple) else (1, plain)


def default_in_order(info: inspect.Type, default: Any, *, sorts_sets: bool) -> Any:
    """Return the JSON data of a default, the same in each process. `sorts_sets`: Python cannot sort its sets."""
    if not sorts_sets:
        try:
            return msgspec.to_builtins(default, str_keys=True, order="deterministic")
        except TypeError:
            pass  # elements that Python does not compare
    return in_order(info, msgspec.to_builtins(default, str_keys=True))


def fitting(info: inspect.UnionType, plain: Any) -> inspect.Type:
    """Return the alternative of a union that an object or array is of; any for other data."""
    return next((each for each in info.types if _fits(each, plain)), _ANY)


def of_items(info: Any, plain: Sequence[Any]) -> Sequence[inspect.Type]:
    """Return the type of each entry of a list."""
    if isinstance(info, inspect.NamedTupleType | inspect.StructType):  # the tag of a Struct is before its fields
        types = [field.type for field in info.fields]
        return [_ANY] * (len(plain) - len(types)) + types
    if isinstance(info, inspect.TupleType):
        return info.item_types
    return [getattr(info, "item_type", _ANY)] * len(plain)


def of_value(info: Any, name: str) -> inspect.Type:
    """Return the type of a value in an object."""
    found: inspect.Type = next((each.type for each in getattr(info, "fields", ()) if each.encode_name == name), _ANY)
    return getattr(info, "value_type", found)


def _fits(info: inspect.Type, plain: Any) -> bool:
    """Return whether data is that of an alternative of a union."""
    if isinstance(info, inspect.Metadata):
        return _fits(info.type, plain)
    is_list = isinstance(plain, list | tuple)
    if isinstance(info, inspect.StructType) and info.tag is not None and isinstance(plain, list | tuple | dict):
        tag = plain.get(info.tag_field) if isinstance(plain, dict) else plain[0]
        return info.array_like == is_list and bool(tag == info.tag)
    if is_list:
        is_array = isinstance(info, inspect.NamedTupleType | inspect.TupleType | inspect.CollectionType)
        return is_array or (isinstance(info, inspect.StructType) and info.array_like)
    is_object = isinstance(info, _OF_NAMES | inspect.TypedDictType | inspect.DictType)
    return isinstance(plain, dict) and is_object


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
