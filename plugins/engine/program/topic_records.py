"""Records of an application's topics in Python: as the bytes that its program reads, and from the bytes it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from datetime import datetime
from itertools import islice
from typing import Any

from penstock import (
    Application,
    ConfigError,
    Log,
    OutputBatch,
    Program,
    Record,
    RecordBatch,
    Serde,
    SerdeError,
    SinkNode,
    SourceNode,
    SystemClock,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.engine.task.locations import open_log, read_up_to
from penstock.program.partitioning import keys_to_hash
from penstock.program.serdes import SerdeLike, serdes_of_topic
from penstock.support.names import did_you_mean
from penstock.task.validation import is_timestamp, wrong_headers

Row = Record | tuple[Any, ...]
"""A Record, (key, value), (key, value, timestamp) or (key, value, timestamp, headers)."""

_ROWS = 1_000
"""Rows that are appended to the log at once."""


def produce(
    application: Application,
    topic: str,
    rows: Iterable[Row],
    *,
    key_serde: SerdeLike = None,
    value_serde: SerdeLike = None,
    partition: int | None = None,
    partitions: int | None = None,
) -> int:
    """Append rows to a topic as `Application.produce` does, and return their number."""
    said = serdes_in_program(application.program, topic, reading=False)
    key, value = _serdes(application, topic, key_serde or said[0], value_serde or said[1])
    written, waiting = 0, iter(rows)
    with _opened(application, "produce") as log:
        if partitions is not None and topic not in log.topics():
            log.create_topic(topic, partitions)
        count = _partitions(log, application, topic)
        try:
            while some := list(islice(waiting, _ROWS)):
                log.append(as_bytes(topic, key, value, some, partition, count, SystemClock().now_ms(), first=written))
                written += len(some)
        except Exception as error:  # of the iterator, too
            if written:
                error.add_note(f"the first {written:,} rows are in topic {topic!r}")
            raise
    return written


def read(
    application: Application,
    topic: str,
    *,
    key_serde: SerdeLike = None,
    value_serde: SerdeLike = None,
    partition: int | None = None,
    limit: int | None = None,
) -> list[Record]:
    """Return the records of a topic as `Application.read` does."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise ConfigError(f"read: limit: expected a number of records, or None for all, found {limit!r}")
    said = serdes_in_program(application.program, topic, reading=True)
    key, value = _serdes(application, topic, key_serde or said[0], value_serde or said[1])
    with _opened(application, "read") as log:
        count = _partitions(log, application, topic)
        check_partition(topic, partition, count)
        chosen = [TopicPartition(topic, each) for each in (range(count) if partition is None else [partition])]
        return list(islice(_records(log, chosen, key, value), limit))


def serdes_in_program(program: Program, topic: str, *, reading: bool) -> tuple[SerdeLike, SerdeLike]:
    """Return the serdes of a topic's keys and values in a program, each None where it names none.

    `reading`: those of the sink that writes the topic count first, else those of the source that reads it.
    """
    nodes = [*program.nodes.values(), *(store.source for store in program.global_stores)]
    sources = [node for node in nodes if isinstance(node, SourceNode) and _reads(node, topic)]
    named = [node for node in nodes if isinstance(node, SinkNode) and node.topic == topic]
    chosen = [node for node in nodes if isinstance(node, SinkNode) and callable(node.topic)]
    found: list[SourceNode | SinkNode] = [*named, *sources] if reading else [*sources, *named]
    for node in [*found, *chosen]:
        return node.key_serde, node.value_serde
    return None, None


def _reads(source: SourceNode, topic: str) -> bool:
    return topic in source.topics or (source.pattern is not None and source.pattern.fullmatch(topic) is not None)


def _serdes(application: Application, topic: str, key: SerdeLike, value: SerdeLike) -> tuple[Serde[Any], Serde[Any]]:
    return serdes_of_topic(key, value, application.settings, f"topic {topic!r}", topic)


def _opened(application: Application, verb: str) -> AbstractContextManager[Log]:
    """Open the log. Raises ConfigError for one that is gone when it is closed."""
    if application.settings.log.partition(":")[0] == "memory":
        raise ConfigError(
            f'{verb}: the setting log is "memory:", a log that is gone when it is closed: use "local:PATH" or Kafka; '
            "a test pipes to a TopologyTestDriver, and reads from it"
        )
    return closing(open_log(application.settings))


