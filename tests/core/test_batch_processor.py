"""BatchProcessor: the same results as a Processor of one record at a time, with fewer calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    BatchProcessor,
    DeadLetter,
    Handler,
    PenstockError,
    ProcessingError,
    Processor,
    Record,
    Retry,
    Topology,
    TopologyError,
    fail,
    key_value_store,
    skip,
    window_store,
)
from penstock.operator import Operator
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver
from penstock.program.wrapping import WrappingProcessor

from ..rotation import examples

STORES = [
    key_value_store("sums"),
    key_value_store("expiring", ttl="6ms", ttl_clock=STREAM_TIME),
    window_store("seen", retention="10ms", window_size="2ms"),
    key_value_store("cached", cached=True),
]
OPS = (
    "sum", "forward", "again", "other", "fail", "fail_later", "expire", "window", "cache", "show", "drop", "commit",
    "change", "number",
)  # fmt: skip


class Work(Processor):
    """What is done for one record: some steps, of which each may read and change stores, forward, or fail."""

    def __init__(self, ops: Sequence[str], most: int = 1) -> None:
        self.ops, self.max_records = ops, most

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("9ms", self.ring, STREAM_TIME)
        context.set_flush_listener("cached", self.flushed)

    def ring(self, at: int) -> None:
        sums = dict(self.context.get_store("sums").all())
        self.context.forward(Record("ring", [at, self.context.current_stream_time_ms(), sums], at))

    def flushed(self, record: Record) -> None:
        self.context.forward(record.with_value(["flushed", record.value.new, record.value.old]))

    def work(self, record: Record) -> None:
        row: list[Any] = [record.value]
        for op in self.ops:
            getattr(self, op)(record, row)

    def sum(self, record: Record, row: list[Any]) -> None:
        sums = self.context.get_store("sums")
        sums.put(record.key, (sums.get(record.key) or 0) + record.value)
        row.append(sums.get(record.key))

    def forward(self, record: Record, row: list[Any]) -> None:
        self.context.forward(record.with_value(row))

    def again(self, record: Record, row: list[Any]) -> None:
        for number in range(record.value % 3):
            self.context.forward(Record(f"{record.key}{number}", [row, number], record.timestamp + number))

    def other(self, record: Record, row: list[Any]) -> None:
        self.context.forward(record.with_value(row), "other")

    def fail(self, record: Record, row: list[Any]) -> None:
        if record.value % 4 == 3:
            raise ValueError(record.value)

    def fail_later(self, record: Record, row: list[Any]) -> None:
        sums = self.context.get_store("sums")
        if (sums.get("tries") or 0) > 2:
            sums.put("tries", 0)
            raise ValueError("often")
        sums.put("tries", (sums.get("tries") or 0) + 1)

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

    def drop(self, record: Record, row: list[Any]) -> None:
        if record.value % 5 == 0:
            self.context.metrics.drop("fives")

    def commit(self, record: Record, row: list[Any]) -> None:
        if record.value % 6 == 1:
            self.context.commit()

    def change(self, record: Record, row: list[Any]) -> None:
        row.append("changed")

    def number(self, record: Record, row: list[Any]) -> None:
        numbers = self.context.saved_numbers
        numbers["all"] = numbers.get("all", 0) + 1
        row.append(numbers["all"])

    def process(self, record: Record) -> None:
        self.work(record)


class BatchOfWork(Work, BatchProcessor):
    bind = BatchProcessor.bind

    def process_batch(self, records: Sequence[Record]) -> None:
        assert 0 < len(records) <= self.max_records
        values = [record.value for record in records]  # as a model gets them
        for record, value in zip(records, values, strict=True):
            assert record.value == value
            self.work(record)


class Behind(Processor):
    """Forwards what it gets with the time and place that it sees, and when its timers fire."""

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, ["timer", at, self.context.current_stream_time_ms()], at))

    def process(self, record: Record) -> None:
        metadata, now = self.context.record_metadata, self.context.current_stream_time_ms()
        self.context.timer(record.key, now + 2, STREAM_TIME)
        self.context.forward(record.with_value([record.value, now, metadata and metadata.offset]))
        if type(record.value[0]) is int and record.value[0] == 8:
            raise ValueError("eight")


class Some(Operator):
    """Drops some records, which move the stream time all the same."""

    def bind(self, context: Any) -> Callable[[Any], None]:
        return lambda record: context.send(record) if record[1] % 7 != 2 else None


def left_by(
    kind: type[Work],
    ops: Sequence[str],
    most: int,
    records: Sequence[tuple[Any, ...]],
    commit_every: int,
    handler: Handler,
    *,
    reopen: bool,
    budget: int,
) -> dict[str, Any]:
    topology = Topology().add_source("in", "in").add_processor("some", Some, "in")
    topology.add_processor("work", kind, "some", ops=ops, most=most)
    for store in STORES:
        topology.add_store(store, "work")
    topology.add_processor("behind", Behind, "work").add_processor("other", Behind, "work")
    topology.add_sink("out", "out", "behind").add_sink("other out", "other-out", "other")
    application = Application(
        "app", topology, value_serde="msgpack", processing_handler=handler, statestore_cache_max_bytes=budget
    )
    with TopologyTestDriver(application, commit_every=commit_every, reopen_tasks=reopen) as driver:
        driver.pipe_many("in", records)
        driver.advance_wall_clock("1s")
        left: dict[str, Any] = {topic: [each[:3] for each in driver.read_all(topic)] for topic in ("out", "other-out")}
        if isinstance(handler, DeadLetter):
            left["dead"] = [
                (each.key, each.value, dict(each.headers)["__streams.errors.offset"])
                for each in driver.read_all("dead")
            ]
        left["stores"] = {store.name: sorted(map(repr, driver.store(store.name).all())) for store in STORES}
        return left


RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 30)), max_size=14)
HANDLERS = st.sampled_from([skip, DeadLetter("dead"), Retry(1, "0ms", skip)])


@given(
    st.lists(st.sampled_from(OPS), min_size=1, max_size=6), RECORDS, st.integers(1, 6), st.integers(1, 9), HANDLERS,
    st.booleans(), st.sampled_from([0, 1 << 20]),
)  # fmt: skip
@settings(max_examples=examples(150))
def test_a_batch_of_work_for_each_record_leaves_what_a_processor_does(
    ops: list[str],
    records: list[tuple[str, int, int]],
    most: int,
    commit_every: int,
    handler: Handler,
    reopen: bool,
    budget: int,
) -> None:
    """Outputs, what nodes behind see, dead letters and stores, whatever fails, and wherever batches and commits end.

    A commit that a record asks for comes behind its whole batch, so a record cache may send one update less.
    """
    budget = 0 if "commit" in ops else budget
    expected = left_by(Work, ops, 1, records, commit_every, handler, reopen=False, budget=budget)
    assert left_by(BatchOfWork, ops, most, records, commit_every, handler, reopen=reopen, budget=budget) == expected


class Sizes(BatchProcessor):
    """Forwards each record with the number of records of its call."""

    max_records = 4

    def process_batch(self, records: Sequence[Record]) -> None:
        if any(record.value == "bad" for record in records):
            raise ValueError(f"one of {len(records)}")
        for record in records:
            self.context.forward(record.with_value([record.value, len(records)]))


def of(supplier: Any, **options: Any) -> Topology:
    topology = Topology().add_source("in", "in").add_processor("batch", supplier, "in", **options)
    return topology.add_sink("out", "out", "batch")


def run(
    supplier: Any, values: Sequence[Any], commit_every: int = 100, options: dict[str, Any] | None = None, **given: Any
) -> list[Any]:
    """Return the values that come out; the time of each record is its place."""
    application = Application("app", of(supplier, **(options or {})), value_serde="msgpack", **given)
    with TopologyTestDriver(application, commit_every=commit_every) as driver:
        driver.pipe_many("in", [("k", value, time) for time, value in enumerate(values)])
        return [record.value for record in driver.read_all("out")]


def test_a_call_gets_up_to_max_records_and_what_is_left_before_a_commit() -> None:
    assert run(Sizes, range(7), 6) == [[0, 4], [1, 4], [2, 4], [3, 4], [4, 2], [5, 2], [6, 1]]


def test_after_an_error_each_record_is_alone_up_to_the_commit() -> None:
    values = [0, 1, "bad", 3, 4, 5, 6, 7, 8, 9]
    found = run(Sizes, values, 6, processing_handler=skip)
    assert found == [[0, 1], [1, 1], [3, 1], [4, 1], [5, 1], [6, 4], [7, 4], [8, 4], [9, 4]]


class Halfway(BatchProcessor):
    """Forwards and puts; fails for some records after that, and forwards no more."""

    def process_batch(self, records: Sequence[Record]) -> None:
        sums = self.context.get_store("sums")
        for record in records:
            sums.put("sum", (sums.get("sum") or 0) + record.value)
            self.context.forward(record)
            if record.value == 2:
                raise ValueError(record.value)
            self.context.forward(record.with_value(["sum", sums.get("sum")]))


def test_a_record_that_fails_alone_leaves_what_it_leaves_in_a_processor() -> None:
    options = {"stores": [key_value_store("sums")]}
    found = run(Halfway, [1, 2, 4], options=options, processing_handler=skip)
    assert found == [1, ["sum", 1], 2, 4, ["sum", 7]]


def test_the_error_of_a_record_names_where_it_was_read() -> None:
    with pytest.raises(
        ProcessingError, match=r"node 'batch', at topic 'in' partition 0 offset 2: ValueError: one of 1 "
    ):
        run(Sizes, [0, 1, "bad", 3], processing_handler=fail)


def test_an_exit_ends_the_run_without_another_attempt() -> None:
    calls = []

    class Exits(BatchProcessor):
        def process_batch(self, records: Sequence[Record]) -> None:
            calls.append(len(records))
            raise SystemExit(3)

    with pytest.raises(ProcessingError, match=r"offset 2: it called sys.exit\(3\)"):
        run(Exits, [0, 1, 2], processing_handler=skip)
    assert calls == [3]


class Contexts(BatchProcessor):
    """Forwards the stream time and the offset that the context shows at each step, and puts what a loop is at."""

    def process_batch(self, records: Sequence[Record]) -> None:
        shown = [self.shown()]
        for record in records:
            shown.append(self.shown())
            if record.value == 1:
                break
        shown.append(self.shown())
        shown += [self.shown() for record, _ in zip(records, "ab", strict=False)]
        self.context.forward(records[0].with_value(shown))

    def shown(self) -> list[int | None]:
        metadata = self.context.record_metadata
        return [self.context.current_stream_time_ms(), metadata and metadata.offset]


def test_a_loop_over_the_records_makes_each_the_active_one() -> None:
    last, first, second, third = [2, 2], [0, 0], [1, 1], [2, 2]
    assert run(Contexts, [0, 1, 2]) == [[last, first, second, second, first, second]]
    assert third == last


class Reusing(BatchProcessor):
    def process_batch(self, records: Sequence[Record]) -> None:
        row: dict[str, Any] = {}
        for record in records:
            row["n"] = record.value
            self.context.forward(record.with_value(row))
        row["n"] = "changed"


class Changing(Processor):
    def process(self, record: Record) -> None:
        record.value["n"] = [record.value["n"]]
        self.context.forward(record)


def test_what_was_forwarded_is_as_it_was_then() -> None:
    topology = Topology().add_source("in", "in").add_processor("batch", Reusing, "in")
    topology.add_processor("changing", Changing, "batch").add_sink("out", "out", ["batch", "changing"])
    with TopologyTestDriver(Application("app", topology, value_serde="json"), commit_every=9) as driver:
        driver.pipe_many("in", [("k", 1), ("k", 2)])
        assert driver.read_values("out") == [{"n": [1]}, {"n": 1}, {"n": [2]}, {"n": 2}]


class Timed(BatchProcessor):
    """Sets a timer for each record, and schedules once."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1s", self.ring, WALL_CLOCK_TIME)

    def ring(self, at: int) -> None:
        self.context.forward(Record("k", "rang", at))

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, ["timer", at], at))

    def process_batch(self, records: Sequence[Record]) -> None:
        for record in records:
            self.context.timer(record.value, record.timestamp + 1, STREAM_TIME)
            self.context.forward(record)


