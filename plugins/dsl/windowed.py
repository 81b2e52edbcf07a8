"""TimeWindowedKStream and SessionWindowedKStream: grouped records, to be aggregated by windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from penstock.errors import TopologyError
from penstock.store.kinds.windowed import Windowed

from .columnar import Columnar
from .graph.functions import check_aggregator, check_function, check_initializer
from .graph.materialized import Materialized, StoreLike, WindowOptions
from .graph.pass_through import PassThrough
from .graph.serdes import KnownSerde, Serdes
from .graph.step import Flow, ProcessorStep
from .graph.with_key import WindowWithKey, WindowWithoutKey
from .missing_verbs import Verbs
from .operators.aggregate.aggregator import Aggregator
from .operators.aggregate.folds import Aggregating, Counting, Fold, Reducing
from .operators.aggregate.grouped_source import AGGREGATE, REDUCE, GroupedSource, store_of, table_of
from .operators.aggregate.window_getter import WindowGetter
from .operators.aggregate.windowed_step import (
    AnyWindows,
    Emit,
    check_merger,
    windowed_serdes,
    windowed_step,
)
from .operators.reading import WrittenTable
from .stream_base import K, V

if TYPE_CHECKING:
    from .stream import KStream
    from .table import KTable

A = TypeVar("A")


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
        return table_of(source, last, sources, serdes, WrittenTable(WindowGetter(made.name), step), made)

    def _split(self, verb: str, step: ProcessorStep, sources: frozenset[str], made: Materialized) -> ProcessorStep:
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
        **options: Unpack[WindowWithoutKey],
    ) -> KTable[Windowed, A]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, A, V], A],
        store: StoreLike | None = None,
        **options: Unpack[WindowWithKey],
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
        **options: Unpack[WindowWithoutKey],
    ) -> KTable[Windowed, A]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, A, V], A],
        merger: Callable[[K, A, A], A],
        store: StoreLike | None = None,
        **options: Unpack[WindowWithKey],
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
