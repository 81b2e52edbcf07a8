"""Columns: which types of Arrow a Delta table stores exactly, and whether the columns of a table take the rows.

By itself deltalake stores unsigned integers as signed ones, cuts nanoseconds, and reads some values of partition
columns back as others, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from penstock import ConfigError, SinkError, SinkRefusedError
from penstock.contrib.arrow.library import load

_NOT_IN_NAMES = " ,;{}()\n\t="
_LONGEST_FOLDER = 255
"""Most bytes in the name of a directory, which a value of a partition column is part of."""
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_FILLED = ("delta.generationExpression", "delta.identity", "CURRENT_DEFAULT")
"""Beginnings of a column's properties that say how a writer has to fill it."""


def delta_schema(where: str, schema: Any, partition_by: Sequence[str]) -> Any:
    """Return a schema with the types that Delta has. Raises ConfigError for columns that a Delta table cannot have."""
    pa = load()
    names = [field.name for field in schema]
    for name in _names_in(schema):
        if not name or any(each in _NOT_IN_NAMES for each in name):
            raise ConfigError(f"{where}: column {name!r}: a name in a Delta table has none of {_NOT_IN_NAMES!r}")
    for siblings in _siblings(schema):
        lowered = [name.lower() for name in siblings]
        if doubled := [name for name in siblings if lowered.count(name.lower()) > 1]:
            raise ConfigError(f"{where}: columns {', '.join(doubled)}: names in a Delta table differ by more than case")
    if unknown := [name for name in partition_by if name not in names]:
        raise ConfigError(f"{where}: partition_by names {', '.join(unknown)}, and the columns are {', '.join(names)}")
    if len(set(partition_by)) < len(partition_by) or len(partition_by) == len(names):
        raise ConfigError(f"{where}: partition_by: expected some of the columns, each once: {', '.join(partition_by)}")
    fields = [pa.field(each.name, _type(where, each.name, each.type), nullable=each.nullable) for each in schema]
    for field in fields:
        if field.name in partition_by and not _is_of_partition(field.type):
            raise ConfigError(
                f"{where}: partition_by: column {field.name!r} is of type {field.type}, expected string, a whole "
                "number, bool or date32: other values are not read back as they were"
            )
    return pa.schema(fields)


def _siblings(fields: Iterable[Any]) -> Iterable[list[str]]:
    fields = list(fields)
    yield [field.name for field in fields]
    for field in fields:
        yield from _siblings_in(field.type)


def _siblings_in(type_: Any) -> Iterable[list[str]]:
    types = load().types
    if types.is_struct(type_):
        yield from _siblings(type_)
    elif types.is_list(type_) or types.is_large_list(type_):
        yield from _siblings_in(type_.value_type)
    elif types.is_map(type_):
        yield from _siblings_in(type_.key_type)
        yield from _siblings_in(type_.item_type)


def _names_in(schema: Any) -> Iterable[str]:
    return (name for siblings in _siblings(schema) for name in siblings)


def _is_of_partition(type_: Any) -> bool:
    types = load().types
    return bool(types.is_string(type_) or types.is_integer(type_) or types.is_boolean(type_) or types.is_date32(type_))


def _type(where: str, name: str, type_: Any) -> Any:
    """Return the type of Delta whose values include all of a type."""
    pa, types = load(), load().types
    if types.is_string(type_) or types.is_large_string(type_):
        return pa.string()
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return pa.binary()
    if types.is_timestamp(type_) and type_.unit != "ns":
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if types.is_list(type_) or types.is_large_list(type_):
        return pa.list_(_field(where, f"{name}.item", "element", type_.value_field))
    if types.is_struct(type_) and type_.num_fields:
        return pa.struct([_field(where, f"{name}.{each.name}", each.name, each) for each in type_])
    if types.is_map(type_):
        key, item = _type(where, f"{name}.key", type_.key_type), type_.item_field
        return pa.map_(key, _field(where, f"{name}.value", "value", item))
    if (
        types.is_signed_integer(type_) or types.is_float32(type_) or types.is_float64(type_)
        or types.is_boolean(type_) or types.is_date32(type_)
        or (types.is_decimal128(type_) and type_.scale >= 0)
    ):  # fmt: skip
        return type_
    raise ConfigError(
        f"{where}: column {name!r}: a Delta table has no type {type_}; there are int8 to int64, float, double, "
        "decimals of up to 38 digits, bool, string, binary, date32, timestamps of up to microseconds, list, struct "
        "and map"
    )


