"""The columns of types that have others inside: arrays, maps and structs."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from typing import Any, get_type_hints, is_typeddict

from .columns import Column, Unfit, of_part


@dataclass(frozen=True)
class ArrayColumn(Column):
    """Arrays: lists. `as_key`: a tuple, which a dict takes as a key. Sets are written in order."""

    name: str
    element: Column
    nullable: bool = True
    as_key: bool = False

    def arrow(self) -> Any:
        import pyarrow

        return pyarrow.list_(pyarrow.field("element", self.element.arrow(), self.nullable))

    def read(self, array: Any) -> list[Any]:
        try:
            found = _groups(array, self.element.read(_inside(array, array.values)))
        except Unfit as error:
            raise error.below("[]") from None
        return [None if each is None else tuple(each) for each in found] if self.as_key else found

    def text(self, array: Any) -> list[Any]:
        return _groups(array, self.element.text(_inside(array, array.values)))

    def plain(self, value: Any) -> Any:
        if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, (Sequence, set, frozenset)):
            raise self.unfit("a list", value)
        found = []
        for index, each in enumerate(value):
            try:
                found.append(of_part(self.element, self.nullable, each))
            except Unfit as error:
                raise error.below(f"[{index}]") from None
        return _in_order(found) if isinstance(value, (set, frozenset)) else found


@dataclass(frozen=True)
class MapColumn(Column):
    """Maps: dicts, with keys in Spark's order."""

    name: str
    key: Column
    value: Column
    nullable: bool = True

    def arrow(self) -> Any:
        import pyarrow

        return pyarrow.map_(self.key.arrow(), pyarrow.field("value", self.value.arrow(), self.nullable))

    def read(self, array: Any) -> list[Any]:
        try:
            keys = self.key.read(_inside(array, array.keys))
            values = self.value.read(_inside(array, array.items))
        except Unfit as error:
            raise error.below("[]") from None
        return self._dicts(array, keys, values)

    def text(self, array: Any) -> list[Any]:
        keys = self.key.text(_inside(array, array.keys))
        keys = [each if isinstance(each, str) else json.dumps(each) for each in keys]
        return self._dicts(array, keys, self.value.text(_inside(array, array.items)))

    def _dicts(self, array: Any, keys: list[Any], values: list[Any]) -> list[Any]:
        pairs = _groups(array, list(zip(keys, values, strict=True)))
        return [None if each is None else dict(each) for each in pairs]

    def plain(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise self.unfit("a dict", value)
        found = []
        for key, each in value.items():
            try:
                found.append((of_part(self.key, False, key), of_part(self.value, self.nullable, each)))
            except Unfit as error:
                raise error.below(f"[{reprlib.repr(key)}]") from None
        return found


@dataclass(frozen=True)
class Field:
    """A field of a struct."""

    name: str
    column: Column
    nullable: bool = True


@dataclass(frozen=True)
class StructColumn(Column):
    """Structs: dicts of all fields. With `order`, tuples of the fields at these indexes: a NamedTuple, a key of a dict.

    What is written may be a dict, a dataclass, a NamedTuple, or a model with the names of the fields. An absent field
    of a dict is null.
    """

    name: str
    fields: tuple[Field, ...]
    order: tuple[int, ...] | None = None

    def arrow(self) -> Any:
        import pyarrow

        return pyarrow.struct([pyarrow.field(each.name, each.column.arrow(), each.nullable) for each in self.fields])

    def read(self, array: Any) -> list[Any]:
        return self._rows(array, "read", self.order)

    def text(self, array: Any) -> list[Any]:
        return self._rows(array, "text", None)

    def _rows(self, array: Any, how: str, order: tuple[int, ...] | None) -> list[Any]:
        valid = array.drop_null() if array.null_count else array
        columns = []
        for field, part in zip(self.fields, valid.flatten(), strict=True):
            try:
                columns.append(getattr(field.column, how)(part))
            except Unfit as error:
                raise error.below(field.name) from None
        if order is not None:
            columns = [columns[index] for index in order]
        rows: list[Any] = list(zip(*columns, strict=True)) if columns else [()] * len(valid)
        if order is None:
            names = [field.name for field in self.fields]
            rows = [dict(zip(names, row)) for row in rows]
        if valid is array:
            return rows
        left = iter(rows)
        return [next(left) if each else None for each in array.is_valid().to_pylist()]

    @cached_property
    def _parts(self) -> dict[str, tuple[Column, bool, Callable[[Any], Any]]]:
        return {field.name: (field.column, field.nullable, field.column.plain) for field in self.fields}

    def plain(self, value: Any) -> Any:
        given = value if type(value) is dict else self._as_dict(value)
        parts = self._parts
        if not given.keys() <= parts.keys():
            extra = next(name for name in given if name not in parts)
            raise Unfit(
                f"the type {self.name} has no field {extra!r}, found {reprlib.repr(value)}",
                "leave it out, or add it to the schema",
            )
        found = {}
        get = given.get
        for name, (column, nullable, plain) in parts.items():
            part = get(name)
            try:
                found[name] = of_part(column, nullable, part) if part is None else plain(part)
            except Unfit as error:
                raise error.below(name) from None
        return found

    def _as_dict(self, value: Any) -> dict[str, Any]:
        names = fields_of(type(value))
        if isinstance(value, Mapping):
            return dict(value)
        if names is not None:
            return {name: getattr(value, name) for name in names}
        if self.order is not None and type(value) is tuple and len(value) == len(self.fields):
            return {field.name: part for field, part in zip(self.fields, value, strict=True)}
        raise self.unfit("a dict, a dataclass or a NamedTuple", value)


def _in_order(elements: list[Any]) -> list[Any]:
    """Return the elements of a set in an order that is the same in every process."""
    try:
        return sorted(elements)
    except TypeError:
        return sorted(elements, key=repr)


def fields_of(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass, NamedTuple, TypedDict, or model; None for another class."""
    return _fields_of(kind)


@cache
def _fields_of(kind: Any) -> tuple[str, ...] | None:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    if is_typeddict(kind):
        return tuple(get_type_hints(kind))
    # In this order: NamedTuple, msgspec.Struct, pydantic.
    for name in ("_fields", "__struct_fields__", "model_fields"):
        if (found := getattr(kind, name, None)) is not None:
            return tuple(found)
    return None


def _inside(array: Any, inner: Any) -> Any:
    """Return the part of a list's or map's child array that the lists of this slice have."""
    offsets = array.offsets
    return inner.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py())


def _groups(array: Any, values: list[Any]) -> list[Any]:
    """Return for each list its part of the values, None for null."""
    bounds = array.offsets.to_pylist()
    first = bounds[0]
    valid = array.is_valid().to_pylist()
    return [
        values[start - first : end - first] if is_valid else None
        for start, end, is_valid in zip(bounds, bounds[1:], valid, strict=False)
    ]
