"""Records: a DataFrame as the records of a topic, and the meaning of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from penstock import Application, ConfigError, RuntimeUnavailableError, SinkNode, SourceNode, TopologyError
from penstock.program.checks import nearest
from penstock.program.external_sink import is_external_sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType


ColumnLike = Union[str, "Column"]

_HEADERS = "array<struct<key:string,value:binary>>"
_ORDERED = (
    "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "boolean", "string", "char", "varchar",
    "binary", "date", "time", "timestamp", "timestamp_ntz", "interval day", "interval hour", "interval minute",
    "interval second",
)  # fmt: skip
"""Types, as Spark calls them, that Arrow can hold and sort; parameters left out."""
_MOST_MS = (2**63 - 1) // 1000
"""The last timestamp in milliseconds that Spark can hold in microseconds."""


@dataclass(frozen=True)
class Records:
    """A DataFrame's rows as the records of a topic. A column is a name or an expression over `frame`.

    Names are found as Spark finds them: in any case, unless `spark.sql.caseSensitive` is true.

    `key` and `value` are binary or string, in the form that the source's serdes read (a string counts as its UTF-8
    bytes), or typed: of any other type, such as a struct, which is a dict or the class that the serde is for. None
    stands for the column `key`, and for none at all where there is no such column. `timestamp` is a
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

    Its columns: key and value (binary, or typed), time (microseconds), headers (as JSON) if there are any, order0,
    order1, ... Raises ConfigError, with topic and column, for a column that is missing or has another type.
    """
    where, frame = f"the DataFrame of topic {topic!r}", given.frame
    key = _optional(where, frame, "key", given.key, "binary", _part)
    columns = [
        key,
        _part(where, frame, "value", given.value),
        _time(where, frame, given.timestamp, key),
    ]
    names = ["key", "value", "time"]
    if given.headers is not None or _named(where, frame, "headers", "headers") is not None:
        columns.append(_headers(where, frame, "headers", "headers" if given.headers is None else given.headers))
        names.append("headers")
    order = order_by if given.order_by is None else given.order_by
    ordering = [order] if isinstance(order, str) or not isinstance(order, Sequence) else list(order)
    columns += [_ordered(where, frame, each) for each in ordering]
    names += [f"order{number}" for number in range(len(ordering))]
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
    if frame.sparkSession.sparkContext._jsc is None:
        raise RuntimeUnavailableError(
            f"the DataFrame of topic {topic!r} belongs to a SparkSession that was stopped: make a new session, and "
            "read the DataFrame there"
        )


def _column(where: str, frame: DataFrame, what: str, given: Any) -> tuple[Column, DataType]:
    """Return a column and its type."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import Column

    if not isinstance(given, (str, Column)):
        raise ConfigError(f"{where}, {what}: expected the name of a column or an expression, found {given!r}")
    column = _named(where, frame, what, given) if isinstance(given, str) else given
    try:
        if column is not None:
            return column, frame.select(column.alias("_")).schema[0].dataType
        quoted = str(given).replace("`", "``")
        said = f". Spark finds a name with such characters in backquotes: `{quoted}`" if given in frame.columns else ""
    except AnalysisException as error:
        said = f". Spark says: {str(error).splitlines()[0]}"
    raise ConfigError(
        f"{where} has no column {given!r} for its {what}; it has: {', '.join(frame.columns)}. Name another: "
        f"Records(frame, {_option(what)}=...){said}"
    )


def _named(where: str, frame: DataFrame, what: str, name: str) -> Column | None:
    """Return the column that Spark finds by a name, in the case that `spark.sql.caseSensitive` asks for; None for none.

    Spark's `col(name)` would also find functions without parentheses, such as `user`.
    """
    from pyspark.errors import AnalysisException

    try:
        return frame[name]
    except AnalysisException as error:
        if error.getCondition() != "AMBIGUOUS_REFERENCE":
            return None
        last = name.rpartition(".")[2].strip("`").lower()
        several = [column for column in frame.columns if column.lower() == last]
        raise ConfigError(
            f"{where} has several columns that Spark finds by the name {name!r} for its {what}: "
            f"{', '.join(several)}. Rename or drop all but one, or choose one by an expression: "
            f"Records(frame, {_option(what)}=...)"
        ) from error


def _option(what: str) -> str:
    return "order_by" if what == "order" else what


