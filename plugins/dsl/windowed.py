"""TimeWindowedKStream and SessionWindowedKStream: grouped records, to be aggregated by windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from penstock import Windowed

from .aggregations import Aggregations
from .graph.materialized import StoreLike, WindowOptions, WindowWithKey, WindowWithoutKey
from .operators.aggregate.folds import Counting, aggregating, check_merger, reducing
from .stream_base import K, V

if TYPE_CHECKING:
    from .table import KTable

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
