"""KGroupedStream: a stream whose records are grouped by key, to be aggregated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from penstock import Duration, TopologyError

from .aggregations import Aggregations
from .cogrouped import CogroupedKStream, Member
from .graph.materialized import StoreLike, StoreOptions, StoreWithKey, StoreWithoutKey
from .graph.recorder import Recorder
from .graph.step import Flow
from .operators.aggregate.aggregation_step import Emit
from .operators.aggregate.folds import Counting, aggregating, reducing
from .operators.aggregate.grouped_source import GroupedSource
from .operators.aggregate.windows import SessionWindows, SlidingWindows, TimeWindows
from .stream_base import K, V
from .windowed import SessionWindowedKStream, TimeWindowedKStream

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
