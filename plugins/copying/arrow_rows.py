"""Arrow's columns as rows of Python values, each of them exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.support.packages import needed

from .source import CopyError, Row

if TYPE_CHECKING:
    import pyarrow as pa


def rows_of(batch: pa.RecordBatch, source: object) -> list[Row]:
    """Return the rows of a batch. Raises CopyError for a value that Python's types do not hold exactly.

    Timestamps, times and durations in nanoseconds become Python's, which have microseconds; a map becomes a dict.
    """
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CopyError(f"{source}: two columns have the name {twice!r}")
    columns = [values_of(column, name, source) for name, column in zip(names, batch.columns, strict=True)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def values_of(column: Any, name: str, source: object) -> list[Any]:
    """Return the values of a column. Raises CopyError for one that Python's types do not hold exactly."""
    with needed("a copy of Parquet files and DataFrames"):
        import pyarrow as pa
    try:
        fitting = in_microseconds(column.type)
        if fitting != column.type:
            column = column.cast(fitting)
        has_maps = "map<" in str(column.type)
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict") if has_maps else column.to_pylist()
    except (pa.ArrowException, ValueError, KeyError, OverflowError) as error:
        raise CopyError(
            f"{source}: column {name!r} of the type {column.type} has a value that Python's type does not hold: "
            f"{error}; write the column in another type"
        ) from error
    return values


def in_microseconds(kind: Any) -> Any:
    """Return the type with microseconds in place of nanoseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_map(kind):
        key, item = (each.with_type(in_microseconds(each.type)) for each in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    if pa.types.is_dictionary(kind):
        return in_microseconds(kind.value_type)
    for is_one, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_fixed_size_list, lambda field: pa.list_(field, kind.list_size)),
    ):
        if is_one(kind):
            return make(kind.value_field.with_type(in_microseconds(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(in_microseconds(each.type)) for each in kind])
    return kind
