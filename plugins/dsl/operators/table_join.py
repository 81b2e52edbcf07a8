"""Joins by key of a table with a table, or of a stream with a table: their processors, and their steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock import (
    Change,
    Duration,
    ProcessorContext,
    Record,
    StoreBuilder,
    TopologyError,
    ValueAndTimestamp,
    duration_ms,
    list_store,
)
from penstock.operator import Operator, Run, new
from penstock.program.serdes import resolve_serde
from penstock.store.division import Division
from penstock.support.own_copy import IMMUTABLE, own_copy

from ..graph.functions import check_mapper
from ..graph.materialized import Materialized, kept_options
from ..graph.names import is_same_key
from ..graph.options import TableJoinOptions
from ..graph.recorder import Recorder
from ..graph.serdes import Serdes, check_same_keys, key_of_store, value_of_store
from ..graph.sources import RepartitionStep
from ..graph.step import Flow, ProcessorStep, Step, Stores, Writer
from .joins import Joiner, JoinKind, TableSide
from .reading import Get, RowsBefore, StoreGetter, TableSource, ValueGetter, keep
from .table_store import NotLatest, TableOperator
from .waiting import TimedKeySerde, ValueAndHeadersSerde

if TYPE_CHECKING:
    from .reading import ValueGetter


def record_tables_join(
    recorder: Recorder,
    kind: JoinKind,
    left: TableSide,
    right: TableSide,
    joiner: Joiner,
    kept: Materialized,
    name: str | None,
) -> tuple[Flow, JoinedTable]:
    """Add the steps of a join of two tables by key; return the flow of its result and how that is read."""
    names, join = recorder.names, joiner.compile()
    merge = ProcessorStep(names.step("KTABLE-MERGE-", name), TableMerge, {"sends_old": False})
    get_left, get_right = left.source.getter(), right.source.getter()
    are_related = _is_above(left.source, right.flow.step) or _is_above(right.source, left.flow.step)
    if kind.keeps_left or are_related:
        left.source.send_old_values(force=True)
    if kind.keeps_right or are_related:
        right.source.send_old_values(force=True)

    # A side needs its own row unless the other side's is enough for a result.
    needs_left, needs_right = not kind.keeps_right, not kind.keeps_left
    of_left = {"joiner": join, "other": get_right, "needs_this": needs_left, "needs_other": needs_right}
    of_right = {
        "joiner": joiner.compile(is_left=False),
        "other": get_left,
        "needs_this": needs_right,
        "needs_other": needs_left,
    }
    sides = (
        _side(names.suffixed(name, "-join-this", "KTABLE-JOINTHIS-"), of_left, left, get_right),
        _side(names.suffixed(name, "-join-other", "KTABLE-JOINOTHER-"), of_right, right, get_left),
    )
    serdes = kept.serdes(Serdes(left.flow.serdes.key))
    if are_related:
        for step in (*sides, merge):
            step.options["of_related"] = True
    if left.source.expiring or right.source.expiring:
        for step in sides:
            step.options["forwards_all"] = True
    keep(merge, kept, serdes)
    recorder.add(sides[0], left.flow.step)
    recorder.add(sides[1], right.flow.step)
    recorder.add(merge, *sides)
    sources = left.flow.sources | right.flow.sources
    recorder.copartition(sources)
    view = JoinedGetter(get_left, get_right, join, needs_left, needs_right)
    return Flow(merge, serdes, sources), JoinedTable((left.source, right.source), (*sides, merge), kept, view)


def _is_above(table: TableSource, step: Step) -> bool:
    """Return whether an update of a store by which the table is read may reach a step in one go, without a topic."""
    pending, seen, writers = [step], set[int](), table.writers()
    while pending:
        each = pending.pop()
        if each in writers:
            return True
        if id(each) not in seen and not isinstance(each, RepartitionStep):
            seen.add(id(each))
            pending.extend(each.parents)
    return False


def _side(name: str, options: dict[str, Any], side: TableSide, other: ValueGetter) -> ProcessorStep:
    """Return the step that joins the updates of one side with the rows of the other one."""
    options |= {"ignores_older": side.source.is_versioned, "sends_old": False}
    return ProcessorStep(name, TableJoin, options, stores=lambda writer: other.stores)


@dataclass(eq=False)
class JoinedTable(TableSource):
    """The result of a join by key. Kafka Streams: KTableKTableJoinMerger."""

    parents: tuple[TableSource, TableSource]
    steps: tuple[ProcessorStep, ...]
    kept: Materialized
    view: ValueGetter

    def getter(self) -> ValueGetter:
        """Return how the result is read: from its store, or by joining both rows."""
        return StoreGetter(self.kept.name, self.kept.history_ms) if self.kept.exists else self.view

    @property
    def is_versioned(self) -> bool:
        return self.kept.is_versioned

    def writers(self) -> tuple[Step, ...]:
        left, right = self.parents
        return (self.steps[-1],) if self.kept.exists else (*left.writers(), *right.writers())

    @property
    def expiring(self) -> str | None:
        return self.parents[0].expiring or self.parents[1].expiring

    def send_old_values(self, *, force: bool) -> bool:
        """Send the previous result of the join, which takes the previous values of both tables."""
        for parent in self.parents:
            parent.send_old_values(force=True)
        for step in self.steps:
            step.options["sends_old"] = True
        return True


@dataclass(eq=False)
class JoinedGetter(ValueGetter):
    """Joins the rows of two tables; says whether a result needs the left row, and the right one."""

    left: ValueGetter
    right: ValueGetter
    joiner: Callable[[Any, Any, Any], Any]
    needs_left: bool
    needs_right: bool

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.left.stores, *self.right.stores)))

    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        get_left = self.left.open(context, sent=sent, before=before)
        get_right = self.right.open(context, sent=sent, before=before)
        joiner, needs_left, needs_right = self.joiner, self.needs_left, self.needs_right

        def joined(key: Any) -> ValueAndTimestamp | None:
            left, right = get_left(key), get_right(key)
            if (left is None and (needs_left or right is None)) or (right is None and needs_right):
                return None
            value = joiner(key, None if left is None else left[0], None if right is None else right[0])
            timestamp = max(-1 if left is None else left[1], -1 if right is None else right[1])
            return None if value is None else ValueAndTimestamp(value, timestamp)

        return joined


@dataclass(kw_only=True, eq=False)
class TableJoin(Operator):
    """Joins updates of one table with the other table's rows: `joiner(key, value of this side, value of the other)`.

    `needs_this`, `needs_other`: the rows that a result needs; it has the later timestamp. `ignores_older`: only the
    latest versions count (KIP-914). `of_related`: one update may reach both sides, so the first finds the other row
    changed: the old result is made of the rows before, and deleted where the other row has just gone. `forwards_all`:
    rows expire, which is no update, so where there is no result one may have been sent, and is deleted.
    """

    joiner: Callable[[Any, Any, Any], Any]
    other: ValueGetter
    needs_this: bool
    needs_other: bool
    ignores_older: bool = False
    sends_old: bool = False
    of_related: bool = False
    forwards_all: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        if self.of_related:
            return self._bind_related(context)
        forward, drop, joiner = context.send, context.metrics.drop, self.joiner
        get = self.other.open(context, sent=True)
        needs_this, needs_other, sends_old = self.needs_this, self.needs_other, self.sends_old
        ignores_older, forwards_all = self.ignores_older, self.forwards_all

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            if key is None:
                drop("null_key")
                return
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            value, old = change[0], change[1]
            found = get(key)
            if found is None:
                if needs_other or (value is None and old is None):
                    if forwards_all:
                        forward((key, new(type(change), (None, None)), timestamp, headers))
                    return
                other = None
            else:
                other = found[0]
                if found[1] > timestamp:
                    timestamp = found[1]
            # Without its own row there is a result only if the other row is enough for one.
            alone = other is not None and not needs_this
            has_old = sends_old and (old is not None or alone)
            # The joiner may change the row, or return it: it is in the new result and in the old one.
            of_old = (other if type(other) in IMMUTABLE else own_copy(other)) if has_old else None
            joined = joiner(key, value, other) if value is not None or alone else None
            joined_old = joiner(key, old, of_old) if has_old else None
            forward((key, new(type(change), (joined, joined_old)), timestamp, headers))

        return run

    def _bind_related(self, context: ProcessorContext) -> Run:
        forward, drop, joiner = context.send, context.metrics.drop, self.joiner
        before = RowsBefore()
        get = self.other.open(context, sent=True, before=before)
        needs_this, needs_other, sends_old = self.needs_this, self.needs_other, self.sends_old
        ignores_older, forwards_all = self.ignores_older, self.forwards_all

        def has_result(mine: Any, other: Any) -> bool:
            is_lacking = (mine is None and needs_this) or (other is None and needs_other)
            return not is_lacking and (mine is not None or other is not None)

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            if key is None:
                drop("null_key")
                return
            if ignores_older and type(change) is NotLatest:
                drop("not_latest")
                return
            value, old = change[0], change[1]
            found = get(key)
            found_before = before.read(get, key, found)
            other, other_before = (None if each is None else each[0] for each in (found, found_before))
            had_result = has_result(old, other_before)
            is_nothing = other is None and (needs_other or (value is None and old is None)) and not had_result
            if is_nothing and not forwards_all:
                if sends_old and not before.are_of_another(key):
                    # The other side may be next, and would find a row before that was never sent: one held back.
                    forward((key, new(Nothing, (None, None)), timestamp, headers))
                return
            if found is not None and found[1] > timestamp:
                timestamp = found[1]
            of_old = own_copy(other_before) if had_result and sends_old else None
            joined = joiner(key, value, other) if has_result(value, other) else None
            joined_old = joiner(key, old, of_old) if had_result and sends_old else None
            kind = Released if sends_old and before.are_of_another(key) else type(change)
            forward((key, new(kind, (joined, joined_old)), timestamp, headers))

        return run


class Nothing(Change):
    """No result, neither before nor now: for the merge alone."""

    __slots__ = ()


class Released(Change):
    """A result that left while an update of another key is forwarded: of a suppression or a full record cache."""

    __slots__ = ()


@dataclass(kw_only=True, eq=False)
class TableMerge(TableOperator):
    """Forwards the results of both sides of a join, from its store if it has one.

    `of_related`: one update may have two results, and the second one then has the first as its old value.
    """

    of_related: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward, sends_old = self._emitter(context), self.sends_old
        if self.of_related and sends_old:
            return self._bind_related(context)
        if self.store is not None:
            update = self.compile_update(context)

            def run_with_store(record: Record) -> None:
                key, change, timestamp, headers = record
                update(key, change[0], change[1] if sends_old else None, timestamp, headers)

            return run_with_store
        if sends_old:
            return forward

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            forward((key, new(type(change), (change[0], None)), timestamp, headers))

        return run

    def _bind_related(self, context: ProcessorContext) -> Run:
        update = self.compile_update(context)
        latest_key = latest = None

        def run(record: Record) -> None:
            nonlocal latest_key, latest
            key, change, timestamp, headers = record
            if type(change) is Nothing:
                latest_key, latest = own_copy(key), None
                return
            if is_same_key(latest_key, key):
                old, latest = latest, own_copy(change[0])
            else:
                old = change[1]
                if type(change) is not Released:  # else the second result of `latest_key` follows
                    latest_key, latest = own_copy(key), own_copy(change[0])
            update(key, change[0], old, timestamp, headers)

        return run


@dataclass(kw_only=True, eq=False)
class StreamTableJoin(Operator):
    """Forwards each record with what `joiner` makes of its value and of the table's value for its key.

    With `select_key` the table is read by the key that it makes of the record: a global table. A versioned table is
    read as of the record's time. `select_key` gets the key if the joiner gets one. With `keeps_unmatched`, records
    that find no value are forwarded, too. Kafka Streams: KStreamKTableJoin, KStreamGlobalKTableJoin.
    """

    forwards_last = True

    table: ValueGetter
    joiner: Joiner
    select_key: Callable[..., Any] | None = None
    keeps_unmatched: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        if self.table.history_ms is not None:
            return self._bind_versioned(context)
        if self.joiner.with_key or self.joiner.with_both_keys or self.select_key is not None:
            return self._bind_general(context)
        forward, drop, get = context.send, context.metrics.drop, self.table.open(context)
        joiner, keeps = self.joiner.function, self.keeps_unmatched

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
        both_keys, select, keeps = self.joiner.with_both_keys, self.select_key, self.keeps_unmatched
        join: Callable[..., Any] = self.joiner.function if both_keys else self.joiner.compile()
        with_key = self.joiner.with_key or both_keys

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
                row = None if found is None else found[0]
                joined = join(key, wanted, value, row) if both_keys else join(key, value, row)
                forward((key, joined, timestamp, headers))

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
        forward, join, keeps = context.send, self.joiner.compile(), self.keeps_unmatched
        get = self.table.open_as_of(context)

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            found = None if key is None else get(key, timestamp)
            if found is not None or keeps:
                forward((key, join(key, value, None if found is None else found[0]), timestamp, headers))

        return run


_STREAM_TIME, _MIN_TIME = "stream_time", "min_time"
_NEVER = 2**63 - 1


@dataclass(kw_only=True, eq=False)
class StreamTableDelayedJoin(StreamTableJoin):
    """Joins a record when the stream is `grace_ms` past its time, with the table as of the record's time.

    Until then it waits in `waiting`, under (time, key). Only records with key and value move this time; one later than
    the grace is joined at once. Kafka Streams: KStreamKTableJoin with a grace period (KIP-923).
    """

    forwards_last = False
    holds_back = True

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
            """Join records waiting between two times, both included; return the time of the next waiting record."""
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
    arguments = {"table": getter, "joiner": joiner, "keeps_unmatched": kind.keeps_left}
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
    step = recorder.add(ProcessorStep(node, supplier, arguments, stores=stores), stream.step)
    step.takes_null_keys = kind.keeps_left
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
        with_key = joiner.with_key or joiner.with_both_keys
        check_mapper(kind.verb, select_key, with_key=with_key, what="select_key")
    getter, keeps = StoreGetter(table), kind.keeps_left
    arguments = {"table": getter, "joiner": joiner, "select_key": select_key, "keeps_unmatched": keeps}
    # Kafka Streams gives both kinds of this join the same prefix.
    node = recorder.names.step("KSTREAM-LEFTJOIN-", name)
    # Else a topic for its results would be put before it, with the wrong serde: Kafka Streams does that.
    step = recorder.add(ProcessorStep(node, StreamTableJoin, arguments, changes_value=True), stream.step)
    step.takes_null_keys = keeps
    return Flow(step, Serdes(stream.serdes.key), stream.sources, stream.needs_repartition)


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
