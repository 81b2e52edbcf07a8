"""TimeWindowedKStream and SessionWindowedKStream: grouped records, to be aggregated by windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from penstock.clock import Duration, duration_ms
from penstock.errors import TopologyError
from penstock.store_kinds.session import SessionStoreSpec
from penstock.store_kinds.window import WindowStoreSpec
from penstock.store_kinds.windowed import Windowed
from penstock.store_specs import StoreSpec

from ..functions import check_aggregator, check_function, check_initializer
from ..graph.step import ProcessorStep
from ..graph.updating import UpdatingStep
from ..graph.writer import Writer
from ..missing_verbs import Verbs
from ..nodes.aggregator import Aggregator
from ..nodes.folds import Aggregating, Counting, Fold, Reducing
from ..nodes.pass_through import PassThrough
from ..nodes.session_aggregate import SessionAggregate
from ..nodes.sliding_aggregate import SlidingAggregate
from ..nodes.window_aggregate import WindowAggregate
from ..serdes import KnownSerde, Serdes, WindowedKey
from ..state import Materialized, StoreLike, WindowOptions
from ..tables.windowed import WindowedTable
from ..windows import SessionWindows, SlidingWindows, TimeWindows
from .aggregating import AGGREGATE, REDUCE, GroupedSource, store_of, table_of
from .base import Flow, K, V
from .columnar import Columnar

if TYPE_CHECKING:
    from ..tables.ktable import KTable
    from .kstream import KStream

A = TypeVar("A")

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


class WindowedStream(Verbs, Columnar[Windowed], Generic[K, V]):
    """Grouped records and their windows.

    Each aggregation is a table with a row for each key and window; its keys are `Windowed(key, start, end)`. Its first
    argument is the table's store, a name or a declared one; it keeps windows for their length and grace, or for
    `retention`, if that is longer. Each aggregation has its own stream time: the highest timestamp of its records.
    Records without a key are dropped and counted, and so is each window of a record that had closed before.
    """

    kind = "windowed stream"

    def __init__(self, source: GroupedSource, windows: AnyWindows, emit: Emit) -> None:
        self._source = source
        self._windows = windows
        self._emit = emit

    def count(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[WindowOptions]
    ) -> KTable[Windowed, int]:
        """Count the records of each key and window."""
        made: KTable[Windowed, int] = self._aggregation("count", AGGREGATE, Counting(), store, name, options, "int")
        return made

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        store: StoreLike | None = None,
        *,
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> KTable[Windowed, V]:
        """Combine the values of each key and window by `reducer`, a function of the aggregate and a value."""
        check_function("reduce", reducer, "aggregate", "value", what="reducer")
        value_serde = self._source.serdes.value
        made: KTable[Windowed, V] = self._aggregation(
            "reduce", REDUCE, Reducing(Aggregator(reducer)), store, name, options, value_serde
        )
        return made

    def _aggregation(
        self,
        verb: str,
        prefix: str,
        fold: Fold,
        store: StoreLike | None,
        name: str | None,
        options: WindowOptions,
        value_serde: KnownSerde,
    ) -> Any:
        source, windows = self._source, self._windows
        made = store_of(verb, source.recorder, store, options, prefix, WindowOptions.__annotations__)
        step_name = source.recorder.names.step(prefix, name)
        parent, sources = source.behind_repartition(made.name)
        step = windowed_step(step_name, fold, windows, made, Serdes(source.serdes.key, value_serde), self._emit)
        source.recorder.add(step, parent)
        serdes = windowed_serdes(made.serdes(Serdes(source.serdes.key, value_serde)), windows)
        last = step if self._emit.late is None else self._split(verb, step, sources, made)
        return table_of(source, last, sources, serdes, WindowedTable(step, made.name), made)

    def _split(self, verb: str, step: UpdatingStep, sources: frozenset[str], made: Materialized) -> ProcessorStep:
        """Add the stream of late records; return the step that has all others.

        What `reduce` stores is a value of the stream, so its store's serde fits. Where no serde is known, the
        application's is not taken: a wrong one would end the run, but only at the first late record.
        """
        recorder, late = self._source.recorder, self._emit.late
        serdes = self._source.serdes
        if serdes.value is None and verb == "reduce":
            serdes = Serdes(serdes.key, made.serdes(serdes).value)
        if isinstance(late, str) and serdes.value is None:
            raise TopologyError(
                f"windowed_by: late={late!r}: the serde of the values is not known, because a verb before has made "
                'them; name it where they are grouped, group_by_key(value_serde="json"), group_by(..., '
                f'value_serde="json"), or write them yourself, late=lambda records: records.to({late!r}, '
                f'value_serde="json") (aggregation of store {made.name!r})'
            )
        updates = ProcessorStep(step.options["updates_to"], PassThrough)
        lost = ProcessorStep(step.options["late_to"], PassThrough)
        recorder.add(updates, step)
        recorder.add(lost, step)
        stream: KStream[Any, Any] = recorder.kinds.stream(recorder, Flow(lost, serdes, sources))
        if isinstance(late, str):
            stream.to(late)
        else:
            late(stream)
        return updates


class TimeWindowedKStream(WindowedStream[K, V]):
    """Records grouped by key and by windows that follow from time, or slide. Semantics: Kafka Streams'."""

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[A, V], A],
        store: StoreLike | None = None,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> KTable[Windowed, A]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, A, V], A],
        store: StoreLike | None = None,
        *,
        with_key: Literal[True],
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> KTable[Windowed, A]: ...
    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[..., Any],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> Any:
        """Combine the values of each key and window by `aggregator`, a function of the aggregate and a value.

        `initializer` makes what the first aggregate of a window begins with. With `with_key=True` the aggregator gets
        (key, aggregate, value).
        """
        check_initializer("aggregate", initializer)
        check_aggregator("aggregate", aggregator, with_key=with_key)
        fold = Aggregating(initializer, Aggregator(aggregator, with_key=with_key))
        return self._aggregation("aggregate", AGGREGATE, fold, store, name, options, None)


