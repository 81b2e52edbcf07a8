"""Joins of two streams in the graph: adds their steps and stores, and writes them to the Topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock import Headers, ProcessorContext, Record, Settings, StoreBuilder, TopologyError, duration_ms
from penstock.operator import Operator, Run
from penstock.support.own_copy import own_copy

from ...graph.materialized import has_headers
from ...graph.names import checked
from ...graph.recorder import Recorder
from ...graph.serdes import KnownSerde, Serdes, check_same_keys
from ...graph.sources import SourceStep
from ...graph.step import Flow, ProcessorStep, Step
from ...graph.writer import PassThrough, Writer
from ..joins import Joiner, JoinKind
from .inner import JoinWindow, StreamStreamJoin, StreamStreamOuterJoin, joining
from .stores import JoinStore, StreamJoinOptions, join_store, waiting_store
from .within import JoinWindows


@dataclass(frozen=True)
class JoinSide:
    """One side of a join: the step that fills its store, the store's name, that of the join node, the retention."""

    window: ProcessorStep
    store: str
    join: str
    retention_ms: int


class StreamJoinStep(Step):
    """Writes the two join nodes, and the one in which their results meet, whose name is the step's.

    Of pairs, the first is the left side's. `keys` are the serdes of the keys, and `waiting` declares the store of the
    records that wait for a match. Kafka Streams: StreamStreamJoinNode.
    """

    def __init__(
        self,
        kind: JoinKind,
        name: str,
        sides: tuple[JoinSide, JoinSide],
        windows: JoinWindows,
        joiner: Joiner,
        keys: tuple[KnownSerde, KnownSerde],
        waiting: Callable[[Writer], StoreBuilder] | None,
        emit_interval_ms: int,
    ) -> None:
        super().__init__(name)
        self.kind = kind
        self.left, self.right = sides
        self.windows = windows
        self.joiner = joiner
        self.keys = keys
        self.waiting = waiting
        self.emit_interval_ms = emit_interval_ms
        self.takes_null_keys = kind.keeps_left or kind.keeps_right

    def write(self, writer: Writer) -> None:
        check_same_keys(self.kind.verb, *self.keys, writer.settings)
        waiting = None if self.waiting is None else self.waiting(writer)
        for is_left in (True, False):
            self._write_side(writer, is_left, waiting)
        writer.topology.add_processor(self.name, PassThrough, [self.left.join, self.right.join])

    def optimise(self, settings: Settings) -> None:
        """Let an inner join of a stream with itself use one store, if the settings say so."""
        if settings.optimizes("single_store_self_join") and not self.takes_null_keys and _is_one(self.parents):
            share_store(self)

    def _write_side(self, writer: Writer, is_left: bool, waiting: StoreBuilder | None) -> None:
        mine, other = (self.left, self.right) if is_left else (self.right, self.left)
        before, after = self.windows.before_ms, self.windows.after_ms
        options: dict[str, Any] = {
            "others": other.store,
            "before_ms": before if is_left else after,
            "after_ms": after if is_left else before,
            "joiner": self.joiner.function,
            "with_key": self.joiner.with_key,
            "is_left": is_left,
        }
        supplier: Any = StreamStreamJoin
        stores: Sequence[str | StoreBuilder] = (other.store,)
        if waiting is not None:
            supplier = StreamStreamOuterJoin
            stores = (other.store, waiting if is_left else waiting.name)
            options |= {
                "waiting": waiting.name,
                "grace_ms": self.windows.grace_ms,
                "emit_interval_ms": self.emit_interval_ms,
                "keeps_headers": has_headers(writer),
                "keeps_unmatched": self.kind.keeps_left if is_left else self.kind.keeps_right,
            }
        writer.topology.add_processor(mine.join, supplier, [mine.window.name], stores=stores, **options)


def share_store(join: StreamJoinStep) -> None:
    """Replace an inner join of a stream with itself by one that needs one store; its graph is changed in place.

    Two streams of the same topic are one, as it has one source. Semantics: Kafka Streams' `topology.optimization`,
    `single.store.self.join` (KIP-862).
    """
    windows = [each for parent in join.parents for each in parent.children]
    left, right = (_named(windows, side.window.name) for side in (join.left, join.right))
    options: dict[str, Any] = {
        "store": join.left.store,
        "before_ms": join.windows.before_ms,
        "after_ms": join.windows.after_ms,
        "retention_ms": join.left.retention_ms,
        "joiner": join.joiner.function,
        "with_key": join.joiner.with_key,
    }
    made = ProcessorStep(join.name, StreamStreamSelfJoin, options, stores=lambda writer: (options["store"],))
    made.priority = join.priority
    left.add_child(made)
    for each in (join, right):
        for parent in list(each.parents):
            parent.remove_child(each)
    for child in list(join.children):
        child.parents[child.parents.index(join)] = made
        made.children.append(child)


def _is_one(parents: list[Step]) -> bool:
    first, *others = parents
    return all(
        isinstance(first, SourceStep)
        and isinstance(each, SourceStep)
        and (each.topics, each.pattern, each.consumed) == (first.topics, first.pattern, first.consumed)
        for each in others
    )


def _named(steps: list[Step], name: str) -> Step:
    return next(each for each in steps if each.name == name)


