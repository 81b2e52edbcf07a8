"""The setting `processor_wrapper`: around hand-written processors and the DSL's, with all that a processor can do."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from penstock import (
    STREAM_TIME,
    Application,
    ConfigError,
    Processor,
    ProcessorContext,
    Record,
    Settings,
    Topology,
    TopologyError,
    ValueTransformer,
    WrappingProcessor,
    WrappingTransformer,
    key_value_store,
)
from penstock.config_sources import layers
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver
from penstock.task.failures import ProcessingFailed

Seen = list[tuple[str, Any]]


class Tracing(WrappingProcessor):
    def __init__(self, inner: Processor, seen: Seen) -> None:
        super().__init__(inner)
        self.seen = seen

    def process(self, record: Record) -> None:
        self.seen.append((self.context.node, record.value))
        super().process(record)

    def close(self) -> None:
        self.seen.append((self.context.node, "closed"))
        super().close()


class TracingValues(WrappingTransformer):
    def __init__(self, inner: ValueTransformer, seen: Seen) -> None:
        super().__init__(inner)
        self.seen = seen

    def transform(self, key: Any, value: Any) -> Any:
        made = super().transform(key, value)
        self.seen.append((self.context.node, made))
        return made


def traced(seen: Seen, node: str, made: Any) -> Any:
    return Tracing(made, seen) if isinstance(made, Processor) else TracingValues(made, seen)


def unchanged(node: str, made: Any) -> Any:
    """A wrapper that adds nothing."""
    return WrappingProcessor(made) if isinstance(made, Processor) else WrappingTransformer(made)


class Busy(Processor):
    """Uses all that has to find the processor again: a store, timers, and a punctuator that `process` schedules."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("last")
        if store.get(record.key) is None:
            self.context.schedule("10ms", self.tick, STREAM_TIME)
        store.put(record.key, record.value)
        self.context.timer(record.key, record.timestamp + 5, STREAM_TIME)

    def tick(self, now: int) -> None:
        self.context.forward(Record("tick", str(now), now))

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, self.context.get_store("last").get(key), at))


class Upper(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        return value.upper()


def busy() -> Topology:
    topology = Topology().add_source("in", "in").add_processor("upper", Upper, "in")
    topology.add_processor("busy", Busy, "upper", stores=[key_value_store("last", value_serde="str")])
    return topology.add_sink("out", "out", "busy")


def words() -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream("in").filter(lambda value: value != "no", name="keep").map_values(str.upper, name="upper")
    stream.process_values(Upper, name="again").to("out")
    return builder


RECORDS = [("a", "x", 0), ("b", "no", 3), ("a", "y", 7), ("b", "z", 20), ("a", "w", 40)]


def answers(topology: Any, *, reopen: bool = False, **settings: Any) -> list[Record]:
    with TopologyTestDriver(Application("app", topology, **settings), reopen_tasks=reopen) as driver:
        for each in RECORDS:
            driver.pipe("in", *each)
        return driver.read_all("out")


def test_a_hand_written_topology_is_traced() -> None:
    seen: Seen = []
    answers(busy(), processor_wrapper=functools.partial(traced, seen))
    assert seen[:4] == [("upper", "X"), ("busy", "X"), ("upper", "NO"), ("busy", "NO")]
    assert seen[-1] == ("busy", "closed")


def test_a_dsl_program_is_traced() -> None:
    seen: Seen = []
    out = answers(words(), processor_wrapper=functools.partial(traced, seen))
    assert seen[:4] == [("keep", "x"), ("upper", "x"), ("again", "X"), ("keep", "no")]
    assert [record.value for record in out] == ["X", "Y", "Z", "W"]


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("program", [busy, words])
@pytest.mark.parametrize("wrapper", [unchanged, functools.partial(traced, [])])
def test_a_wrapper_changes_no_answer(program: Any, wrapper: Any, reopen: bool) -> None:
    assert answers(program(), reopen=reopen, processor_wrapper=wrapper) == answers(program())


def test_one_that_leaves_process_alone_is_not_called_for_records() -> None:
    class Doubling(Processor):
        def bind(self, context: ProcessorContext) -> Any:
            return self.fast

        def fast(self, record: Record) -> None:
            """What gets the records."""

        def process(self, record: Record) -> None:
            raise AssertionError

    inner = Doubling()
    assert WrappingProcessor(WrappingProcessor(inner)).bind(None) == inner.fast  # type: ignore[arg-type]
    tracing = Tracing(inner, [])
    assert tracing.bind(None) == tracing.process  # type: ignore[arg-type]


def test_a_processor_that_keeps_keys_finds_its_punctuators_and_timers() -> None:
    builder = StreamsBuilder()
    store = key_value_store("last", value_serde="str")

    class Keeping(Busy):
        def tick(self, now: int) -> None:
            self.context.metrics.user["ticks"] += 1

    builder.stream("in").process_values(Keeping, stores=[store]).to("out")
    assert answers(builder, reopen=True) == answers(builder)


def test_a_schedule_of_a_wrapper_needs_a_name() -> None:
    class Beating(WrappingProcessor):
        def process(self, record: Record) -> None:
            self.context.schedule("1s", self.beat, STREAM_TIME)

        def beat(self, now: int) -> None:
            """Do nothing."""

    with pytest.raises(ProcessingFailed, match="could not find that function again"):
        answers(words(), processor_wrapper=lambda node, made: Beating(made) if node == "keep" else made)


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (
            lambda node, made: 1 / 0,
            "node 'again': the setting processor_wrapper raised ZeroDivisionError for its Upper",
        ),
        (lambda node, made: None, "made None of its Upper, expected a ValueTransformer: .*see WrappingTransformer"),
        (lambda node, made: WrappingProcessor(Busy()), "'again': .* of its Upper, expected a ValueTransformer"),
        (lambda node, made: TracingValues(Upper(), []), "'upper': .* of its MapValues, expected a Processor"),
    ],
)
def test_a_wrapper_that_fails_or_makes_something_else(wrapper: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        answers(words(), processor_wrapper=wrapper)


def test_where_the_setting_comes_from() -> None:
    assert Settings.make({"processor.wrapper.class": unchanged}).processor_wrapper is unchanged
    none = "org.apache.kafka.streams.processor.internals.NoOpProcessorWrapper"
    assert Settings.make({"processor.wrapper.class": none}).processor_wrapper is None
    with pytest.raises(ConfigError, match="no wrapper of processors here for the Java class 'a.b.C': write MODULE"):
        Settings.make({"processor.wrapper.class": "a.b.C"})
    with pytest.raises(ConfigError, match="'processor_wrapper': expected a function, found 5"):
        Settings(processor_wrapper=5)
    layer = layers(environment={"PENSTOCK_PROCESSOR_WRAPPER": f"{__name__}:unchanged"}, load_function=lambda name: name)
    assert layer.values["processor_wrapper"] == f"{__name__}:unchanged"
    assert layers(environment={"PENSTOCK_PROCESSOR_WRAPPER_CLASS": "none"}).values["processor_wrapper"] is None
    with pytest.raises(ConfigError, match="'processor_wrapper': expected MODULE:ATTR of a function of yours"):
        layers(environment={"PENSTOCK_PROCESSOR_WRAPPER": "unchanged"})