def _optional(
    where: str, frame: DataFrame, what: str, given: ColumnLike | None, kind: str,
    read: Callable[[str, DataFrame, str, ColumnLike], Column],
) -> Column:  # fmt: skip
    """Return the column `what` as `read` returns it; a null of type `kind` if none is named, and there is none."""
    from pyspark.sql import functions

    if given is None and _named(where, frame, what, what) is None:
        return functions.lit(None).cast(kind)
    return read(where, frame, what, what if given is None else given)


def _part(where: str, frame: DataFrame, what: str, given: ColumnLike) -> Column:
    """Return the column of the key or value: text as bytes, other types as they are."""
    from pyspark.sql import types

    column, kind = _column(where, frame, what, given)
    return column.cast("binary") if isinstance(kind, (types.StringType, types.NullType)) else column


def _time(where: str, frame: DataFrame, given: ColumnLike, key: Column) -> Column:
    from pyspark.sql import functions

    column, kind = _column(where, frame, "timestamp", given)
    if kind.simpleString() == "timestamp":
        microseconds = functions.unix_micros(column)
    elif kind.simpleString() in ("bigint", "int"):
        ms = column.cast("bigint")
        text = (f"{where}: its timestamp is ", ms, " ms in a row with the key ", key.cast("string"))
        problem = functions.concat(
            *(functions.coalesce(functions.lit(part) if isinstance(part, str) else part.cast("string"),
                functions.lit("null")) for part in text),
            functions.lit(f", expected milliseconds from {-_MOST_MS} to {_MOST_MS}"),
        )  # fmt: skip
        microseconds = functions.when((ms > _MOST_MS) | (ms < -_MOST_MS), functions.raise_error(problem)).otherwise(
            ms * 1000
        )
    else:
        raise ConfigError(
            f"{where}: its timestamp is of type {kind.simpleString()}, expected timestamp or bigint (milliseconds): "
            'for instance Records(frame, timestamp=col(...).cast("timestamp"))'
        )
    return functions.coalesce(microseconds, functions.lit(-1000))


def _headers(where: str, frame: DataFrame, what: str, given: ColumnLike) -> Column:
    from pyspark.sql import functions

    column, kind = _column(where, frame, what, given)
    found = kind.simpleString()
    if (found if is_case_sensitive(frame.sparkSession) else found.lower()) != _HEADERS:
        raise ConfigError(
            f"{where}: its headers are of type {found}, expected {_HEADERS}; without headers, drop the column "
            "or name another: Records(frame, headers=...)"
        )
    # As JSON: arrays of structs, even null ones, would cost Spark ten times as much as the rest of a row. The cast
    # changes the fields' names only.
    return functions.when(functions.size(column) > 0, functions.to_json(column.cast(_HEADERS)))


def is_case_sensitive(session: SparkSession) -> bool:
    """Return whether names of columns and fields that differ in case are different for Spark."""
    return str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"


def _ordered(where: str, frame: DataFrame, given: ColumnLike) -> Column:
    column, kind = _column(where, frame, "order", given)
    name = kind.simpleString()
    if name.partition("<")[0].partition("(")[0].partition(" to ")[0].partition(" collate ")[0] not in _ORDERED:
        raise ConfigError(
            f"{where}: order_by has {given!r} of type {name}, by which rows cannot be sorted here: name one of another "
            'type, for instance col(...).cast("string")'
        )
    expression: Any = None if isinstance(given, str) else given
    if expression is not None and expression._jc.node().getClass().getSimpleName() == "SortOrder":
        raise ConfigError(
            f"{where}: order_by has {given!r}, and rows are sorted in ascending order, nulls last: leave asc() and "
            "desc() out; a number is reversed by its sign (-col(...))"
        )
    return column


_IN_LOG = "its records are part of a log's commit, and here Spark's checkpoint is the commit"
_IN_MEMORY = "it ends with its process, and a batch may run in any"


def check_application(application: Any) -> None:
    """Check that an application can run in a Spark pipeline.

    Raises TopologyError or ConfigError with the node and what to do.
    """
    if not isinstance(application, Application):
        raise ConfigError(f"transform: expected an Application, found {application!r}: Application(ID, topology)")
    name = application.settings.changelog.partition(":")[0]
    unsuited = _IN_LOG if application.settings.log_changelog is not None else _IN_MEMORY if name == "memory" else None
    if unsuited is not None:
        raise ConfigError(
            f"application {application.id!r}, setting 'changelog': a changelog of the kind {name!r} does not do for an "
            f"operator of a Spark pipeline, because {unsuited}; name a place that all workers reach, "
            "for instance changelog='directory:s3://bucket/folder'"
        )
    for problem in _problems(application):
        raise TopologyError(f"application {application.id!r} cannot run as an operator of a Spark pipeline: {problem}")


