"""The step of an aggregation, over windows or without: its processor, its store, its table, and when it emits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock import (
    Duration,
    SessionStoreSpec,
    Settings,
    TopologyError,
    VersionedStoreSpec,
    WindowStoreSpec,
    duration_ms,
)
from penstock.store.division import Division

from ...graph.functions import check_function
from ...graph.materialized import Materialized, TableStoreSpec
from ...graph.recorder import Recorder
from ...graph.serdes import Default, Serdes, WindowedKey
from ...graph.sources import RepartitionStep, repartition_names
from ...graph.step import Flow, ProcessorStep, Step
from ...graph.writer import Writer
from ..reading import ClosedWindowGetter, StoreGetter, TableSource, ValueGetter, WindowGetter, WrittenTable
from ..stateless.derived_table import ToStream
from ..table_store import UpdatingOperator
from .aggregate import Aggregate
from .folds import Fold
from .sessions import SessionAggregate
from .sliding import SlidingAggregate
from .time_windows import WindowAggregate
from .windows import SessionWindows, SlidingWindows, TimeWindows


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


def table_of(
    source: GroupedSource, step: Step, sources: frozenset[str], serdes: Serdes, table: TableSource, made: Materialized
) -> Any:
    """Return the table that an aggregation makes."""
    flow = Flow(step, serdes, sources)
    return source.recorder.kinds.table(source.recorder, flow, table, made.own_name)


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


def table_source(
    made: Materialized, windows: AnyWindows | None, *steps: ProcessorStep, emit: Emit | None = None
) -> WrittenTable:
    """Return the source of a table of aggregates, which `steps` write."""
    if windows is None:
        return WrittenTable(StoreGetter(made.name, made.history_ms), made, *steps)
    if emit is not None and emit.on_close:
        return ClosedTable(ClosedWindowGetter(made.name), made, *steps)
    return WrittenTable(WindowGetter(made.name), made, *steps)


class AggregationStep(ProcessorStep):
    """Writes an UpdatingOperator with the store that `declare` returns.

    One that `needs_key_serde` gets that of the store, as well.
    """

    def __init__(
        self,
        name: str,
        supplier: Callable[..., UpdatingOperator],
        options: Mapping[str, Any],
        declare: Callable[[Writer], TableStoreSpec],
        *,
        needs_key_serde: bool = False,
    ) -> None:
        def late(writer: Writer) -> dict[str, Any]:
            store = declare(writer)
            keeps_headers = not isinstance(store, VersionedStoreSpec) and store.headers
            found: dict[str, Any] = {"store": store.name, **({"keeps_headers": True} if keeps_headers else {})}
            if needs_key_serde:
                found["key_serde"] = store.key_serde or writer.settings.state_serde
            return found

        super().__init__(name, supplier, options, stores=lambda writer: (declare(writer),), late=late)

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
        return AggregationStep(name, Aggregate, {"fold": fold}, lambda writer: made.key_value(writer, serdes))
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
        declare,
        needs_key_serde=supplier is not WindowAggregate,
    )
    step.window_form, step.window_grace_ms = windows.form, closes_after
    return step
