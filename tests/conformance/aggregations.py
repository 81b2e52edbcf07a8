"""The programs that aggregate streams: by key, by windows, cogrouped and suppressed."""

from __future__ import annotations

from typing import Any

from penstock import Processor, Record
from penstock.plugins.dsl import KTable, StreamsBuilder

from .language import SERDES, Params, add, program, reduce, selector, words
from .stateless import source
from .store_commands import text

Table = KTable[Any, Any]


def begins_with_x(value: Any) -> bool:
    return text(value).startswith("x")


def grouped(stream: Any, group: str, name: str | None = None) -> Any:
    if group == "key":
        return stream.group_by_key(name=name, **SERDES)
    return stream.group_by(selector(group), with_key=True, name=name, **SERDES)


def aggregated(stream: Any, how: str, store: str, **options: Any) -> Table:
    """Aggregate a grouped stream, windowed by time or not."""
    made: Table
    match how:
        case "count":
            made = stream.count(store, **options)
        case "reduce":
            made = stream.reduce(reduce, store, **options)
        case "aggregate":
            made = stream.aggregate(str, add, store, value_serde="json", **options)
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
