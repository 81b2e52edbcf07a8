"""transform: a topology applied to streaming DataFrames, one for each topic that its sources read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import Application, Assignment, ConfigError, Settings, SystemClock, TaskId
from penstock.plugins.engine.host.log_lines import level_here
from penstock.plugins.engine.host.place import digest_of
from penstock.plugins.engine.program.preparation import prepare_serdes
from penstock.plugins.engine.task.shipping import pack

from ..batches.host_caller import HostCaller
from ..observed import observed, without_counts
from ..placement.group_keys import SPREAD, group_key
from ..session.interpreter import log_interpreter
from ..session.sessions import check_python_memory, is_cluster, slots_of_executor
from .checks import check_application, check_count, check_sources, ordered_topics
from .packing import CHUNK_SCHEMA, Packer
from .records import ColumnLike, Records, check_frame, is_case_sensitive, normalized
from .stream_commit import STATE_SCHEMA, SourceOrder
from .stream_engine import Cargo, StreamFunction, once_function
from .typed.schemas import Schemas, check_names, parts_of, result_schema, spark_schemas
from .typed.serdes import TypedTopics
from .typed.sources import CHUNKS_SCHEMA, typed_keys, typed_values, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.group import GroupedData

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
        rows = chunks.applyInPandas(once_function(pack(cargo), SystemClock().now_ms()), CHUNKS_SCHEMA)
    return without_counts(rows).mapInArrow(unpacked, result_schema(key_types, value_types))


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


def _streamed(chunks: GroupedData, application: Application, cargo: Cargo, session: SparkSession) -> DataFrame:
    _advise(application, int(session.conf.get("spark.sql.shuffle.partitions", "200")), len(cargo.tasks))  # type: ignore[arg-type]
    family = digest_of(session.sparkContext.applicationId, application.id)
    hosts = HostCaller(pack(cargo), family, f"application {application.id!r}")
    return chunks.applyInPandasWithState(
        StreamFunction(hosts, slots_of_executor(session)),
        CHUNKS_SCHEMA,
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
) -> Cargo:
    batches = int(session.conf.get("spark.sql.streaming.minBatchesToRetain", "100"))  # type: ignore[arg-type]
    return Cargo(
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
