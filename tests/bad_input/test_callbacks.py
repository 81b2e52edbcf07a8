"""Functions that Python takes and that would do nothing, or too early, or with what is gone: each is told."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from penstock import (
    STREAM_TIME,
    ConfigError,
    ProcessingError,
    Processor,
    Record,
    Topology,
    TopologyError,
    ValueTransformer,
    WrappingProcessor,
    key_value_store,
    list_store,
    window_store,
)
from penstock.clock import duration_ms
from penstock.plugins import dsl
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver
from penstock.support.callbacks import watched

from .world import Total, says, totals

# ---------------------------------------------------------------- generators and async functions


class Yields(Processor):
    def process(self, record: Record) -> Iterator[Record]:  # type: ignore[override]
        yield record


class Awaits(Processor):
    async def process(self, record: Record) -> None:  # type: ignore[override]
        self.context.forward(record)


class YieldsAndAwaits(Processor):
    async def process(self, record: Record) -> AsyncIterator[Record]:  # type: ignore[override]
        yield record


class AwaitsInInit(Total):
    async def init(self, context: Any) -> None:  # type: ignore[override]
        super().init(context)


class YieldsInTimer(Total):
    def on_timer(self, key: Any, at: int) -> Iterator[Record]:  # type: ignore[override]
        yield Record(key, None, at)


class AwaitsInTransform(ValueTransformer):
    async def transform(self, key: Any, value: Any) -> Any:
        return value


async def makes_it_later() -> Processor:
    return Total()


async def awaits(*arguments: Any) -> bool:
    return True


def yields(*arguments: Any) -> Iterator[Any]:
    yield True


AWAITS: Any = awaits
YIELDS: Any = yields


class Called:
    async def __call__(self, *arguments: Any) -> bool:
        return True


GENERATOR = "is a generator ("
ASYNC = "is an async function ("

BUILT: dict[str, tuple[Callable[[], object], list[str]]] = {
    "process yields": (lambda: totals(Yields), ["processor 'total': process of Yields " + GENERATOR, "self.context.forward(record) in place of `yield record`"]),
    "process is async": (lambda: totals(Awaits), ["processor 'total': process of Awaits " + ASYNC, "Write `def` without `async`"]),
    "process is async and yields": (lambda: totals(YieldsAndAwaits), ["process of YieldsAndAwaits " + ASYNC]),
    "of a factory": (lambda: totals(lambda: Yields()), ["processor 'total': process of Yields " + GENERATOR]),
    "of a partial": (lambda: totals(functools.partial(Awaits)), ["processor 'total': process of Awaits " + ASYNC]),
    "init": (lambda: totals(AwaitsInInit), ["processor 'total': init of AwaitsInInit " + ASYNC]),
    "on_timer": (lambda: totals(YieldsInTimer), ["processor 'total': on_timer of YieldsInTimer " + GENERATOR]),
    "transform": (lambda: totals(AwaitsInTransform), ["processor 'total': transform of AwaitsInTransform " + ASYNC]),
    "supplier": (lambda: totals(makes_it_later), ["processor 'total': its supplier " + ASYNC]),
    "partitioner": (lambda: totals().add_sink("s", "t", "total", partitioner=AWAITS), ["sink 's': partitioner " + ASYNC]),
    "topic": (lambda: totals().add_sink("s", AWAITS, "total"), ["sink 's': topic " + ASYNC]),
    "extractor": (lambda: Topology().add_source("s", "t", timestamp_extractor=YIELDS), ["source 's': timestamp_extractor " + GENERATOR]),
    "filter": (lambda: stream().filter(awaits), ["filter: its predicate " + ASYNC]),
    "filter, an object": (lambda: stream().filter(Called()), ["filter: its predicate " + ASYNC]),
    "filter, a partial": (lambda: stream().filter(functools.partial(awaits, 1)), ["filter: its predicate " + ASYNC]),
    "filter, a lambda": (lambda: stream().filter(lambda value: (yield)), ["filter: its predicate " + GENERATOR]),
    "filter, a method": (lambda: stream().filter(Called().__call__), ["filter: its predicate " + ASYNC]),
    "map": (lambda: stream().map(yields), ["map: its function " + GENERATOR]),
    "map_values": (lambda: stream().map_values(awaits), ["map_values: its function " + ASYNC]),
    "flat_map": (lambda: stream().flat_map(awaits), ["flat_map: its function " + ASYNC]),
    "foreach": (lambda: stream().foreach(yields), ["foreach: its function " + GENERATOR]),
    "aggregate": (lambda: stream().group_by_key().aggregate(list, awaits), ["aggregate: its aggregator " + ASYNC]),
    "process_values": (lambda: stream().process_values(Yields), ["process_values: process of Yields " + GENERATOR]),
    "transform_values": (lambda: StreamsBuilder().table("t").transform_values(AwaitsInTransform), ["transform_values: transform of AwaitsInTransform " + ASYNC]),
}  # fmt: skip


def stream() -> Any:
    return StreamsBuilder().stream("t")


@pytest.mark.parametrize(("build", "parts"), BUILT.values(), ids=BUILT)
def test_a_function_whose_body_would_not_run_is_refused_when_it_is_given(build: Any, parts: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        build()
    says(caught.value, *parts)


def test_a_generator_makes_the_records_of_a_flat_map() -> None:
    def words(value: str) -> Iterator[str]:
        yield from value.split()

    builder = StreamsBuilder()
    builder.stream("in").flat_map_values(words).to("out", value_serde="str")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("in", "k", "to be")
        assert [record.value for record in driver.read_all("out")] == ["to", "be"]


class SchedulesAsync(Total):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1s", awaits, STREAM_TIME)


class BecomesAsync(Total):
    def __init__(self) -> None:
        self.process = awaits  # type: ignore[method-assign, assignment]


class ForwardsInInit(Total):
    def init(self, context: Any) -> None:
        super().init(context)
        context.forward(Record("ann", "0", 0))


class LooksInInit(Total):
    def init(self, context: Any) -> None:
        self.totals = self.context.get_store("totals")


class BindsNothing(Total):
    def bind(self, context: Any) -> Any:
        self.fast = self.process


class BindsLate(Total):
    def bind(self, context: Any) -> Any:
        totals = self.context.get_store("totals")
        return lambda record: totals.put(record.key, 1)


def wrapped(processor: type[Processor]) -> Any:
    """Return what makes a processor inside a wrapper that has a `process` of its own."""

    class Wrapped(WrappingProcessor):
        def process(self, record: Record) -> None:
            super().process(record)

    return lambda: Wrapped(processor())


OPENED: list[tuple[Any, type[Exception], list[str]]] = [
    (BindsNothing, TopologyError, ["node 'total': bind of BindsNothing returned None, expected the function that gets each record", "`return self.process`"]),
    (wrapped(BindsNothing), TopologyError, ["node 'total': bind of BindsNothing returned None"]),
    (BindsLate, ProcessingError, ["node 'total' in task 0_0: bind raised: it is called before init", "its argument `context`"]),
    (SchedulesAsync, TopologyError, ["node 'total': the punctuator " + ASYNC]),
    (BecomesAsync, TopologyError, ["node 'total': process of BecomesAsync " + ASYNC]),
    (ForwardsInInit, TopologyError, ["node 'total' in task 0_0: init forwards a record, when", "forward in process, or schedule a punctuator"]),
    (LooksInInit, ProcessingError, ["node 'total' in task 0_0: init raised LooksInInit has no context", "begin init of LooksInInit with super().init(context)"]),
]  # fmt: skip


@pytest.mark.parametrize(("processor", "error", "parts"), OPENED, ids=[case[0].__name__ for case in OPENED])
def test_what_shows_when_a_task_is_opened(processor: Any, error: type[Exception], parts: list[str]) -> None:
    with pytest.raises(error) as caught:
        TopologyTestDriver(totals(processor)).pipe("orders", "ann", "1")
    says(caught.value, *parts)


def test_forwarding_to_a_processor_in_init_is_told_of_the_node_that_does_it() -> None:
    """And not of the one below, which fails because it is not ready."""
    topology = Topology().add_source("orders", "orders")
    topology.add_processor("early", ForwardsInInit, "orders", stores=[key_value_store("totals")])
    topology.add_processor("late", Total, "early", stores=["totals"])
    with pytest.raises(TopologyError, match="node 'early' in task 0_0: init forwards a record"):
        TopologyTestDriver(topology).pipe("orders", "ann", "1")
    with pytest.raises(TopologyError, match="node 'processor': init forwards a record"):
        MockProcessorContext(key_value_store("totals")).start(ForwardsInInit())


def test_forwarding_in_close_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Late(Total):
        def close(self) -> None:
            self.context.forward(Record("ann", "0", 0))

    with TopologyTestDriver(totals(Late)) as driver:
        driver.pipe("orders", "ann", "1")
    says(
        caplog.text,
        "task 0_0, node 'total': close raised TopologyError: it forwards a record, which nothing would commit",
        "forward in process",
    )


# ---------------------------------------------------------------- found with a record


class Returns(Processor):
    def process(self, record: Record) -> Record:  # type: ignore[override]
        return record.with_value("0")


class ReturnsList(Processor):
    def process(self, record: Record) -> list[Record]:  # type: ignore[override]
        return [record]


class ReturnsCoroutine(Processor):
    def process(self, record: Record) -> Any:
        return awaits(record)


class ReturnsInTimer(Processor):
    def process(self, record: Record) -> None:
        self.context.timer(record.key, 0, STREAM_TIME)

    def on_timer(self, key: Any, at: int) -> Record:  # type: ignore[override]
        return Record(key, "0", at)


class ReturnsInPunctuator(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1s", lambda now: Record("ann", "0", now), STREAM_TIME)

    def process(self, record: Record) -> None:
        pass


class ForgetsSuper(Processor):
    def init(self, context: Any) -> None:
        self.seen = 0

    def process(self, record: Record) -> None:
        self.context.forward(record)


class TransformerForgetsSuper(ValueTransformer):
    def init(self, context: Any) -> None:
        self.seen = 0

    def transform(self, key: Any, value: Any) -> Any:
        return self.context.get_store("totals").get(key)


MEND = "which goes nowhere: forward each record with self.context.forward(record)"
RECORDS: list[tuple[type[Any], list[str]]] = [
    (Returns, ["node 'total', at topic 'orders' partition 0 offset 0: process returned a Record, " + MEND, "derive the class from ValueTransformer"]),
    (ReturnsList, ["node 'total', at topic", "process returned a list of Record, " + MEND]),
    (ReturnsCoroutine, ["node 'total', at topic", "process returned a coroutine, " + MEND]),
    (ReturnsInTimer, ["node 'total', in a punctuator: on_timer returned a Record, " + MEND]),
    (ReturnsInPunctuator, ["node 'total', in a punctuator: the punctuator returned a Record, " + MEND]),
    (ForgetsSuper, ["node 'total', at topic 'orders' partition 0 offset 0: ForgetsSuper has no context", "begin init of ForgetsSuper with super().init(context)"]),
    (TransformerForgetsSuper, ["node 'total', at topic", "begin init of TransformerForgetsSuper with super().init(context)"]),
]  # fmt: skip


def driven(processor: Any, **settings: Any) -> TopologyTestDriver:
    topology = Topology().add_source("orders", "orders").add_processor("total", processor, "orders")
    topology.add_store(key_value_store("totals"), "total")
    return TopologyTestDriver(topology.add_sink("out", "out", "total"), **settings)


@pytest.mark.parametrize(("processor", "parts"), RECORDS, ids=[case[0].__name__ for case in RECORDS])
def test_what_shows_with_a_record(processor: Any, parts: list[str]) -> None:
    with pytest.raises(ProcessingError) as caught:
        driven(processor).pipe("orders", "ann", "1", timestamp=0)
    says(caught.value, *parts)


def test_a_returned_record_is_found_inside_wrappers() -> None:
    class Counting(WrappingProcessor):
        def process(self, record: Record) -> None:
            super().process(record)

    for wrap in (Counting, WrappingProcessor):
        with pytest.raises(ProcessingError, match="process returned a Record"):
            driven(Returns, processor_wrapper=lambda node, made, wrap=wrap: wrap(made)).pipe("orders", "ann", "1")
    builder = StreamsBuilder()
    builder.stream("in").process_values(Returns).to("out")
    with pytest.raises(ProcessingError, match="process returned a Record"):
        TopologyTestDriver(builder).pipe("in", "ann", "1")


def test_what_returns_no_record_may_return() -> None:
    class ReturnsNothing(Processor):
        def process(self, record: Record) -> None:
            if record.value == "1":
                return self.context.forward(record)
            return True  # type: ignore[return-value]

    with driven(ReturnsNothing) as driver:
        for value in ("1", "2", "1"):
            driver.pipe("orders", "ann", value)
        assert [record.value for record in driver.read_all("out")] == ["1", "1"]


def test_a_function_without_a_result_is_called_as_it_is() -> None:
    """So that it costs nothing per record."""

    def leaves_early(record: Any) -> None:
        for part in record:
            if part is None:
                return
            with part:
                return

    assert watched(leaves_early) is leaves_early
    total = Total()
    assert watched(total.process) == total.process
    for function in (lambda record: record, lambda record: record or None, lambda record: 5, print):
        assert watched(function) is not function


# ---------------------------------------------------------------- stores of an earlier task


STORES = {
    "key-value": (key_value_store("totals"), lambda store: store.put("ann", 1)),
    "read": (key_value_store("totals"), lambda store: store.get("ann")),
    "window": (window_store("totals", window_size="1m", retention="1h"), lambda store: store.put("ann", 1, 0)),
    "list": (list_store("totals"), lambda store: store.add("ann", 1)),
}


@pytest.mark.parametrize(("builder", "use"), STORES.values(), ids=STORES)
def test_a_store_of_an_earlier_task_is_told(builder: Any, use: Callable[[Any], object]) -> None:
    class Keeps(Processor):
        store: ClassVar[Any] = None

        def process(self, record: Record) -> None:
            if Keeps.store is None:
                Keeps.store = self.context.get_store("totals")
            use(Keeps.store)

    topology = Topology().add_source("orders", "orders").add_processor("total", Keeps, "orders", stores=[builder])
    driver = TopologyTestDriver(topology)
    driver.pipe("orders", "ann", "1", timestamp=0)
    for task, partitions in driver._tasks.items():
        driver._processes.running().worker(task, partitions, 1).close()  # opened again in this process
    with pytest.raises(ProcessingError) as caught:
        driver.pipe("orders", "ann", "1", timestamp=0)
    says(
        caught.value,
        "node 'total', at topic 'orders' partition 0 offset 1: store 'totals' belongs to task 0_0 as it was opened "
        "before, and that task was closed",
        "class attribute or a global",
        "self.store = context.get_store('totals')",
    )


# ---------------------------------------------------------------- durations without a unit


def making(window: str, option: str, others: dict[str, str]) -> Callable[[Any], object]:
    return lambda given: getattr(dsl, window)(**{option: given, **others})


DURATIONS: dict[str, tuple[Callable[[Any], object], str]] = {
    "ttl": (lambda given: key_value_store("s", ttl=given), "ttl of store 's'"),
    "retention": (lambda given: window_store("s", window_size="1s", retention=given), "retention of store 's'"),
    "size": (lambda given: window_store("s", window_size=given, retention="1h"), "window_size of store 's'"),
    "setting": (lambda given: TopologyTestDriver(totals(), commit_interval=given), "setting 'commit_interval'"),
    "driver": (lambda given: TopologyTestDriver(totals()).advance_wall_clock(given), "advance_wall_clock"),
    "offset_reset": (lambda given: Topology().add_source("s", "t", offset_reset=given), "source 's': offset_reset"),
    **{
        f"{window} {option}": (making(window, option, others), option)
        for window, option, others in (
            ("tumbling", "size", {}), ("tumbling", "grace", {"size": "1m"}), ("hopping", "every", {"size": "1m"}), ("hopping", "size", {"every": "1m"}),
            ("sessions", "gap", {}), ("sessions", "grace", {"gap": "1m"}), ("sliding", "difference", {}),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("given", [30, 0, 1.5, "30"])
@pytest.mark.parametrize(("use", "option"), DURATIONS.values(), ids=DURATIONS)
def test_a_length_of_time_without_a_unit(use: Callable[[Any], object], option: str, given: Any) -> None:
    with pytest.raises((ConfigError, TopologyError)) as caught:
        use(given)
    says(caught.value, option)
    says(caught.value, f'a bare number does not say its unit: write "{given}s" or "{given}ms"')


def test_what_is_no_number_is_not_told_to_have_a_unit() -> None:
    for given in (True, None, "soon", b"30", [30]):
        with pytest.raises(ConfigError) as caught:
            duration_ms(given, "gap")  # type: ignore[arg-type]
        assert str(caught.value).startswith("gap: expected a timedelta or text like")
        assert "unit" not in str(caught.value)
    assert duration_ms(timedelta(seconds=1)) == 1000


def test_a_length_of_time_has_all_its_digits() -> None:
    """It went through a float, which made one more of Java's Long.MAX_VALUE."""
    most = 2**63 - 1
    assert duration_ms(f"{most}ms") == most
    assert duration_ms(f"{most // 1000}s{most % 1000}ms") == most
    assert duration_ms("0.3s0.1ms") == 300 and duration_ms("1.5s") == 1500
    assert duration_ms(timedelta.max) == timedelta.max // timedelta(milliseconds=1) + 1
    assert duration_ms(timedelta(milliseconds=-1500), may_be_negative=True) == -1500
