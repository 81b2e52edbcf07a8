"""Every verb of the DSL that keeps state, each in a program of its own that names its stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Processor,
    Record,
    ValueTransformer,
    Windowed,
    key_value_store,
    versioned_store,
    window_store,
)
from penstock.plugins.dsl import (
    KStream,
    KTable,
    StreamsBuilder,
    TimeWindows,
    collect_set,
    count_distinct,
    histogram,
    hopping,
    latest,
    max_by,
    min_by,
    sessions,
    sliding,
    top,
    tumbling,
    unlimited,
    within,
)
from penstock.plugins.dsl.operators.aggregate.windows import Window


@dataclass(frozen=True)
class Chosen:
    """What may differ between two versions of a program.

    `in_front`: there is a verb more at the top. `named`: the nodes have names. `windows` are in place of the own.
    `options` are those of the aggregation, `emit` those of `windowed_by`, `until` that of `suppress`.
    """

    in_front: bool = False
    named: bool = False
    windows: Any = None
    store: str = "kept"
    options: Mapping[str, Any] = field(default_factory=dict)
    emit: Mapping[str, Any] = field(default_factory=dict)
    until: str | None = None

    def name(self, name: str = "verb") -> str | None:
        """Return the name of a node, None if it gets a numbered one."""
        return name if self.named else None


PLAIN, IN_FRONT, NAMED = Chosen(), Chosen(in_front=True), Chosen(named=True)


class Days(TimeWindows):
    """Windows of the user's own: two of different length, by turns. Their module is fixed, wherever this file is."""

    __module__ = "shop.windows"

    def __init__(self, grace_ms: int, short: int = 4_000, long: int = 6_000) -> None:
        self.grace_ms = grace_ms
        self.short, self.long = short, long

    @property
    def size_ms(self) -> int:
        return self.long

    def windows_for(self, timestamp: int) -> Sequence[Window]:
        start = timestamp - timestamp % (self.short + self.long)
        middle, end = start + self.short, start + self.short + self.long
        return ((start, middle),) if timestamp < middle else ((middle, end),)


