"""The step of an aggregation, over windows or without: its store, its table, and when it emits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock import (
    NOT_PUT,
    VALID_TO_UNDEFINED,
    Change,
    Duration,
    ProcessorContext,
    Record,
    SessionStoreSpec,
    Settings,
    TopologyError,
    ValueAndTimestamp,
    VersionedKeyValueStore,
    VersionedStoreSpec,
    WindowStoreSpec,
    duration_ms,
)
from penstock.operator import Run, new
from penstock.store.division import Division
from penstock.support.own_copy import IMMUTABLE, own_copy

from ...graph.functions import check_function
from ...graph.materialized import Materialized, TableStoreSpec
from ...graph.recorder import Recorder
from ...graph.serdes import Default, Serdes, WindowedKey
from ...graph.sources import RepartitionStep, repartition_names
from ...graph.step import Flow, ProcessorStep, Step, Writer
from ..derived_table import ToStream
from ..reading import ClosedWindowGetter, StoreGetter, ValueGetter, WindowGetter, WrittenTable
from ..table_store import NULL_KEY, NULL_VALUE, NotLatest, UpdatingOperator
from .folds import Counting, Fold
from .windowed_operator import SessionAggregate, SlidingAggregate, WindowAggregate
from .windows import SessionWindows, SlidingWindows, TimeWindows


@dataclass(kw_only=True, eq=False)
class Aggregate(UpdatingOperator):
    """An aggregation over a key-value store. Records without key or value are dropped and counted.

    The old value that is sent is a copy, since the aggregator may change its argument. An update has the highest
    timestamp of its records; after an aggregate of None it begins anew. Kafka Streams: KStreamAggregate and
    KStreamReduce.
    """

    forwards_last = True

    fold: Fold

    def bind(self, context: ProcessorContext) -> Run:
        store = context.get_store(self.store)
        if isinstance(store, VersionedKeyValueStore):
            return self._bind_versioned(context)
        self.forwards_each = store.record_cache is None
        initial, take, counts = self.fold.initial, self.fold.compile_take(context.node), isinstance(self.fold, Counting)
        stored, keeps_headers, sends_old = self._stored, self.keeps_headers, self.sends_old and self.forwards_each
        get, put, drop = store.get, store.put, context.metrics.drop
        send, of_values = self._compile_send(context, store)

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            entry = get(key)
            if entry is None:
                old, before = initial(), None
            else:
                old = entry[0]
                if entry[1] > timestamp:
                    timestamp = entry[1]
                before = (old if type(old) in IMMUTABLE else own_copy(old)) if sends_old else None
            aggregate = old + 1 if counts else take(key, value, old)
            if aggregate is None or keeps_headers:
                put(key, stored(aggregate, timestamp, headers))
            else:  # the common case, without a call
                put(key, new(ValueAndTimestamp, (aggregate, timestamp)))
            send((key, aggregate if of_values else new(Change, (aggregate, before)), timestamp, headers))

        return run

    def _bind_versioned(self, context: ProcessorContext) -> Run:
        """Return the function for a versioned store: updates older than its history are not forwarded."""
        store, forward, sends_old = context.get_store(self.store), self._emitter(context), self.sends_old
        initial, take, drop = self.fold.initial, self.fold.compile_take(context.node), context.metrics.drop

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop(NULL_KEY if key is None else NULL_VALUE)
                return
            entry = store.get(key)
            if entry is None:
                old, before = initial(), None
            else:
                old, timestamp = entry.value, max(timestamp, entry.timestamp)
                before = own_copy(old) if sends_old else None
            aggregate = take(key, value, old)
            valid_to = store.put(key, aggregate, timestamp)
            if valid_to != NOT_PUT:
                # It is not the latest version where a later one deleted the row.
                kind = Change if valid_to == VALID_TO_UNDEFINED else NotLatest
                forward((key, new(kind, (aggregate, before)), timestamp, headers))

        return run


class GroupedSource:
    """Records by key, and the repartition topic that brings equal keys together, if there has to be one."""

    def __init__(self, recorder: Recorder, flow: Flow, name: str | None) -> None:
        self.recorder = recorder
        self.flow = flow
        self.name = name
        self._repartition: RepartitionStep | None = None

    @property
    def serdes(self) -> Serdes:
        """The serdes as they are where the records are aggregated: in a topic, an unknown key has the default one."""
        return self.flow.serdes.else_of(Serdes(Default.TOPIC))

    def behind_repartition(self, store: str) -> tuple[Step, frozenset[str]]:
        """Return the step whose records are aggregated, and the sources above it.

        The repartition topic is named after the grouping, else after the store. Without a name each aggregation of the
        stream has its own, as in Kafka Streams.
        """
        if not self.flow.needs_repartition:
            return self.flow.step, self.flow.sources
        how = 'group_by(..., name="NAME"), or a name for the store'
        names = repartition_names(self.recorder.names, self.name or store, how)
        if self._repartition is None or self.name is None:
            self._repartition = RepartitionStep(names, self.flow.serdes)
        self.recorder.add(self._repartition, self.flow.step)
        return self._repartition, frozenset({self._repartition.name})


AnyWindows = TimeWindows | SlidingWindows | SessionWindows


class Emit:
    """When aggregations over windows send what, and what becomes of late records; see `windowed_by`."""

    def __init__(self, when: str, idle: Duration | None, late: Any) -> None:
        if when not in ("on_update", "on_close"):
            raise TopologyError(f'windowed_by: emit is "on_update" or "on_close", found {when!r}')
        if idle is not None and when != "on_close":
            raise TopologyError('windowed_by: idle= closes windows, so it needs emit="on_close"')
        if late is not None and not isinstance(late, str):
            check_function("windowed_by", late, "stream", what="late")
        self.on_close = when == "on_close"
        self.idle_ms = None if idle is None else max(1, duration_ms(idle, "windowed_by: idle"))
        self.late = late

    def options(self, step: str) -> dict[str, Any]:
        """Return the options of a processor."""
        found: dict[str, Any] = {}
        if self.on_close:
            found["on_close"] = True
        if self.idle_ms is not None:
            found["idle_ms"] = self.idle_ms
        if self.late is not None:
            found |= {"late_to": f"{step}-late", "updates_to": f"{step}-updates"}
        return found


ON_UPDATE = Emit("on_update", None, None)
"""Each record's update is sent."""


