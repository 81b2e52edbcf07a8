"""Typed columns of a source: its keys as bytes of the source's key serde, its values as what its value serde is for."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock import Application, ConfigError, Serde, SerdeError, SerdeUnavailableError, SourceNode
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.serdes.of import typed_serde
from penstock.plugins.serdes.typed.base import TypedSerde
from penstock.program.serdes import serde_name, serdes_of_topic

from . import nested, scalars
from .columns import Column
from .serdes import TopicPart
from .spark_types import column_of, fitted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


@dataclass(frozen=True)
class KeyBytes:
    """The bytes of typed keys, in Spark's workers. `cargo` has the column and the serde, packed."""

    cargo: bytes

    def __call__(self, array: Any) -> list[bytes | None]:
        """Return the bytes of each key of an array. Raises SerdeError with topic and field for one that has none."""
        part, serde = self._parts
        serialize = serde.serialize
        try:
            keys = part.read(array)
            if part.serde is None and isinstance(part.column, _NESTED):
                keys = list(map(_in_order, keys))
            return [None if key is None else serialize(key) for key in keys]
        except SerdeUnavailableError:
            raise
        except SerdeError as error:
            where = f"topic {part.topic!r}, key: "
            said = str(error).removeprefix(where)
            raise SerdeError(f"{where}{said}. A key's bytes decide its task, so no handler is asked") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyBytes, (self.cargo,)

    @cached_property
    def _parts(self) -> tuple[TopicPart, Serde[Any]]:
        parts: tuple[TopicPart, Serde[Any]] = pickle.loads(self.cargo)
        return parts


def typed_keys(
    application: Application, topic: str, kind: DataType, *, case_sensitive: bool = False
) -> KeyBytes | None:
    """Return the bytes of a topic's keys of a Spark type; None for keys that are bytes already.

    Raises ConfigError with the topic for a type that is not supported, and one that the source's key serde cannot
    write.
    """
    if kind.simpleString() == "binary":
        return None
    source = _source(application, topic)
    serde, _ = serdes_of_topic(
        source.key_serde, source.value_serde, application.settings, f"source {source.name!r}", topic
    )
    part = _part(topic, "key", kind, serde, case_sensitive)
    if part.serde is None:
        try:
            serde.serialize(_sample(part.column))
        except SerdeUnavailableError:
            pass  # `prepare_serdes` says so, with where the serde is used
        except SerdeError as error:
            named = serde_name(application.settings.key_serde if source.key_serde is None else source.key_serde)
            raise ConfigError(
                f"the DataFrame of topic {topic!r}: its key is of type {kind.simpleString()}, and the key serde "
                f"{named!r} of source {source.name!r} cannot write that: {error}. Name one that can, such as "
                f'key_serde="int" or "json", or cast the key: Records(frame, key=col(...).cast("string"))'
            ) from error
    return KeyBytes(pack((part, serde)))


def typed_values(
    application: Application, topic: str, kind: DataType, *, case_sensitive: bool = False
) -> TopicPart | None:
    """Return a topic's values of a Spark type; None for values that are bytes already.

    Raises ConfigError with the topic for a type that is not supported, and one that lacks a field of its class.
    """
    if kind.simpleString() == "binary":
        return None
    source = _source(application, topic)
    _, serde = serdes_of_topic(
        source.key_serde, source.value_serde, application.settings, f"source {source.name!r}", topic
    )
    return _part(topic, "value", kind, serde, case_sensitive)


def _source(application: Application, topic: str) -> SourceNode:
    nodes = application.program.nodes.values()
    return next(node for node in nodes if isinstance(node, SourceNode) and topic in node.topics)


def _part(topic: str, part: str, kind: DataType, serde: Serde[Any], case_sensitive: bool) -> TopicPart:
    where = f"the DataFrame of topic {topic!r}: {part}"
    column = column_of(kind, where)
    if serde.value_type is None:
        return TopicPart(topic, part, column)
    typed = serde if isinstance(serde, TypedSerde) else typed_serde(serde.value_type)
    column = fitted(column, serde.value_type, where, case_sensitive=case_sensitive)
    return TopicPart(topic, part, column, typed)


_NESTED = (nested.StructColumn, nested.MapColumn, nested.ArrayColumn)


def _in_order(value: Any) -> Any:
    """Return a key with its dicts in order, so that equal keys have equal bytes in whatever order their columns are."""
    if isinstance(value, dict):
        return {key: _in_order(each) for key, each in sorted(value.items(), key=lambda item: repr(item[0]))}
    return [_in_order(each) for each in value] if isinstance(value, list) else value


_SAMPLES: dict[type[Column], Any] = {
    scalars.IntegerColumn: 0, scalars.FloatColumn: 0.0, scalars.BooleanColumn: False, scalars.DecimalColumn: Decimal(),
    scalars.TextColumn: "", scalars.BinaryColumn: b"", scalars.DateColumn: date(1970, 1, 1), scalars.TimeColumn: time(),
    scalars.IntervalColumn: timedelta(), nested.ArrayColumn: [], nested.MapColumn: {},
}  # fmt: skip


def _sample(column: Column) -> Any:
    """Return some value of a column."""
    if isinstance(column, nested.StructColumn):
        return {field.name: _sample(field.column) for field in column.fields}
    if isinstance(column, scalars.TimestampColumn):
        return datetime(1970, 1, 1, tzinfo=UTC if column.is_zoned else None)
    return _SAMPLES.get(type(column))
