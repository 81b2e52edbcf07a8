"""Spark's types for values of Python, nested ones too, and the conversions between them."""

from __future__ import annotations

import json
import reprlib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from penstock import ConfigError

from . import scalars
from .typed_serdes import Column, Unfit, of_part

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


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
        keys = [key if isinstance(key, str) else json.dumps(key) for key in keys]
        return self._dicts(array, keys, self.value.text(_inside(array, array.items)))

    def _dicts(self, array: Any, keys: list[Any], values: list[Any]) -> list[Any]:
        pairs = _groups(array, list(zip(keys, values, strict=True)))
        return [None if pair is None else dict(pair) for pair in pairs]

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

        return pyarrow.struct(
            [pyarrow.field(field.name, field.column.arrow(), field.nullable) for field in self.fields]
        )

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


_INTEGERS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_UNITS_US = (86_400_000_000, 3_600_000_000, 60_000_000, 1)
"""Microseconds of day, hour and minute; seconds have a fraction."""


def column_of(kind: DataType, where: str, *, as_key: bool = False) -> Column:
    """Return the column of a Spark type. `as_key`: its values are keys of a dict.

    Raises ConfigError, which begins with `where`, for a type that is not supported, with its path.
    """
    from pyspark.sql import types as spark

    name = kind.simpleString()
    if name in _INTEGERS:
        return scalars.IntegerColumn(name, _INTEGERS[name])
    if isinstance(kind, (spark.FloatType, spark.DoubleType)):
        return scalars.FloatColumn(name, 32 if isinstance(kind, spark.FloatType) else 64)
    if isinstance(kind, spark.BooleanType):
        return scalars.BooleanColumn()
    if isinstance(kind, spark.DecimalType):
        return scalars.DecimalColumn(name, kind.precision, kind.scale)
    # Spark reads char and varchar as string unless a setting keeps them, and pads and checks them itself.
    if isinstance(kind, spark.StringType) and not isinstance(kind, (spark.CharType, spark.VarcharType)):
        return scalars.TextColumn()
    if isinstance(kind, spark.BinaryType):
        return scalars.BinaryColumn()
    if isinstance(kind, (spark.TimestampType, spark.TimestampNTZType)):
        return scalars.TimestampColumn(name, isinstance(kind, spark.TimestampType))
    if isinstance(kind, spark.DateType):
        return scalars.DateColumn()
    if name.startswith("time("):
        return scalars.TimeColumn(name, kind.precision)  # type: ignore[attr-defined]
    if isinstance(kind, spark.DayTimeIntervalType):
        return scalars.IntervalColumn(name, _UNITS_US[kind.endField])
    if isinstance(kind, spark.NullType):
        return scalars.NullColumn()
    if isinstance(kind, spark.ArrayType):
        element = column_of(kind.elementType, f"{where}[]", as_key=as_key)
        return ArrayColumn(name, element, kind.containsNull, as_key)
    if isinstance(kind, spark.MapType):
        key = column_of(kind.keyType, f"{where}, keys", as_key=True)
        return MapColumn(name, key, column_of(kind.valueType, f"{where}[]"), kind.valueContainsNull)
    if isinstance(kind, spark.StructType):
        return _struct_of(kind, where, as_key=as_key)
    raise ConfigError(
        f"{where}: the type {name} is not supported in typed columns, because Python or Arrow has none like it; cast "
        "it to a type that has (string; int for an interval of months), or leave the column out"
    )


def _struct_of(kind: Any, where: str, *, as_key: bool) -> StructColumn:
    seen = set[str]()
    for field in kind.fields:
        if field.name in seen:
            raise ConfigError(f"{where}: the struct has several fields {field.name!r}; rename all but one")
        seen.add(field.name)
    return StructColumn(
        kind.simpleString(),
        tuple(
            Field(field.name, column_of(field.dataType, f"{where}.{field.name}", as_key=as_key), field.nullable)
            for field in kind.fields
        ),
        tuple(range(len(kind.fields))) if as_key else None,
    )


# ---------------------------------------------------------------------- classes


def fitted(column: Column, kind: Any, where: str, *, case_sensitive: bool = False) -> Column:
    """Return a column whose values the serde of `kind` converts: a struct for a NamedTuple is read as a tuple.

    Fields are found as Spark finds names: in any case, unless `case_sensitive`. Raises ConfigError, which begins with
    `where`, for a struct without a field that has no default in its class, or with several for one.
    """
    kind = _without_none(kind)
    origin, inner = get_origin(kind), get_args(kind)

    def part(column: Column, kind: Any, below: str) -> Column:
        return fitted(column, kind, f"{where}{below}", case_sensitive=case_sensitive)

    if isinstance(column, ArrayColumn) and inner:
        return replace(column, element=part(column.element, inner[0], "[]"))
    if isinstance(column, MapColumn) and len(inner) == 2:
        return replace(column, value=part(column.value, inner[1], "[]"))
    if not isinstance(column, StructColumn) or origin is not None or column.order is not None:
        return column
    declared = _declared_fields(kind)
    names = {each.name: each for each in declared}
    if not case_sensitive:
        column = _renamed(column, list(names), where)
    there = [field.name for field in column.fields]
    for each in declared:
        if each.name not in there and not each.has_default:
            raise ConfigError(
                f"{where}: the struct has no field {each.name!r}, which {kind.__qualname__} has without a default; it "
                f"has: {', '.join(there)}. Add it to the struct, or give it a default"
            )
    shaped = tuple(
        replace(field, column=part(field.column, names[field.name].kind, f".{field.name}"))
        if field.name in names
        else field
        for field in column.fields
    )
    if not _is_namedtuple(kind):
        return replace(column, fields=shaped)
    given = [name for name in names if name in there]
    if given != list(names)[: len(given)]:
        raise ConfigError(
            f"{where}: the struct has {', '.join(given)} of the fields of {kind.__qualname__}, which are "
            f"{', '.join(names)}; a NamedTuple needs all fields before the last one that is given: add them"
        )
    return replace(column, fields=shaped, order=tuple(there.index(name) for name in given))


