"""Schemas of typed results: what `transform` takes, the types of the result, and the rows of one topic in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from penstock import Application, ConfigError, SinkNode
from penstock.program.checks import nearest
from penstock.program.serdes import resolve_serde

from .serdes import TopicPart
from .spark_types import column_of, type_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

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
    chooses = any(isinstance(each, SinkNode) and callable(each.topic) for each in application.program.nodes.values())
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
    """Check that Spark tells topics, and the fields of each, apart where it ignores case; `types` by option and topic.

    Raises ConfigError with the names.
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
