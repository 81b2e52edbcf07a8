"""KGroupedStream: a stream whose records are grouped by key, to be aggregated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from penstock import Duration, TopologyError

from .base import K, V
from .cogrouped import CogroupedKStream, Member
from .graph.functions import check_aggregator, check_function
from .graph.materialized import Materialized, materialized
from .graph.options import OptionOfStore, StoreLike, StoreOptions, StoreWithKey, StoreWithoutKey
from .graph.recorder import Recorder
from .graph.serdes import Default, KnownSerde, Serdes, value_of_internal_topic
from .graph.sources import SUFFIX, RepartitionNames, RepartitionStep
from .graph.step import Flow, ProcessorStep, Writer
from .missing_verbs import Verbs
from .operators.aggregate.aggregation_step import Emit, GroupedSource
from .operators.aggregate.columns import Column, columns_and_options, removable
from .operators.aggregate.folds import Aggregator, Counting, aggregating, reducing
from .operators.aggregate.table_aggregate import ChangeSerde, TableAggregate
from .operators.aggregate.windows import SessionWindows, SlidingWindows, TimeWindows
from .operators.reading import StoreGetter, WrittenTable
from .windowed import Aggregations, SessionWindowedKStream, TimeWindowedKStream

if TYPE_CHECKING:
    from .stream import KStream
    from .table import KTable


A = TypeVar("A")


class KGroupedStream(Aggregations[K], Generic[K, V]):
    """Records grouped by key. Semantics: Kafka Streams' KGroupedStream.

    Each aggregation is a table with a row for each key, and its first argument is the table's store: a name, or a
    declared store. An update has the highest timestamp of the records in it. Records without key or value are dropped
    and counted. An aggregate of None deletes the row.
    """

    kind = "grouped stream"

    def __init__(self, recorder: Recorder, flow: Flow, name: str | None) -> None:
        super().__init__(GroupedSource(recorder, flow, name))

    def count(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[StoreOptions]
    ) -> KTable[K, int]:
        """Count the records of each key."""
        return self._aggregation(Counting(), store, name, options)

    def reduce(
        self,
        reducer: Callable[[V, V], V],
        store: StoreLike | None = None,
        *,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, V]:
        """Combine the values of each key by `reducer`, a function of the aggregate and a value.

        The first value of a key is its first aggregate.
        """
        return self._aggregation(reducing(reducer), store, name, options)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[A, V], A],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithoutKey],
    ) -> KTable[K, A]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, A, V], A],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithKey],
    ) -> KTable[K, A]: ...
    def aggregate(
        self,
        initializer: Callable[[], Any],
        aggregator: Callable[..., Any],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> Any:
        """Combine the values of each key by `aggregator`, a function of the aggregate and a value.

        `initializer` makes what the first aggregate of a key begins with. With `with_key=True` the aggregator gets
        (key, aggregate, value).
        """
        return self._aggregation(aggregating(initializer, aggregator, with_key=with_key), store, name, options)

    # ------------------------------------------------------------------ several streams, and windows

    @overload
    def cogroup(
        self, aggregator: Callable[[A, V], A], *, with_key: Literal[False] = False
    ) -> CogroupedKStream[K, A]: ...
    @overload
    def cogroup(self, aggregator: Callable[[K, A, V], A], *, with_key: Literal[True]) -> CogroupedKStream[K, A]: ...
    def cogroup(self, aggregator: Callable[..., Any], *, with_key: bool = False) -> Any:
        """Begin to aggregate several streams into one table: `.cogroup(other, aggregator)`, then `.aggregate(...)`.

        Each stream has an aggregator of its own, a function of the aggregate and a value; see `aggregate`.
        """
        return CogroupedKStream((Member(self.source, aggregator, with_key=with_key),))

    @overload
    def windowed_by(
        self,
        windows: TimeWindows | SlidingWindows,
        *,
        emit: str = "on_update",
        idle: Duration | None = None,
        late: str | Callable[[KStream[K, V]], Any] | None = None,
    ) -> TimeWindowedKStream[K, V]: ...
    @overload
    def windowed_by(
        self,
        windows: SessionWindows,
        *,
        emit: str = "on_update",
        idle: Duration | None = None,
        late: str | Callable[[KStream[K, V]], Any] | None = None,
    ) -> SessionWindowedKStream[K, V]: ...
    def windowed_by(
        self,
        windows: Any,
        *,
        emit: str = "on_update",
        idle: Duration | None = None,
        late: str | Callable[[KStream[K, V]], Any] | None = None,
    ) -> Any:
        """Aggregate by key and window: `tumbling`, `hopping`, `sliding`, `sessions`, `unlimited`, or your TimeWindows.

        With `emit="on_update"` each record's update is sent. With `emit="on_close"` each window is sent once: when a
        later record moves stream time to its end plus the grace. If no record comes, it waits; `idle` is how long.
        After so long without a record, on the wall clock, time goes on as fast as the wall clock does, and windows
        close. What was decided is committed with the task, so a crash changes nothing; but to process the same records
        again may give other results, because then they are not late.

        `late` gets the records that no window took any more, which are also counted as dropped: a topic, or a function
        that is called with the stream of them. (Each aggregation of what this returns sends its own.) The topic has the
        serdes of this stream; if that of the values is not known, because a verb made them, TopologyError says where to
        name it.

        >>> from penstock.dsl import StreamsBuilder, tumbling
        >>> from penstock.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key_serde="str").group_by_key()
        >>> counts = clicks.windowed_by(tumbling("10s", grace="0s"), emit="on_close").count("counts")
        >>> counts.to_stream(lambda key, n: f"{key.key}@{key.start}", with_key=True).to("out", key_serde="str")
        >>> with TopologyTestDriver(builder) as driver:
        ...     for seconds in (1, 4, 12):
        ...         driver.pipe("clicks", "anna", "x", timestamp=seconds * 1000)
        ...     [(record.key, record.value) for record in driver.read_all("out")]
        [('anna@0', 2)]
        """
        chosen = Emit(emit, idle, late)
        if isinstance(windows, TimeWindows) and not isinstance(getattr(windows, "grace_ms", None), int):
            raise TopologyError(
                f"windowed_by: {type(windows).__name__} does not say how long its windows take late records; write "
                "grace_ms = 0 in it if they take none"
            )
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self.source, windows, chosen)
        if isinstance(windows, (TimeWindows, SlidingWindows)):
            return TimeWindowedKStream(self.source, windows, chosen)
        raise TopologyError(
            f'windowed_by: expected windows, found {windows!r}; write tumbling("5m", grace="0s"), hopping(...), '
            "sliding(...), sessions(gap=...), or a subclass of TimeWindows"
        )


class KGroupedTable(Verbs, Generic[K, V]):
    """The rows of a table, grouped by another key. Semantics: Kafka Streams' KGroupedTable.

    An update of the table first takes the old row out of its group, and then puts the new one into its group. So each
    aggregation has two functions: the adder, and the subtractor that undoes it. With `with_key=True` they get the
    group's key first.
    """

    kind = "grouped table"

    def __init__(self, recorder: Recorder, flow: Flow, name: str | None) -> None:
        self.recorder = recorder
        self.flow = flow
        self.name = name
        self._repartition: RepartitionStep | None = None

    def count(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[StoreOptions]
    ) -> KTable[K, int]:
        """Count the rows of each group. A group that has lost all its rows has a count of 0."""
        adder, subtractor = Aggregator(lambda count, value: count + 1), Aggregator(lambda count, value: count - 1)
        return self._aggregated("count", store, name, options, "int", adder, subtractor, int)

    @overload
    def reduce(
        self,
        adder: Callable[[V, V], V],
        subtractor: Callable[[V, V], V],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithoutKey],
    ) -> KTable[K, V]: ...
    @overload
    def reduce(
        self,
        adder: Callable[[K, V, V], V],
        subtractor: Callable[[K, V, V], V],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithKey],
    ) -> KTable[K, V]: ...
    def reduce(
        self,
        adder: Callable[..., V],
        subtractor: Callable[..., V],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, V]:
        """Combine the values of each group: `adder(aggregate, new value)`, `subtractor(aggregate, old value)`.

        The first value of a group is its first aggregate. One of None deletes the group's row.
        """
        functions = self._functions("reduce", adder, subtractor, with_key)
        return self._aggregated("reduce", store, name, options, self.flow.serdes.value, *functions)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[A, V], A | None],
        subtractor: Callable[[A, V], A | None],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithoutKey],
    ) -> KTable[K, A]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[[K, A, V], A | None],
        subtractor: Callable[[K, A, V], A | None],
        store: StoreLike | None = None,
        **options: Unpack[StoreWithKey],
    ) -> KTable[K, A]: ...
    def aggregate(
        self,
        initializer: Callable[[], A],
        adder: Callable[..., A | None],
        subtractor: Callable[..., A | None],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, A]:
        """Aggregate each group: `adder(aggregate, new value)`, `subtractor(aggregate, old value)`.

        `initializer` is called for the aggregate of a group without one. An aggregate of None deletes the group's row.
        """
        if not callable(initializer):
            raise TopologyError(
                f"aggregate: initializer is a function that is called for each new group, found {initializer!r}; write "
                f"aggregate(lambda: {initializer!r}, ...)"
            )
        check_function("aggregate", initializer, what="initializer")
        functions = self._functions("aggregate", adder, subtractor, with_key)
        return self._aggregated("aggregate", store, name, options, None, *functions, initializer)

    def agg(
        self, store: StoreLike | None = None, *, name: str | None = None, **columns: Column | OptionOfStore
    ) -> KTable[K, dict[str, Any]]:
        """Make several aggregates of each group at once; the table's values are dicts.

        Each is a `sum_of`, `count_of`, `mean_of`, `histogram`, `count_distinct` or `collect_set` of a field (its name,
        or a function of the value), since these can be taken back when a row changes or leaves its group. Others raise
        TopologyError. A group that has lost all its rows has those of nothing: a sum and a count of 0, a mean of None,
        an empty dict or list. The store has the aggregates in the serde of the state (msgpack). An
        argument that is no aggregate is an option of the store, such as `cached=False`.

        >>> from penstock.dsl import StreamsBuilder, count_of, mean_of
        >>> from penstock.testing import TopologyTestDriver
        >>> builder = StreamsBuilder()
        >>> people = builder.table("people", value_serde="json")
        >>> by_city = people.group_by(lambda row: row["city"], name="by-city")
        >>> by_city.agg("cities", rows=count_of(), age=mean_of("age")).to_stream().to("out", value_serde="json")
        >>> with TopologyTestDriver(builder) as driver:
        ...     driver.pipe("people", "anna", {"city": "Ghent", "age": 30})
        ...     driver.pipe("people", "ben", {"city": "Ghent", "age": 40})
        ...     driver.pipe("people", "anna", {"city": "Ghent", "age": 31})
        ...     [record.value for record in driver.read_all("out")]
        [{'rows': 1, 'age': 30.0}, {'rows': 2, 'age': 35.0}, {'rows': 2, 'age': 35.5}]
        """
        found, options = columns_and_options(columns, StoreOptions.__annotations__)
        checked = removable(found, _called(store, name))
        functions = Aggregator(checked.taken), Aggregator(checked.removed), checked.initial
        return self._aggregated("agg", store, name, options, None, *functions).map_values(checked.shown)

    def _functions(self, verb: str, adder: Any, subtractor: Any, with_key: bool) -> tuple[Aggregator, Aggregator]:
        check_aggregator(verb, adder, with_key=with_key, what="adder")
        check_aggregator(verb, subtractor, with_key=with_key, what="subtractor")
        return Aggregator(adder, with_key=with_key), Aggregator(subtractor, with_key=with_key, may_delete=True)

    def _aggregated(
        self,
        verb: str,
        store: StoreLike | None,
        name: str | None,
        options: Any,
        value_serde: KnownSerde,
        adder: Aggregator,
        subtractor: Aggregator,
        initializer: Callable[[], Any] | None = None,
    ) -> KTable[Any, Any]:
        names = self.recorder.names
        prefix = "KTABLE-REDUCE-" if initializer is None else "KTABLE-AGGREGATE-"
        kept = materialized(verb, names, store, options, prefix)
        if not kept.is_named:
            names.generated[kept.name] = f'{verb}(..., store="NAME")'
        sink = names.suffixed(name, "-sink", "KSTREAM-SINK-")
        source = names.suffixed(name, "-source", "KSTREAM-SOURCE-")
        arguments = {"adder": adder, "subtractor": subtractor, "initializer": initializer, "store": kept.name}
        step = ProcessorStep(names.step(prefix, name), TableAggregate, {**arguments, "sends_old": False})
        repartition = self._repartition
        if repartition is None:
            repartition = self._add_repartition(kept, sink, source)
        key = self.flow.serdes.key
        serdes = kept.serdes(Serdes(Default.TOPIC if key is None else key, value_serde))
        step.stores = lambda writer: (kept.key_value(writer, serdes),)
        self.recorder.add(step, repartition)
        table = WrittenTable(StoreGetter(kept.name, kept.history_ms), kept, step)
        flow = Flow(step, serdes, frozenset({repartition.name}))
        made: KTable[Any, Any] = self.recorder.kinds.table(self.recorder, flow, table, kept.own_name)
        return made

    def _add_repartition(self, kept: Materialized, sink: str, source: str) -> RepartitionStep:
        """Add the repartition topic. One with a name of its own serves all aggregations of these groups."""
        topic = (self.name or kept.name) + SUFFIX
        if self.name is None and not kept.is_named:
            self.recorder.names.generated[topic] = 'group_by(..., name="NAME")'

        def changes(writer: Writer) -> ChangeSerde:
            value = value_of_internal_topic(self.flow.serdes.value, writer.settings)
            return ChangeSerde(writer.settings.value_serde if value is None else value)

        made = RepartitionStep(RepartitionNames(topic, sink, "", source), self.flow.serdes, messages=changes)
        self.recorder.add(made, self.flow.step)
        if self.name is not None:
            self._repartition = made
        return made


def _called(store: StoreLike | None, name: str | None) -> str:
    """Return how a message names an aggregation whose user chose a name for its node or its store."""
    if name is not None:
        return f" (node {name!r})"
    return "" if store is None else f" (store {getattr(store, 'name', store)!r})"
