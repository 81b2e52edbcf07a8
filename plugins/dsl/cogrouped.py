"""CogroupedKStream: several grouped streams that are aggregated into one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from penstock import TopologyError, Windowed
from penstock.program.serdes import NodeDefaults

from .base import K
from .graph.functions import check_aggregator, check_initializer, check_same_program
from .graph.materialized import materialized
from .graph.options import StoreLike, StoreOptions, WindowOptions
from .graph.serdes import Serdes, check_same_keys
from .graph.step import Flow, PassThrough, ProcessorStep
from .missing_verbs import Verbs
from .operators.aggregate.aggregation_step import (
    ON_UPDATE,
    AnyWindows,
    GroupedSource,
    aggregated_table,
    aggregation_step,
)
from .operators.aggregate.folds import Aggregating, Aggregator, check_merger
from .operators.aggregate.windows import SessionWindows, SlidingWindows, TimeWindows

if TYPE_CHECKING:
    from .grouped import KGroupedStream
    from .table import KTable

A = TypeVar("A")
V2 = TypeVar("V2")

_AGGREGATE, _MERGE = "COGROUPKSTREAM-AGGREGATE-", "COGROUPKSTREAM-MERGE-"


class Member:
    """One of the streams, with its aggregator."""

    def __init__(self, source: GroupedSource, aggregator: Callable[..., Any], *, with_key: bool) -> None:
        check_aggregator("cogroup", aggregator, with_key=with_key)
        self.source = source
        self.aggregator = Aggregator(aggregator, with_key=with_key)


class _Cogrouped(Verbs, Generic[K, A]):
    """The streams of a cogroup, and how they become steps."""

    kind = "cogrouped stream"

    def __init__(self, members: tuple[Member, ...], windows: AnyWindows | None = None) -> None:
        self._members = members
        self._windows = windows

    def _aggregated(
        self,
        initializer: Callable[[], Any],
        merger: Callable[..., Any] | None,
        store: StoreLike | None,
        name: str | None,
        options: StoreOptions | WindowOptions,
    ) -> KTable[Any, A]:
        check_initializer("aggregate", initializer)
        first = self._members[0].source
        recorder, names = first.recorder, first.recorder.names
        known = StoreOptions if self._windows is None else WindowOptions
        made = materialized("aggregate", names, store, options, _AGGREGATE, known.__annotations__)
        serdes = made.serdes(Serdes(first.serdes.key))
        self._check_names()
        self._check_keys()
        parents = [each.source.behind_repartition(made.name) for each in self._members]
        recorder.copartition(source for _, sources in parents for source in sources)
        steps = []
        for number, (member, (parent, _)) in enumerate(zip(self._members, parents, strict=True)):
            step_name = names.suffixed(name, f"-cogroup-agg-{number}", _AGGREGATE)
            fold = Aggregating(initializer, member.aggregator, merger)
            steps.append(aggregation_step(step_name, fold, made, serdes, self._windows, ON_UPDATE))
            if number and self._windows is not None:
                steps[-1].saved_as = (f"{made.name}/{number}",)
            if number < len(parents) - 1:
                steps[-1].options["flushes"] = False
            recorder.add(steps[-1], parent)
        merge_name = names.suffixed(name, "-cogroup-merge", _MERGE)
        merge = ProcessorStep(merge_name, PassThrough, stores=lambda writer: self._check_keys(writer.settings))
        recorder.add(merge, *steps)
        all_sources = frozenset(source for _, sources in parents for source in sources)
        flow = Flow(merge, serdes, all_sources)
        table: KTable[Any, A] = aggregated_table(recorder, flow, made, self._windows, *steps)
        return table

    def _check_keys(self, settings: NodeDefaults | None = None) -> tuple[()]:
        """Refuse streams whose keys have other serdes than those of the first one: a key would be in several tasks."""
        first, *others = (each.source.serdes.key for each in self._members)
        for other in others:
            check_same_keys(
                "cogroup", first, other, settings, sides=("its first stream", "another one"),
                how='send one of them through repartition("NAME", key_serde=...) with the serde of the other',
            )  # fmt: skip
        return ()

    def _check_names(self) -> None:
        named = [each.source.name for each in self._members if each.source.flow.needs_repartition]
        if len(named) != len(set(named)):
            raise TopologyError(
                "cogroup: several of its streams need a repartition topic, and each needs a name of its own; write "
                'group_by(..., name="NAME") or group_by_key(name="NAME")'
            )


class CogroupedKStream(_Cogrouped[K, A]):
    """Several grouped streams, each with an aggregator; `KGroupedStream.cogroup` makes it.

    Semantics: Kafka Streams' CogroupedKStream (KIP-150).
    """

    @overload
    def cogroup(
        self, other: KGroupedStream[K, V2], aggregator: Callable[[A, V2], A], *, with_key: Literal[False] = False
    ) -> CogroupedKStream[K, A]: ...
    @overload
    def cogroup(
        self, other: KGroupedStream[K, V2], aggregator: Callable[[K, A, V2], A], *, with_key: Literal[True]
    ) -> CogroupedKStream[K, A]: ...
    def cogroup(self, other: Any, aggregator: Callable[..., Any], *, with_key: bool = False) -> Any:
        """Add a stream with the same keys, and the aggregator of its values."""
        first = self._members[0].source
        if not isinstance(other, first.recorder.kinds.grouped_stream):
            raise TopologyError(f"cogroup: expected a grouped stream, found {other!r}; write stream.group_by_key()")
        check_same_program("cogroup", first, other.source)
        return CogroupedKStream((*self._members, Member(other.source, aggregator, with_key=with_key)))

    def aggregate(
        self,
        initializer: Callable[[], A],
        store: StoreLike | None = None,
        *,
        name: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> KTable[K, A]:
        """Combine the values of all streams by key: each value by the aggregator of its stream."""
        return self._aggregated(initializer, None, store, name, options)

    def windowed_by(self, windows: AnyWindows) -> WindowedCogroupedKStream[K, A]:
        """Aggregate by key and window; see `KGroupedStream.windowed_by`. Each stream has its own stream time."""
        if not isinstance(windows, (TimeWindows, SlidingWindows, SessionWindows)):
            raise TopologyError(f'windowed_by: expected windows, found {windows!r}; write tumbling("5m", grace="0s")')
        return WindowedCogroupedKStream(self._members, windows)


class WindowedCogroupedKStream(_Cogrouped[K, A]):
    """Several grouped streams and their windows."""

    def aggregate(
        self,
        initializer: Callable[[], A],
        store: StoreLike | None = None,
        *,
        merger: Callable[[A, A], A] | None = None,
        name: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> KTable[Windowed, A]:
        """Combine the values of all streams by key and window. Sessions need a `merger` of two aggregates."""
        if isinstance(self._windows, SessionWindows):
            if merger is None:
                raise TopologyError(
                    "aggregate: sessions need merger=, a function of two aggregates; write aggregate(..., merger=...)"
                )
            check_merger(merger, with_key=False)
        elif merger is not None:
            raise TopologyError("aggregate: merger= is for sessions; other windows are never merged")
        return self._aggregated(initializer, merger, store, name, options)