def table_serdes(known: Serdes, windows: AnyWindows | None) -> Serdes:
    """Return the serdes of a table of aggregates, whose keys are windowed if there are windows."""
    inner: Any = known.key
    if windows is None:
        return known
    if isinstance(windows, SessionWindows):
        return Serdes(WindowedKey(inner, None), known.value)
    if isinstance(windows, SlidingWindows):
        return Serdes(WindowedKey(inner, windows.difference_ms), known.value)
    if windows.are_of_one_length:
        return Serdes(WindowedKey(inner, windows.size_ms), known.value)
    return Serdes(WindowedKey(inner, windows.size_ms, windows.form, windows.end_of), known.value)


def check_store(made: Materialized, least_ms: int, size_ms: int | None) -> None:
    """Refuse a store that does not keep the windows as long as they need. Raises TopologyError."""
    given, kept_ms = made.given, None
    if isinstance(given, (WindowStoreSpec, SessionStoreSpec)):
        kept_ms = given.retention_ms
    elif given is None and "retention" in made.options:
        kept_ms = duration_ms(made.options["retention"], f"retention of store {made.name!r}")
    if kept_ms is not None and kept_ms < least_ms:
        raise TopologyError(
            f"{made.verb}: store {made.name!r} keeps windows for {kept_ms} ms, and with their grace they take "
            f"{least_ms} ms; give it a longer retention"
        )
    if isinstance(given, WindowStoreSpec) and (given.retain_duplicates or given.window_size_ms != size_ms):
        raise TopologyError(
            f"{made.verb}: store {made.name!r} needs window_size={size_ms}ms, that of the windows, and no "
            f"retain_duplicates; found {given.window_size_ms} ms, retain_duplicates={given.retain_duplicates}"
        )


