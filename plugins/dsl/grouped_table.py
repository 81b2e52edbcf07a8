"""KGroupedTable: the rows of a table by another key, to be aggregated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from penstock import TopologyError

from .graph.functions import check_aggregator, check_function
from .graph.materialized import (
    Materialized,
    OptionOfStore,
    StoreLike,
    StoreOptions,
    StoreWithKey,
    StoreWithoutKey,
    materialized,
)
from .graph.recorder import Recorder
from .graph.repartition import SUFFIX, RepartitionStep
from .graph.serdes import Default, KnownSerde, Serdes, value_of_internal_topic
from .graph.step import Flow, ProcessorStep
from .graph.writer import RepartitionNames, Writer
from .missing_verbs import Verbs
from .operators.aggregate.aggregator import Aggregator
from .operators.aggregate.several import Column, columns_and_options, removable
from .operators.aggregate.table_aggregate import ChangeSerde, TableAggregate
from .operators.reading import StoreGetter, WrittenTable
from .stream_base import K, V

if TYPE_CHECKING:
    from .table import KTable

A = TypeVar("A")


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

        Each is a `sum_of`, `count_of` or `mean_of` a field (its name, or a function of the value), since these can be
        taken back when a row changes or leaves its group. A group that has lost all its rows has those of nothing: a
        sum and a count of 0, a mean of None. The store has the aggregates in the serde of the state (msgpack). An
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
        checked = removable(found)
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
