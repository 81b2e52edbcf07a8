"""The programs of family `optimized`: several consumers of one change of keys."""

from __future__ import annotations

from typing import Any

from penstock.plugins.dsl import StreamsBuilder

from .aggregations import aggregated, windows_of
from .language import SERDES, Params, joiner, mapper, predicate, program, selector
from .stateless import source


@program
def rekey_fanout(builder: StreamsBuilder, params: Params) -> None:
    rekeyed = source(builder).select_key(selector(params["sel"]), with_key=True)
    for number, consumer in enumerate(params["consumers"], 1):
        stream: Any = rekeyed
        if "fn" in consumer:
            stream = stream.map_values(mapper(consumer["fn"]), with_key=True)
        if "pred" in consumer:
            stream = stream.filter(predicate(consumer["pred"]), with_key=True)
        consume(builder, stream, consumer, f"s{number}").to(f"out-{number}", value_serde="json")


def consume(builder: StreamsBuilder, stream: Any, consumer: Params, store: str) -> Any:
    match consumer["op"]:
        case "to":
            return stream
        case "join":
            return stream.left_join(builder.table("table", **SERDES), joiner, **SERDES)
        case "windowed":
            windowed = stream.group_by_key(**SERDES).windowed_by(windows_of(consumer["window"]))
            return aggregated(windowed, consumer["agg"], store).to_stream()
        case how:
            return aggregated(stream.group_by_key(**SERDES), how, store).to_stream()
