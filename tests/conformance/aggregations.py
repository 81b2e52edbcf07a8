"""The programs that aggregate streams: by key, by windows, cogrouped and suppressed."""

from __future__ import annotations

from typing import Any

from penstock import Processor, Record
from penstock.plugins.dsl import (
    KTable,
    SessionWindowedKStream,
    StreamsBuilder,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)

from .language import (
    SERDES,
    Params,
    add,
    joiner,
    mapper,
    merge_sessions,
    predicate,
    program,
    reduce,
    selector,
    words,
)
from .stateless import source
from .store_commands import text
from .tables import suppressed

Table = KTable[Any, Any]


def begins_with_x(value: Any) -> bool:
    return text(value).startswith("x")


def grouped(stream: Any, group: str, name: str | None = None) -> Any:
    if group == "key":
        return stream.group_by_key(name=name, **SERDES)
    return stream.group_by(selector(group), with_key=True, name=name, **SERDES)


def windows_of(spec: Params) -> Any:
    def ms(field: str) -> str:
        return f"{spec.get(field, 0)}ms"

    match spec["kind"]:
        case "tumbling":
            return tumbling(ms("size"), grace=ms("grace"))
        case "hopping":
            return hopping(ms("size"), every=ms("advance"), grace=ms("grace"))
        case "sliding":
            return sliding(ms("diff"), grace=ms("grace"))
        case "session":
            return sessions(gap=ms("gap"), grace=ms("grace"))
    return unlimited(start=spec["start"])


def aggregated(stream: Any, how: str, store: str | None, **options: Any) -> Table:
    """Aggregate a grouped stream, windowed by time or not."""
    made: Table
    match how:
        case "count":
            made = stream.count(store, **options)
        case "reduce":
            made = stream.reduce(reduce, store, **options)
        case "aggregate":
            merger = [merge_sessions] if isinstance(stream, SessionWindowedKStream) else []
            made = stream.aggregate(str, add, *merger, store, value_serde="json", **options)
        case "reduce_null":
            made = stream.reduce(lambda a, v: None if begins_with_x(v) else f"{text(a)},{text(v)}", store, **options)
        case "aggregate_null":
            made = stream.aggregate(
                str, lambda a, v: None if begins_with_x(v) else add(a, v), store, value_serde="json"
            )
        case _:
            raise AssertionError(how)
    return made


@program
def grouped_aggregate(builder: StreamsBuilder, params: Params) -> None:
    table = aggregated(grouped(source(builder), params["group"]), params["agg"], "agg")
    table.to_stream().to("out", value_serde="json")


@program
def word_count(builder: StreamsBuilder, params: Params) -> None:
    lines = source(builder, "text").flat_map_values(lambda line: words(None if line is None else line.lower()))
    counts = lines.group_by(lambda word: word, **SERDES).count("counts")
    counts.to_stream().to("out", value_serde="json")


class Words(Processor):
    def process(self, record: Record) -> None:
        for word in words(record.value):
            self.context.forward(record.with_key(word).with_value(record.key))


@program
def dsl_process_regroup(builder: StreamsBuilder, params: Params) -> None:
    made = source(builder).process(Words).group_by_key(**SERDES)
    made.count("agg").to_stream().to("out", value_serde="json")


def windowed_table(stream: Any, params: Params, store: str) -> Table:
    """Return the windowed aggregate that `windowed_aggregate` describes, without what comes after it."""
    made = grouped(stream, params.get("group", "key"))
    emit = "on_close" if params.get("emit") == "on_window_close" else "on_update"
    kept = {"retention": f"{params['retention']}ms"} if "retention" in params else {}
    table = aggregated(made.windowed_by(windows_of(params["window"]), emit=emit), params["agg"], store, **kept)
    return suppressed(table, params["suppress"]) if "suppress" in params else table


@program
def windowed_aggregate(builder: StreamsBuilder, params: Params) -> None:
    table = windowed_table(source(builder), params, "agg")
    table.to_stream().to("out", value_serde="json")


