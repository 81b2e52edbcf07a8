"""Replacements of a topic's serdes for typed columns: values pass as columns, and not as bytes.

A typed input is a `ValueColumn`, which `ColumnSerde` reads; a typed output is a tuple of one, which `ColumnWriter`
makes. What is no tuple in the outputs of a typed topic is bytes: a dead letter.
"""

from __future__ import annotations

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from penstock import Serde, SerdeError, SinkNode, SourceNode, Subtopology
from penstock.plugins.serdes.typed.base import TypedSerde
from penstock.program.serdes import Configured, SerdeLike, resolve_serde


class Unfit(Exception):
    """A value that does not fit its type.

    `path`: the field, from the outermost. `said`: expected and actual value. `advice`: what to do.
    """

    def __init__(self, said: str, advice: str, path: str = "") -> None:
        super().__init__(said)
        self.said = said
        self.advice = advice
        self.path = path

    def below(self, step: str) -> Unfit:
        """Return this error as that of the type around: `step` is a field's name, or an index in brackets."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        return Unfit(self.said, self.advice, f"{step}{dot}{self.path}")


class Column(ABC):
    """The values of one Spark type, which `name` is. Picklable, and usable without Spark.

    An array is an Arrow array of the type that Spark sends (`arrow`), which may be a slice. None is null.
    """

    name: str

    @abstractmethod
    def arrow(self) -> Any:
        """Return the Arrow type."""

    @abstractmethod
    def read(self, array: Any) -> list[Any]:
        """Return an array's values. Raises Unfit for one that Python's type cannot hold."""

    def text(self, array: Any) -> list[Any]:
        """Return an array's values as JSON data, different for different values. Raises nothing."""
        return self.read(array)

    @abstractmethod
    def plain(self, value: Any) -> Any:
        """Return a copy of a value (not None) in pyarrow's form. Raises Unfit for a value that does not fit."""

    def texts(self, array: Any) -> list[bytes | None]:
        """Return JSON of each value in UTF-8, with Spark's null for null: None."""
        dumps = json.JSONEncoder(separators=(",", ":")).encode
        found = zip(self.text(array), array.is_valid().to_pylist(), strict=True)
        return [dumps(value).encode() if valid else None for value, valid in found]

    def unfit(self, expected: str, value: object, advice: str = "") -> Unfit:
        """Return the error for a value that is to be written."""
        said = f"expected {expected} for the type {self.name}, found {type(value).__name__} {reprlib.repr(value)}"
        return Unfit(said, advice or "convert it, or change the schema")


def of_part(part: Column, nullable: bool, value: Any) -> Any:
    """Return an element or field as pyarrow takes it; None only where the schema says that it may be null."""
    if value is not None:
        return part.plain(value)
    if not nullable:
        raise Unfit(f"expected a value of the type {part.name}, found None", "set it, or leave out NOT NULL")
    return None


@dataclass(frozen=True)
class TopicPart:
    """The typed keys, or values, of a topic: `part` is "key" or "value".

    `serde` converts what is read to a value of its class; None: it stays as it is.
    """

    topic: str
    part: str
    column: Column
    serde: TypedSerde[Any] | None = None

    def read(self, array: Any) -> list[Any]:
        """Return the values of an array. Raises SerdeError with topic and field."""
        try:
            values = self.column.read(array)
        except Unfit as error:
            raise self._error(error) from error
        if self.serde is None:
            return values
        try:
            return self.serde.of_rows(values)
        except SerdeError as error:
            raise SerdeError(f"topic {self.topic!r}, {self.part}: {error}") from error

    def plain(self, value: Any) -> Any:
        """Return a value, not None, as pyarrow takes it. Raises SerdeError with topic and field."""
        try:
            return self.column.plain(value)
        except Unfit as error:
            raise self._error(error) from error
        except Exception as error:  # of the value's own methods
            raise SerdeError(f"topic {self.topic!r}, {self.part}: {type(error).__name__}: {error}") from error

    def _error(self, error: Unfit) -> SerdeError:
        below = error.below(self.part)
        return SerdeError(f"topic {self.topic!r}, {below.path}: {below.said}; {below.advice}")


