"""Types of columns: which types of Arrow an Iceberg table has, and how pyiceberg reads those back."""

from __future__ import annotations

from typing import Any

from penstock import ConfigError
from penstock.contrib.arrow.library import load as load_arrow

_UTC = ("UTC", "+00:00", "Etc/UTC", "Z")


def table_schema(where: str, schema: Any) -> Any:
    """Return a schema of Arrow with the types of an Iceberg table. Raises ConfigError for a type that it cannot keep.

    Smaller numbers and larger units of time become what Iceberg has: int32, microseconds.
    """
    pa = load_arrow()
    return pa.schema([_field(where, field.name, field) for field in schema])


def _field(where: str, label: str, field: Any, name: str | None = None) -> Any:
    return load_arrow().field(name or field.name, _type(where, label, field.type), nullable=field.nullable)


def _type(where: str, label: str, type_: Any) -> Any:
    pa = load_arrow()
    types = pa.types

    def refused(why: str) -> ConfigError:
        return ConfigError(f"{where}: column {label!r} is of type {type_}, {why}")

    if types.is_unsigned_integer(type_):
        raise refused("and Iceberg has no unsigned numbers: write 'int64', or 'decimal(20, 0)'")
    if types.is_signed_integer(type_):
        return type_ if type_ == pa.int64() else pa.int32()
    if types.is_float16(type_):
        raise refused("and Iceberg has no such numbers: write 'float'")
    if types.is_decimal256(type_) or (types.is_decimal(type_) and type_.scale < 0):
        raise refused("and Iceberg has decimals of at most 38 digits, none below 0 behind the point")
    if types.is_timestamp(type_):
        if type_.unit == "ns":
            raise refused("and tables of Iceberg's format 2 have microseconds: write 'timestamp[us, tz=UTC]'")
        if type_.tz not in (None, *_UTC):
            raise refused("and Iceberg has instants only in UTC: write 'timestamp', which takes all zones")
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if types.is_time(type_) and type_ != pa.time64("us"):
        raise refused("and Iceberg has times in microseconds: write 'time64[us]'")
    if types.is_duration(type_):
        raise refused("and Iceberg has no such type: write 'int64'")
    if types.is_string(type_):
        return pa.large_string()
    if types.is_binary(type_):
        return pa.large_binary()
    if types.is_list(type_) or types.is_large_list(type_):
        return pa.large_list(_field(where, f"{label}.element", type_.value_field, "element"))
    if types.is_struct(type_):
        return pa.struct([_field(where, f"{label}.{field.name}", field) for field in type_])
    if types.is_map(type_):
        key = _field(where, f"{label}.key", type_.key_field, "key")
        return pa.map_(key, _field(where, f"{label}.value", type_.item_field, "value"))
    return type_


def row_schema(schema: Any) -> Any:
    """Return the schema of rows for a schema of a table: a list of structs, or a map to structs, may not be null.

    pyiceberg writes such a null as an empty list (findings/iceberg_null_list_of_structs.sh).
    """
    pa = load_arrow()
    return pa.schema([_strict(field) for field in schema])


def _strict(field: Any) -> Any:
    pa = load_arrow()
    types, type_ = pa.types, field.type
    nullable = field.nullable
    if types.is_large_list(type_):
        nullable &= not types.is_struct(type_.value_type)
        type_ = pa.large_list(_strict(type_.value_field))
    elif types.is_map(type_):
        nullable &= not types.is_struct(type_.item_type)
        type_ = pa.map_(type_.key_field, _strict(type_.item_field))
    elif types.is_struct(type_):
        type_ = pa.struct([_strict(each) for each in type_])
    return pa.field(field.name, type_, nullable=nullable)
