"""DataFrames of streams' results, by the test driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, Protocol

from penstock import ConfigError, Processor, Record, Settings, Topology, TopologyBuilder, Windowed
from penstock.plugins.dsl.operators.map import columns_of
from penstock.plugins.sinks.memory import ScratchTarget
from penstock.support.packages import needed

from .driver import TopologyTestDriver

with needed("to_pandas"):
    import pandas as pd

_FORM = "expected a Record, (key, value), (key, value, timestamp) or (key, value, timestamp, headers)"


class Stream(Protocol):
    """A stream whose records can be collected."""

    def _tapped(self, settings: Settings) -> tuple[Topology, str]:
        """Return the topology of the stream's program, and the node that forwards the stream's records."""
        ...


def to_pandas(
    stream: Stream,
    inputs: Mapping[str, Iterable[Any]],
    *,
    limit: int | None = None,
    only_latest: bool = False,
    **settings: Any,
) -> pd.DataFrame:
    """Return the records of `stream` for `inputs` as a DataFrame; see `KStream.to_pandas` and `KTable.to_pandas`."""
    if not isinstance(inputs, Mapping):
        raise ConfigError(
            f"to_pandas: expected records by topic, {{TOPIC: [(key, value, timestamp)]}}, found {inputs!r}"
        )
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise ConfigError(f"to_pandas: limit is a number of records, found {limit!r}")
    if settings.get("reopen_tasks"):
        raise ConfigError("to_pandas: records are collected in this process, so tasks are not re-opened")
    records: list[Record] = []
    with TopologyTestDriver(_Tapped(stream, records), **{"sinks": ScratchTarget(), **settings}) as driver:
        for topic, record in _in_order(inputs):
            if limit is not None and len(records) >= limit:
                break
            driver.pipe(topic, *record)
    return _frame(_latest(records[:limit]) if only_latest else records[:limit])


class _Tapped(TopologyBuilder):
    def __init__(self, stream: Stream, records: list[Record]) -> None:
        self._stream = stream
        self._records = records

    def build(self, settings: Settings | None = None) -> Topology:
        topology, node = self._stream._tapped(Settings() if settings is None else settings)
        return topology.add_processor("to-pandas", _Collect, node, records=self._records)


class _Collect(Processor):
    def __init__(self, records: list[Record]) -> None:
        self._records = records

    def process(self, record: Record) -> None:
        self._records.append(record)


def _latest(updates: list[Record]) -> list[Record]:
    """Return the last update of each key; a deletion takes its key away."""
    rows: dict[Any, Record] = {}
    for update in updates:
        # Keys may be of any type, also dicts, which cannot be keys here.
        key = repr(update.key)
        if update.value is None:
            rows.pop(key, None)
        else:
            rows[key] = update
    return list(rows.values())


def _in_order(inputs: Mapping[str, Iterable[Any]]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield topic and record, of the topics' next records the one with the lowest timestamp."""
    topics = [_checked(topic, records) for topic, records in inputs.items()]
    return merge(*topics, key=lambda each: _time(each[1]))  # ties go to the topic that is named first


def _checked(topic: str, records: Iterable[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for record in records:
        if not isinstance(record, tuple) or not 2 <= len(record) <= 4:
            raise ConfigError(f"to_pandas: topic {topic!r}: {_FORM}, found {record!r}")
        yield topic, record


def _time(record: tuple[Any, ...]) -> int:
    return -1 if len(record) < 3 or record[2] is None else record[2]


def _frame(records: list[Record]) -> pd.DataFrame:
    """Return key (and window), value or its columns, and timestamp of each record."""
    keys = [record.key for record in records]
    columns: dict[str, Any] = {"key": keys}
    if keys and all(isinstance(key, Windowed) for key in keys):
        columns["key"] = [key.key for key in keys]
        columns["window_start"] = _times([key.start for key in keys])
        columns["window_end"] = _times([key.end for key in keys])
    rows = [None if record.value is None else columns_of(record.value) for record in records]
    names = list(dict.fromkeys(name for row in rows if row is not None for name in row)) or ["value"]
    if "value" in names and len(names) > 1:
        # Some values have columns, and others have not.
        columns["value"] = [record.value for record in records]
    else:
        for name in names:
            column = f"value.{name}" if name in columns or name == "timestamp" else name
            columns[column] = [None if row is None else row.get(name) for row in rows]
    columns["timestamp"] = _times([record.timestamp for record in records])
    return pd.DataFrame(columns)


def _times(times_ms: list[int]) -> Any:
    return pd.to_datetime(pd.Series(times_ms, dtype="int64"), unit="ms", utc=True)