def test_timers_that_a_batch_sets_are_called_in_the_turn_of_the_records_that_make_them_due() -> None:
    timers: list[Any] = [["timer", 1], ["timer", 2]]
    assert run(Timed, ["a", "b", "c"]) == ["a", "b", timers[0], "c", timers[1]]


def test_records_go_when_the_first_has_waited_long_enough() -> None:
    application = Application("app", of(Timed), value_serde="json")
    with TopologyTestDriver(application, commit_every=9) as driver:
        driver.pipe_many("in", [("k", "a", 5)])
        driver.advance_wall_clock("1s")
        assert driver.read_values("out") == ["a", "rang"]


class Counted(WrappingProcessor):
    seen: list[Any] = []

    def process(self, record: Record) -> None:
        self.seen.append(record.value)
        super().process(record)


def wrapped(node: str, made: Any) -> Any:
    return Counted(made) if isinstance(made, BatchProcessor) else made


def test_a_wrapper_gets_each_record_and_the_nodes_behind_their_order() -> None:
    topology = Topology().add_source("in", "in").add_processor("batch", lambda: Sizes(), "in")
    topology.add_sink("out", "out", ["batch", "in"])  # by two ways
    Counted.seen.clear()
    application = Application("app", topology, value_serde="json", processor_wrapper=wrapped)
    with TopologyTestDriver(application, commit_every=9) as driver:
        driver.pipe_many("in", [("k", 1), ("k", 2)])
        assert driver.read_values("out") == [[1, 1], 1, [2, 1], 2] and Counted.seen[:2] == [1, 2]