class ClosedTable(WrittenTable):
    """A table of windows that are sent when they close.

    A window's row may expire as soon as it was sent. In a table that is read by key, it stays for twice its time.
    """

    def getter(self) -> ValueGetter:
        for step in self._steps:
            step.keeps_closed_windows = True
        return self._getter


def aggregated_table(
    recorder: Recorder,
    flow: Flow,
    made: Materialized,
    windows: AnyWindows | None,
    *steps: ProcessorStep,
    emit: Emit = ON_UPDATE,
) -> Any:
    """Return the table of aggregates that `steps` write; `flow` has the serdes of its store."""
    if windows is None:
        table = WrittenTable(StoreGetter(made.name, made.history_ms), made, *steps)
    elif emit.on_close:
        table = ClosedTable(ClosedWindowGetter(made.name), made, *steps)
    else:
        table = WrittenTable(WindowGetter(made.name), made, *steps)
    flow = replace(flow, serdes=table_serdes(flow.serdes, windows))
    return recorder.kinds.table(recorder, flow, table, made.own_name)


@dataclass(eq=False, repr=False)
class AggregationStep(ProcessorStep):
    """Writes an UpdatingOperator with the store that `declare` returns; it may need that store's key serde."""

    declare: Callable[[Writer], TableStoreSpec] = field(kw_only=True)
    needs_key_serde: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.stores, self.late = lambda writer: (self.declare(writer),), self._options_of_store

    def _options_of_store(self, writer: Writer) -> dict[str, Any]:
        store = self.declare(writer)
        options: dict[str, Any] = {"store": store.name}
        if not isinstance(store, VersionedStoreSpec) and store.headers:
            options["keeps_headers"] = True
        if self.needs_key_serde:
            options["key_serde"] = store.key_serde or writer.settings.state_serde
        return options

    def optimise(self, settings: Settings) -> None:
        """Send new values in place of Changes, if nothing but `to_stream` gets them."""
        readers = [each for each in self.children if isinstance(each, ProcessorStep) and each.supplier is ToStream]
        if readers and len(readers) == len(self.children):
            self.options = {**self.options, "sends_values": True}
            for each in readers:
                each.options = {**each.options, "gets_values": True}


def aggregation_step(
    name: str, fold: Fold, made: Materialized, serdes: Serdes, windows: AnyWindows | None, emit: Emit
) -> ProcessorStep:
    """Return the step of an aggregation, over windows or without. `serdes` are its store's."""
    if windows is None:
        return AggregationStep(name, Aggregate, {"fold": fold}, declare=lambda writer: made.key_value(writer, serdes))
    supplier: Any
    closes_after = windows.grace_ms  # a session, and a sliding window, has its last ms, so it closes one later
    if isinstance(windows, SessionWindows):
        supplier, closes_after = SessionAggregate, windows.gap_ms + windows.grace_ms + 1
        kept = windows.kept_ms
        check_store(made, windows.retention_ms, None)

        def declare(writer: Writer) -> TableStoreSpec:
            return made.session(writer, serdes, kept * (1 + step.keeps_closed_windows), windows.form)
    else:
        is_sliding = isinstance(windows, SlidingWindows)
        closes_after += is_sliding
        supplier = SlidingAggregate if is_sliding else WindowAggregate
        size = windows.difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
        kept = windows.kept_ms if isinstance(windows, SlidingWindows) else max(size, windows.retention_ms)
        check_store(made, max(size, windows.retention_ms), size)

        def declare(writer: Writer) -> TableStoreSpec:
            store = made.window(writer, serdes, kept * (1 + step.keeps_closed_windows), size, windows.form)
            return replace(store, division=Division(window_end=windows.end_of))

    step = AggregationStep(
        name,
        supplier,
        {"fold": fold, "windows": windows, **emit.options(name)},
        declare=declare,
        needs_key_serde=supplier is not WindowAggregate,
    )
    step.window_form, step.window_grace_ms = windows.form, closes_after
    return step