def _partitions(log: Log, application: Application, topic: str) -> int:
    found = log.topics()
    if topic in found:
        return found[topic].partitions
    program = application.program
    known = sorted({*(name for name, info in found.items() if not info.internal), *program.topics()})
    advice = did_you_mean(topic, known, 0.5) or f"there are: {', '.join(known)}"
    raise UnknownTopicError(
        f"topic {topic!r} does not exist in this log; {advice}. produce(..., partitions=1) makes one"
    )


def _records(log: Log, chosen: list[TopicPartition], key: Serde[Any], value: Serde[Any]) -> Iterator[Record]:
    starts, ends = log.start_offsets(chosen), log.end_offsets(chosen)
    for partition in chosen:
        for batch in read_up_to(log, partition, starts[partition], ends[partition]):
            for index in range(len(batch)):
                yield _record(batch, index, key, value)


def _record(batch: RecordBatch, index: int, key: Serde[Any], value: Serde[Any]) -> Record:
    raw_key, raw_value = batch.keys[index], batch.values[index]
    try:
        return Record(
            None if raw_key is None else key.deserialize(raw_key),
            None if raw_value is None else value.deserialize(raw_value),
            batch.timestamps[index],
            batch.headers[index] if batch.headers is not None else (),
        )
    except Exception as error:  # a serde of another package may raise anything
        raise SerdeError(
            f"topic {batch.topic!r}, partition {batch.partition}, offset {batch.offsets[index]}: {error} (see "
            'key_serde and value_serde; "bytes" reads anything)'
        ) from error


# ------------------------------------------------------------------ rows as bytes


def as_bytes(
    topic: str,
    key_serde: Serde[Any],
    value_serde: Serde[Any],
    rows: Iterable[Row],
    partition: int | None,
    partitions: int,
    now_ms: int,
    *,
    what: str = "",
    first: int | None = None,
) -> OutputBatch:
    """Return rows as the bytes of records. One without a timestamp gets `now_ms`.

    `what` is in front in messages; `first` is the number of the first row there, None: rows have none. Raises
    ConfigError or SerdeError for a row that cannot be a record.
    """
    where = f"{what}topic {topic!r}"
    check_partition(topic, partition, partitions)
    given = [checked_row(_numbered(where, first, at), row) for at, row in enumerate(rows)]
    keys = [_bytes(f"{_numbered(where, first, at)}: the key", key_serde, row.key) for at, row in enumerate(given)]
    values = [
        _bytes(f"{_numbered(where, first, at)}: the value", value_serde, row.value) for at, row in enumerate(given)
    ]
    return OutputBatch(
        topic,
        keys,
        values,
        [now_ms if row.timestamp is None else row.timestamp for row in given],
        [tuple(row.headers) for row in given] if any(row.headers for row in given) else None,
        None if partition is None else [(partition,)] * len(given),
        keys_to_hash(key_serde, keys),
    )


def check_partition(topic: str, partition: Any, partitions: int) -> None:
    """Refuse a partition that a topic does not have; None is any. Raises ConfigError."""
    if partition is not None and (type(partition) is not int or not 0 <= partition < partitions):
        raise ConfigError(
            f"topic {topic!r}: partition {partition!r}: expected 0 to {partitions - 1}, or None for the key's"
        )


def check_time(what: str, time: object) -> None:
    """Check a time in milliseconds. Raises ConfigError."""
    if not is_timestamp(time):
        hint = "; write int(WHEN.timestamp() * 1000)" if isinstance(time, datetime) else ""
        raise ConfigError(f"{what}: expected an int of milliseconds since the epoch, found {time!r}{hint}")


def checked_row(where: str, row: Any) -> Record:
    """Return a row as a Record, whose timestamp may be None. Raises ConfigError for one that is none."""
    if type(row) is tuple and 2 <= len(row) <= 4:
        row = Record(*(*row, None)[:3], *row[3:])
    if not isinstance(row, Record):
        raise ConfigError(f"{where}: expected a Record, for instance Record(KEY, VALUE, TIMESTAMP), found {row!r}")
    if row.timestamp is not None:
        check_time(f"{where}: timestamp", row.timestamp)
    if isinstance(row.headers, Mapping):
        raise ConfigError(f"{where}: headers are pairs of a name and bytes, found a dict; write tuple(HEADERS.items())")
    if row.headers and (wrong := wrong_headers(tuple(row.headers))):
        raise ConfigError(f"{where}: {wrong}")
    return row


def _numbered(where: str, first: int | None, at: int) -> str:
    return where if first is None else f"{where}, row {first + at}"


def _bytes(what: str, serde: Serde[Any], given: object) -> bytes | None:
    try:
        return None if given is None else serde.serialize(given)
    except SerdeError as error:
        raise SerdeError(f"{what}: {error}") from error
