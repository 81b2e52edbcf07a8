"""TimeWindowedKStream and SessionWindowedKStream: grouped records, to be aggregated by windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from penstock import TopologyError, Windowed

from .base import K, V
from .graph.materialized import Materialized, materialized
from .graph.options import OptionOfStore, StoreLike, StoreOptions, WindowOptions, WindowWithKey, WindowWithoutKey
from .graph.serdes import Serdes
from .graph.step import Flow, PassThrough, ProcessorStep
from .missing_verbs import Verbs
from .operators.aggregate.aggregation_step import (
    ON_UPDATE,
    AnyWindows,
    Emit,
    GroupedSource,
    aggregated_table,
    aggregation_step,
)
from .operators.aggregate.columns import Column, columns_and_options
from .operators.aggregate.folds import (
    Aggregating,
    Aggregator,
    Counting,
    Fold,
    Reducing,
    aggregating,
    check_merger,
    reducing,
)

if TYPE_CHECKING:
    from .stream import KStream
    from .table import KTable


R = TypeVar("R")


class Aggregations(Verbs, Generic[R]):
    """Grouped records that are aggregated, with windows or without; R is the type of the table's keys."""

    def __init__(self, source: GroupedSource, windows: AnyWindows | None = None, emit: Emit = ON_UPDATE) -> None:
        self.source = source
        self._windows = windows
        self._emit = emit

    def agg(
        self, store: StoreLike | None = None, *, name: str | None = None, **columns: Column | OptionOfStore
    ) -> KTable[R, dict[str, Any]]:
        """Make several aggregates at once; the table's values are dicts.

        Each is a `sum_of`, `max_of`, `min_of`, `mean_of`, `count_of`, `first_of`, `last_of`, `collect_of`,
        `collect_set`, `count_distinct` or `histogram` of a field (its name, or a function of the value); without one,
        of the value itself; or a `top`, `latest`, `max_by` or `min_by` by a field. A field that is None is left out.
        The store has the aggregates in the serde of the state (msgpack). An argument that is no aggregate is an option
        of the store, such as `cached=False`.

        >>> from penstock.dsl import StreamsBuilder, max_of, sum_of
        >>> from penstock.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> sales = builder.stream("sales", value_serde="json").group_by_key()
        >>> sums = sales.agg("sums", total=sum_of("price"), largest=max_of("price"))
        >>> sums.to_stream().to("out", value_serde="json")
        >>> with TopologyTestDriver(builder) as driver:
        ...     for price in (3, 5, 2):
        ...         driver.pipe("sales", "anna", {"price": price})
        ...     driver.read_all("out")[-1].value
        {'total': 10, 'largest': 5}
        """
        known = StoreOptions if self._windows is None else WindowOptions
        checked, options = columns_and_options(columns, known.__annotations__)
        fold = Aggregating(checked.initial, Aggregator(checked.taken), merger=checked.merged)
        return self._aggregation(fold, store, name, options, verb="agg").map_values(checked.shown)

    def _aggregation(
        self, fold: Fold, store: StoreLike | None, name: str | None, options: Any, *, verb: str | None = None
    ) -> KTable[R, Any]:
        """Add an aggregation; return its table. `verb` is for messages, if it is not the fold's."""
        source, windows, names = self.source, self._windows, self.source.recorder.names
        if isinstance(fold, Counting) and store is None and options:
            names.step("")  # Kafka Streams uses up a number here.
        known = StoreOptions if windows is None else WindowOptions
        made = materialized(verb or fold.verb, names, store, options, fold.prefix, known.__annotations__)
        step_name = names.step(fold.prefix, name)
        parent, sources = source.behind_repartition(made.name)
        serdes = made.serdes(Serdes(source.serdes.key, fold.value_serde(source.serdes.value)))
        step = aggregation_step(step_name, fold, made, serdes, windows, self._emit)
        source.recorder.add(step, parent)
        last = step if self._emit.late is None else self._split(fold, step, sources, made)
        flow = Flow(last, serdes, sources)
        table: KTable[R, Any] = aggregated_table(source.recorder, flow, made, windows, step, emit=self._emit)
        return table

    def _split(self, fold: Fold, step: ProcessorStep, sources: frozenset[str], made: Materialized) -> ProcessorStep:
        """Add the stream of late records; return the step that has all others.

        The aggregates of `reduce` are values of the stream, so its store's serde fits. Where no serde is known, the
        application's is not taken: a wrong one would end the run, but only at the first late record.
        """
        recorder, late = self.source.recorder, self._emit.late
        serdes = self.source.serdes
        if serdes.value is None and isinstance(fold, Reducing):
            serdes = Serdes(serdes.key, made.serdes(serdes).value)
        if isinstance(late, str) and serdes.value is None:
            raise TopologyError(
                f"windowed_by: late={late!r}: the serde of the values is not known, because a verb before has made "
                'them; name it where they are grouped, group_by_key(value_serde="json"), group_by(..., '
                f'value_serde="json"), or write them yourself, late=lambda records: records.to({late!r}, '
                f'value_serde="json") (aggregation of store {made.name!r})'
            )
        updates = recorder.add(ProcessorStep(step.options["updates_to"], PassThrough), step)
        lost = recorder.add(ProcessorStep(step.options["late_to"], PassThrough), step)
        stream: KStream[Any, Any] = recorder.kinds.stream(recorder, Flow(lost, serdes, sources))
        if isinstance(late, str):
            stream.to(late)
        else:
            late(stream)
        return updates


A = TypeVar("A")


class WindowedStream(Aggregations[Windowed], Generic[K, V]):
    """Grouped records and their windows.

    Each aggregation is a table with a row for each key and window; its keys are `Windowed(key, start, end)`. Its first
    argument is the table's store, a name or a declared one; it keeps windows for their length and grace, or for
    `retention`, if that is longer. Each aggregation has its own stream time: the highest timestamp of its records.
    Records without a key are dropped and counted, and so is each window of a record that had closed before.
    """

    kind = "windowed stream"

    def count(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[WindowOptions]
    ) -> KTable[Windowed, int]:
        """Count the records of each key and window."""
        return self._aggregation(Counting(), store, name, options)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        store: StoreLike | None = None,
        *,
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> KTable[Windowed, V]:
        """Combine the values of each key and window by `reducer`, a function of the aggregate and a value."""
        return self._aggregation(reducing(reducer), store, name, options)


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
        return self._aggregation(aggregating(initializer, aggregator, with_key=with_key), store, name, options)


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
        fold = aggregating(initializer, aggregator, with_key=with_key)
        check_merger(merger, with_key=with_key)
        return self._aggregation(replace(fold, merger=merger, merges_with_key=with_key), store, name, options)