class Remind(Processor):
    """Counts, and sends on the sum by two schedules: one of `init`, and one that the first record of a key makes."""

    def __init__(self, store: str = "kept") -> None:
        self.store = store

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("70s", self.total, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        store = self.context.get_store(self.store)
        count = (store.get(record.key) or 0) + 1
        store.put(record.key, count)
        if count == 1 and record.key == "a":
            self.context.schedule("30s", self.remind, STREAM_TIME)

    def remind(self, now: int) -> None:
        self.context.forward(Record("reminder", str(now), now))

    def total(self, now: int) -> None:
        with self.context.get_store(self.store).all() as rows:
            self.context.forward(Record("total", f"{now} {sum(count for _, count in rows)}", 0))


class Same(ValueTransformer):
    """Counts in a store, and ticks."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("70s", self.tick, WALL_CLOCK_TIME)

    def transform(self, key: Any, value: Any) -> Any:
        store = self.context.get_store("ticks")
        return f"{value} {store.get('ticks') or 0}"

    def tick(self, now: int) -> None:
        store = self.context.get_store("ticks")
        store.put("ticks", (store.get("ticks") or 0) + 1)


def add(aggregate: str, value: str) -> str:
    return f"{aggregate}{value}"


Verb = Callable[[StreamsBuilder, KStream[Any, Any], KStream[Any, Any], Chosen], KStream[Any, Any] | KTable[Any, Any]]
"""(builder, left stream, right stream, what is chosen) -> what goes to the topic `out`."""


def _windowed(own: Any, emit: Mapping[str, Any] | None = None, verb: str = "count") -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        windows = left.group_by_key().windowed_by(chosen.windows or own, **(chosen.emit or emit or {}))
        options = {"name": chosen.name(), **chosen.options}
        if verb == "reduce":
            return windows.reduce(add, chosen.store, **options)
        if verb == "aggregate":
            merger = [add] if hasattr(own, "gap_ms") else []
            return windows.aggregate(str, add, *merger, chosen.store, value_serde="str", **options)
        return windows.count(chosen.store, **options)

    return write


def _cogrouped(own: Any) -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        grouped = left.group_by_key().cogroup(add).cogroup(right.group_by_key(), add)
        options = {"value_serde": "str", "name": chosen.name(), **chosen.options}
        windows = chosen.windows or own
        if windows is None:
            return grouped.aggregate(str, chosen.store, **options)
        merger = {"merger": add} if hasattr(windows, "gap_ms") else {}
        return grouped.windowed_by(windows).aggregate(str, chosen.store, **merger, **options)

    return write


def _grouped(verb: str) -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        grouped, name = left.group_by_key(), chosen.name()
        if verb == "count":
            return grouped.count("kept", name=name)
        if verb == "reduce":
            return grouped.reduce(add, "kept", name=name)
        return grouped.aggregate(str, add, "kept", value_serde="str", name=name)

    return write


def _suppressed(until: str, own: Any, idle: str | None = None) -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        counts = left.group_by_key().windowed_by(chosen.windows or own).count(chosen.store, name=chosen.name("counts"))
        return counts.suppress(chosen.until or until, name="wait", idle=idle)

    return write


def _joined(verb: str, own: Any, **options: Any) -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        join = getattr(left, verb)
        return join(right, _pair, chosen.windows or own, name="pairs", **{**options, **chosen.options})

    return write


def _joined_over_own_stores(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    """Join over declared stores, so that the nodes need no name."""
    this, other = (
        window_store(name, retention="5s", window_size="4s", retain_duplicates=True) for name in ("this", "other")
    )
    joined = left.outer_join(
        right, _pair, within("2s", grace="1s"), this_store=this, other_store=other, name=chosen.name("this")
    )
    return joined


def _pair(left: Any, right: Any) -> str:
    return f"{left}+{right}"


def _self_joined(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    return left.join(left, _pair, chosen.windows or within("2s", grace="1s"), name="pairs")


def _versioned(builder: StreamsBuilder) -> Any:
    return builder.table("right", versioned_store("table", history_retention="1h"))


def _looked_up(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    options = chosen.options or {"grace": "2s"}
    return left.left_join(_versioned(builder), _pair, name="looked-up", **options)


def _looked_up_at_once(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    return left.join(builder.table("right", "table"), _pair, name=chosen.name())


def _looked_up_globally(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    return left.join(builder.global_table("globals", "global"), _pair, name=chosen.name())


def _tables(builder: StreamsBuilder) -> tuple[Any, Any]:
    return builder.table("left", "one"), builder.table("right", "two")


def _joined_tables(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    one, two = _tables(builder)
    return one.outer_join(two, _pair, "kept", name=chosen.name())


def _foreign_key(verb: str) -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        one, two = _tables(builder)
        return getattr(one, verb)(two, _pair, "kept", foreign_key=_letter, name="foreign")

    return write


def _letter(value: str) -> str | None:
    return None if value.endswith(("2", "7")) else "abc"[int(value[-1]) % 3]


def _derived(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    one, _ = _tables(builder)
    kept = one.filter(lambda value: value[-1] != "3", "filtered", name=chosen.name("filter"))
    upper = kept.map_values(str.upper, "mapped", name=chosen.name("map"))
    ticks = [key_value_store("ticks")]
    return upper.transform_values(Same, "transformed", stores=ticks, name=chosen.name(), value_serde="str")


def _regrouped(verb: str) -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        one, _ = _tables(builder)
        grouped, name = one.group_by(lambda value: value[-1], name="by-last"), chosen.name()
        if verb == "count":
            return grouped.count("kept", name=name)
        if verb == "reduce":
            return grouped.reduce(lambda a, b: a + b, lambda a, b: a.replace(b, "", 1), "kept", name=name)
        return grouped.aggregate(
            lambda: 0, lambda n, v: n + 1, lambda n, v: n - 1, "kept", value_serde="int", name=name
        )

    return write


def _to_table(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    return left.to_table("kept", name=chosen.name())


def _processed(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    """Two processors of a class, so that with a verb in front one gets the number of the other."""
    kept, more = (key_value_store(name) for name in ("kept", "more"))
    first = left.process(Remind, stores=[kept], name=chosen.name("one"))
    second = right.process(Remind, stores=[more], store="more", name=chosen.name("two"))
    return first.merge(second)


def _processed_values(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    return left.process_values(Same, stores=[key_value_store("ticks")], name=chosen.name())


def _mapped(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    def after(state: str, value: str | None) -> tuple[str | None, str]:
        """A seven begins anew."""
        made = f"{state}{value}"
        return (None if made.endswith("7") else made), f"{value} after {state}"

    return left.stateful_map(after, str, "kept", value_serde="str", name=chosen.name())


def _value(text: str | None) -> str:
    return text or "none"


def _ready(of_table: bool) -> Verb:
    def write(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
        columns: dict[str, Any] = {
            "histogram": histogram(_value), "distinct": count_distinct(_value), "set": collect_set(_value),
        }  # fmt: skip
        if of_table:
            grouped = _tables(builder)[0].group_by(lambda value: value[-1], name="by-last")
            return grouped.agg("kept", name=chosen.name(), value_serde="msgpack", **columns)
        columns |= {"top": top(2), "latest": latest(2), "max": max_by(by=_value), "min": min_by(_value, _value)}
        return left.group_by_key().agg("kept", name=chosen.name(), value_serde="msgpack", **columns)

    return write


TIMER_AT = 30_000


def _remembered(record: Record, context: Any) -> None:
    """Add to the text of the key; early records set a timer."""
    kept = context.get_store("kept")
    kept.put(record.key, f"{kept.get(record.key) or ''}{record.value}")
    if record.timestamp < 20_000:
        context.timer(record.key, TIMER_AT, STREAM_TIME)


def _told(record: Record, context: Any) -> None:
    context.forward(record.with_value(f"{record.value} of {context.get_store('kept').get(record.key)}"))


def _reminded(key: str, at: int, context: Any) -> None:
    context.forward(Record(key, f"timer {context.get_store('kept').get(key) is not None}", at))


def _connected(builder: StreamsBuilder, left: Any, right: Any, chosen: Chosen) -> Any:
    kept = [key_value_store("kept", value_serde="str")]
    return left.connect(right).process(_remembered, _told, on_timer=_reminded, stores=kept, name="match")


ON_CLOSE, IDLE = {"emit": "on_close"}, {"emit": "on_close", "idle": "20s"}
FIVE = tumbling("5s", grace="1s")
PROGRAMS: Mapping[str, Verb] = {
    "count": _grouped("count"),
    "reduce": _grouped("reduce"),
    "aggregate": _grouped("aggregate"),
    "tumbling": _windowed(FIVE),
    "tumbling, on_close": _windowed(FIVE, ON_CLOSE),
    "tumbling, on_close, idle": _windowed(FIVE, IDLE),
    "tumbling, late": _windowed(FIVE, {"late": "late"}),
    "hopping": _windowed(hopping("6s", every="2s", grace="1s"), verb="reduce"),
    "hopping, on_close": _windowed(hopping("6s", every="2s", grace="1s"), ON_CLOSE, "aggregate"),
    "sliding": _windowed(sliding("3s", grace="1s"), verb="aggregate"),
    "sliding, on_close": _windowed(sliding("3s", grace="1s"), ON_CLOSE),
    "sessions": _windowed(sessions(gap="2s", grace="1s"), verb="aggregate"),
    "sessions, on_close": _windowed(sessions(gap="2s", grace="1s"), ON_CLOSE),
    "sessions, on_close, idle": _windowed(sessions(gap="2s", grace="1s"), IDLE, "reduce"),
    "unlimited": _windowed(unlimited(start=3_000)),
    "windows of one's own": _windowed(Days(1_000)),
    "windows of one's own, on_close": _windowed(Days(1_000), ON_CLOSE),
    "cogroup": _cogrouped(None),
    "cogroup, tumbling": _cogrouped(FIVE),
    "cogroup, sliding": _cogrouped(sliding("3s", grace="1s")),
    "cogroup, sessions": _cogrouped(sessions(gap="2s", grace="1s")),
    "suppress": _suppressed("7s", FIVE),
    "suppress, idle": _suppressed("7s", FIVE, "20s"),
    "suppress, window_closes": _suppressed("window_closes", FIVE),
    "suppress, window_closes, idle": _suppressed("window_closes", FIVE, "20s"),
    "suppress, sessions": _suppressed("window_closes", sessions(gap="2s", grace="1s")),
    "join": _joined("join", within("2s", grace="1s")),
    "left_join": _joined("left_join", within("2s", grace="1s")),
    "outer_join": _joined("outer_join", within("2s", grace="1s")),
    "outer_join, emit_interval": _joined("outer_join", within("2s", grace="1s"), emit_interval="70s"),
    "outer_join, this_store and other_store": _joined_over_own_stores,
    "join with itself": _self_joined,
    "left_join with a table, grace": _looked_up,
    "join with a table": _looked_up_at_once,
    "join with a global table": _looked_up_globally,
    "outer_join of tables": _joined_tables,
    "join of tables, foreign_key": _foreign_key("join"),
    "left_join of tables, foreign_key": _foreign_key("left_join"),
    "filter, map_values, transform_values of a table": _derived,
    "count of a table": _regrouped("count"),
    "reduce of a table": _regrouped("reduce"),
    "aggregate of a table": _regrouped("aggregate"),
    "to_table": _to_table,
    "process": _processed,
    "process_values": _processed_values,
    "stateful_map": _mapped,
    "connect": _connected,
    "agg": _ready(False),
    "agg of a table": _ready(True),
}
YOUNGER = frozenset({"stateful_map", "connect", "agg", "agg of a table"})
"""Programs that the archive of `saved` does not have."""


def program(verb: str, chosen: Chosen = PLAIN) -> StreamsBuilder:
    """Return the program of a verb."""
    builder = StreamsBuilder()
    left, right = builder.stream("left"), builder.stream("right")
    if chosen.in_front:
        left = left.peek(lambda value: None)
        right = right.peek(lambda value: None)
    made: Any = PROGRAMS[verb](builder, left, right, chosen)
    stream = made.to_stream() if isinstance(made, KTable) else made
    stream.map(lambda key, value: (written(key), str(value)), with_key=True).to(
        "out", key_serde="str", value_serde="str"
    )
    return builder


def written(key: Any) -> str:
    """Return a key as the saved programs wrote it: `str` of a window has had another form since."""
    return repr(key) if isinstance(key, Windowed) else str(key)