class SessionWindowedKStream(WindowedStream[K, V]):
    """Records grouped by key and sessions. Semantics: Kafka Streams' SessionWindowedKStream."""

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[A, V], A],
        merger: Callable[[A, A], A],
        store: StoreLike | None = None,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> KTable[Windowed, A]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, A, V], A],
        merger: Callable[[K, A, A], A],
        store: StoreLike | None = None,
        *,
        with_key: Literal[True],
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> KTable[Windowed, A]: ...
    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[..., Any],
        merger: Callable[..., Any],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> Any:
        """Combine the values of each key and session by `aggregator`, and the aggregates of merged ones by `merger`.

        The aggregator is a function of the aggregate and a value, the merger one of two aggregates; with
        `with_key=True` both get the key first. The initializer's aggregate is merged with those of all sessions that a
        record meets, the earliest end first; then the aggregator gets the record's value.
        """
        check_initializer("aggregate", initializer)
        check_aggregator("aggregate", aggregator, with_key=with_key)
        check_merger(merger, with_key=with_key)
        fold = Aggregating(initializer, Aggregator(aggregator, with_key=with_key), merger, with_key)
        return self._aggregation("aggregate", AGGREGATE, fold, store, name, options, None)


def check_merger(merger: Any, *, with_key: bool) -> None:
    """Refuse what cannot be called with two aggregates. Raises TopologyError."""
    check_function("aggregate", merger, *(("key",) if with_key else ()), "aggregate", "aggregate", what="merger")


def windowed_serdes(known: Serdes, windows: AnyWindows) -> Serdes:
    """Return the serdes of a table of windows."""
    inner: Any = known.key
    if isinstance(windows, SessionWindows):
        return Serdes(WindowedKey(inner, None), known.value)
    size = windows.difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
    return Serdes(WindowedKey(inner, size), known.value)


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


def windowed_step(
    name: str,
    fold: Fold,
    windows: AnyWindows,
    made: Materialized,
    known: Serdes,
    emit: Emit,
) -> UpdatingStep:
    """Return the step of an aggregation over windows."""
    serdes = made.serdes(known)
    supplier: Any
    grace = windows.grace_ms
    if isinstance(windows, SessionWindows):
        supplier, grace = SessionAggregate, windows.gap_ms + windows.grace_ms
        # A session that is about to close ends where the retention begins: one ms more, so that it can be emitted.
        least = max(1, windows.retention_ms + emit.on_close)
        check_store(made, windows.retention_ms, None)

        def declare(writer: Writer) -> StoreSpec:
            return made.session(writer, serdes, least, windows.form)
    else:
        is_sliding = isinstance(windows, SlidingWindows)
        supplier = SlidingAggregate if is_sliding else WindowAggregate
        size = windows.difference_ms if isinstance(windows, SlidingWindows) else windows.size_ms
        kept = max(size, windows.retention_ms)
        check_store(made, kept, size)

        def declare(writer: Writer) -> StoreSpec:
            return made.window(writer, serdes, kept, size, windows.form)

    step = UpdatingStep(
        name,
        supplier,
        {"fold": fold, "windows": windows, **emit.options(name)},
        declare,
        window_grace_ms=grace,
        needs_key_serde=supplier is not WindowAggregate,
    )
    step.saved_as, step.windows = (made.name,), windows.form
    return step
