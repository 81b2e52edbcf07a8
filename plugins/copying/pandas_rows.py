"""Rows of a pandas DataFrame, each value by itself: Arrow makes one type of all values of a column of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from penstock.support.packages import needed

from .arrow_rows import in_microseconds, values_of
from .source import CopyError, Row

_CHUNK_ROWS = 10_000
_PLAIN = frozenset({type(None), str, int, bool, bytes, date, time, timedelta, UUID})


def rows_of_pandas(frame: Any, source: object) -> Iterator[Row]:
    """Yield the rows of a DataFrame in its order. A missing value (None, NaN, NaT, NA) is None; the index is no column.

    Raises CopyError for a value that Python's types do not hold exactly.
    """
    with needed("a copy of a DataFrame"):
        import pyarrow as pa
    try:
        names = pa.Table.from_pandas(frame.iloc[:0].astype(object), preserve_index=False).schema.names
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise CopyError(f"{source}: {error}") from error
    has_objects = [str(kind) in ("object", "category") for kind in frame.dtypes]
    for first in range(0, len(frame), _CHUNK_ROWS):
        chunk = frame.iloc[first : first + _CHUNK_ROWS]
        columns = []
        for index, name in enumerate(names):
            try:
                if has_objects[index]:
                    columns.append(_objects(chunk.iloc[:, index].astype(object).tolist()))
                else:
                    columns.append(values_of(pa.Array.from_pandas(chunk.iloc[:, index]), name, source))
            except CopyError:
                raise
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                raise CopyError(f"{source}, rows {first + 1} and after: column {name!r}: {error}") from error
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))


def _objects(values: list[Any]) -> list[Any]:
    return values if set(map(type, values)) <= _PLAIN else [_value(each) for each in values]


def _value(value: Any) -> Any:
    """Return an object of a column as Python's. Raises ValueError for nanoseconds, which Python does not have."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if (read := _READERS.get(kind)) is not None:
        return read(value)
    module = kind.__module__.partition(".")[0]
    if module == "numpy":
        if hasattr(value, "dtype") and value.dtype.kind in "mM":  # its items would be numbers
            return _times(value)
        return _value(value.tolist())
    if module == "pandas":
        if kind.__name__ in ("NaTType", "NAType"):
            return None
        if kind.__name__ in ("Timestamp", "Timedelta"):
            return _without_nanoseconds(value)
    return value


def _float(value: float) -> float | None:
    return None if value != value else value


def _decimal(value: Decimal) -> Decimal | None:
    return None if value.is_nan() else value


def _list(values: Any) -> list[Any]:
    return [_value(each) for each in values]


def _dict(values: dict[Any, Any]) -> dict[Any, Any]:
    return {_value(name): _value(each) for name, each in values.items()}


def _datetime(value: datetime) -> datetime:
    """Return a time with a zone of Python's own: those of pytz and dateutil become it, or the offset that they have."""
    zone = value.tzinfo
    if zone is None or type(zone) in (timezone, ZoneInfo):
        return value
    name, offset = getattr(zone, "zone", None), value.utcoffset()
    if name is not None:
        return value.astimezone(ZoneInfo(name))
    return value if offset is None else value.astimezone(timezone(offset))


_READERS: dict[type, Callable[[Any], Any]] = {
    float: _float,
    Decimal: _decimal,
    list: _list,
    tuple: _list,
    dict: _dict,
    datetime: _datetime,
}


def _times(value: Any) -> Any:
    """Return a datetime64 or timedelta64 of numpy, or an array of them, as Python's."""
    import pyarrow as pa

    if len(value.shape) > 1:
        return [_times(each) for each in value]
    column = pa.array(value.reshape(-1))
    found = column.cast(in_microseconds(column.type)).to_pylist()
    return found if value.shape else found[0]


def _without_nanoseconds(value: Any) -> Any:
    is_time = type(value).__name__ == "Timestamp"
    if value.nanosecond if is_time else value.nanoseconds:
        raise ValueError(f"{value} has nanoseconds, which Python's type does not hold: round it")
    return _datetime(value.to_pydatetime()) if is_time else value.to_pytimedelta()
