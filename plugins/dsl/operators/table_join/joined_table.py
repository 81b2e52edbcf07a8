"""Joins of two tables by key: their steps, and how the result is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import ProcessorContext, Record, ValueAndTimestamp
from penstock.operator import Operator, Run, new
from penstock.support.own_copy import IMMUTABLE, own_copy

from ...graph.materialized import Materialized
from ...graph.names import is_same_key
from ...graph.recorder import Recorder
from ...graph.serdes import Serdes
from ...graph.sources import RepartitionStep
from ...graph.step import Flow, ProcessorStep, Step
from ..joins import Joiner, JoinKind, TableSide
from ..reading import Get, RowsBefore, StoreGetter, TableSource, ValueGetter, keep
from ..table_store import NotLatest, TableOperator

if TYPE_CHECKING:
    from ..reading import ValueGetter


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
    names, join = recorder.names, joiner.of_key_and_values
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
        "joiner": lambda key, mine, others: join(key, others, mine),
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
        """Send what was joined before, which takes the values before of both tables."""
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

    `needs_this`, `needs_other`: whether a result needs the row of this table, or of the other one. The result has the
    timestamp of the later row. `ignores_older`: this table keeps versions, and only its latest ones count (KIP-914).

    `of_related`: one update may reach both sides, one after the other, and the first one finds the other row changed
    already. So the old result is made of the rows before, and it is deleted where the other row has just gone.
    """

    joiner: Callable[[Any, Any, Any], Any]
    other: ValueGetter
    needs_this: bool
    needs_other: bool
    ignores_older: bool = False
    sends_old: bool = False
    of_related: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        if self.of_related:
            return self._bind_related(context)
        forward, drop, joiner = context.send, context.metrics.drop, self.joiner
        get = self.other.open(context, sent=True)
        needs_this, needs_other, sends_old = self.needs_this, self.needs_other, self.sends_old
        ignores_older = self.ignores_older

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
        ignores_older = self.ignores_older

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
            if other is None and (needs_other or (value is None and old is None)) and not had_result:
                return
            if found is not None and found[1] > timestamp:
                timestamp = found[1]
            of_old = own_copy(other_before) if had_result and sends_old else None
            joined = joiner(key, value, other) if has_result(value, other) else None
            joined_old = joiner(key, old, of_old) if had_result and sends_old else None
            forward((key, new(type(change), (joined, joined_old)), timestamp, headers))

        return run


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
            old = latest if is_same_key(latest_key, key) else change[1]
            latest_key, latest = own_copy(key), own_copy(change[0])
            update(key, change[0], old, timestamp, headers)

        return run
