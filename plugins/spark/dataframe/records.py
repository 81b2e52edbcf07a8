"""Records: a DataFrame as the records of a topic, and what its columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from penstock import ConfigError, RuntimeUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ColumnLike = Union[str, "Column"]

_HEADERS = "array<struct<key:string,value:binary>>"
_UNORDERED = ("array", "map", "struct", "variant", "calendarinterval", "void", "geometry", "geography")


@dataclass(frozen=True)
class Records:
    """A DataFrame's rows as the records of a topic. A column is a name or an expression over `frame`.

    `key` and `value` are binary or string, in the form that the source's serdes read (a string counts as its UTF-8
    bytes). None stands for the column `key`, and for none at all where there is no such column. `timestamp` is a
    timestamp or a number of milliseconds; a null counts as -1, which the timestamp extractor deals with. `headers` is
    an array of (key string, value binary) structs as in Spark's Kafka source; None: the column `headers` if there is
    one. `order_by` are columns that order records of equal timestamps; None: what `transform` says.
    """

    frame: DataFrame
    key: ColumnLike | None = None
    value: ColumnLike = "value"
    timestamp: ColumnLike = "timestamp"
    headers: ColumnLike | None = None
    order_by: str | Sequence[ColumnLike] | None = None


def normalized(topic: str, given: Records, order_by: str | Sequence[ColumnLike]) -> DataFrame:
    """Return the DataFrame that a `Packer` reads.

    Its columns: key, value, time (microseconds), headers (as JSON), order0, order1, ... Raises ConfigError, with topic
    and column, for a column that is missing or has another type.
    """
    from pyspark.sql import functions

    where, frame = f"the DataFrame of topic {topic!r}", given.frame
    none = functions.lit(None)
    columns = [
        none.cast("binary")
        if given.key is None and "key" not in frame.columns
        else _bytes(where, frame, "key", given.key),
        _bytes(where, frame, "value", given.value),
        _time(where, frame, given.timestamp),
        none.cast("string")
        if given.headers is None and "headers" not in frame.columns
        else _headers(where, frame, given.headers),
    ]  # fmt: skip
    order = order_by if given.order_by is None else given.order_by
    ordering = [order] if isinstance(order, str) or not isinstance(order, Sequence) else list(order)
    columns += [_ordered(where, frame, each) for each in ordering]
    names = ["key", "value", "time", "headers", *(f"order{number}" for number in range(len(ordering)))]
    return frame.select(*(column.alias(name) for column, name in zip(columns, names, strict=True)))


def check_frame(topic: str, frame: Any) -> None:
    """Check that it is a DataFrame of a classic session."""
    module = type(frame).__module__
    if module.startswith("pyspark.sql.connect"):
        raise RuntimeUnavailableError(
            f"the DataFrame of topic {topic!r} is one of Spark Connect; penstock needs a classic SparkSession: "
            "make one with SparkSession.builder.master(...)"
        )
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame):
        raise ConfigError(f"topic {topic!r}: expected a DataFrame or Records(frame, ...), found {frame!r}")


def _column(where: str, frame: DataFrame, what: str, column: Any) -> tuple[Column, str]:
    """Return a column and the name of its type."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column, functions

    if not isinstance(column, (str, Column)):
        raise ConfigError(f"{where}, {what}: expected the name of a column or an expression, found {column!r}")
    absent = (
        f"{where} has no column {column!r} for its {what}; it has: {', '.join(frame.columns)}. Name another: "
        f"Records(frame, {'order_by' if what == 'order' else what}=...)"
    )
    known = {name.lower() for name in frame.columns}
    if isinstance(column, str) and "." not in column and column.strip("`").lower() not in known:
        raise ConfigError(absent)
    found = functions.col(column) if isinstance(column, str) else column
    try:
        return found, frame.select(found.alias("_")).schema[0].dataType.simpleString()
    except AnalysisException as error:
        raise ConfigError(f"{absent}. Spark says: {str(error).splitlines()[0]}") from error


def _bytes(where: str, frame: DataFrame, what: str, given: ColumnLike | None) -> Column:
    column, kind = _column(where, frame, what, what if given is None else given)
    if kind not in ("binary", "string", "void"):
        raise ConfigError(
            f"{where}: its {what} is of type {kind}, expected binary or string, as the source's serde reads it: "
            f'for instance Records(frame, {what}=col(...).cast("string")) with the serde "str", or to_json(...) with '
            '"json"'
        )
    return column.cast("binary")


def _time(where: str, frame: DataFrame, given: ColumnLike) -> Column:
    from pyspark.sql import functions

    column, kind = _column(where, frame, "timestamp", given)
    if kind == "timestamp":
        microseconds = functions.unix_micros(column)
    elif kind in ("bigint", "int"):
        microseconds = column.cast("bigint") * 1000
    else:
        raise ConfigError(
            f"{where}: its timestamp is of type {kind}, expected timestamp or bigint (milliseconds): "
            'for instance Records(frame, timestamp=col(...).cast("timestamp"))'
        )
    return functions.coalesce(microseconds, functions.lit(-1000))


def _headers(where: str, frame: DataFrame, given: ColumnLike | None) -> Column:
    from pyspark.sql import functions

    column, kind = _column(where, frame, "headers", "headers" if given is None else given)
    if kind != _HEADERS:
        raise ConfigError(
            f"{where}: its headers are of type {kind}, expected {_HEADERS}; without headers, drop the column "
            "or name another: Records(frame, headers=...)"
        )
    # As JSON: arrays of structs, even null ones, would cost Spark ten times as much as the rest of a row.
    return functions.when(functions.size(column) > 0, functions.to_json(column))


def _ordered(where: str, frame: DataFrame, given: ColumnLike) -> Column:
    column, kind = _column(where, frame, "order", given)
    if kind.partition("<")[0].partition("(")[0] in _UNORDERED:
        raise ConfigError(f"{where}: order_by names a column of type {kind}, which has no order; name one that has")
    return column
