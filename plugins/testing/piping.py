"""Records that a test pipes: checked, and as the bytes that a source reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock import ConfigError, OutputBatch, Record, Serde, SerdeError, Settings, SourceNode
from penstock.program.partitioning import keys_to_hash
from penstock.program.serdes import serdes_of_topic
from penstock.task.validation import is_timestamp, wrong_headers


def serialized(
    topic: str,
    source: SourceNode,
    settings: Settings,
    records: Iterable[Record | tuple[Any, ...]],
    partition: int | None,
    partitions: int,
    now_ms: int,
) -> OutputBatch:
    """Return records as bytes, as `source` will read them from a topic with `partitions` partitions.

    A record without a timestamp gets `now_ms`. Raises ConfigError or SerdeError for a record that cannot be one.
    """
    where, what = f"topic {topic!r}", f"source {source.name!r}"
    given = [_checked(where, each) for each in records]
    if partition is not None and (type(partition) is not int or not 0 <= partition < partitions):
        raise ConfigError(f"{where}: partition {partition!r}: expected 0 to {partitions - 1}, or None for the key's")
    key_serde, value_serde = serdes_of_topic(source.key_serde, source.value_serde, settings, what, topic)
    keys = [_bytes(f"{what}, {where}: the key", key_serde, each.key) for each in given]
    return OutputBatch(
        topic,
        keys,
        [_bytes(f"{what}, {where}: the value", value_serde, each.value) for each in given],
        [now_ms if each.timestamp is None else each.timestamp for each in given],
        [tuple(each.headers) for each in given] if any(each.headers for each in given) else None,
        None if partition is None else [(partition,)] * len(given),
        keys_to_hash(key_serde, keys),
    )


def check_partitions(partitions: object, known: Sequence[str] | None) -> None:
    """Refuse what is no number of partitions, nor numbers by topic. `known`: the program's topics, if all are named."""
    if isinstance(partitions, Mapping):
        for topic in partitions:
            if known is not None and topic not in known:
                raise ConfigError(
                    f"partitions: the program has no topic {topic!r}; its topics: {', '.join(map(repr, known))}"
                )
    elif type(partitions) is not int:
        raise ConfigError(f"partitions: expected a number, or numbers by topic, found {partitions!r}")


def check_time(what: str, time: object) -> None:
    """Refuse what is no time in milliseconds. Raises ConfigError."""
    if not is_timestamp(time):
        hint = "; write int(WHEN.timestamp() * 1000)" if isinstance(time, datetime) else ""
        raise ConfigError(f"{what}: expected an int of milliseconds since the epoch, found {time!r}{hint}")


def _checked(where: str, record: Any) -> Record:
    if type(record) is tuple and 2 <= len(record) <= 4:
        record = Record(*(*record, None)[:3], *record[3:])
    if not isinstance(record, Record):
        raise ConfigError(f"{where}: expected a Record, for instance Record(KEY, VALUE, TIMESTAMP), found {record!r}")
    if record.timestamp is not None:
        check_time(f"{where}: timestamp", record.timestamp)
    if isinstance(record.headers, Mapping):
        raise ConfigError(f"{where}: headers are pairs of a name and bytes, found a dict; write tuple(HEADERS.items())")
    if record.headers and (wrong := wrong_headers(tuple(record.headers))):
        raise ConfigError(f"{where}: {wrong}")
    return record


def _bytes(what: str, serde: Serde[Any], given: object) -> bytes | None:
    try:
        return None if given is None else serde.serialize(given)
    except SerdeError as error:
        raise SerdeError(f"{what}: {error}") from error
