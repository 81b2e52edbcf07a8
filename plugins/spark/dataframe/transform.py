"""transform: a topology applied to streaming DataFrames, one for each topic that its sources read."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from penstock import Application, Assignment, ConfigError, Settings, SinkNode, SystemClock, TaskId
from penstock.plugins.engine.host.log_lines import level_here
from penstock.plugins.engine.host.place import digest_of
from penstock.plugins.engine.program.preparation import prepare_serdes
from penstock.plugins.engine.task.shipping import pack
from penstock.program.checks import nearest
from penstock.program.serdes import resolve_serde

from ..group_keys import SPREAD, group_key
from ..interpreter import log_interpreter
from ..sessions import check_python_memory, is_cluster, slots_of_executor
from ..worker import HostCaller, observed, without_counts
from .checkpoint import STATE_SCHEMA, SourceOrder
from .packing import CHUNK_SCHEMA, Packer, Unpacker, typed_keys, typed_values
from .records import (
    ColumnLike,
    Records,
    check_application,
    check_count,
    check_frame,
    check_sources,
    is_case_sensitive,
    normalized,
    ordered_topics,
)
from .spark_types import column_of, type_of
from .stream_engine import StreamCargo, StreamFunction, once_function
from .typed_serdes import TopicPart, TypedTopics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.group import GroupedData
    from pyspark.sql.types import DataType, StructType


_MARGIN = 5
"""Number of versions that are kept in addition to those Spark may need."""

_log = logging.getLogger("penstock.spark")


def transform(
    application: Application,
    sources: Mapping[str, DataFrame | Records],
    *,
    partitions: int,
    order_by: str | Sequence[ColumnLike] = (),
    wall_clock: bool = False,
    source_order: Sequence[str] | None = None,
    schema: Schemas | None = None,
    key_schema: Schemas | None = None,
) -> DataFrame:
    """Return the records of the application's sinks as a DataFrame: one stateful operator of the pipeline.

    `sources` has a DataFrame for each topic that a source reads, with columns as `Records` describes. Rows go to one of
    `partitions` tasks by their key; the number is part of the checkpoint. In a task, a batch's rows are processed by
    timestamp, those of equal timestamps by the columns that `order_by` names (and by content where these are equal
    too). With `wall_clock` punctuators of the wall clock are fired by Spark's timeouts, for which Spark runs batches
    without data. `source_order` has all topics: the order of their DataFrames in Spark's plan, by which the checkpoint
    has their offsets; None: that of their names.

    The rows that come out have the columns topic, key, value (binary, by the sinks' serdes), timestamp and headers.
    Dead letters are among them.

    `schema` and `key_schema` describe values and keys of output topics, in Spark's types: as text ("n long, at
    timestamp", or a type alone), as a type of pyspark, or as a dataclass or NamedTuple. A list of topics, or None for
    one, takes the class that the sink's serde is for. Each of these topics has a column of its own then, a struct of
    key and value, which is null in rows of other topics; what the struct has typed is null in the columns key and
    value. `topic_rows` returns the rows of one topic.

    The commit is Spark's checkpoint: with a replayable source and an idempotent or transactional sink, results are
    exactly once. The state lies in the application's stores and changelog, by the id of the query. DataFrames that are
    no streams are processed as one batch, and no state is kept. A query's progress has the counts of each batch:
    `lastProgress.observedMetrics["penstock"]`.

    Raises TopologyError and ConfigError for what cannot run so, naming node, topic or column and what to do.
    """
    check_application(application)
    check_sources(application, sources)
    check_count(partitions)
    records: dict[str, Records] = {}
    for topic in ordered_topics(sources, source_order):
        given = sources[topic]
        records[topic] = given if isinstance(given, Records) else Records(given)
        check_frame(topic, records[topic].frame)
    is_streaming = _is_streaming(records)
    frames = {topic: normalized(topic, each, order_by) for topic, each in records.items()}
    schemas = {topic: frame.schema for topic, frame in frames.items()}
    session = next(iter(records.values())).frame.sparkSession
    exact = is_case_sensitive(session)
    keys = {
        topic: typed_keys(application, topic, each["key"].dataType, case_sensitive=exact)
        for topic, each in schemas.items()
    }
    values = {
        topic: typed_values(application, topic, each["value"].dataType, case_sensitive=exact)
        for topic, each in schemas.items()
    }
    key_types = spark_schemas(application, "key_schema", key_schema)
    value_types = spark_schemas(application, "schema", schema)
    if not exact:
        check_names({"key_schema": key_types, "schema": value_types})
    typed = TypedTopics(
        {topic: part for topic, part in values.items() if part is not None},
        parts_of("key_schema", key_types),
        parts_of("schema", value_types),
    )
    _check_surroundings(application, session)

    assignment = application.program.resolve(dict.fromkeys(application.program.topics(), partitions), application.id)
    groups = {task: group_key(task, SPREAD) for task in assignment.tasks}
    prepare_serdes(application, typed.replaced_serdes)
    order = SourceOrder(tuple(records) if len(records) > 1 else (), source_order is not None)
    cargo = _cargo(application, assignment, groups, session, wall_clock, order, typed)
    by_topic = {
        topic: tuple(
            groups[task] for task, inputs in assignment.tasks.items() if topic in {each.topic for each in inputs}
        )
        for topic in records
    }
    everyone = tuple(groups.values())
    chunks = reduce(
        lambda one, other: one.unionByName(other),
        [
            frame.mapInArrow(
                Packer(topic, by_topic[topic], everyone, keys[topic], typed.value_column(topic)), CHUNK_SCHEMA
            )
            for topic, frame in frames.items()
        ],
    ).groupBy("group")
    if is_streaming:
        rows = observed(_streamed(chunks, application, cargo, session))
    else:
        rows = chunks.applyInPandas(once_function(pack(cargo), SystemClock().now_ms()), cargo.schema)
    if cargo.is_typed:
        return without_counts(rows).mapInArrow(Unpacker(), result_schema(key_types, value_types))
    return _inlined(without_counts(rows))


def _inlined(rows: DataFrame) -> DataFrame:
    """Return the rows of results that are in rows of `ARRAYS_SCHEMA`."""
    headers = "coalesce(headers, array()) AS headers"
    return (
        rows.selectExpr("topic", "key", "value", "timestamp", headers)
        .selectExpr("topic", "inline(arrays_zip(key, value, timestamp, headers))")
        .selectExpr("topic", "key", "value", "timestamp_millis(timestamp) AS timestamp", "headers")
    )


def _check_surroundings(application: Application, session: SparkSession) -> None:
    """Check the workers, and warn of a changelog that they may not share. Raises RuntimeUnavailableError."""
    context = session.sparkContext
    check_python_memory(dict(context.getConf().getAll()))
    log_interpreter(session, is_cluster(context.master))
    warning = local_directory(application.settings, context.master or "local")
    if warning is not None:
        _log.warning("application %r: %s", application.id, warning)


def local_directory(settings: Settings, master: str) -> str | None:
    """Return a warning if the changelog is in a plain directory and tasks run on several machines, else None."""
    if master.startswith("local") or "://" in settings.changelog or "://" in settings.data_dir:
        return None
    return (
        f"changelog={settings.shown('changelog')!r} with data_dir={settings.shown('data_dir')!r} is a plain "
        f"directory, and Spark runs on {master}: unless all executors share it, a task that moves does not find its "
        'state. Use a location that all reach, such as changelog="directory:s3://bucket/folder"'
    )


def _streamed(chunks: GroupedData, application: Application, cargo: StreamCargo, session: SparkSession) -> DataFrame:
    _advise(application, int(session.conf.get("spark.sql.shuffle.partitions", "200")), len(cargo.tasks))  # type: ignore[arg-type]
    family = digest_of(session.sparkContext.applicationId, application.id)
    hosts = HostCaller(pack(cargo), family, f"application {application.id!r}")
    return chunks.applyInPandasWithState(
        StreamFunction(hosts, slots_of_executor(session), cargo.is_typed),
        cargo.schema,
        STATE_SCHEMA,
        "append",
        "ProcessingTimeTimeout" if cargo.has_timeouts else "NoTimeout",
    )


def _cargo(
    application: Application,
    assignment: Assignment,
    groups: Mapping[TaskId, int],
    session: SparkSession,
    wall_clock: bool,
    order: SourceOrder,
    typed: TypedTopics,
) -> StreamCargo:
    batches = int(session.conf.get("spark.sql.streaming.minBatchesToRetain", "100"))  # type: ignore[arg-type]
    return StreamCargo(
        # Workers have working directories of their own, and no client of a log: what may be secret stays here. All rows
        # of a batch are at hand, so the oldest of all topics comes first whatever the application says about waiting.
        application.with_settings(
            data_dir=str(Path(application.settings.data_dir).expanduser().absolute()), clients={}, max_task_idle="0ms"
        ),
        {groups[task]: (task, inputs) for task, inputs in assignment.tasks.items()},
        application.program.fingerprint(assignment, application.settings),
        batches + _MARGIN,
        wall_clock,
        order,
        level_here(),
        typed,
    )


def _is_streaming(records: Mapping[str, Records]) -> bool:
    streaming = {topic: each.frame.isStreaming for topic, each in records.items()}
    if len(set(streaming.values())) > 1:
        static = [topic for topic, yes in streaming.items() if not yes]
        raise ConfigError(
            f"the DataFrame{'s' if len(static) > 1 else ''} of topic {', '.join(map(repr, static))} "
            f"{'are' if len(static) > 1 else 'is'} no stream, and "
            "the others are: read it with spark.readStream, or join it to a stream before"
        )
    return next(iter(streaming.values()))


def _advise(application: Application, shuffle_partitions: int, tasks: int) -> None:
    if shuffle_partitions > tasks:
        _log.warning(
            "application %r has %d tasks, and each batch will start %d Spark tasks for them: set "
            "spark.sql.shuffle.partitions to %d or to a divisor of it before the query's first start",
            application.id, tasks, shuffle_partitions, tasks,
        )  # fmt: skip


apply_topology = transform
"""The second name of `transform`, for programs that also import `transform` from `pyspark.sql.functions`."""


Schema = Union[str, "DataType", type, None]
Schemas = Mapping[str, Schema] | Sequence[str]
"""Schemas by topic. Names alone, or None for one: the class that the sink's serde is for."""

RESULT = ("topic", "key", "value", "timestamp", "headers")
_HEADERS = "array<struct<key:string,value:binary>>"


def spark_schemas(application: Application, option: str, given: Schemas | None) -> dict[str, DataType]:
    """Return the Spark types of typed keys or values by topic; `option` is "schema" or "key_schema".

    Raises ConfigError with topic and field for a topic that no sink writes, and for what is no schema.
    """
    if given is None:
        return {}
    if isinstance(given, str) or not isinstance(given, (Mapping, Sequence)):
        raise ConfigError(
            f'transform: {option} is a mapping of topics to schemas, such as {{"counts": "n long, at timestamp"}}, or '
            f"a list of topics; found {given!r}"
        )
    by_topic: Mapping[str, Schema] = given if isinstance(given, Mapping) else dict.fromkeys(given)
    topics = application.program.sink_topics()
    # Sinks that choose a topic for each record may write to any.
    chooses = any(isinstance(node, SinkNode) and callable(node.topic) for node in application.program.nodes.values())
    for topic in by_topic:
        if topic not in topics and not chooses:
            raise ConfigError(
                f"application {application.id!r}: no sink writes topic {topic!r}, which {option} names"
                f"{nearest(topic, topics)}"
            )
        if topic.lower() in RESULT:
            raise ConfigError(
                f"application {application.id!r}: topic {topic!r}, which {option} names, would have a column of the "
                f"result of its name, and each row has {', '.join(RESULT)} already; give the topic another name"
            )
    return {topic: _type(application, option, topic, each) for topic, each in by_topic.items()}


def _type(application: Application, option: str, topic: str, given: Schema) -> DataType:
    from pyspark.errors import ParseException
    from pyspark.sql.types import DataType

    where = f"application {application.id!r}, {option} of topic {topic!r}"
    if given is None:
        return type_of(_class_of_sinks(application, option, topic, where), where)
    if isinstance(given, DataType):
        return given
    if not isinstance(given, str):
        return type_of(given, where)
    try:
        return DataType.fromDDL(given)
    except ParseException as error:
        raise ConfigError(
            f"{where}: {given!r} is no schema: {str(error).strip().splitlines()[0]}. Write names and types, such as "
            '"n long, at timestamp", or a type alone, such as "string"'
        ) from error


def _class_of_sinks(application: Application, option: str, topic: str, where: str) -> Any:
    """Return the class that the serdes of a topic's sinks are for."""
    settings, kinds = application.settings, []
    for node in application.program.nodes.values():
        if isinstance(node, SinkNode) and node.topic == topic:
            own, default = node.value_serde, settings.value_serde
            if option == "key_schema":
                own, default = node.key_serde, settings.key_serde
            serde = resolve_serde(own, default, f"sink {node.name!r}", settings.of_plugins)
            kinds.append(serde.value_type)
    if not kinds or None in kinds or any(kind != kinds[0] for kind in kinds):
        raise ConfigError(
            f"{where}: its sinks' serdes name no class, or different ones. Give the schema: "
            f'{option}={{{topic!r}: "n long, at timestamp"}}'
        )
    return kinds[0]


def check_names(types: Mapping[str, Mapping[str, DataType]]) -> None:
    """Check that names of topics, and of each one's fields, differ in more than case where Spark ignores case.

    `types`: by option and topic.
    """
    from pyspark.sql.types import StructType

    topics = dict.fromkeys(topic for each in types.values() for topic in each)
    places = [("schema and key_schema: topics", list(topics))]
    places += [
        (f"{option} of topic {topic!r}: fields", kind.names)
        for option, each in types.items()
        for topic, kind in each.items()
        if isinstance(kind, StructType)
    ]
    for where, names in places:
        counts = Counter(name.lower() for name in names)
        if several := [name for name in names if counts[name.lower()] > 1]:
            raise ConfigError(
                f"transform: {where} {', '.join(map(repr, several))} have one name for Spark, which ignores case: "
                "rename all but one, or set spark.sql.caseSensitive to true"
            )


def parts_of(option: str, types: Mapping[str, DataType]) -> dict[str, TopicPart]:
    """Return the typed keys or values of sinks. Raises ConfigError for a type that is not supported."""
    part = "key" if option == "key_schema" else "value"
    return {
        topic: TopicPart(topic, part, column_of(kind, f"{option} of topic {topic!r}: {part}"))
        for topic, kind in types.items()
    }


def result_schema(keys: Mapping[str, DataType], values: Mapping[str, DataType]) -> StructType:
    """Return the schema of a typed result."""
    from pyspark.sql import types

    schema = types.StructType().add("topic", "string").add("key", "binary").add("value", "binary")
    schema.add("timestamp", types.TimestampType()).add("headers", types.DataType.fromDDL(_HEADERS))
    binary = types.BinaryType()
    for topic in dict.fromkeys([*values, *keys]):
        parts = types.StructType().add("key", keys.get(topic, binary)).add("value", values.get(topic, binary))
        schema.add(topic, parts)
    return schema


def topic_rows(frame: DataFrame, topic: str) -> DataFrame:
    """Return the rows of one topic in the result of `transform` with a schema, or in a batch of it in `foreachBatch`.

    The columns are key, the fields of the value (or value, where it is no struct), timestamp and headers. A tombstone
    has null in all fields. Dead letters are left out. Raises ConfigError for a topic without a schema, and for a field
    that is named as another column.
    """
    from pyspark.sql import types
    from pyspark.sql.functions import col

    typed = [name for name in frame.columns if name not in RESULT]
    if topic not in typed:
        raise ConfigError(
            f"topic_rows: the DataFrame has no column for topic {topic!r}; it has columns for: "
            f"{', '.join(map(repr, typed)) or 'none'}. Give it a schema: "
            f'transform(..., schema={{{topic!r}: "n long, at timestamp"}})'
        )
    column = f"`{topic.replace('`', '``')}`"
    value = frame.schema[topic].dataType["value"].dataType  # type: ignore[index]
    fields = [f"{column}.value"]
    if isinstance(value, types.StructType):
        for name in _taken(value):
            raise ConfigError(
                f"topic_rows: the value of topic {topic!r} has the field {name!r}, and so has each row; name it "
                f"yourself: frame.select({f'{column}.value.`{name}`'!r})"
            )
        fields = [f"{column}.value.`{name.replace('`', '``')}`" for name in value.names]
    return frame.where(col(column).isNotNull()).select(f"{column}.key", *fields, "timestamp", "headers")


def _taken(value: StructType) -> Iterator[str]:
    return (name for name in value.names if name.lower() in ("key", "timestamp", "headers"))
