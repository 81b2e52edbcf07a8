"""The programs of the families about tables."""

from __future__ import annotations

from typing import Any

from penstock import ValueTransformer, versioned_store
from penstock.plugins.dsl import KTable, StreamsBuilder

from .language import SERDES, Params, first_char, joiner, mapper, predicate, program, selector
from .store_commands import text

Table = KTable[Any, Any]


def table(builder: StreamsBuilder, topic: str, params: Params) -> Table:
    """Return the table that a table object of the vectors describes."""
    store: Any = params.get("store")
    if "versioned" in params:
        store = versioned_store(store, history_retention=f"{params['versioned']}ms")
    return builder.table(topic, store, **SERDES)


@program
def to_stream_rekey(builder: StreamsBuilder, params: Params) -> None:
    stream = table(builder, "in", params["table"]).to_stream(
        lambda key, value: f"{text(key)}/{text(first_char(value))}", with_key=True
    )
    stream.to("out", **SERDES)


@program
def table_pipeline(builder: StreamsBuilder, params: Params) -> None:
    made = with_steps(table(builder, "in", params["table"]), params["steps"])
    made.to_stream().to("out", **SERDES)


def suppressed(made: Table, spec: Params) -> Table:
    """Return a table with the suppression that a suppress object of the vectors describes."""
    until = "window_closes" if spec["until"] == "window_closes" else f"{spec['ms']}ms"
    full = {"emit_early": "emit_early", "shut_down": "stop", None: None}[spec.get("full")]
    return made.suppress(until, max_records=spec.get("max_records"), when_full=full)


def with_steps(made: Table, steps: list[Params]) -> Table:
    for step in steps:
        kept: Any = {"store": step["store"], **SERDES} if "store" in step else {}
        match step["op"]:
            case "filter":
                made = made.filter(predicate(step["pred"]), with_key=True, **kept)
            case "filter_not":
                made = made.filter_not(predicate(step["pred"]), with_key=True, **kept)
            case "map_values":
                made = made.map_values(mapper(step["fn"]), with_key=True, **kept)
            case "suppress":
                made = suppressed(made, step)
            case _:
                raise AssertionError(step)
    return made


class KeyAndValue(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        return None if value is None else f"{key}={value}"


@program
def table_transform_values(builder: StreamsBuilder, params: Params) -> None:
    made = table(builder, "in", params["table"])
    made.transform_values(KeyAndValue, params.get("store", "tv"), **SERDES).to_stream().to("out", **SERDES)


def trace(sign: str) -> Any:
    return lambda aggregate, value: f"{aggregate}{sign}{text(value)}"


def put_in(aggregate: str, value: Any) -> str:
    return ",".join(sorted([*aggregate.split(","), text(value)] if aggregate else [text(value)]))


def taken_out(aggregate: str, value: Any) -> str | None:
    rest = aggregate.split(",")
    if text(value) in rest:
        rest.remove(text(value))
    return ",".join(rest) or None


@program
def table_group(builder: StreamsBuilder, params: Params) -> None:
    made = with_steps(table(builder, "in", params["table"]), params.get("steps", []))
    groups = made.group_by(selector(params["group"]), with_key=True, **SERDES)
    aggregated: Table
    match params["agg"]:
        case "count":
            aggregated = groups.count("agg", key_serde="str")
        case "reduce_sum":
            aggregated = groups.reduce(lambda a, v: a + v, lambda a, v: a - v, "agg", **SERDES)
        case "reduce_trace":
            aggregated = groups.reduce(trace("+"), trace("-"), "agg", **SERDES)
        case "aggregate_trace":
            aggregated = groups.aggregate(str, trace("+"), trace("-"), "agg", **SERDES)
        case "aggregate_set":
            aggregated = groups.aggregate(str, put_in, taken_out, "agg", **SERDES)
        case _:
            raise AssertionError(params)
    aggregated.to_stream().to("out", **SERDES)


def joined(left: Table, right: Table, params: Params) -> Table:
    verb: Any = {"inner": left.join, "left": left.left_join, "outer": left.outer_join}[params["type"]]
    kept: Any = {"store": params["store"], **SERDES} if "store" in params else {}
    made: Table = verb(right, joiner, **kept)
    return made


@program
def table_table_join(builder: StreamsBuilder, params: Params) -> None:
    left, right = table(builder, "left", params["left"]), table(builder, "right", params["right"])
    with_steps(joined(left, right, params), params.get("steps", [])).to_stream().to("out", **SERDES)


@program
def table_self_join(builder: StreamsBuilder, params: Params) -> None:
    made = table(builder, "in", params["table"])
    joined(made, made.map_values(mapper("upper"), with_key=True), params).to_stream().to("out", **SERDES)


@program
def stream_to_table(builder: StreamsBuilder, params: Params) -> None:
    stream = builder.stream("in", **SERDES)
    if "select" in params:
        stream = stream.select_key(selector(params["select"]), with_key=True)
    stream.to_table("tbl", **SERDES).to_stream().to("out", **SERDES)


@program
def foreign_key_join(builder: StreamsBuilder, params: Params) -> None:
    left, right = table(builder, "left", params["left"]), table(builder, "right", params["right"])
    foreign_key = selector(params.get("fk", "before_colon"))
    verb: Any = {"inner": left.join, "left": left.left_join}[params["type"]]
    kept: Any = {"store": params["store"], **SERDES} if "store" in params else {}
    made: Table = verb(right, joiner, foreign_key=lambda value: foreign_key(None, value), **kept)
    made.to_stream().to("out", **SERDES)
