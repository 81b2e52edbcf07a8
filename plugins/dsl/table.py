"""KTable: the latest value of each key. Verbs group its rows, keep its updates back, and make a stream of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import Duration, Processor, StoreBuilder, TopologyError, ValueTransformer
from penstock.program.checks import check_class
from penstock.program.provided import provided_stores
from penstock.program.serdes import SerdeLike
from penstock.support.topic_config import TopicConfig

from .base import K, TableBase, V
from .graph.functions import check_mapper, checked_stores, keyed
from .graph.materialized import Materialized, optional
from .graph.names import checked
from .graph.options import (
    GroupingWithKey,
    GroupingWithoutKey,
    StoreLike,
    StoreOptions,
    StoreWithKey,
    StoreWithoutKey,
    WithKey,
    WithoutKey,
)
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep
from .operators.aggregate.table_aggregate import TableSelect, group_options
from .operators.derived_table import (
    ComputedGetter,
    DerivedTable,
    TableFilter,
    TableMapValues,
    TableTransformValues,
    ToStream,
    TransformedGetter,
)
from .operators.reading import ValueGetter, keep
from .operators.suppress import SuppressedTable, suppress_options, suppress_step
from .operators.user_step import UserStep
from .table_joins import TableJoins

if TYPE_CHECKING:
    from pandas import DataFrame

    from .grouped import KGroupedTable
    from .stream import KStream


K2 = TypeVar("K2")
V2 = TypeVar("V2")


class TableStateless(TableBase[K, V]):
    """Filters and mappers.

    Every function gets the value; with `with_key=True` it gets the key first. It is not called for deletions. `store`
    is the name of a store for the result, or a declared store; without it, the result is computed when it is needed.
    The other options are the store's. `name` is the node's.
    """

    @overload
    def filter(
        self, predicate: Callable[[V], Any], store: StoreLike | None = None, **options: Unpack[StoreWithoutKey]
    ) -> KTable[K, V]: ...
    @overload
    def filter(
        self, predicate: Callable[[K, V], Any], store: StoreLike | None = None, **options: Unpack[StoreWithKey]
    ) -> KTable[K, V]: ...
    def filter(
        self,
        predicate: Callable[..., Any],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> Any:
        """Keep the rows for which `predicate` is true; a row for which it is no longer true is deleted."""
        check_mapper("filter", predicate, with_key=with_key, what="predicate")
        return self._filtered("filter", keyed(predicate, with_key=with_key), store, name, options)

    @overload
    def filter_not(
        self, predicate: Callable[[V], Any], store: StoreLike | None = None, **options: Unpack[StoreWithoutKey]
    ) -> KTable[K, V]: ...
    @overload
    def filter_not(
        self, predicate: Callable[[K, V], Any], store: StoreLike | None = None, **options: Unpack[StoreWithKey]
    ) -> KTable[K, V]: ...
    def filter_not(
        self,
        predicate: Callable[..., Any],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> Any:
        """Keep the rows for which `predicate` is not true; a row for which it becomes true is deleted."""
        check_mapper("filter_not", predicate, with_key=with_key, what="predicate")
        drops = keyed(predicate, with_key=with_key)
        return self._filtered("filter_not", lambda key, value: not drops(key, value), store, name, options)

    @overload
    def map_values(
        self, function: Callable[[V], V2], store: StoreLike | None = None, **options: Unpack[StoreWithoutKey]
    ) -> KTable[K, V2]: ...
    @overload
    def map_values(
        self, function: Callable[[K, V], V2], store: StoreLike | None = None, **options: Unpack[StoreWithKey]
    ) -> KTable[K, V2]: ...
    def map_values(
        self,
        function: Callable[..., Any],
        store: StoreLike | None = None,
        *,
        with_key: bool = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> Any:
        """Replace each value by what `function` returns; None deletes the row."""
        check_mapper("map_values", function, with_key=with_key)
        compute = keyed(function, with_key=with_key)
        kept = optional("map_values", self.recorder.names, store, options, "KTABLE-MAPVALUES-")
        node = self.recorder.names.step("KTABLE-MAPVALUES-", name)
        step = ProcessorStep(node, TableMapValues, {"function": compute, "sends_old": False})
        return self._derived(step, kept, Serdes(self.flow.serdes.key), lambda parent: ComputedGetter(parent, compute))

    def _filtered(
        self, verb: str, accepts: Callable[[Any, Any], Any], store: StoreLike | None, name: str | None, options: Any
    ) -> Any:
        kept = optional(verb, self.recorder.names, store, options, "KTABLE-FILTER-")
        # Where the value before can be had for nothing, deletions of rows that were not there are left out.
        sends_old = self.source.send_old_values(force=False)
        # A row that has expired may still be in what was made of its updates.
        forwards_all = self.source.is_versioned or self.source.expiring is not None or kept.expiring is not None
        arguments = {"keep": accepts, "forwards_all": forwards_all, "sends_old": sends_old}
        step = ProcessorStep(self.recorder.names.step("KTABLE-FILTER-", name), TableFilter, arguments)

        def shown(key: Any, value: Any) -> Any:
            return value if accepts(key, value) else None

        return self._derived(step, kept, self.flow.serdes, lambda parent: ComputedGetter(parent, shown))

    def _derived(
        self, step: ProcessorStep, kept: Materialized, known: Serdes, view: Callable[[ValueGetter], ValueGetter]
    ) -> KTable[Any, Any]:
        """Return the table that `step` makes of this one; `view` reads it where it has no store."""
        serdes = kept.serdes(known)
        keep(step, kept, serdes)
        self.recorder.add(step, self.flow.step)
        source = DerivedTable(step, self.source, kept, view)
        return self._table_of(Flow(step, serdes, self.flow.sources), source, kept.own_name)

    def transform_values(
        self,
        supplier: Callable[..., ValueTransformer],
        store: StoreLike | None = None,
        *,
        stores: Sequence[str | StoreBuilder] = (),
        arguments: dict[str, Any] | None = None,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, Any]:
        """Replace each value by what a ValueTransformer returns: a class or a factory, called with `arguments`.

        It is also called for deletions, with a value of None. `stores` are stores it uses, declared or by name. Without
        `store` for the result, the table's value depends on when it is computed, unless the transformer always returns
        the same for the same row.
        """
        if not callable(supplier) or _is_processor(supplier):
            raise TopologyError(
                f"transform_values: expected a class derived from ValueTransformer, or a factory of one, found "
                f"{supplier!r}; a Processor belongs behind to_stream()"
            )
        if isinstance(supplier, type):
            check_class("transform_values", supplier)
        connected, given = checked_stores(stores), dict(arguments or {})
        named = [each if isinstance(each, str) else each.name for each in connected]
        brought = provided_stores("transform_values", supplier, given)
        connected += tuple(each for each in brought if each.name not in named)
        kept = optional("transform_values", self.recorder.names, store, options, "KTABLE-TRANSFORMVALUES-")
        step = UserStep(
            self.recorder.names.step("KTABLE-TRANSFORMVALUES-", name),
            TableTransformValues,
            {"transformer": supplier, "arguments": given, "sends_old": False},
            code=supplier,
            is_named=name is not None,
            stores=lambda writer: connected,
        )
        used = tuple(each if isinstance(each, str) else each.name for each in connected)

        def view(parent: ValueGetter) -> ValueGetter:
            return TransformedGetter(parent, supplier, given, used)

        return self._derived(step, kept, Serdes(self.flow.serdes.key), view)


def _is_processor(supplier: object) -> bool:
    return isinstance(supplier, type) and issubclass(supplier, Processor)


_SUPPRESS = "KTABLE-SUPPRESS-"

__all__ = ["KTable", "TableBase"]


class KTable(TableStateless[K, V], TableJoins[K, V]):
    """The latest value of each key: a record replaces the one before, and one without a value deletes it.

    Semantics: Kafka Streams' KTable.
    """

    @overload
    def to_stream(
        self, select_key: None = None, *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, V]: ...
    @overload
    def to_stream(self, select_key: Callable[[V], K2], **options: Unpack[WithoutKey]) -> KStream[K2, V]: ...
    @overload
    def to_stream(self, select_key: Callable[[K, V], K2], **options: Unpack[WithKey]) -> KStream[K2, V]: ...
    def to_stream(
        self, select_key: Callable[..., Any] | None = None, *, with_key: bool = False, name: str | None = None
    ) -> Any:
        """Return the stream of the table's updates; a deletion is a record without a value.

        With `select_key`, a function of the value (or with `with_key=True` of key and value), the records get new keys.
        """
        step = self.recorder.add(
            ProcessorStep(self.recorder.names.step("KTABLE-TOSTREAM-", name), ToStream), self.flow.step
        )
        made: KStream[K, V] = self.recorder.kinds.stream(self.recorder, replace(self.flow, step=step))
        if select_key is None:
            return made
        check_mapper("to_stream", select_key, with_key=with_key, what="select_key")
        return made.select_key(select_key, with_key=with_key)  # type: ignore[call-overload]

    def to_pandas(self, inputs: Mapping[str, Iterable[Any]], *, limit: int | None = None, **settings: Any) -> DataFrame:
        """Run the program so far in the test driver, and return the rows of this table at the end, as a DataFrame.

        The rows are in the order in which their keys were first there, each with the timestamp of its last update;
        `limit` is the highest number of updates that are looked at. The arguments are those of `KStream.to_pandas`.

        >>> from penstock.dsl import StreamsBuilder
        >>> counts = StreamsBuilder().stream("words").group_by(lambda word: word).count("counts")
        >>> counts.to_pandas({"words": [("a", "to", 0), ("b", "be", 1_000), ("c", "to", 2_000)]})
          key  value                 timestamp
        0  to      2 1970-01-01 00:00:02+00:00
        1  be      1 1970-01-01 00:00:01+00:00
        """
        # Only here: whoever runs a program does not need what tests it.
        from penstock.plugins.testing.frames import to_pandas

        return to_pandas(self, inputs, limit=limit, only_latest=True, **settings)

    @overload
    def group_by(
        self, select_key: Callable[[V], K2], select_value: None = None, **options: Unpack[GroupingWithoutKey]
    ) -> KGroupedTable[K2, V]: ...
    @overload
    def group_by(
        self, select_key: Callable[[K, V], K2], select_value: None = None, **options: Unpack[GroupingWithKey]
    ) -> KGroupedTable[K2, V]: ...
    @overload
    def group_by(
        self,
        select_key: Callable[..., K2],
        select_value: Callable[..., Any],
        *,
        with_key: bool = False,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        name: str | None = None,
    ) -> KGroupedTable[K2, Any]: ...
    def group_by(
        self,
        select_key: Callable[..., Any],
        select_value: Callable[..., Any] | None = None,
        *,
        with_key: bool = False,
        key_serde: SerdeLike = None,
        value_serde: SerdeLike = None,
        name: str | None = None,
    ) -> Any:
        """Group the rows by the key that `select_key` returns, for an aggregation of each group.

        With `select_value`, the groups have what it returns in place of the values. Both get the value, or with
        `with_key=True` key and value; a row for which one of them returns None is in no group. Updates go through a
        repartition topic, `NAME-repartition`, or without `name`, named after the store. Raises TopologyError for a
        table whose rows expire (`ttl`): its groups would not lose them. Semantics: Kafka Streams' KTable.groupBy.
        """
        check_mapper("group_by", select_key, with_key=with_key, what="select_key")
        if select_value is not None:
            check_mapper("group_by", select_value, with_key=with_key, what="select_value")
        if self.source.expiring is not None:
            raise TopologyError(
                f"group_by: rows expire in store {self.source.expiring!r} (ttl), which sends no update: a row that has "
                "expired would stay in its group, and count again when it comes back. Leave out the ttl, and delete "
                "rows by a value of None, for instance with a timer in process(...).to_table(...)"
            )
        step = ProcessorStep(
            self.recorder.names.step("KTABLE-SELECT-", name),
            TableSelect,
            {
                "select_key": keyed(select_key, with_key=with_key),
                "select_value": None if select_value is None else keyed(select_value, with_key=with_key),
                "ignores_older": self.source.is_versioned,
            },
            late=lambda writer: group_options(writer, step, serdes.key),
        )
        self.recorder.add(step, self.flow.step)
        self.source.send_old_values(force=True)
        known = Serdes(None, self.flow.serdes.value if select_value is None else None)
        serdes = known.given(key_serde, value_serde)
        return self.recorder.kinds.grouped_table(
            self.recorder, Flow(step, serdes, self.flow.sources), None if name is None else checked(name)
        )

    def suppress(
        self,
        until: Duration,
        *,
        max_records: int | None = None,
        max_bytes: int | None = None,
        when_full: str | None = None,
        idle: Duration | None = None,
        name: str | None = None,
        logged: bool = True,
        topic_config: TopicConfig | None = None,
    ) -> KTable[K, V]:
        """Keep updates back, and let the last one of each key go.

        `until="window_closes"` is for tables of windows: each window leaves once, when stream time has reached its end
        and the grace; deletions do not leave. With `until` a duration, a key leaves so long after the timestamp of the
        first update that is kept; more updates of the key do not change its turn. Stream time is the highest timestamp
        of the updates that this verb got. Updates leave by time, then by the bytes of their keys.

        The buffer is a store, `NAME-store`. `max_records` and `max_bytes` (about what keys, values and headers take)
        bound it. When it is full, `when_full="emit_early"` lets the oldest go and `"stop"` fails; a window cannot go
        before it closes, so there it is "stop".
        Stream time moves only with updates. `idle="30s"` lets it go on with the wall clock after so long without any,
        as `windowed_by(..., idle=)` does: what is decided is committed with the task, so a crash changes nothing, but
        to process everything again may have other results. A window that has left has then closed for the aggregation
        above, too: what is later is dropped there, and counted (`late`). So is an update that reaches this verb later.
        Without `idle`, an update of a window that has left lets it leave again; a stream of a cogroup or a side of a
        join that is behind the other sends such ones. Sessions that are made in front of a topic take no `idle` here.
        Semantics: Kafka Streams' `suppress` (KIP-328), which has no `idle`.

        ::

            updates   a=1   a=2   b=1         a=3           until="10s"; the numbers above are seconds
            time       0     4     6    10     12    16
            leaves                      a=2         b=1     then a=3 at 22
        """
        if self.source.is_versioned:
            raise TopologyError(
                "suppress: the table keeps versions, and some of its updates are older than its latest ones, which the "
                "buffer cannot keep apart. Give it a store without versions first: "
                'table.map_values(lambda value: value, store="NAME").suppress(...)'
            )
        options = suppress_options(self.flow.step, until, max_records, max_bytes, when_full, idle)
        names = self.recorder.names
        step_name = names.unless_given(name, _SUPPRESS)
        store = names.store(_SUPPRESS, 'suppress(..., name="NAME")') if name is None else f"{step_name}-store"
        self.source.send_old_values(force=True)
        step = suppress_step(step_name, store, self.flow, options, logged=logged, topic_config=topic_config)
        self.recorder.add(step, self.flow.step)
        flow = Flow(step, self.flow.serdes, self.flow.sources)
        return self._table_of(flow, SuppressedTable(step, store, flow.serdes, self.source), None)
