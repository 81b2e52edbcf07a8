"""The verbs that look at one row of a table at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock import Processor, StoreBuilder, TopologyError, ValueTransformer
from penstock.program.checks import check_class
from penstock.program.provided import provided_stores

from .graph.functions import check_mapper, checked_stores, keyed
from .graph.materialized import Materialized, StoreLike, StoreOptions, StoreWithKey, StoreWithoutKey, optional
from .graph.serdes import Serdes
from .graph.step import Flow, ProcessorStep
from .operators.reading import ValueGetter, keep
from .operators.stateless.derived_table import ComputedGetter, DerivedTable, TableTransformValues, TransformedGetter
from .operators.stateless.table_values import TableFilter, TableMapValues
from .operators.stateless.user_step import UserStep
from .stream_base import K, V
from .table_base import TableBase

if TYPE_CHECKING:
    from .table import KTable

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
        step = ProcessorStep(
            self.recorder.names.step("KTABLE-MAPVALUES-", name),
            TableMapValues,
            {"function": compute, "sends_old": False},
        )
        known = Serdes(self.flow.serdes.key)
        return self._derived(step, kept, known, lambda parent: ComputedGetter(parent, compute))

    def _filtered(
        self, verb: str, accepts: Callable[[Any, Any], Any], store: StoreLike | None, name: str | None, options: Any
    ) -> Any:
        kept = optional(verb, self.recorder.names, store, options, "KTABLE-FILTER-")
        # Where the value before can be had for nothing, deletions of rows that were not there are left out.
        sends_old = self.source.send_old_values(force=False)
        # A row that has expired may still be in what was made of its updates.
        forwards_all = self.source.is_versioned or self.source.expiring is not None or kept.expiring is not None
        step = ProcessorStep(
            self.recorder.names.step("KTABLE-FILTER-", name),
            TableFilter,
            {"keep": accepts, "forwards_all": forwards_all, "sends_old": sends_old},
        )

        def shown(key: Any, value: Any) -> Any:
            return value if accepts(key, value) else None

        known = self.flow.serdes
        return self._derived(step, kept, known, lambda parent: ComputedGetter(parent, shown))

    def _derived(
        self,
        step: ProcessorStep,
        kept: Materialized,
        known: Serdes,
        view: Callable[[ValueGetter], ValueGetter],
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
            supplier,
            is_named=name is not None,
            stores=lambda writer: connected,
        )
        used = tuple(each if isinstance(each, str) else each.name for each in connected)

        def view(parent: ValueGetter) -> ValueGetter:
            return TransformedGetter(parent, supplier, given, used)

        return self._derived(step, kept, Serdes(self.flow.serdes.key), view)


def _is_processor(supplier: object) -> bool:
    return isinstance(supplier, type) and issubclass(supplier, Processor)
