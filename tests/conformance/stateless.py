"""The programs of family `stateless`, and those that need no store of the DSL's own."""

from __future__ import annotations

from typing import Any

from penstock import Processor, Record, key_value_store
from penstock.plugins.dsl import KStream, StreamsBuilder

from .language import SERDES, Params, first_char, mapper, noting, predicate, program, selector, words
from .store_commands import text

Stream = KStream[Any, Any]


def source(builder: StreamsBuilder, *topics: str) -> Stream:
    return builder.stream(*(topics or ("in",)), **SERDES)


@program
def stream_pipeline(builder: StreamsBuilder, params: Params) -> None:
    stream = source(builder)
    for step in params["steps"]:
        stream = next_step(builder, stream, step)
    stream.to("out", **SERDES)


def next_step(builder: StreamsBuilder, stream: Stream, step: Params) -> Stream:
    match step["op"]:
        case "filter":
            return stream.filter(predicate(step["pred"]), with_key=True)
        case "filter_not":
            return stream.filter_not(predicate(step["pred"]), with_key=True)
        case "map_values":
            return stream.map_values(mapper(step["fn"]), with_key=True)
        case "map" if step["fn"] == "swap":
            return stream.map(lambda k, v: (None if v is None else str(v), k), with_key=True)
        case "map":
            return stream.map(lambda k, v: (first_char(v), f"{text(k)}/{text(v)}"), with_key=True)
        case "flat_map":
            return stream.flat_map(lambda k, v: [(word, text(k)) for word in words(v)], with_key=True)
        case "flat_map_values":
            return stream.flat_map_values(words)
        case "select_key":
            return stream.select_key(selector(step["sel"]), with_key=True)
        case "peek":
            return stream.peek(noting(step["name"]), with_key=True)
        case "repartition":
            return stream.repartition(step["name"], **SERDES)
        case "merge":
            return stream.merge(source(builder, step["topic"]))
    raise AssertionError(step)


@program
def branch(builder: StreamsBuilder, params: Params) -> None:
    def write_to(topic: str) -> Any:
        return lambda stream: stream.to(topic, **SERDES)

    split = source(builder).split(name="b-")
    for number, each in enumerate(params["preds"], 1):
        split.branch(predicate(each), with_key=True, then=write_to(f"out-{number}"))
    if params["default"] == "default":
        split.default(then=write_to("out-default"))


@program
def branch_map(builder: StreamsBuilder, params: Params) -> None:
    predicates = {f"p{number}": predicate(each) for number, each in enumerate(params["preds"], 1)}
    streams = source(builder).branch(predicates, default="rest", with_key=True, name="b-")

    def named(name: str) -> Any:
        return lambda value: f"b-{name}={text(value)}"

    for name, stream in sorted(streams.items()):
        stream.map_values(named(name)).to("out", **SERDES)


@program
def multi_topic_source(builder: StreamsBuilder, params: Params) -> None:
    source(builder, "in", "in2").map_values(mapper("tag"), with_key=True).to("out", **SERDES)


@program
def dynamic_sink(builder: StreamsBuilder, params: Params) -> None:
    source(builder).to(lambda record, metadata: f"out-{'null' if record.key is None else record.key}", **SERDES)


@program
def foreach(builder: StreamsBuilder, params: Params) -> None:
    stream = source(builder)
    stream.foreach(noting("foreach"), with_key=True)
    stream.to("out", **SERDES)


@program
def fan_out(builder: StreamsBuilder, params: Params) -> None:
    stream = source(builder)
    stream.map_values(lambda value: "1" + text(value)).to("out", **SERDES)
    stream.filter(lambda value: value is not None).map_values(lambda value: "2" + text(value)).to("out", **SERDES)


class Rewards(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.totals = context.get_store("totals")

    def process(self, record: Record) -> None:
        if record.key is not None:
            total = (self.totals.get(record.key) or 0) + (record.value or 0)
            self.totals.put(record.key, total)
            self.context.forward(record.with_value(total))


@program
def rewards(builder: StreamsBuilder, params: Params) -> None:
    stream = builder.stream("purchases", **SERDES)
    stream.process_values(Rewards, stores=[key_value_store("totals", key_serde="str")]).to("out", **SERDES)


class Previous(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.previous = context.get_store("prev")

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        old = self.previous.get(record.key)
        self.previous.put(record.key, record.value)
        if old is not None:
            self.context.forward(Record(old, f"{record.key}>{text(record.value)}", record.timestamp, record.headers))


@program
def dsl_process(builder: StreamsBuilder, params: Params) -> None:
    stream = source(builder).process(Previous, stores=[key_value_store("prev", key_serde="str")])
    stream.filter(lambda key, value: key is not None, with_key=True).to("out", **SERDES)