def _renamed(column: StructColumn, names: Sequence[str], where: str) -> StructColumn:
    """Return a struct whose fields have the names of a class that are equal to theirs but for case."""
    renamed = {}
    for name in names:
        found = [
            field.name
            for field in column.fields
            if field.name.lower() == name.lower() and (field.name == name or field.name not in names)
        ]
        if len(found) > 1:
            raise ConfigError(
                f"{where}: the struct has several fields that Spark finds by the name {name!r}: {', '.join(found)}. "
                "Rename or drop all but one"
            )
        renamed.update(dict.fromkeys(found, name))
    fields = (replace(field, name=renamed.get(field.name, field.name)) for field in column.fields)
    return replace(column, fields=tuple(fields))


def type_of(kind: Any, where: str) -> DataType:
    """Return the Spark type of a class or annotation. Raises ConfigError, which begins with `where`, with its path."""
    from pyspark.sql import types as spark

    kind = _without_none(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (list, set, frozenset, Sequence) or (origin is tuple and len(inner) == 2 and inner[1] is ...):
        return spark.ArrayType(type_of(inner[0], f"{where}[]"), _may_be_none(inner[0]))
    if origin in (dict, Mapping):
        return spark.MapType(
            type_of(inner[0], f"{where}, keys"), type_of(inner[1], f"{where}[]"), _may_be_none(inner[1])
        )
    if isinstance(kind, type) and origin is None:
        simple = {
            bool: spark.BooleanType(), int: spark.LongType(), float: spark.DoubleType(), str: spark.StringType(),
            bytes: spark.BinaryType(), Decimal: spark.DecimalType(38, 18), datetime: spark.TimestampType(),
            date: spark.DateType(), timedelta: spark.DayTimeIntervalType(), UUID: spark.StringType(),
        }  # fmt: skip
        if hasattr(spark, "TimeType"):
            simple[time] = spark.TimeType()
        if kind in simple:
            return simple[kind]
        if issubclass(kind, Enum):
            (held, *others) = {type(each.value) for each in kind} or {str}
            if not others and held in (int, str):
                return simple[held]
        elif fields_of(kind):
            hints = get_type_hints(kind, include_extras=True)
            optional = getattr(kind, "__optional_keys__", ())  # of a TypedDict
            return spark.StructType(
                [
                    spark.StructField(
                        name,
                        type_of(hints[name], f"{where}.{name}"),
                        name in optional or _may_be_none(hints[name]),
                    )
                    for name in fields_of(kind) or ()
                ]
            )
    raise ConfigError(
        f"{where}: there is no Spark type for {getattr(kind, '__qualname__', kind)}; give the schema as text, such as "
        '"n long, at timestamp"'
    )


@dataclass(frozen=True)
class _Declared:
    """A field of a class by the name that its serde reads, with its type."""

    name: str
    kind: Any
    has_default: bool


def _declared_fields(kind: Any) -> list[_Declared]:
    """Return the fields of a class that its serde sets; nothing for another type."""
    if not isinstance(kind, type):
        return []
    hints = get_type_hints(kind, include_extras=True) if fields_of(kind) else {}
    if is_dataclass(kind):
        return [
            _Declared(field.name, hints[field.name], (field.default, field.default_factory) != (MISSING, MISSING))
            for field in fields(kind)
            if field.init
        ]
    if _is_namedtuple(kind):
        return [_Declared(name, hints[name], name in kind._field_defaults) for name in kind._fields]  # type: ignore[attr-defined]
    if is_typeddict(kind):
        # The set of required keys is wrong where annotations are text.
        optional = {name for name, each in hints.items() if get_origin(each) is NotRequired} | kind.__optional_keys__  # type: ignore[attr-defined]
        return [_Declared(name, each, name in optional) for name, each in hints.items()]
    if (names := getattr(kind, "__struct_encode_fields__", None)) is not None:  # msgspec's: it says itself what lacks
        return [_Declared(name, hints[own], True) for name, own in zip(names, kind.__struct_fields__, strict=True)]  # type: ignore[attr-defined]
    models = getattr(kind, "model_fields", {})  # pydantic's
    return [_Declared(each.alias or name, hints[name], not each.is_required()) for name, each in models.items()]


def _is_namedtuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_field_defaults")


def _may_be_none(kind: Any) -> bool:
    if get_origin(kind) in (Annotated, Required, NotRequired):
        return get_origin(kind) is NotRequired or _may_be_none(get_args(kind)[0])
    return get_origin(kind) in (Union, types.UnionType) and type(None) in get_args(kind)


def _without_none(kind: Any) -> Any:
    """Return X for `X | None` and for an annotated X, and any other type as it is."""
    if get_origin(kind) in (Annotated, Required, NotRequired):
        return _without_none(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        left = [each for each in get_args(kind) if each is not type(None)]
        if len(left) == 1 and len(left) < len(get_args(kind)):
            return _without_none(left[0])
    return kind
