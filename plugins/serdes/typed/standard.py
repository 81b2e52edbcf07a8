"""StandardSerde: dataclasses, NamedTuples, TypedDicts, enums and msgspec types, as msgspec writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from penstock import ConfigError

from .base import TypedSerde, kind_name
from .json_schemas import OMITTED, ORDER, ZONE, essence, of_times
from .set_order import (
    default_in_order,
    has_defaults_in_class,
    has_sets_inside_sets,
    in_order,
    inside,
    names_in_order,
    with_all_fields,
)
from .unions import Schema

T = TypeVar("T")
_NATURAL = (bytes, date, datetime, time, timedelta, Decimal)
"""Types whose values a row has as they are."""
_CACHE = "__msgspec_cache__"
_KEYS: Mapping[type[inspect.Type], Schema] = {
    inspect.AnyType: {},
    inspect.StrType: {"type": "string"},
    inspect.IntType: {"type": "integer"},
    inspect.FloatType: {"type": "number"},
    inspect.DecimalType: {"type": "string", "format": "decimal"},
    inspect.BytesType: {"type": "string", "contentEncoding": "base64"},
    inspect.DateTimeType: {"type": "string", "format": "date-time"},
    inspect.DateType: {"type": "string", "format": "date"},
    inspect.TimeType: {"type": "string", "format": "time"},
    inspect.TimeDeltaType: {"type": "string", "format": "duration"},
    inspect.UUIDType: {"type": "string", "format": "uuid"},
    inspect.EnumType: {},
    inspect.LiteralType: {},
}
"""The types that the keys of a dict may have, since their values have a text, and the schemas of these texts."""
_LIMITS = {
    "pattern": "pattern",
    "min_length": "minLength",
    "max_length": "maxLength",
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "tz": ZONE,
}
_AT = re.compile(r"(.*?)(?: - at (?:key in )?`\$\.?(.*)`)?$", re.DOTALL)


class StandardSerde(TypedSerde[T]):
    """Values of a type that msgspec converts. Elements of sets and keys of dicts are written in order."""

    def __init__(self, kind: Any, *, refuses_extra: bool) -> None:
        try:
            self._info = msgspec.inspect.type_info(kind)
            for each in inside(self._info, set()):
                if isinstance(each, msgspec.inspect.CustomType):  # msgspec itself says so when a value is read
                    raise TypeError(f"JSON has nothing for {kind_name(each.cls)}")
                if hasattr(each, "key_type") and not any(type(key) in _KEYS for key in _types(each.key_type)):
                    shown = type(each.key_type).__name__.removesuffix("Type")
                    raise TypeError(f"the keys of a dict are text in JSON, so they cannot be {shown} values")
            self._encoder = msgspec.json.Encoder(order="deterministic")
            # The encoder puts keys in order only if all of them are text.
            self._has_other_keys = any(
                not isinstance(getattr(each, "key_type", None), inspect.StrType | None)
                for each in inside(self._info, set())
            )
            self._sorts_sets = has_sets_inside_sets(self._info)
            # A dataclass that is read has no attributes for absent fields: its class has their defaults.
            self._lacks_fields = any(map(has_defaults_in_class, inside(self._info, set())))
            self._decoder = msgspec.json.Decoder(kind)
            super().__init__(kind, refuses_extra=refuses_extra)
        except (TypeError, NameError, AttributeError) as error:
            raise ConfigError(f"of({kind_name(kind)}): {error}; {_advice(error)}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        self._forget()
        return super().__reduce__()

    def _forget(self) -> None:
        """Delete what msgspec has put into the classes: it cannot be pickled, and a class of a script has to be."""
        for each in inside(self._info, set()):
            kind = getattr(each, "cls", None)
            if kind is not None and _CACHE in vars(kind):
                delattr(kind, _CACHE)

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[T | None]:
        if self.refuses_extra:
            return super().deserialize_column(column)
        decode = self._decoder.decode
        return [None if data is None else decode(data) for data in column]

    def _write_key(self, value: T) -> bytes:
        data = self._write(value)
        if not self._lacks_fields:
            return data
        encoder: Any = self._encoder if self._has_other_keys else msgspec.json
        complete: bytes = encoder.encode(with_all_fields(self._info, msgspec.json.decode(data)))
        return complete

    def _write(self, value: T) -> bytes:
        if not self._sorts_sets:
            try:
                return self._write_as_python_sorts(value)
            except TypeError:
                pass  # elements of a set that Python does not compare
        encoder: Any = self._encoder if self._has_other_keys else msgspec.json
        data: bytes = encoder.encode(in_order(self._info, msgspec.to_builtins(value, str_keys=True)))
        return data

    def _write_as_python_sorts(self, value: T) -> bytes:
        if self._has_other_keys:
            return self._encoder.encode(msgspec.to_builtins(value, str_keys=True, order="deterministic"))
        return self._encoder.encode(value)

    def _read(self, data: bytes) -> T:
        value: T = self._decoder.decode(data)
        if self.refuses_extra and (path := unknown_field(self._info, msgspec.json.decode(data))):
            raise msgspec.ValidationError(f"Object contains unknown field - at `$.{path}`")
        return value

    def _convert(self, rows: Sequence[Any]) -> list[T | None]:
        # All at once: msgspec looks at the type anew in each call.
        try:
            if len(rows) == 1 and rows[0] is not None:  # its error has the path in the value alone
                values: list[T | None] = [msgspec.convert(rows[0], self.value_type, builtin_types=_NATURAL)]
            else:
                values = msgspec.convert(rows, list[self.value_type | None], builtin_types=_NATURAL)  # type: ignore[name-defined]
        finally:
            self._forget()
        if self.refuses_extra and (path := next(filter(None, (unknown_field(self._info, row) for row in rows)), "")):
            raise msgspec.ValidationError(f"Object contains unknown field - at `$.{path}`")
        return values

    def _said(self, error: Exception) -> str:
        match = _AT.match(str(error))
        message, path = match.groups() if match else (str(error), None)
        message = message.replace("`", "'").replace(", got ", ", found ")
        return f"{path}: {message}" if path else message

    def _has_other_bytes_of_equals(self) -> bool:
        # An int where a float or a Decimal is declared is written as an int, and read as what is declared. `float` and
        # `Decimal` alone take no int.
        parts = (each for each in inside(self._info, set()) if each is not self._info)
        return any(isinstance(each, inspect.FloatType | inspect.DecimalType) for each in parts)

    def _essence(self) -> dict[str, Any]:
        return self._essence_with_defaults(lambda part: isinstance(part, inspect.StructType) and _omits_defaults(part))

    def _essence_to_read(self) -> Schema:
        return self._essence_with_defaults(lambda part: True)

    def _essence_with_defaults(self, has_them: Callable[[inspect.Type], bool]) -> dict[str, Any]:
        schema = self.json_schema()
        for kind, part in self._definitions(schema):
            for each, field in _fields_in(part, kind):
                if "prefixItems" in part:
                    each["title"] = field.name
                _add_details(each, field.type)
            if isinstance(kind, inspect.DataclassType):  # the schema has fields with a default last
                part[ORDER] = [*names_in_order(kind)]
            if isinstance(kind, inspect.TypedDictType):  # as a dict it is written in the order of its keys
                part[ORDER] = sorted(part.get("required", ()))
            if has_them(kind):
                defaults = {field.encode_name: field.default for field in kind.fields}
                for name, each in part.get("properties", {}).items():
                    if "default" in each:
                        own = each["default"] if defaults[name] is msgspec.NODEFAULT else defaults[name]
                        info = next(field.type for field in kind.fields if field.encode_name == name)
                        each[OMITTED] = default_in_order(info, own, sorts_sets=self._sorts_sets)
        if not isinstance(self._info, _OF_FIELDS):
            _add_details(schema, self._info)
        return of_times(essence(schema))

    def _definitions(self, schema: Schema) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield each class with fields, as msgspec describes it, and its definition in `schema`."""
        kinds: list[Any] = [each for each in inside(self._info, set()) if isinstance(each, _OF_FIELDS)]
        # The names of definitions: those of generic classes, and of two of one name, are made up.
        named, _ = msgspec.json.schema_components([self.value_type, *(each.cls for each in kinds)])
        self._forget()
        for each, reference in zip(kinds, named[1:], strict=True):
            yield each, schema["$defs"][reference["$ref"].rpartition("/")[2]]

    def _lost_field(self, plain: Any, key: T) -> str:
        return unknown_field(self._info, msgspec.json.decode(self._text_of(plain)))

    def _sorts_sets_by_text(self) -> bool:
        return self._sorts_sets

    def _writes_defaults_in_keys(self) -> bool:
        return self._lacks_fields

    def json_schema(self) -> Schema:
        schema = msgspec.json.schema(self.value_type)
        for kind, part in self._definitions(schema):
            for each, field in _fields_in(part, kind):
                if "default" in each and field.default is not msgspec.NODEFAULT:
                    each["default"] = default_in_order(field.type, field.default, sorts_sets=self._sorts_sets)
        self._forget()  # here, because this is the last question about the type when a serde is made
        return schema