class Cell(bytes):
    """One value of a `ValueColumn`: an array of one, and its JSON as the bytes, which a dead letter has."""

    array: Any

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the array here: a dead letter is bytes."""
        return bytes, (bytes(self),)


class ValueColumn(Sequence[bytes | None]):
    """The values of a batch as an Arrow array; its entries are made when they are asked for."""

    def __init__(self, column: Column, array: Any) -> None:
        self.column = column
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> ValueColumn: ...
    def __getitem__(self, index: int | slice) -> bytes | ValueColumn | None:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self.array))
            return ValueColumn(self.column, self.array.slice(start, max(0, stop - start)))
        array = self.array.slice(range(len(self.array))[index], 1)
        (text,) = self.column.texts(array)
        if text is None:
            return None
        cell = Cell(text)
        cell.array = array
        return cell


class ColumnSerde(Serde[Any]):
    """In place of a source's value serde."""

    def __init__(self, part: TopicPart) -> None:
        self.part = part

    def deserialize_column(self, column: Sequence[bytes | None]) -> list[Any]:
        assert isinstance(column, ValueColumn)
        return self.part.read(column.array)

    def deserialize(self, data: bytes) -> Any:
        assert isinstance(data, Cell)
        return self.part.read(data.array)[0]

    def serialize(self, value: Any) -> bytes:
        raise NotImplementedError("sources write nothing")


class ColumnWriter(Serde[Any]):
    """In place of a sink's serde."""

    def __init__(self, part: TopicPart) -> None:
        self.part = part

    def serialize(self, value: Any) -> bytes:
        return (self.part.plain(value),)  # type: ignore[return-value]

    def serializer(self) -> Callable[[Any], bytes]:
        plain = self.part.column.plain
        return lambda value: (plain(value),)  # type: ignore[return-value]

    def deserialize(self, data: bytes) -> Any:
        raise NotImplementedError("sinks read nothing")


class _ByTopic(Serde[Any]):
    """A sink's serde if some of its topics are typed: `bind` chooses by topic."""

    def __init__(self, inner: Serde[Any], typed: Mapping[str, TopicPart]) -> None:
        self.inner = inner
        self.typed = typed

    def configure(self, config: Mapping[str, Any]) -> Serde[Any]:
        return _ByTopic(self.inner.configure(config), self.typed)

    def bind(self, topic: str, *, is_key: bool) -> Serde[Any]:
        part = self.typed.get(topic)
        return self.inner.bind(topic, is_key=is_key) if part is None else ColumnWriter(part)

    def serialize(self, value: Any) -> bytes:
        return self.inner.serialize(value)

    def deserialize(self, data: bytes) -> Any:
        return self.inner.deserialize(data)


@dataclass(frozen=True)
class TopicColumns:
    """The columns of a topic's keys and values in a typed result; None: the bytes of the sink's serde."""

    key: Column | None
    value: Column | None


@dataclass(frozen=True)
class TypedTopics:
    """Which topics of a query have typed columns: values of sources, and keys and values of sinks, by topic.

    Typed keys of sources are bytes before they reach a task: they decide which task that is.
    """

    sources: Mapping[str, TopicPart] = field(default_factory=dict)
    sink_keys: Mapping[str, TopicPart] = field(default_factory=dict)
    sink_values: Mapping[str, TopicPart] = field(default_factory=dict)

    def source(self, node: SourceNode, topic: str) -> SourceNode:
        """Return a source as it reads a topic."""
        part = self.sources.get(topic)
        return node if part is None else replace(node, value_serde=ColumnSerde(part))

    @property
    def replaced_serdes(self) -> set[tuple[str, str, str]]:
        """The serdes of topics that typed columns replace, as `prepare_serdes` takes them."""
        sinks = {("sink", topic, "keys") for topic in self.sink_keys}
        sinks |= {("sink", topic, "values") for topic in self.sink_values}
        return sinks | {("source", topic, "values") for topic in self.sources}

    @property
    def columns(self) -> dict[str, TopicColumns]:
        """The columns of the result, by topic; empty for a result of bytes alone."""
        keys, values = self.sink_keys, self.sink_values
        return {
            topic: TopicColumns(
                keys[topic].column if topic in keys else None, values[topic].column if topic in values else None
            )
            for topic in dict.fromkeys([*values, *keys])
        }

    def value_column(self, topic: str) -> Column | None:
        """Return the column of a source's typed values; None for a topic whose values are bytes."""
        part = self.sources.get(topic)
        return None if part is None else part.column

    def applied(self, subtopology: Subtopology, settings: Configured) -> Subtopology:
        """Return a sub-topology whose sinks write typed columns."""
        if not self.sink_keys and not self.sink_values:
            return subtopology
        nodes = [
            replace(
                node,
                key_serde=_by_topic(node.key_serde, settings.key_serde, node, self.sink_keys),
                value_serde=_by_topic(node.value_serde, settings.value_serde, node, self.sink_values),
            )
            if isinstance(node, SinkNode)
            else node
            for node in subtopology.nodes
        ]
        return replace(subtopology, nodes=tuple(nodes))


def _by_topic(serde: SerdeLike, default: SerdeLike, sink: SinkNode, typed: Mapping[str, TopicPart]) -> SerdeLike:
    return _ByTopic(resolve_serde(serde, default, f"sink {sink.name!r}"), typed) if typed else serde
