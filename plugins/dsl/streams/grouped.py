"""KGroupedStream: a stream whose records are grouped by key, to be aggregated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from penstock.processor import Processor

from ..functions import check_aggregator, check_function, check_initializer
from ..graph.recorder import Recorder
from ..nodes.aggregate import Aggregate, Count, Reduce
from ..serdes import KnownSerde, Serdes
from ..state import StoreLike, StoreOptions
from ..tables.values import StoredTable
from .aggregating import AGGREGATE, REDUCE, GroupedSource, add_aggregation, store_of, table_of
from .base import Flow, K, V

if TYPE_CHECKING:
    from ..tables.ktable import KTable

A = TypeVar("A")


class KGroupedStream(Generic[K, V]):
    """Records grouped by key. Semantics: Kafka Streams' KGroupedStream.

    Each aggregation is a table with a row for each key, and its first argument is the table's store: a name, or a
    declared store. An update has the highest timestamp of the records in it. Records without key or value are dropped
    and counted. An aggregate of None deletes the row.
    """

    def __init__(self, recorder: Recorder, flow: Flow, name: str | None) -> None:
        self.source = GroupedSource(recorder, flow, name)

    def count(
        self, store: StoreLike | None = None, *, name: str | None = None, **options: Unpack[StoreOptions]
    ) -> KTable[K, int]:
        """Count the records of each key."""
        made: KTable[K, int] = self._aggregation("count", AGGREGATE, Count, {}, store, name, options, "int")
        return made

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
        check_function("reduce", reducer, "aggregate", "value", what="reducer")
        made: KTable[K, V] = self._aggregation(
            "reduce", REDUCE, Reduce, {"reducer": reducer}, store, name, options, self.source.serdes.value
        )
        return made

    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[A, V], A],
        store: StoreLike | None = None,
        *,
        with_key: Literal[False] = False,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, A]: ...
    @overload
    def aggregate(
        self,
        initializer: Callable[[], A],
        aggregator: Callable[[K, A, V], A],
        store: StoreLike | None = None,
        *,
        with_key: Literal[True],
        name: str | None = None,
        **options: Unpack[StoreOptions],
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
        check_initializer("aggregate", initializer)
        check_aggregator("aggregate", aggregator, with_key=with_key)
        functions = {"initializer": initializer, "aggregator": aggregator, "with_key": with_key}
        return self._aggregation("aggregate", AGGREGATE, Aggregate, functions, store, name, options, None)

    def _aggregation(
        self,
        verb: str,
        prefix: str,
        supplier: Callable[..., Processor],
        functions: dict[str, Any],
        store: StoreLike | None,
        name: str | None,
        options: StoreOptions,
        value_serde: KnownSerde,
    ) -> Any:
        source = self.source
        made = store_of(verb, source.recorder, store, options, prefix)
        step_name = source.recorder.names.step(prefix, name)
        serdes = made.serdes(Serdes(source.serdes.key, value_serde))
        step, sources = add_aggregation(
            source, made, step_name, supplier, functions, lambda writer: made.key_value(writer, serdes)
        )
        table = StoredTable(step, made.name, versioned=made.is_versioned)
        return table_of(source, step, sources, serdes, table, made)