def _omits_defaults(part: inspect.StructType) -> bool:
    kind: Any = getattr(part.cls, "__origin__", part.cls)
    return bool(kind.__struct_config__.omit_defaults)


def _advice(error: Exception) -> str:
    if isinstance(error, NameError):
        return "name types that the module has at its top, where the class is declared"
    return (
        "expected a dataclass, NamedTuple, TypedDict, enum, msgspec.Struct or pydantic model, or a list, dict or the "
        "like of them"
    )


_WITH_FIELDS = inspect.DataclassType | inspect.TypedDictType | inspect.StructType
_OF_FIELDS = _WITH_FIELDS | inspect.NamedTupleType
_TIMES = inspect.DateTimeType | inspect.TimeType
"""Types of which msgspec's schemas say only that they are text, unless a time zone is required."""


def unknown_field(info: inspect.Type, raw: Any, path: str = "") -> str:
    """Return the path of the first field in `raw` that its type does not have; "" if it has all."""
    if isinstance(info, inspect.Metadata):
        return unknown_field(info.type, raw, path)
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
    elif isinstance(raw, list | tuple):
        types = _types_of_items(info, len(raw))
        entries = enumerate(zip(types, raw, strict=False))
        found_inside = _first((each, value, f"{path}[{index}]") for index, (each, value) in entries)
        if not found_inside and isinstance(info, inspect.StructType) and len(raw) > len(types):
            return f"{path}[{len(types)}]"  # msgspec refuses such of a NamedTuple, and ignores them here
        return found_inside
    return ""