@dataclass(kw_only=True, eq=False)
class StreamStreamSelfJoin(Operator):
    """Forwards what an inner join of a stream with itself does, in the same order, with one store for both sides.

    The record itself is put into the store afterwards. It is joined with itself if the window has its time, and if it
    is not so late that the store, which keeps `retention_ms`, drops it.
    Kafka Streams: KStreamKStreamSelfJoin (KIP-862).
    """

    store: str
    before_ms: int
    after_ms: int
    retention_ms: int
    joiner: Callable[..., Any]
    with_key: bool = False

    @classmethod
    def saved_with(cls, *args: Any, store: str, **options: Any) -> str:
        """Return the store of the records: the times belong to it."""
        return store

    def bind(self, context: ProcessorContext) -> Run:
        forward, fetch, drop = context.send, context.get_store(self.store).fetch, context.metrics.drop
        before, after, retention = self.before_ms, self.after_ms, self.retention_ms
        join = joining(self.joiner, with_key=self.with_key, is_left=True)
        is_in_window = before >= 0 and after >= 0
        times = context.saved_numbers

        def send(key: Any, mine: Any, others: Any, at: int, headers: Headers) -> None:
            # The record is in several results, and on both sides of its own.
            key = own_copy(key)
            forward((key, join(key, own_copy(mine), own_copy(others)), at, headers))

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop("null_key" if key is None else "null_value")
                return
            stream_time = times["stream_time"] = max(times.get("stream_time", -1), timestamp)
            for time, other in fetch(key, max(timestamp - before, 0), max(timestamp + after, 0)):
                send(key, value, other, max(time, timestamp), headers)
            joins_itself = is_in_window and timestamp > stream_time - retention
            for time, other in fetch(key, max(timestamp - after, 0), max(timestamp + before, 0)):
                if joins_itself and time > timestamp:
                    joins_itself = False
                    send(key, value, value, timestamp, headers)
                send(key, other, value, max(time, timestamp), headers)
            if joins_itself:
                send(key, value, value, timestamp, headers)

        return run


def record_stream_join(
    recorder: Recorder,
    kind: JoinKind,
    left: Flow,
    right: Flow,
    joiner: Joiner,
    windows: JoinWindows,
    name: str | None,
    options: StreamJoinOptions,
) -> Flow:
    """Add the steps of a join of two streams that are partitioned by the same keys; return what comes out of it.

    The stores have their serdes.
    """
    names = recorder.names
    windowed = [names.suffixed(name, each, "KSTREAM-WINDOWED-") for each in ("-this-windowed", "-other-windowed")]
    this = "OUTERTHIS" if kind.keeps_right else "JOINTHIS"
    other = "OUTEROTHER" if kind.keeps_left else "JOINOTHER"
    this_number, other_number = names.step(f"KSTREAM-{this}-"), names.step(f"KSTREAM-{other}-")
    joins = [this_number, other_number]
    if name is not None:
        joins[0] = checked(f"{name}-outer-this-join" if kind.keeps_right else f"{name}-this-join")
        joins[1] = checked(f"{name}-outer-other-join" if kind.keeps_left else f"{name}-other-join")
    merge = names.suffixed(name, "-merge", "KSTREAM-MERGE-")

    stores = [
        join_store(kind.verb, option, f"{join}-store", flow.serdes, windows, options)
        for option, join, flow in zip(("this_store", "other_store"), joins, (left, right), strict=True)
    ]
    if stores[0].name == stores[1].name:
        raise TopologyError(
            f"{kind.verb}: this_store and other_store are both named {stores[0].name!r}; a join has two"
        )
    for each in stores:
        if each.given is not None:
            names.own_store(each.name, kind.verb)
    waiting = None
    if kind.keeps_left:
        shared = _waiting_name(kind, stores[0], name, this_number)
        waiting = waiting_store(shared, *stores)
    if name is None:
        generated = [each.name for each in stores if each.given is None]
        if waiting is not None and stores[0].given is None:
            generated.append(shared)
        names.generated |= dict.fromkeys(generated, f'{kind.verb}(..., name="NAME")')

    sides = [_side(recorder, *each) for each in zip((left, right), windowed, stores, joins, strict=True)]
    interval = duration_ms(options.get("emit_interval", timedelta(0)), f"{kind.verb}: emit_interval")
    keys = (left.serdes.key, right.serdes.key)
    step = StreamJoinStep(kind, merge, (sides[0], sides[1]), windows, joiner, keys, waiting, interval)
    recorder.add(step, left.step, right.step)
    recorder.copartition(left.sources | right.sources)
    return Flow(step, Serdes(left.serdes.key), left.sources | right.sources)


def _side(recorder: Recorder, flow: Flow, windowed: str, store: JoinStore, join: str) -> JoinSide:
    step = ProcessorStep(windowed, JoinWindow, {"store": store.name}, stores=lambda writer: (store.declared(writer),))
    recorder.add(step, flow.step)
    return JoinSide(step, store.name, join, store.retention_ms)


def _waiting_name(kind: JoinKind, this: JoinStore, name: str | None, number: str) -> str:
    base = name if this.given is None else this.name
    if base is None:
        return f"KSTREAM-OUTERSHARED-{number[-10:]}-store"
    return checked(f"{base}-outer-shared-join-store" if kind.keeps_right else f"{base}-left-shared-join-store")
