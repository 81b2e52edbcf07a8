"""Joins of two streams: the processors, and the steps and stores that they add to the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock import Headers, ProcessorContext, Record, Settings, StoreBuilder, TopologyError, duration_ms
from penstock.operator import Operator, Run
from penstock.support.own_copy import IMMUTABLE, own_copy, own_record

from ..graph.materialized import has_headers
from ..graph.names import checked, is_same_key
from ..graph.options import StreamJoinOptions
from ..graph.recorder import Recorder
from ..graph.serdes import KnownSerde, Serdes, check_same_keys
from ..graph.sources import SourceStep
from ..graph.step import Flow, PassThrough, ProcessorStep, Step, Writer
from .join_windows import JoinStore, JoinWindows, join_store, waiting_store
from .joins import Joiner, JoinKind


@dataclass(kw_only=True, eq=False)
class StreamStreamJoin(Operator):
    """One side of an inner join: forwards a result for each record of the other side that is in the window.

    `others` is the store of the other side. `before_ms` and `after_ms` are as seen from this side. Kafka Streams:
    KStreamKStreamJoin.
    """

    others: str
    before_ms: int
    after_ms: int
    joiner: Joiner
    is_left: bool = True

    def bind(self, context: ProcessorContext) -> Run:
        forward, fetch, drop = context.send, context.get_store(self.others).fetch, context.metrics.drop
        before, after = self.before_ms, self.after_ms
        join = self.joiner.compile(is_left=self.is_left)

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            if key is None or value is None:
                drop("null_key" if key is None else "null_value")
                return
            earliest, latest = timestamp - before, timestamp + after
            is_own = type(value) in IMMUTABLE and type(key) in IMMUTABLE
            for time, other in fetch(key, earliest if earliest > 0 else 0, latest) if latest >= 0 else ():
                if not is_own:  # it is in several results
                    key, value = own_copy(record[0]), own_copy(record[1])
                forward((key, join(key, value, other), time if time > timestamp else timestamp, headers))

        return run


@dataclass(kw_only=True, eq=False)
class JoinWindow(Operator):
    """Forwards each record to the join, then puts it in `store` for the other side (KStreamJoinWindow)."""

    store: str

    def bind(self, context: ProcessorContext) -> Run:
        forward, put = context.send, context.get_store(self.store).put

        def run(record: Record) -> None:
            key, value, timestamp, _ = record
            # The joiner may change what it gets, and what is put afterwards is what came.
            is_own = type(value) in IMMUTABLE and type(key) in IMMUTABLE
            forward(record if is_own else own_record(record))
            if key is not None:
                put(key, value, timestamp)  # A put of None does nothing, and is counted if it is late.

        return run


_STREAM_TIME, _MIN_TIME, _FIRST, _NEXT_EMIT = "stream_time", "min_time", "first", "next_emit"
_NEVER = 2**63 - 1


@dataclass(kw_only=True, eq=False)
class StreamStreamOuterJoin(StreamStreamJoin):
    """One side of a left or outer join; other options as in StreamStreamJoin.

    Unmatched records of a side that `keeps_unmatched` wait in `waiting`, under (time, side, key), until the join's own
    stream time has passed the end of their window and `grace_ms`; then they are joined with None. Both sides share
    `waiting`, and its times. Closed windows are looked for once in `emit_interval_ms` of the wall clock at most.
    `keeps_headers`: waiting records keep their headers; else they get those of the record that closes their window.
    Kafka Streams: KStreamKStreamJoin.
    """

    holds_back = True

    waiting: str
    grace_ms: int
    keeps_unmatched: bool = True
    emit_interval_ms: int = 0
    keeps_headers: bool = False

    @classmethod
    def saved_with(cls, *args: Any, waiting: str, **options: Any) -> str:
        """Return the store of the records that wait: the times belong to it."""
        return waiting

    def bind(self, context: ProcessorContext) -> Run:
        forward, fetch, drop = context.send, context.get_store(self.others).fetch, context.metrics.drop
        waiting = context.get_store(self.waiting)
        add, delete = waiting.add, waiting.delete
        before, after, grace = self.before_ms, self.after_ms, self.grace_ms
        is_left, keeps, keeps_headers = self.is_left, self.keeps_unmatched, self.keeps_headers
        join = self.joiner.compile(is_left=is_left)
        times = context.saved_numbers
        emit_closed = self._bind_emit_closed(context, times)
        # Kafka Streams looks for closed windows also when nothing waits, which only counts for the interval.
        looks_always = self.emit_interval_ms > 0 and after + grace > 0

        def run(record: Record) -> None:
            key, value, timestamp, headers = record
            stream_time = times.get(_STREAM_TIME, -1)
            if timestamp > stream_time:
                times[_STREAM_TIME] = stream_time = timestamp
            if key is None or value is None:
                if keeps and value is not None:
                    forward((key, join(key, value, None), timestamp, headers))
                else:
                    drop("null_key" if key is None else "null_value")
                return
            if timestamp == stream_time:
                min_time = times.get(_MIN_TIME, _NEVER)
                if min_time + after + grace < stream_time or (looks_always and min_time == _NEVER):
                    emit_closed(headers, stream_time)
            earliest, latest = timestamp - before, timestamp + after
            is_unmatched = keeps
            is_own = type(value) in IMMUTABLE and type(key) in IMMUTABLE
            for time, other in fetch(key, earliest if earliest > 0 else 0, latest) if latest >= 0 else ():
                is_unmatched = False
                if not is_own:  # it is in several results
                    key, value = own_copy(record[0]), own_copy(record[1])
                result = join(key, value, other)  # if that fails, the other record still waits
                delete((time, not is_left, record[0]))
                forward((key, result, time if time > timestamp else timestamp, headers))
            if is_unmatched:
                if latest < stream_time:
                    forward((key, join(key, value, None), timestamp, headers))
                else:
                    times[_MIN_TIME] = min(times.get(_MIN_TIME, _NEVER), timestamp)
                    times[_FIRST] = min(times.get(_FIRST, _NEVER), timestamp)
                    add((timestamp, is_left, key), (is_left, (value, headers) if keeps_headers else value))

        return run

    def _bind_emit_closed(self, context: ProcessorContext, times: dict[str, int]) -> Callable[[Any, int], None]:
        """Return the function that forwards waiting records of closed windows."""
        forward, waiting, grace = context.send, context.get_store(self.waiting), self.grace_ms
        # A left record waits for right ones that are later by `after` of the join's window, and the reverse.
        left_ms, right_ms = self.after_ms, self.before_ms
        if not self.is_left:
            left_ms, right_ms = right_ms, left_ms

        def sends_alone(*, is_left: bool) -> Run:
            join = self.joiner.compile(is_left=is_left)

            def send(record: Record) -> None:
                key, value, timestamp, headers = record
                forward((key, join(key, value, None), timestamp, headers))

            return context.guarded(send)

        send_left, send_right = sends_alone(is_left=True), sends_alone(is_left=False)
        keeps_headers = self.keeps_headers
        interval, now = self.emit_interval_ms, context.current_system_time_ms

        def emit_closed(headers: Any, stream_time: int) -> None:
            if interval:
                if now() < times.get(_NEXT_EMIT, 0):
                    return
                times[_NEXT_EMIT] = now() + interval
            left_is_open = right_is_open = False
            # `min_time` is Kafka Streams', and decides when the next look is; nothing waits before `first`.
            min_time, first, last = _NEVER, _NEVER, None
            with waiting.range((times.get(_FIRST, 0), False, None)) as entries:
                for entry, (_, value) in entries:
                    min_time, is_left, key = entry
                    if left_is_open and right_is_open:
                        break
                    if min_time + (left_ms if is_left else right_ms) + grace >= stream_time:
                        left_is_open, right_is_open = left_is_open or is_left, right_is_open or not is_left
                        first = min(first, min_time)
                        continue
                    if keeps_headers:
                        value, headers = value
                    key = own_copy(key)  # `entry` is deleted afterwards
                    (send_left if is_left else send_right)((key, value, min_time, headers))
                    if last is not None and not is_same_key(last, entry):
                        waiting.delete(last)
                    last = entry
            if last is not None:
                waiting.delete(last)
            times[_MIN_TIME], times[_FIRST] = min_time, first

        return emit_closed


@dataclass(frozen=True)
class JoinSide:
    """One side of a join: the step that fills its store, the store's name, that of the join node, the retention."""

    window: ProcessorStep
    store: str
    join: str
    retention_ms: int