def _types_of_items(info: inspect.Type, count: int) -> list[inspect.Type]:
    """Return the types that the entries of an array have."""
    if isinstance(info, inspect.NamedTupleType | inspect.StructType):
        tag: list[inspect.Type] = [inspect.AnyType()] if getattr(info, "tag", None) is not None else []
        return tag + [field.type for field in info.fields]
    if isinstance(info, inspect.TupleType):
        return list(info.item_types)
    return [info.item_type] * count if isinstance(info, inspect.CollectionType) else []


def _first(parts: Any) -> str:
    return next(filter(None, (unknown_field(*part) for part in parts)), "")


def _fits(info: inspect.Type, raw: Any) -> bool:
    """Return whether an alternative of a union is that of an object or array."""
    if isinstance(info, inspect.Metadata):
        return _fits(info.type, raw)
    is_list = isinstance(raw, list | tuple)
    if isinstance(info, inspect.StructType) and (is_list or isinstance(raw, Mapping)):
        tag = None if info.tag is None else (raw[0] if raw else None) if is_list else raw.get(info.tag_field)
        return bool(info.array_like == is_list and tag == info.tag)
    if isinstance(raw, Mapping):
        return isinstance(info, _WITH_FIELDS | inspect.DictType | inspect.AnyType)
    return isinstance(info, inspect.NamedTupleType | inspect.TupleType | inspect.CollectionType | inspect.AnyType)


def _types(info: inspect.Type) -> tuple[inspect.Type, ...]:
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _fields_in(part: Schema, kind: Any) -> Iterator[tuple[Any, inspect.Field]]:
    """Yield the schema of each field in the definition of a class."""
    if "prefixItems" in part:  # the tag of a Struct is before its fields
        yield from zip(reversed(part["prefixItems"]), reversed(kind.fields), strict=False)
    elif "properties" in part:
        yield from ((part["properties"][field.encode_name], field) for field in kind.fields)


def _add_details(schema: Any, info: inspect.Type) -> None:
    """Put the keys of dicts, and the formats of datetimes and times, into the schema of a type, which lacks them.

    Classes with fields are definitions of their own, and a union has one dict at most, one array and one text.
    """
    if isinstance(info, inspect.Metadata):
        _add_details(schema, info.type)
    elif isinstance(info, inspect.UnionType):
        for each in info.types:
            inner: Any = each.type if isinstance(each, inspect.Metadata) else each
            kind = "object" if hasattr(inner, "key_type") else "string" if isinstance(inner, _TIMES) else "array"
            for part in schema.get("anyOf", ()):
                if part.get("type") == kind:
                    _add_details(part, inner)
    elif isinstance(info, _TIMES):
        schema.update(_key_schema(info))
    elif hasattr(info, "key_type") and hasattr(info, "value_type"):
        schema.pop("propertyNames", None)  # what it has depends on msgspec's version
        schema["keys"] = _key_schema(info.key_type)
        _add_details(schema.get("additionalProperties"), info.value_type)
    elif isinstance(info, inspect.TupleType):
        for part, each in zip(schema.get("prefixItems", ()), info.item_types, strict=False):
            _add_details(part, each)
    elif isinstance(info, inspect.CollectionType):
        _add_details(schema.get("items"), info.item_type)


def _key_schema(info: inspect.Type) -> Schema:
    if isinstance(info, inspect.UnionType):
        return {"anyOf": [_key_schema(each) for each in info.types]}
    if isinstance(info, inspect.EnumType):
        return {"enum": [each.value for each in info.cls]}
    if isinstance(info, inspect.LiteralType):
        return {"enum": list(info.values)}
    limits = {name: getattr(info, limit, None) for limit, name in _LIMITS.items()}
    return {**_KEYS.get(type(info), {}), **{name: limit for name, limit in limits.items() if limit is not None}}