def _problems(application: Application) -> Iterable[str]:
    program = application.program
    nodes = program.nodes.values()
    for topic in program.internal_topics:
        writers = [node.name for node in nodes if isinstance(node, SinkNode) and node.topic == topic]
        readers = [node.name for node in nodes if isinstance(node, SourceNode) and topic in node.topics]
        yield (
            f"sink {', '.join(map(repr, writers))} and source {', '.join(map(repr, readers))} exchange records through "
            f"the repartition topic {topic!r}, which needs a log. Give rows their final key before: the key column of "
            "a source's DataFrame decides which task gets them; or run the application on a log (penstock run)"
        )
    for node in nodes:
        if is_external_sink(node):
            yield (
                f"external sink {node.name!r} writes the records of a topic of a log, beside its commit: write to a "
                "topic (to), and its rows with Spark (writeStream); or run the application on a log (penstock run)"
            )
    for each in program.global_stores:
        yield (
            f"global store {each.store.name!r} reads all of topic {each.source.topics[0]!r} from a log. Join the "
            "DataFrame with that table before, in Spark; or run the application on a log (penstock run)"
        )
    for node in nodes:
        if isinstance(node, SourceNode) and node.pattern is not None:
            yield (
                f"source {node.name!r} reads topics by the pattern {node.pattern.pattern!r}, and there is no log to "
                "look in. Name its topics: each has a DataFrame"
            )
        if isinstance(node, SinkNode) and (node.partitioner or node.partition_by) is not None:
            what = "partitioner" if node.partition_by is None else "partition_by"
            yield (
                f"sink {node.name!r} has a {what}, and rows have no partitions. Leave it out, and partition what "
                "comes out where it is written"
            )
    fed = {each.store.name: each for part in program.subtopologies for each in part.read_only_stores}
    for name, filled in fed.items():
        yield (
            f"read-only store {name!r} is restored from topic {filled.source.topics[0]!r} of a log. Fill a store of "
            "your own from that table's DataFrame; or run the application on a log (penstock run)"
        )
    for store in program.stores.values():
        if not store.logged and store.name not in fed:
            yield (
                f"store {store.name!r} is not logged, and a batch may be repeated on any host: its changelog is the "
                "only way there. Declare it with logged=True"
            )


def check_sources(application: Application, sources: Any) -> None:
    """Check that the DataFrames match the sources. Raises ConfigError with source and topic."""
    if not isinstance(sources, Mapping):
        raise ConfigError(f"transform: expected a mapping of topics to DataFrames, found {type(sources).__name__}")
    topics = application.program.topics()
    for topic in sources:
        if topic not in topics:
            raise ConfigError(
                f"application {application.id!r}: no source reads topic {topic!r}, for which there is a "
                f"DataFrame{nearest(topic, topics)}"
            )
    for node in application.program.nodes.values():
        if isinstance(node, SourceNode):
            for topic in node.topics:
                if topic not in sources:
                    raise ConfigError(
                        f"application {application.id!r}: source {node.name!r} reads topic {topic!r}, for which there "
                        f"is no DataFrame; there is: {', '.join(map(repr, sources)) or 'none'}. Pass one: "
                        f"transform(application, {{{topic!r}: frame}})"
                    )


def ordered_topics(sources: Mapping[str, Any], source_order: Sequence[str] | None) -> list[str]:
    """Return the topics in the order in which their DataFrames are united. Raises ConfigError."""
    if source_order is None:
        return sorted(sources)
    is_ordered = isinstance(source_order, Sequence) and not isinstance(source_order, str)
    if not is_ordered or sorted(source_order) != sorted(sources):
        raise ConfigError(
            f"transform: source_order is a list that has each topic of `sources` once "
            f"({', '.join(map(repr, sources))}), found {source_order!r}"
        )
    return list(source_order)


def check_count(partitions: Any) -> None:
    """Check a number of tasks. Raises ConfigError."""
    if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
        raise ConfigError(f"transform: partitions is a whole number above 0, found {partitions!r}")
