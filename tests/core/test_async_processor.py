"""AsyncProcessor: the results of a Processor that asks and waits, whenever the answers come."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    AsyncProcessor,
    DeadLetter,
    PenstockError,
    Processor,
    Record,
    Retry,
    Topology,
    key_value_store,
    skip,
    window_store,
)
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver
from penstock.program.wrapping import WrappingProcessor

from ..rotation import examples

STORES = [
    key_value_store("sums"),
    key_value_store("expiring", ttl="6ms", ttl_clock=STREAM_TIME),
    window_store("seen", retention="10ms", window_size="2ms"),
    key_value_store("cached", cached=True),
]


class Work(Processor):
    """What is done with an answer: stores, timers and forwards. It asks and waits."""

    def __init__(self, ops: Sequence[str]) -> None:
        self.ops = ops

    def init(self, context: Any) -> None:
        super().init(context)
        if "ring" in self.ops:
            context.schedule("9ms", self.ring, STREAM_TIME)
        context.set_flush_listener("cached", self.flushed)

    def ring(self, at: int) -> None:
        sums = dict(self.context.get_store("sums").all())
        self.context.forward(Record("ring", [at, self.context.current_stream_time_ms(), sums], at))

    def flushed(self, record: Record) -> None:
        self.context.forward(record.with_value(["flushed", record.value.new, record.value.old]))

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, ["timer", at, self.context.current_stream_time_ms()], at))

    def request(self, record: Record) -> Any:
        before = self.context.get_store("sums").get(record.key) if "before" in self.ops else None
        if "show" in self.ops:
            metadata = self.context.record_metadata
            before = [before, self.context.application_id, metadata and metadata.offset]
        return record.value, before

    async def call(self, request: Any) -> Any:
        await asyncio.sleep(0)
        return self.answer(request)

    def answer(self, request: tuple[int, Any]) -> list[Any]:
        value, before = request
        if value % 5 == 4 and "fail" in self.ops:
            raise ValueError(value)
        return [value * 2, before]

    def process(self, record: Record) -> None:
        self.process_result(record, self.answer(self.request(record)))

    def process_result(self, record: Record, result: Any) -> None:
        row = [*result]
        for op in self.ops:
            if op not in ("ring", "before", "fail"):
                getattr(self, op)(record, row)
        self.context.forward(record.with_value(row))

    def sum(self, record: Record, row: list[Any]) -> None:
        sums = self.context.get_store("sums")
        sums.put(record.key, (sums.get(record.key) or 0) + record.value)
        row.append(sums.get(record.key))

    def expire(self, record: Record, row: list[Any]) -> None:
        expiring = self.context.get_store("expiring")
        row.append(expiring.get(record.key))
        expiring.put(record.key, record.value)

    def window(self, record: Record, row: list[Any]) -> None:
        seen = self.context.get_store("seen")
        seen.put(record.key, record.value, record.timestamp)
        row.append([value for _, value in seen.fetch(record.key, 0, 100)])

    def cache(self, record: Record, row: list[Any]) -> None:
        self.context.get_store("cached").put(record.key, record.value)

    def show(self, record: Record, row: list[Any]) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None
        row.append([self.context.current_stream_time_ms(), metadata.offset])

    def set_timer(self, record: Record, row: list[Any]) -> None:
        self.context.timer(record.key, self.context.current_stream_time_ms() + 2, STREAM_TIME)

    def late_failure(self, record: Record, row: list[Any]) -> None:
        if record.value % 4 == 3:
            raise ValueError("late")


class AsyncWork(Work, AsyncProcessor):
    bind, process = AsyncProcessor.bind, AsyncProcessor.process

    def __init__(self, ops: Sequence[str], order: Any, capacity: int, max_pending: int, *, is_async: bool) -> None:
        super().__init__(ops)
        self.order, self.capacity, self.max_pending = order, capacity, max_pending
        if not is_async:
            self.call = self.answer  # type: ignore[assignment, method-assign]


class Behind(Processor):
    """Reads the time."""

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value([record.value, self.context.current_stream_time_ms()]))


Rows = list[tuple[Any, Any, int]]


def topology(supplier: Any, *, is_read: bool, **options: Any) -> Topology:
    made = Topology().add_source("in", "in", value_serde="int").add_processor("ask", supplier, "in", **options)
    for store in STORES:
        made.add_store(store, "ask")
    if is_read:
        made.add_processor("behind", Behind, "ask")
    return made.add_sink("out", "out", "behind" if is_read else "ask", value_serde="json")


def left_by(
    made: Topology, records: Sequence[tuple[Any, ...]], choices: Sequence[int], commit_every: int, *, budget: int
) -> dict[str, Any]:
    """Pipe records, and answer a call, in an order that `choices` say; return what there is at the end."""
    application = Application("app", made, processing_handler=skip, statestore_cache_max_bytes=budget)
    with TopologyTestDriver(application, hold_calls=True, commit_every=commit_every) as driver:
        left, turns = list(records), count()
        while left or driver.calls:
            choice, calls = choices[next(turns) % len(choices)], driver.calls
            if left and (choice % 3 == 0 or not calls):
                some, left = left[: 1 + choice % 4], left[1 + choice % 4 :]
                driver.pipe_many("in", some)
            elif calls:
                calls[0 if choice > 7 else choice % len(calls)].run()
            if choice > 7:
                driver.move() if choice == 8 else driver.reopen()
                driver.advance_wall_clock("0ms")
        rows = [each[:3] for each in driver.read_all("out")]
        return {"out": rows, **{each.name: sorted(map(repr, driver.store(each.name).all())) for each in STORES}}


def by_key(rows: Rows) -> dict[Any, Rows]:
    found: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return found


BY_KEY = ("sum", "before", "fail", "late_failure")
OPS = (*BY_KEY, "expire", "window", "cache", "show", "set_timer", "ring")
RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 30)), max_size=12)


@given(
    st.lists(st.sampled_from(OPS), max_size=6, unique=True), RECORDS,
    st.lists(st.integers(0, 9), min_size=1, max_size=12), st.booleans(), st.sampled_from(["key", "partition", "none"]),
    st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(200))
def test_it_leaves_what_a_processor_does_that_waits(
    ops: list[str], records: list[tuple[str, int, int]], choices: list[int], is_async: bool, order: Any, capacity: int,
    max_pending: int, commit_every: int, is_read: bool,
) -> None:  # fmt: skip
    """In the order of arrival where a node behind reads time, or by "partition"; by key, or in any order."""
    in_order = order == "partition" or is_read
    if order != "key":
        ops = [op for op in ops if op != "before"]  # others of its key are asked about meanwhile
    if not in_order:
        ops = [op for op in ops if (op in BY_KEY and order == "key") or op in ("fail", "late_failure")]
    expected = left_by(topology(Work, is_read=is_read, ops=ops), records, [0], 1, budget=0)
    made = left_by(
        topology(
            partial(AsyncWork, is_async=is_async), is_read=is_read, ops=ops, order=order, capacity=capacity,
            max_pending=max_pending,
        ),
        records, choices, commit_every, budget=0,
    )  # fmt: skip
    if in_order:
        assert made == expected
    elif order == "key":
        assert by_key(made.pop("out")) == by_key(expected.pop("out"))
        assert made == expected
    else:
        assert sorted(map(repr, made["out"])) == sorted(map(repr, expected["out"]))


class Lost(Exception):
    pass


class Rate(AsyncProcessor):
    """Adds up ratings of a service."""

    retries = Retry(1, "1s", then=DeadLetter("unrated"))

    @classmethod
    def stores(cls) -> list[Any]:
        return [key_value_store("ratings")]

    async def call(self, request: Any) -> Any:
        return len(request)

    def process_result(self, record: Record, result: Any) -> None:
        ratings = self.context.get_store("ratings")
        ratings.put(record.key, (ratings.get(record.key) or 0) + result)
        self.context.forward(record.with_value(ratings.get(record.key)))


def rated(supplier: Any = Rate, **options: Any) -> Topology:
    made = Topology().add_source("in", "in").add_processor("rate it", supplier, "in", **options)
    return made.add_sink("out", "out", "rate it", value_serde="json")


def test_a_call_that_fails_is_retried_and_its_dead_letter_has_the_source_record() -> None:
    application = Application("app", rated())
    with TopologyTestDriver(application, hold_calls=True) as driver:
        driver.pipe_many("in", [("a", "good", 1, [("h", b"x")]), ("b", "bad", 2)])
        first, other = driver.calls
        first.fail(Lost("away"))
        other.run()
        driver.reopen()
        driver.advance_wall_clock("1s")
        (again,) = driver.calls
        again.fail(Lost("away"))
        (letter,) = driver.read_all("unrated")
        assert (letter.key, letter.value, letter.timestamp) == ("a", "good", 1)
        assert dict(letter.headers)["h"] == b"x"
        assert [row[:2] for row in driver.read_all("out")] == [("b", 3)]
        assert dict(driver.store("ratings").all()) == {"b": 3}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_request_sees_what_the_record_before_it_left_also_where_results_keep_their_order(is_lost: bool) -> None:
    """Behind `ask` is a node that reads time, so the answer about "a" waits for that about "b"."""
    ask = partial(AsyncWork, ["sum", "before"], "key", 9, 9, is_async=True)
    application = Application("app", topology(ask, is_read=True), processing_handler=skip)
    with TopologyTestDriver(application, hold_calls=True) as driver:
        driver.pipe_many("in", [("b", 1), ("a", 2), ("a", 3)])
        if is_lost:
            driver.calls[1].fail(Lost("away"))
        else:
            driver.calls[1].run()
        assert [call.arguments for call in driver.calls] == [((1, None),)]
        driver.calls[0].run()
        before = None if is_lost else 2
        assert [call.arguments for call in driver.calls] == [((3, before),)]
        driver.calls[0].run()
        rows = [row.value[0] for row in driver.read_all("out")]
    assert rows[-1] == [6, before, 3 if is_lost else 5]


def test_its_dead_letters_may_not_be_what_it_reads() -> None:
    made = Topology().add_source("in", "unrated").add_processor("rate", Rate, "in")
    with pytest.raises(PenstockError, match="node 'rate', retries: its dead letters would go to topic 'unrated'"):
        Application("app", made)


class Forwards(Rate):
    def request(self, record: Record) -> Any:
        self.context.forward(record)


class Writes(Rate):
    def request(self, record: Record) -> Any:
        self.context.get_store("ratings").put(record.key, 1)


class Fails(Rate):
    def request(self, record: Record) -> Any:
        raise Lost("in request")


class Generates(Rate):
    def process_result(self, record: Record, result: Any) -> Any:
        yield record


class RequestGenerates(Rate):
    def request(self, record: Record) -> Any:
        yield record


class RequestWaits(Rate):
    async def request(self, record: Record) -> Any:
        return record


class ResultWaits(Rate):
    async def process_result(self, record: Record, result: Any) -> Any:  # type: ignore[override]
        pass


class CallGenerates(Rate):
    def call(self, request: Any) -> Any:
        yield request


class CallWaitsAndGenerates(Rate):
    async def call(self, request: Any) -> Any:
        yield request


class OfTwo(Rate):
    async def call(self, key: Any, value: Any) -> Any:  # type: ignore[override]
        return key, value


class Decorated(Rate):
    """As a decorator leaves it, whose wrapper is a plain function."""

    def call(self, request: Any) -> Any:
        return super().call(request)


class HasATimeout(Rate):
    async def call(self, request: Any) -> Any:
        raise TimeoutError


class OfBytes(Rate):
    value_serde = "bytes"


@pytest.mark.parametrize(
    ("supplier", "said"),
    [
        (Forwards, "node 'rate it' forwards a record in `request`, which may be called more than once"),
        (Writes, "node 'rate it' calls 'put' of store 'ratings' in `request`, which may be called more than once"),
        (Fails, "in request"),
        (RequestGenerates, "processor 'rate it': request of RequestGenerates is a generator"),
        (RequestWaits, "processor 'rate it': request of RequestWaits is an async function .*only `call` may"),
        (ResultWaits, "processor 'rate it': process_result of ResultWaits is an async function .*only `call` may"),
        (CallGenerates, "processor 'rate it': call of CallGenerates is a generator, .*return a list"),
        (CallWaitsAndGenerates, "processor 'rate it': call of CallWaitsAndGenerates is a generator, .*return a list"),
        (OfTwo, "processor 'rate it': call of OfTwo is called with \\(request\\)"),
        (Decorated, "node 'rate it'.*its call returned a coroutine, which nothing awaits: write `async def`"),
        (HasATimeout, "node 'rate it'.*offset 0: TimeoutError"),
        (OfBytes, "node 'rate it'"),
        (lambda: Rate(), "node 'rate it' has no store 'rate-it-.*-pending' for records in flight: add the class Rate"),
    ],
)
def test_mistakes_are_refused(supplier: Any, said: str) -> None:
    supplier.retries = None
    with pytest.raises(PenstockError, match=said):
        made = rated(supplier)
        if not isinstance(supplier, type):
            made.add_store(key_value_store("ratings"), "rate it")
        with TopologyTestDriver(made) as driver:
            driver.pipe("in", "a", "good")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Forwards, "node 'processor' forwards a record in `request`"),
        (Writes, "node 'processor' calls 'put' of store 'ratings' in `request`"),
        (Decorated, "its call returned a coroutine"), (OfBytes, "serde 'bytes'"),
    ],
)  # fmt: skip
def test_one_processor_alone_is_refused_what_a_task_refuses(kind: type[Rate], said: str) -> None:
    context = MockProcessorContext(key_value_store("ratings"))
    made = context.start(kind())
    with pytest.raises(PenstockError, match=said):
        made.process(Record("a", "good", 1))
    assert context.forwarded == []


@pytest.mark.parametrize(
    ("name", "value"), [("capacity", 0), ("max_pending", "9"), ("timeout", "soon"), ("order", "any"), ("retries", 3)]
)
def test_wrong_options_are_refused_with_the_node(name: str, value: Any) -> None:
    kind = type("Wrong", (Rate,), {name: value})
    with pytest.raises(PenstockError, match=f"node 'rate it': {name}"), TopologyTestDriver(rated(kind)):
        pass


def test_a_process_result_that_returns_records_is_refused() -> None:
    with pytest.raises(PenstockError, match="process_result"), TopologyTestDriver(rated(Generates)) as driver:
        driver.pipe("in", "a", "good")


def test_one_processor_alone() -> None:
    context = MockProcessorContext(key_value_store("ratings"))
    rate = context.start(Rate())
    rate.process(Record("a", "good", 1))
    rate.process(Record("a", "bad", 2))
    assert [each.record.value for each in context.forwarded] == [4, 7]


class Tracing(WrappingProcessor):
    seen: list[Any] = []

    def process(self, record: Record) -> None:
        self.seen.append(record.value)
        super().process(record)


def test_inside_of_a_wrapper_and_in_the_dsl() -> None:
    builder = StreamsBuilder()
    builder.stream("in").process(partial(Rate), name="rate").to("out", value_serde="json")
    application = Application("app", builder, processor_wrapper=lambda name, made: Tracing(made))
    with TopologyTestDriver(application, hold_calls=True) as driver:
        driver.pipe_many("in", [("a", "good"), ("a", "bad")])
        assert [call.arguments for call in driver.calls] == [("good",)]
        driver.calls[0].answer(9)
        driver.calls[0].run()
        assert driver.read_values("out") == [9, 12]
    assert Tracing.seen == ["good", "bad"]


class Rings(Rate):
    """Its own schedules by the wall clock go on while a call is under way."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1s", lambda at: context.forward(Record("ring", at, at)), WALL_CLOCK_TIME)


def test_schedules_by_the_wall_clock_do_not_wait_for_answers() -> None:
    with TopologyTestDriver(rated(Rings), hold_calls=True) as driver:
        driver.pipe("in", "a", "good")
        driver.advance_wall_clock("1s")
        assert [row[0] for row in driver.read_all("out")] == ["ring"]
