"""Joins of a stream with a table, or a global one: their processors, and their steps in the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, TypedDict

from penstock import Duration, ProcessorContext, Record, StoreBuilder, TopologyError, duration_ms, list_store
from penstock.operator import Operator, Run
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.store.division import Division
from penstock.support.own_copy import own_copy
from penstock.support.topic_config import TopicConfig

from ...graph.functions import check_mapper
from ...graph.materialized import kept_options
from ...graph.names import is_same_key
from ...graph.recorder import Recorder
from ...graph.serdes import Serdes, check_same_keys, key_of_store, value_of_store
from ...graph.step import Flow, ProcessorStep, Stores
from ...graph.writer import Writer
from ..joins import Joiner, JoinKind, TableSide
from ..reading import StoreGetter, ValueGetter
from ..waiting import TimedKeySerde, ValueAndHeadersSerde


@dataclass(kw_only=True, eq=False)
class StreamTableJoin(Operator):
    """Forwards each record with what `joiner` makes of its value and of the table's value for its key.

    With `select_key` the table is read by the key that it makes of the record: a global table. A versioned table is
    read as of the record's time. `joiner` takes the left value and the right one, `with_key` the record's key before
    them, and `select_key` the value, `with_key` the key before it. With `keeps_unmatched`, records that find no value
    are forwarded, too; the others are not. Kafka Streams: KStreamKTableJoin, KStreamGlobalKTableJoin.
    """

    forwards_last = True

    table: ValueGetter
    joiner: Callable[..., Any]
    select_key: Callable[..., Any] | None = None
    with_key: bool = False
    keeps_unmatched: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        if self.table.history_ms is not None:
            return self._bind_versioned(context)
        if self.with_key or self.select_key is not None:
            return self._bind_general(context)
        forward, drop, get = context.send, context.metrics.drop, self.table.open(context)
        joiner, keeps = self.joiner, self.keeps_unmatched

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None or key is None:
                if value is None or not keeps:
                    drop("null_value" if value is None else "null_key")
                    return
                found = None
            else:
                found = get(key)
            if found is not None:
                forward((key, joiner(value, found[0]), timestamp, headers))
            elif keeps:
                forward((key, joiner(value, None), timestamp, headers))

        return run

    def _bind_general(self, context: ProcessorContext) -> Run:
        forward, drop, get = context.send, context.metrics.drop, self.table.open(context)
        joiner, select, with_key, keeps = self.joiner, self.select_key, self.with_key, self.keeps_unmatched

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None:
                drop("null_value")
                return
            wanted = key if select is None else select(key, value) if with_key else select(value)
            if wanted is None and not keeps:
                drop("null_key")
                return
            found = None if wanted is None else get(wanted)
            if found is not None or keeps:
                other = None if found is None else found[0]
                result = joiner(key, value, other) if with_key else joiner(value, other)
                forward((key, result, timestamp, headers))

        return run

    def _bind_versioned(self, context: ProcessorContext) -> Run:
        drop, join, keeps = context.metrics.drop, self.bind_join(context), self.keeps_unmatched

        def run(record: Record) -> None:
            if record[1] is None or (record[0] is None and not keeps):
                drop("null_value" if record[1] is None else "null_key")
            else:
                join(record)

        return run

    def bind_join(self, context: ProcessorContext) -> Run:
        """Return the function that joins a record which has a value with the versioned table."""
        forward, joiner, keeps, with_key = context.send, self.joiner, self.keeps_unmatched, self.with_key
        get = self.table.open_as_of(context)

        def join(record: Record) -> None:
            key, value, timestamp, headers = record
            found = None if key is None else get(key, timestamp)
            if found is not None or keeps:
                other = None if found is None else found[0]
                result = joiner(key, value, other) if with_key else joiner(value, other)
                forward((key, result, timestamp, headers))

        return join


_STREAM_TIME, _MIN_TIME = "stream_time", "min_time"
_NEVER = 2**63 - 1


@dataclass(kw_only=True, eq=False)
class StreamTableDelayedJoin(StreamTableJoin):
    """Joins a record when the stream is `grace_ms` past its time, with the table as of the record's time.

    Until then it waits in the store `waiting`, under (time, key). Only records of the stream that have key and value
    move this time. A record that is later than the grace is joined at once. Kafka Streams: KStreamKTableJoin with a
    grace period (KIP-923).
    """

    forwards_last = False

    waiting: str
    grace_ms: int

    @classmethod
    def saved_with(cls, *args: Any, waiting: str, **options: Any) -> str:
        """Return the store of the records that wait: the times belong to it."""
        return waiting

    def bind(self, context: ProcessorContext) -> Run:
        drop, join, keeps = context.metrics.drop, self.bind_join(context), self.keeps_unmatched
        waiting, grace, join_late = context.get_store(self.waiting), self.grace_ms, context.guarded(join)
        add = waiting.add
        times = context.saved_numbers

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if value is None or key is None:
                if value is None or not keeps:
                    drop("null_value" if value is None else "null_key")
                else:
                    join(record)
                return
            stream_time = times.get(_STREAM_TIME, -1)
            if timestamp < stream_time - grace:
                join(record)
                return
            add((timestamp, key), (value, headers))
            min_time = min(times.get(_MIN_TIME, _NEVER), timestamp)
            if timestamp > stream_time:
                times[_STREAM_TIME] = stream_time = timestamp
            up_to = stream_time - grace
            times[_MIN_TIME] = min_time if min_time > up_to else join_due(min_time, up_to)

        def join_due(first: int, up_to: int) -> int:
            """Join what waits from one time to another, both included; return the time of what waits next."""
            due: list[tuple[int, Any]] = []
            next_time = _NEVER
            with waiting.range((first, None)) as entries:
                for entry, (value, headers) in entries:
                    time, key = entry
                    if time > up_to:
                        next_time = time
                        break
                    join_late((own_copy(key), value, time, headers))  # `entry` is deleted afterwards
                    if not due or not is_same_key(due[-1], entry):
                        due.append(entry)
            for entry in due:
                waiting.delete(entry)
            return next_time

        return run


class TableJoinOptions(TypedDict, total=False):
    """The keyword arguments of a join of a stream with a table.

    `key_serde`, `value_serde`: serdes of the stream's keys and values in a repartition topic and in the store of
    records that wait, where they are not known. `backend`, `logged`, `topic_config`: of that store, which there
    is with `grace`.
    """

    key_serde: SerdeLike
    value_serde: SerdeLike
    backend: str | None
    logged: bool
    topic_config: TopicConfig


def record_table_join(
    recorder: Recorder,
    kind: JoinKind,
    stream: Flow,
    table: TableSide,
    joiner: Joiner,
    grace: Duration | None,
    name: str | None,
    options: TableJoinOptions,
) -> Flow:
    """Add the step of a join with a table that is partitioned by the same keys; return what comes out of it."""
    verb, sources = kind.verb, stream.sources | table.flow.sources
    recorder.copartition(sources)
    node = recorder.names.step("KSTREAM-LEFTJOIN-" if kind.keeps_left else "KSTREAM-JOIN-", name)
    getter, keys = table.source.getter(), (stream.serdes.key, table.flow.serdes.key)
    arguments = {"table": getter, **_arguments(kind, joiner)}
    supplier: type[StreamTableJoin] = StreamTableJoin
    waiting: Stores | None = None
    if grace is not None:
        if getter.history_ms is None:
            raise TopologyError(
                f"{verb}: grace needs a table that keeps versions; write "
                'builder.table(TOPIC, versioned_store("NAME", history_retention="1h"))'
            )
        if _grace_ms(verb, grace) > getter.history_ms:
            raise TopologyError(
                f"{verb}: grace={grace!r} is longer than the {getter.history_ms} ms for which the table's store "
                f"{getter.stores[0]!r} keeps versions, so a record that has waited would find none; give the store a "
                "longer history_retention"
            )
        buffer = f"{node}-Buffer"
        if name is None:
            recorder.names.generated[buffer] = f'{verb}(..., name="NAME")'
        arguments |= {"waiting": buffer, "grace_ms": _grace_ms(verb, grace)}
        supplier, waiting = StreamTableDelayedJoin, delayed_store(buffer, stream.serdes, options)

    def stores(writer: Writer) -> tuple[str | StoreBuilder, ...]:
        check_same_keys(verb, *keys, writer.settings)
        return (*(() if waiting is None else waiting(writer)), *getter.stores)

    # A join by key changes values, but only behind the repartition topic that it needs itself: nothing to say.
    step = ProcessorStep(node, supplier, arguments, stores=stores)
    step.takes_null_keys = kind.keeps_left
    recorder.add(step, stream.step)
    return Flow(step, Serdes(stream.serdes.key), sources)


def record_global_table_join(
    recorder: Recorder,
    kind: JoinKind,
    stream: Flow,
    table: str,
    joiner: Joiner,
    select_key: Callable[..., Any] | None,
    name: str | None,
) -> Flow:
    """Add the step of a join with a global table, whose store is `table`; return what comes out of it."""
    if select_key is not None:
        check_mapper(kind.verb, select_key, with_key=joiner.with_key, what="select_key")
    arguments = {"table": StoreGetter(table), "select_key": select_key, **_arguments(kind, joiner)}
    # Kafka Streams gives both kinds of this join the same prefix.
    node = recorder.names.step("KSTREAM-LEFTJOIN-", name)
    # Else a topic for its results would be put before it, with the wrong serde: Kafka Streams does that.
    step = ProcessorStep(node, StreamTableJoin, arguments, changes_value=True)
    step.takes_null_keys = kind.keeps_left
    recorder.add(step, stream.step)
    return Flow(step, Serdes(stream.serdes.key), stream.sources, stream.needs_repartition)


def _arguments(kind: JoinKind, joiner: Joiner) -> dict[str, Any]:
    return {"joiner": joiner.function, "with_key": joiner.with_key, "keeps_unmatched": kind.keeps_left}


def _grace_ms(verb: str, grace: Duration) -> int:
    found = duration_ms(grace, f"{verb}: grace", may_be_negative=True)
    if found < 0:
        raise TopologyError(f"{verb}: grace={grace!r}: expected 0s or longer")
    return found


def delayed_store(name: str, serdes: Serdes, options: TableJoinOptions) -> Stores:
    """Return a function that declares the store of records that wait for late updates of a table, by time."""

    def declared(writer: Writer) -> tuple[StoreBuilder]:
        state, what = writer.settings.state_serde, f"store {name!r}"
        key, value = key_of_store(serdes.key, writer.settings), value_of_store(serdes.value, writer.settings)
        made = list_store(
            name,
            key_serde=TimedKeySerde(resolve_serde(key, state, what)),
            value_serde=ValueAndHeadersSerde(resolve_serde(value, state, what)),
            **kept_options(options),
        )
        return (replace(made, division=Division(record_key=itemgetter(1))),)

    return declared
