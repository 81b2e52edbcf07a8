"""Mistakes in processors that Python answers with an error of its own: the message also says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import (
    STREAM_TIME,
    PenstockError,
    Processor,
    Record,
    Topology,
    TopologyError,
    ValueTransformer,
    key_value_store,
)
from penstock.plugins.testing import TopologyTestDriver

from .world import says

Step = Callable[[Any, Record], Any]


def topology(supplier: Any, **options: Any) -> Topology:
    return (
        Topology()
        .add_source("in", "in")
        .add_processor("node", supplier, "in", stores=[key_value_store("counts")], **options)
        .add_sink("out", "out", "node")
    )


def processing(step: Step) -> type[Processor]:
    class Steps(Processor):
        def process(self, record: Record) -> None:
            step(self.context, record)
            self.context.forward(record)

    return Steps


def transforming(step: Step) -> type[ValueTransformer]:
    class Transforms(ValueTransformer):
        def transform(self, key: Any, value: Any) -> Any:
            step(self.context, Record(key, value, 0))
            return value

    return Transforms


def starting(step: Step) -> type[Processor]:
    class Starts(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            step(context, Record("", "", 0))

        def process(self, record: Record) -> None:
            self.context.forward(record)

    return Starts


def in_time(step: Step) -> type[Processor]:
    class Ticks(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule("1ms", self.tick, STREAM_TIME)

        def process(self, record: Record) -> None:
            self.context.forward(record)

        def tick(self, now: int) -> None:
            step(self.context, Record("", "", now))

    return Ticks


class InConstructor(Processor):
    def __init__(self) -> None:
        self.counts = self.context.get_store("counts")

    def process(self, record: Record) -> None:
        self.context.forward(record)


def assigned(context: Any, record: Any) -> None:
    record.value = "new"


def incremented(context: Any, record: Record) -> None:
    context.get_store("counts")[record.key] += 1


HINTS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a transformer that forwards": (
        transforming(lambda context, record: context.forward(record)),
        ("a ValueTransformer does not forward", "return the new value", "Processor"),
    ),
    "a transformer that sets a timer": (
        transforming(lambda context, record: context.timer("a", 1, STREAM_TIME)), ("a ValueTransformer has no timers",),
    ),
    "metadata in a punctuator": (
        in_time(lambda context, record: context.record_metadata.topic),
        ("record_metadata is None in init and in a punctuator",),
    ),
    "metadata in init": (
        starting(lambda context, record: context.record_metadata.offset),
        ("init raised", "record_metadata is None in init and in a punctuator"),
    ),
    "a store in a constructor": (InConstructor, ("a constructor has no context", "init(self, context)")),
    "forward of key and value": (
        processing(lambda context, record: context.forward(record.key, record.value)),
        ("forwarding to", "is not a child", "forward takes a Record", "record.with_value("),
    ),
    "forward of three": (
        processing(lambda context, record: context.forward(record.key, record.value, 3)),
        ("forward() takes", "forward takes a Record", "record.with_value("),
    ),
    "forward to a child by another name": (
        processing(lambda context, record: context.forward(record, child="out")), ("forward() got", "to=CHILD"),
    ),
    "a record is changed": (assigned, ("can't set attribute", "record.with_value(")),
    "get_state_store": (
        processing(lambda context, record: context.get_state_store("counts")), ("write context.get_store(NAME)",),
    ),
    "getStateStore": (
        processing(lambda context, record: context.getStateStore("counts")), ("write context.get_store(NAME)",),
    ),
    "the time of Java": (
        processing(lambda context, record: context.currentStreamTimeMs()), ("write context.current_stream_time_ms()",),
    ),
    "timestamp of the context": (
        processing(lambda context, record: context.timestamp()), ("write record.timestamp",),
    ),
    "headers of the context": (processing(lambda context, record: context.headers()), ("write record.headers",)),
    "topic of the context": (
        processing(lambda context, record: context.topic()), ("write context.record_metadata.topic",),
    ),
    "a misspelt verb of the context": (
        processing(lambda context, record: context.forwrd(record)), ("did you mean 'forward'",),
    ),
    "a store as a dict": (
        processing(lambda context, record: context.get_store("counts")[record.key]),
        ("not subscriptable", "a store is no dict", "get(key)", "put(key, value)"),
    ),
    "a store as a dict that is written": (incremented, ("a store is no dict",)),
    "a loop over a store": (processing(lambda context, record: list(context.get_store("counts"))), ("all()",)),
    "a key in a store": (processing(lambda context, record: "a" in context.get_store("counts")), ("get(key)",)),
    "set of a store": (processing(lambda context, record: context.get_store("counts").set("a", 1)), ("put(key, value)",)),
    "fetch of a key-value store": (
        processing(lambda context, record: context.get_store("counts").fetch("a", 0, 1)), ("it has", "get", "range"),
    ),
    "a default of get": (processing(lambda context, record: context.get_store("counts").get("a", 0)), ("get() takes 1",)),
}  # fmt: skip


@pytest.mark.parametrize("case", HINTS)
def test_a_raw_error_comes_with_a_hint(case: str) -> None:
    supplier, parts = HINTS[case]
    if not isinstance(supplier, type):
        supplier = processing(supplier)
    with pytest.raises(PenstockError) as caught, TopologyTestDriver(topology(supplier)) as driver:
        driver.pipe("in", "ann", "3", 1)
        driver.pipe("in", "ann", "4", 20)
    says(caught.value, *parts)
    assert "<locals>" not in str(caught.value)


class OfKeyAndValue(Processor):
    def process(self, key: Any, value: Any) -> None:  # type: ignore[override]
        self.context.forward(key)


class WithoutRecord(Processor):
    def process(self) -> None:  # type: ignore[override]
        pass


class OfValue(ValueTransformer):
    def transform(self, value: Any) -> Any:  # type: ignore[override]
        return value


class WithoutContext(Processor):
    def init(self) -> None:  # type: ignore[override]
        pass

    def process(self, record: Record) -> None:
        self.context.forward(record)


class TimerOfKey(Processor):
    def on_timer(self, key: Any) -> None:  # type: ignore[override]
        pass

    def process(self, record: Record) -> None:
        self.context.forward(record)


class TimerAsProcess(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)

    on_timer = process  # type: ignore[assignment]


class ClosesWith(Processor):
    def close(self, error: Any) -> None:  # type: ignore[override]
        pass

    def process(self, record: Record) -> None:
        self.context.forward(record)


@pytest.mark.parametrize(
    ("supplier", "called"),
    [
        (OfKeyAndValue, "process of OfKeyAndValue is called with (record)"),
        (WithoutRecord, "process of WithoutRecord is called with (record)"),
        (OfValue, "transform of OfValue is called with (key, value)"),
        (WithoutContext, "init of WithoutContext is called with (context)"),
        (TimerOfKey, "on_timer of TimerOfKey is called with (key, at)"),
        (TimerAsProcess, "on_timer of TimerAsProcess is called with (key, at)"),
        (ClosesWith, "close of ClosesWith is called with ()"),
        (lambda: OfKeyAndValue(), "process of OfKeyAndValue is called with (record)"),
    ],
)
def test_methods_with_other_parameters_are_refused_at_once(supplier: Any, called: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topology(supplier)
    says(caught.value, "processor 'node'", called)


def any_arguments(method: Any) -> Any:
    """A decorator that hands the method more than the engine does."""
    from functools import wraps

    @wraps(method)
    def run(self: Any, *given: Any) -> Any:
        return method(self, *given, "more")

    return run


class Decorated(Processor):
    @any_arguments
    def process(self, record: Record, more: str) -> None:
        self.context.forward(record.with_value(more))


class Static(ValueTransformer):
    @staticmethod
    def transform(key: Any, value: Any) -> Any:
        return value + "!"


@pytest.mark.parametrize(("supplier", "value"), [(Decorated, "more"), (Static, "3!")])
def test_decorated_and_static_methods_are_taken_as_they_are_called(supplier: Any, value: str) -> None:
    with TopologyTestDriver(topology(supplier)) as driver:
        driver.pipe("in", "ann", "3", 1)
        assert [record.value for record in driver.read_all("out")] == [value]


class TickOfNothing(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1ms", self.tick, STREAM_TIME)

    def process(self, record: Record) -> None:
        pass

    def tick(self) -> None:
        pass


def test_a_punctuator_without_the_time_is_refused_when_it_is_scheduled() -> None:
    with pytest.raises(PenstockError, match=r"node 'node': the punctuator is called with \(now\), and .*tick"):
        TopologyTestDriver(topology(TickOfNothing))


class WithOptions(Processor):
    def __init__(self, stores: list[str]) -> None:
        self.names = stores

    def process(self, record: Record) -> None:
        self.context.forward(record)


def test_an_option_named_like_an_argument_of_the_topology() -> None:
    with pytest.raises(TopologyError) as caught:
        topology(WithOptions)
    says(
        caught.value, "processor 'node'", "'stores'", "of the node itself", "functools.partial(WithOptions, stores=...)"
    )


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_serde_that_does_not_fit_says_key_or_value(part: str) -> None:
    serde: Any = {f"{part}_serde": "int"}
    writes = Topology().add_source("in", "in").add_sink("out", "out", "in", **serde)
    with pytest.raises(PenstockError) as caught, TopologyTestDriver(writes) as driver:
        driver.pipe("in", "ann", "three")
    says(caught.value, "node 'out' while producing to topic 'out'", f"the {part}", "serde 'int'")
    reads = Topology().add_source("in", "in", **serde).add_sink("out", "out", "in")
    with pytest.raises(PenstockError) as caught, TopologyTestDriver(reads) as driver:
        from penstock import OutputBatch

        driver.pipe_raw(OutputBatch("in", [b"ann"], [b"three"], [0]))
    says(caught.value, "node 'in'", f"the {part}", "serde 'int'")