@dataclass(eq=False, repr=False)
class StreamJoinStep(Step):
    """Writes the two join nodes, and the one in which their results meet, whose name is the step's.

    `keys`, the left side's first, are the serdes of the keys, and `waiting` declares the store of the
    records that wait for a match. Kafka Streams: StreamStreamJoinNode.
    """

    kind: JoinKind
    left: JoinSide
    right: JoinSide
    windows: JoinWindows
    joiner: Joiner
    keys: tuple[KnownSerde, KnownSerde]
    waiting: Callable[[Writer], StoreBuilder] | None
    emit_interval_ms: int

    def __post_init__(self) -> None:
        self.takes_null_keys = self.kind.keeps_left or self.kind.keeps_right

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
            "joiner": self.joiner,
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
        "joiner": join.joiner,
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

    The record, which is put afterwards, is joined with itself if the window has its time, and if the store, which keeps
    `retention_ms`, does not drop it. Kafka Streams: KStreamKStreamSelfJoin (KIP-862).
    """

    store: str
    before_ms: int
    after_ms: int
    retention_ms: int
    joiner: Joiner

    @classmethod
    def saved_with(cls, *args: Any, store: str, **options: Any) -> str:
        """Return the store of the records: the times belong to it."""
        return store

    def bind(self, context: ProcessorContext) -> Run:
        forward, fetch, drop = context.send, context.get_store(self.store).fetch, context.metrics.drop
        before, after, retention = self.before_ms, self.after_ms, self.retention_ms
        join = self.joiner.compile()
        is_in_window = before >= 0 and after >= 0
        times = context.saved_numbers

        def near(key: Any, earliest: int, latest: int) -> Iterable[tuple[int, Any]]:
            return fetch(key, max(earliest, 0), latest) if latest >= 0 else ()

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
            for time, other in near(key, timestamp - before, timestamp + after):
                send(key, value, other, max(time, timestamp), headers)
            joins_itself = is_in_window and timestamp > stream_time - retention
            for time, other in near(key, timestamp - after, timestamp + before):
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
    """Add the steps of a join of two streams that are partitioned by the same keys; return its result."""
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
    step = StreamJoinStep(merge, kind, sides[0], sides[1], windows, joiner, keys, waiting, interval)
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