class Fills(BatchProcessor):
    def process_batch(self, records: Sequence[Record]) -> None:
        store = self.context.get_store("names")
        for record in records:
            store.put(record.key, [record.value, len(records)])


class Looks(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(self.context.get_store("names").get(record.value)))


def test_a_global_store_can_be_filled_in_batches() -> None:
    topology = Topology().add_source("in", "in").add_processor("looks", Looks, "in").add_sink("out", "out", "looks")
    topology.add_global_store(key_value_store("names"), "read names", "names", "fill names", Fills)
    with TopologyTestDriver(Application("app", topology, value_serde="json")) as driver:
        driver.pipe_many("names", [("a", "Anna"), ("b", "Ben"), ("c", "Cid")])
        driver.pipe("in", "k", "b")
        assert driver.read_values("out") == [["Ben", 3]]


@pytest.mark.parametrize("reopen", [False, True])
def test_a_read_only_store_can_be_filled_in_batches(reopen: bool) -> None:
    topology = Topology().add_source("in", "in").add_processor("looks", Looks, "in").add_sink("out", "out", "looks")
    topology.add_read_only_store(key_value_store("names"), "read names", "names", "fill names", Fills)
    topology.connect("looks", "names")
    application = Application("app", topology, value_serde="json")
    with TopologyTestDriver(application, commit_every=9, reopen_tasks=reopen) as driver:
        driver.pipe_many("names", [("a", "Anna"), ("b", "Ben"), ("c", "Cid")])
        driver.pipe("in", "k", "b")
        assert driver.read_values("out") == [["Ben", 3]]