def _field(where: str, label: str, name: str, field: Any) -> Any:
    return load().field(name, _type(where, label, field.type), nullable=field.nullable)


class TableColumns:
    """The columns of a table, which take rows of `wanted`. Raises SinkError if they do not."""

    def __init__(self, table: Any, wanted: Any, partition_by: Sequence[str]) -> None:
        pa = load()
        self.schema = pa.schema(table.schema().to_arrow())
        self._wanted = wanted.names
        self._texts = [name for name in partition_by if pa.types.is_string(wanted.field(name).type)]
        for field in wanted:
            if field.name not in self.schema.names:
                raise SinkError(
                    f"it has no column {field.name}, but {', '.join(self.schema.names)}: add it (ALTER TABLE ... ADD "
                    "COLUMN), or change columns="
                )
            _check_column(field, self.schema.field(field.name))
        filled = {field.name: [key for key in field.metadata if key.startswith(_FILLED)] for field in
                  table.schema().fields}  # fmt: skip
        for field in self.schema:
            if field.name in self._wanted:
                continue
            if not field.nullable:
                raise SinkError(f"column {field.name} may not be null, and is not written")
            if filled[field.name]:
                raise SinkError(
                    f"column {field.name} has {filled[field.name][0]}, which a writer has to fill: write it"
                )
        found = list(table.metadata().partition_columns)
        if found != list(partition_by):
            raise SinkError(
                f"it is partitioned by {', '.join(found) or 'nothing'}, and partition_by= says "
                f"{', '.join(partition_by) or 'nothing'}: change that"
            )

    def rows(self, batch: Any) -> Any:
        """Return rows as the table has its columns. Raises SinkRefusedError for a value of a partition column."""
        pa, arrays = load(), []
        for name in self._texts:
            for value in batch.column(name).unique().to_pylist():
                _check_folder(name, value)
        for field in self.schema:
            is_written = field.name in self._wanted
            arrays.append(batch.column(field.name).cast(field.type) if is_written else pa.nulls(len(batch), field.type))
        return pa.table(arrays, schema=self.schema)


def _check_folder(name: str, value: str | None) -> None:
    if value == "":
        raise SinkRefusedError(f"column {name!r}: an empty text in a partition column would be read as null")
    if value == _NULL_FOLDER:
        raise SinkRefusedError(f"column {name!r}: {value!r} is the directory of null in a partition column")
    if value is not None and len(f"{quote(name)}={quote(value, safe='')}") > _LONGEST_FOLDER:
        raise SinkRefusedError(f"column {name!r}: a text of {len(value)} characters is too long for a partition column")


def _check_column(wanted: Any, found: Any) -> None:
    if _unlike(wanted.type, found.type):
        raise SinkError(f"column {wanted.name!r} is of type {found.type}, and columns= says {wanted.type}: change one")
    if not _takes(wanted, found):
        raise SinkError(
            f"column {wanted.name!r} or a part of it may not be null in the table ({found.type}), and may be null in "
            "columns=: change one"
        )


def _parts(type_: Any) -> list[Any]:
    types = load().types
    if types.is_list(type_):
        return [type_.value_field]
    if types.is_struct(type_):
        return list(type_)
    return [type_.key_field, type_.item_field] if types.is_map(type_) else []


def _unlike(wanted: Any, found: Any) -> bool:
    """Return whether types differ, without names and nullability of parts that are no fields of a struct."""
    parts, others = _parts(wanted), _parts(found)
    if not parts or wanted.id != found.id or len(parts) != len(others):
        return bool(wanted != found)
    if load().types.is_struct(wanted) and [part.name for part in parts] != [part.name for part in others]:
        return True
    return any(_unlike(part.type, other.type) for part, other in zip(parts, others, strict=True))


def _takes(wanted: Any, found: Any) -> bool:
    """Return whether a column takes each null that the rows may have."""
    if wanted.nullable and not found.nullable:
        return False
    return all(map(_takes, _parts(wanted.type), _parts(found.type)))