@program
def timestamp_extractor(builder: StreamsBuilder, params: Params) -> None:
    def digits(record: Record, partition_time: int, wall_clock: int) -> int:
        before, colon, _ = text(record.value).partition(":")
        return int(before) if colon and before.isdigit() else record.timestamp

    stream = builder.stream("in", timestamp_extractor=digits, **SERDES)
    made = grouped(stream, "key").windowed_by(windows_of(params["window"]))
    aggregated(made, "aggregate", "agg").to_stream().to("out", value_serde="json")


@program
def partition_time_extractor(builder: StreamsBuilder, params: Params) -> None:
    def extract(record: Record, partition_time: int, wall_clock: int) -> int:
        if record.value is not None:
            return record.timestamp
        return partition_time if partition_time >= 0 else record.timestamp

    builder.stream("in", timestamp_extractor=extract, **SERDES).to("out", **SERDES)


@program
def windowed_to_string_key(builder: StreamsBuilder, params: Params) -> None:
    counts = windowed_table(source(builder), {**params, "agg": "count"}, "agg")
    stream = counts.to_stream(lambda key, value: f"{key.key}@{key.start}-{key.end}", with_key=True)
    stream.to("out", key_serde="str", value_serde="json")
    kept = stream.filter(lambda value: value is not None)
    kept.group_by(selector("key_first_char"), with_key=True, name="regroup", **SERDES).count("again")


@program
def cogroup(builder: StreamsBuilder, params: Params) -> None:
    def adding(number: int) -> Any:
        return lambda aggregate, value: f"{aggregate}+{number}:{text(value)}"

    streams = [
        grouped(source(builder, f"in{number}"), group, f"g{number}") for number, group in enumerate(params["groups"], 1)
    ]
    made = streams[0].cogroup(adding(1))
    for number, stream in enumerate(streams[1:], 2):
        made = made.cogroup(stream, adding(number))
    table: Table
    if "window" in params:
        merger = merge_sessions if params["window"]["kind"] == "session" else None
        windowed = made.windowed_by(windows_of(params["window"]))
        table = windowed.aggregate(str, "agg", merger=merger, value_serde="json")
    else:
        table = made.aggregate(str, "agg", value_serde="json")
    if "suppress" in params:
        table = suppressed(table, params["suppress"])
    table.to_stream().to("out", value_serde="json")


@program
def windowed_table_join(builder: StreamsBuilder, params: Params) -> None:
    left, right = (
        windowed_table(source(builder, topic), params, store) for topic, store in (("left", "lc"), ("right", "rc"))
    )
    match params["type"]:
        case "inner":
            made = left.join(right, joiner)
        case "left":
            made = left.left_join(right, joiner)
        case _:
            made = left.outer_join(right, joiner)
    made.to_stream().to("out", value_serde="json")


@program
def rekey_fanout(builder: StreamsBuilder, params: Params) -> None:
    rekeyed = source(builder).select_key(selector(params["sel"]), with_key=True)
    for number, consumer in enumerate(params["consumers"], 1):
        stream: Any = rekeyed
        if "fn" in consumer:
            stream = stream.map_values(mapper(consumer["fn"]), with_key=True)
        if "pred" in consumer:
            stream = stream.filter(predicate(consumer["pred"]), with_key=True)
        match consumer["op"]:
            case "windowed":
                stream = windowed_table(stream, consumer, f"s{number}").to_stream()
            case "join":
                stream = stream.left_join(builder.table("table", **SERDES), joiner)
            case "count" | "aggregate":
                stream = aggregated(grouped(stream, "key"), consumer["op"], f"s{number}").to_stream()
        stream.to(f"out-{number}", value_serde="json")


@program
def page_view_by_region(builder: StreamsBuilder, params: Params) -> None:
    users = builder.table("users", "users", **SERDES)
    views = source(builder, "views")
    named = views.left_join(users, lambda page, region: "UNKNOWN" if region is None else region)
    by_region = named.map(lambda user, region: (region, user), with_key=True).group_by_key(**SERDES)
    windows = hopping(f"{params['size']}ms", every=f"{params['advance']}ms", grace=f"{params['grace']}ms")
    by_region.windowed_by(windows).count("by_region").to_stream().to("out", value_serde="json")