def test_alone_in_a_mock_context() -> None:
    context = MockProcessorContext()
    sizes = context.start(Sizes())
    sizes.process(Record("k", 1, 0))
    sizes.process_batch([Record("k", 2, 0), Record("k", 3, 0)])
    assert context.values() == [[1, 1], [2, 2], [3, 2]]


class Generates(BatchProcessor):
    def process_batch(self, records: Sequence[Record]) -> Any:
        yield from records


class Returns(BatchProcessor):
    def process_batch(self, records: Sequence[Record]) -> Any:
        return [record.with_value(1) for record in records]


class TakesTwo(BatchProcessor):
    def process_batch(self, keys: Any, values: Any) -> Any:  # type: ignore[override]
        return None


class Sized(Sizes):
    def __init__(self, most: Any = 4, wait: Any = "50ms") -> None:
        self.max_records, self.max_wait = most, wait


class OfOwn(Processor):
    """Its method of this name is its own matter."""

    def process_batch(self, keys: Any, values: Any) -> None:
        self.context.forward(Record(keys, values, 0))

    def process(self, record: Record) -> None:
        self.process_batch(record.key, record.value)


MISTAKES: dict[str, tuple[Any, dict[str, Any], type[PenstockError], str]] = {
    "generator": (Generates, {}, TopologyError, "process_batch of Generates is a generator"),
    "result": (Returns, {}, ProcessingError, "process_batch returned a list of Record"),
    "arguments": (TakesTwo, {}, TopologyError, r"process_batch of TakesTwo is called with \(records\)"),
    "number": (Sized, {"most": 0}, TopologyError, "node 'batch': max_records is a number of records .* found 0"),
    "wait": (Sized, {"wait": "-1s"}, PenstockError, "node 'batch': max_wait"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake: str) -> None:
    supplier, options, error, match = MISTAKES[mistake]
    with pytest.raises(error, match=match):
        run(supplier, [1, 2], options=options)


def test_another_class_may_have_a_method_of_that_name() -> None:
    assert run(OfOwn, [1]) == [1]
