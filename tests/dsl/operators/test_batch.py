"""map_values_batch: the same results as map_values, with fewer calls of the function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any

import numpy
import pandas
import pyarrow
import pyarrow.compute
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    Application,
    ConfigError,
    DeadLetter,
    PenstockError,
    ProcessingError,
    Processor,
    PunctuationType,
    Record,
    TopologyError,
    key_value_store,
    skip,
)
from penstock.plugins.dsl import KStream, StreamsBuilder, tumbling, within
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

Stream = KStream[Any, Any]
Score = Callable[[Stream], Stream]
Program = Callable[[Stream, Score], Stream]
STREAM_TIME = PunctuationType.STREAM_TIME


class Ringing(Processor):
    """Forwards what it gets, with the stream time, and tells when its punctuator and the timers of its keys fire."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("7ms", self.ring, STREAM_TIME)

    def ring(self, at: int) -> None:
        self.context.forward(Record("rang", [at, self.context.current_stream_time_ms()], at))

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, ["timer", at, self.context.current_stream_time_ms()], at))

    def process(self, record: Record) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None
        now = self.context.current_stream_time_ms()
        self.context.timer(record.key, now + record.value[0] % 5, STREAM_TIME)
        self.context.forward(record.with_value([*record.value, now, metadata.offset]))


def ringing(stream: Stream) -> Stream:
    return stream.process(Ringing, name="ringing")


def shown(key: Any, count: int) -> tuple[str, int]:
    return str(key), count


def windows(stream: Stream) -> Stream:
    counts = stream.group_by_key().windowed_by(tumbling("5ms", grace="3ms")).count(name="n")
    return counts.to_stream().map(shown, with_key=True)


def closed(stream: Stream) -> Stream:
    windowed = stream.group_by_key().windowed_by(tumbling("5ms", grace="3ms"), emit="on_close")
    return windowed.count(name="n").to_stream().map(shown, with_key=True)


def table(stream: Stream) -> Stream:
    return stream.to_table("latest", cached=True).map_values(lambda value: [*value, "t"]).to_stream()


def again(stream: Stream) -> Stream:
    return ringing(stream.map_values_batch(tagged, max_records=3))


def repartitioned(stream: Stream) -> Stream:
    return ringing(stream.select_key(lambda value: str(value[0] % 2)).repartition("again"))


def behind(then: Callable[[Stream], Stream]) -> Program:
    return lambda stream, score: then(score(stream))


def even(value: int) -> bool:
    return value % 2 == 0


def merged(stream: Stream, score: Score) -> Stream:
    return ringing(score(stream.filter(even)).merge(stream.filter_not(even).map_values(lambda value: [value])))


def merged_batches(stream: Stream, score: Score) -> Stream:
    one, other = score(stream.filter(even)), score(stream.filter_not(even))
    return ringing(one.merge(other).merge(score(stream)))


def several_of_a_record(stream: Stream, score: Score) -> Stream:
    return ringing(score(stream.flat_map_values(lambda value: [value, value + 1, value + 2])))


def behind_a_cached_table(stream: Stream, score: Score) -> Stream:
    latest = score(stream.to_table("first", cached=True).to_stream())
    return latest.to_table("second", cached=True).to_stream()


def joined_with_a_table(stream: Stream, score: Score) -> Stream:
    latest = stream.filter(even).to_table("latest")
    return score(stream).join(latest, lambda one, other: [*one, other])


def joined_streams(stream: Stream, score: Score) -> Stream:
    other = stream.filter_not(even).map_values(lambda value: [value])
    return score(stream).outer_join(other, lambda one, two: [one, two], within("4ms", grace="2ms"), name="j")


def counted_by_both(stream: Stream, score: Score) -> Stream:
    score(stream).process(Counting, stores=[key_value_store("seen")]).to("out")
    return stream.process(Counting, stores=["seen"])


class Counting(Processor):
    """Forwards how many records have reached either of two nodes with one store, and this one's value."""

    def process(self, record: Record) -> None:
        seen = self.context.get_store("seen")
        seen.put(record.key, (seen.get(record.key) or 0) + 1)
        self.context.forward(record.with_value([seen.get(record.key), record.value]))


def joined_behind_two_batches(stream: Stream, score: Score) -> Stream:
    """The table of a record is to have the record's row before the join gets the record."""
    one = score(stream)
    latest = score(one).to_table("latest", cached=False)
    return one.left_join(latest, lambda row, other: [row, other])


def merged_behind_a_batch(stream: Stream, score: Score) -> Stream:
    one = score(stream)
    return score(one).merge(one)


def batches_in_another_order(stream: Stream, score: Score) -> Stream:
    """The node of the first batch is declared before the other's, and gets each record after it."""
    one, other = stream.filter_not(even), stream.filter(even)
    after, before = score(other.merge(one)), score(one)
    return ringing(before.merge(after))


def one_topic(stream: Stream, score: Score) -> Stream:
    score(stream).to("out")
    return stream.map_values(lambda value: [value])


def one_topic_of_a_function(stream: Stream, score: Score) -> Stream:
    score(stream).to(to_out)
    score(stream.filter(even)).to("out")
    return stream.map_values(lambda value: [value])


def to_out(record: Record, metadata: Any) -> str:
    return "out"


def ringing_behind_a_cached_table(stream: Stream, score: Score) -> Stream:
    return ringing(score(stream.to_table("first", cached=True).to_stream()))


def timers_in_front_and_behind(stream: Stream, score: Score) -> Stream:
    return score(stream.process(Delaying, name="before")).process(Delaying, name="after")


class Delaying(Processor):
    """Forwards each record by a timer of its key, with its value and time."""

    def on_timer(self, key: Any, at: int) -> None:
        self.context.forward(Record(key, ["timer", at], at))

    def process(self, record: Record) -> None:
        self.context.timer(record.key, self.context.current_stream_time_ms() + 3, STREAM_TIME)
        self.context.forward(record.with_value([record.value]))


def not_all(stream: Stream, score: Score) -> Stream:
    """Records that do not reach the batch move the stream time."""
    return score(stream.filter(even)).process(Delaying)


def not_all_in_closed_windows(stream: Stream, score: Score) -> Stream:
    return closed(score(stream.filter(even)))


def not_all_of_either(stream: Stream, score: Score) -> Stream:
    """Of two batches that share nothing, each moves the stream time of what is behind the other."""
    score(stream.filter(lambda value: value % 3 == 1)).process(Delaying, name="other").to("other-out")
    return score(stream.filter(lambda value: value % 3 == 2)).process(Delaying, name="behind")


def not_all_behind_two_batches(stream: Stream, score: Score) -> Stream:
    once = score(stream.filter(even)).process(Delaying, name="between")
    return score(once.map_values(number_of)).process(Delaying, name="behind")


def number_of(value: list[Any]) -> Any:
    return value[1] if value[0] == "timer" else value[0][2]


def not_all_of_two_sources(stream: Stream, other: Stream, score: Score) -> Stream:
    return score(stream.filter(even)).merge(score(other.filter(even))).process(Delaying)


def beside_another_source(stream: Stream, other: Stream, score: Score) -> Stream:
    """Some records of another source reach what is behind the batch."""
    return score(stream.filter(even)).merge(other.filter(even).map_values(lambda value: [value])).process(Delaying)


class Overdue(Delaying):
    """Sets timers that may be due already, as those of a late record are."""

    def process(self, record: Record) -> None:
        self.context.timer(record.key, record.timestamp, STREAM_TIME)
        self.context.forward(record.with_value([record.value]))


def overdue_in_front(stream: Stream, score: Score) -> Stream:
    in_front = stream.process(Overdue, name="before").map_values(lambda value: value[-1])
    return score(in_front).process(Delaying, name="after")


def overdue_behind(stream: Stream, score: Score) -> Stream:
    return score(stream.filter(even)).process(Overdue, name="after")


PROGRAMS: dict[str, Program] = {
    "processor": behind(ringing), "windows": behind(windows), "closed windows": behind(closed),
    "cached table": behind(table), "another batch": behind(again), "repartition": behind(repartitioned),
    "several of a record": several_of_a_record, "behind a cached table": behind_a_cached_table, "merged": merged,
    "merged batches": merged_batches, "joined with a table": joined_with_a_table, "joined streams": joined_streams,
    "counted by both": counted_by_both, "joined behind two batches": joined_behind_two_batches,
    "merged behind a batch": merged_behind_a_batch, "batches in another order": batches_in_another_order,
    "one topic": one_topic, "one topic of a function": one_topic_of_a_function,
    "timers in front and behind": timers_in_front_and_behind,
    "ringing behind a cached table": ringing_behind_a_cached_table,
    "not all": not_all, "not all in closed windows": not_all_in_closed_windows, "not all of either": not_all_of_either,
    "not all behind two batches": not_all_behind_two_batches,
    "overdue in front": overdue_in_front, "overdue behind": overdue_behind,
}  # fmt: skip
OF_TWO_SOURCES: dict[str, Callable[[Stream, Stream, Score], Stream]] = {
    "not all of two sources": not_all_of_two_sources, "beside another source": beside_another_source,
}  # fmt: skip


def tagged(values: list[Any]) -> list[Any]:
    return [[*value, "b"] for value in values]


def doubled(values: list[Any]) -> list[Any]:
    return [[2 * value, "of", value] for value in values]


Results = dict[str, list[tuple[Any, Any, int]]]


def results(
    program: str | Program, most: int | None, records: Sequence[tuple[Any, ...]], commit_every: int, *, reopen: bool
) -> Results:
    """Return the records of each output topic. Of two sources, the second one has each third record."""

    def score(stream: Stream) -> Stream:
        if most is None:
            return stream.map_values(lambda value: doubled([value])[0])
        return stream.map_values_batch(doubled, max_records=most)

    builder, sent = StreamsBuilder(), {"in": records}
    stream = builder.stream("in", value_serde="int")
    if isinstance(program, str) and program in OF_TWO_SOURCES:
        sent = {"in": [each for place, each in enumerate(records) if place % 3], "other": records[::3]}
        OF_TWO_SOURCES[program](stream, builder.stream("other", value_serde="int"), score).to("out")
    else:
        (PROGRAMS[program] if isinstance(program, str) else program)(stream, score).to("out")
    application = Application("app", builder, value_serde="json")
    with TopologyTestDriver(application, commit_every=commit_every, reopen_tasks=reopen) as driver:
        driver.pipe_many(sent)
        sinks = ("out", "other-out") if program == "not all of either" else ("out",)
        return {
            sink: [(record.key, record.value, record.timestamp) for record in driver.read_all(sink)] for sink in sinks
        }


def rising(records: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return records whose times are steps as records whose times are their sums."""
    times = accumulate((step for *_, step in records), lambda time, step: max(0, time + step), initial=0)
    return [(key, value, time) for (key, value, _), time in zip(records, islice(times, 1, None), strict=True)]


def some_records(times: st.SearchStrategy[int], least: int = 0) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    return st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), times), min_size=least, max_size=14)


RECORDS = some_records(st.integers(0, 40)) | some_records(st.integers(-2, 5), 3).map(rising)


@pytest.mark.parametrize("program", [*PROGRAMS, *OF_TWO_SOURCES])
@given(RECORDS, st.integers(1, 5), st.integers(1, 8), st.booleans())
@settings(max_examples=examples(20))
def test_results_are_those_of_one_record_at_a_time(
    program: str, records: list[tuple[str, int, int]], most: int, commit_every: int, reopen: bool
) -> None:
    """Nodes behind it see the same times, places and punctuators, in the same order, whatever is held when."""
    expected = results(program, None, records, commit_every, reopen=False)
    assert results(program, most, records, commit_every, reopen=reopen) == expected


def test_a_timer_behind_a_batch_waits_for_the_records_that_one_in_front_has_forwarded() -> None:
    records = [("a", 1, 0), ("b", 1, 0), ("c", 1, 10)]
    expected = results(timers_in_front_and_behind, None, records, 8, reopen=False)
    assert results(timers_in_front_and_behind, 5, records, 8, reopen=False) == expected


@pytest.mark.parametrize("program", ["not all", "not all of either"])
def test_a_timer_behind_a_batch_is_called_when_a_record_that_does_not_reach_it_makes_it_due(program: str) -> None:
    records = [("a", 2, 0), ("b", 2, 1), ("c", 1, 5), ("d", 1, 7), ("e", 8, 10), ("f", 2, 20)]
    expected = results(program, None, records, 8, reopen=False)
    assert results(program, 50, records, 8, reopen=False) == expected


def test_a_timer_that_an_earlier_record_of_two_has_set_is_called_in_its_turn() -> None:
    def program(stream: Stream, score: Score) -> Stream:
        return score(stream.flat_map_values(lambda value: [value, value])).process(Delaying)

    records = [("b", 1, 2), ("a", 1, 7), ("a", 1, 11)]
    expected = results(program, None, records, 8, reopen=False)
    assert ("b", ["timer", 5], 5) in expected["out"]
    assert results(program, 50, records, 8, reopen=False) == expected


def run(
    write: Callable[[Stream], Stream], values: Iterable[Any], *, value_serde: Any = "json", **options: Any
) -> list[Any]:
    """Return the values that come out of `write(stream)`, with one commit at the end."""
    builder = StreamsBuilder()
    write(builder.stream("in")).to("out")
    application = Application("app", builder, value_serde=value_serde, **options)
    with TopologyTestDriver(application, commit_every=10_000) as driver:
        driver.pipe_many("in", [("k", value, 1) for value in values])
        return [record.value for record in driver.read_all("out")]


def calls_of(function: Callable[..., Any]) -> tuple[list[int], Callable[..., Any]]:
    """Return the lengths of batches, and a function that notes them."""
    lengths: list[int] = []

    def noting(*columns: Sequence[Any]) -> Any:
        lengths.append(len(columns[-1]))
        return function(*columns)

    return lengths, noting


def test_the_function_gets_up_to_max_records_and_what_is_left_before_a_commit() -> None:
    lengths, joined = calls_of(lambda keys, values: [f"{key}{value}" for key, value in zip(keys, values, strict=True)])

    def write(stream: Stream) -> Stream:
        return stream.map_values_batch(lambda keys, values: joined(keys, values), max_records=4, with_key=True)

    found = run(write, range(10))
    assert found == [f"k{number}" for number in range(10)] and lengths == [4, 4, 2]


def test_the_records_at_fault_are_found_and_meet_the_handler_with_where_they_were_read() -> None:
    def inverse(values: list[int]) -> list[float]:
        return [1 / value for value in values]

    builder = StreamsBuilder()
    builder.stream("in").map_values_batch(inverse, max_records=8).to("out")
    application = Application("app", builder, value_serde="json", processing_handler=DeadLetter("dead"))
    with TopologyTestDriver(application, commit_every=100) as driver:
        driver.pipe_many("in", [(str(number), number, number) for number in (4, 0, 2, 0, 1, 5)])
        assert [record.value for record in driver.read_all("out")] == [0.25, 0.5, 1.0, 0.2]
        letters = [(letter.key, letter.value, dict(letter.headers)) for letter in driver.read_all("dead")]
    found = [(key, value, headers["__streams.errors.offset"]) for key, value, headers in letters]
    assert found == [("0", 0, b"1"), ("0", 0, b"3")]


@pytest.mark.parametrize(
    ("made", "named"),
    [(lambda values: values[:1], "1 results"), (dict.fromkeys, "dict {"), (str, "str '\\["), (iter, "list_iterator"),
     (lambda values: numpy.array(1), "int 1"), (lambda values: None, "NoneType None")],
)  # fmt: skip
def test_a_function_that_returns_something_else_ends_the_run(made: Callable[[Any], Any], named: str) -> None:
    match = rf"node 'score'.*got 2 records and returned {named}.*No record is at fault"
    with pytest.raises(ProcessingError, match=match):
        run(lambda stream: stream.map_values_batch(lambda v: made(v), name="score"), [1, 2], processing_handler=skip)


@pytest.mark.parametrize("form", ["list", "numpy", "pandas", "arrow"])
def test_values_go_in_and_out_in_each_form(form: Any) -> None:
    kinds: list[type] = []

    def twice(values: Any) -> Any:
        kinds.append(type(values))
        return [2 * value for value in values] if form == "list" else make(values)

    compute: Any = pyarrow.compute
    make: Any = {
        "numpy": lambda values: values * 2, "pandas": lambda values: values * 2,
        "arrow": lambda values: compute.multiply(values, 2), "list": list,
    }[form]  # fmt: skip
    found = run(lambda stream: stream.map_values_batch(twice, as_=form), [1, 2, 3])
    assert found == [2, 4, 6] and {type(value) for value in found} == {int}
    assert kinds == [{"list": list, "numpy": numpy.ndarray, "pandas": pandas.Series, "arrow": pyarrow.Int64Array}[form]]


VALUES = st.one_of(
    st.integers(-(1 << 80), 1 << 80), st.floats(allow_nan=False), st.text("a\0é"), st.binary(), st.booleans(),
    st.none(), st.lists(st.integers(0, 9)), st.dictionaries(st.text(), st.integers(0, 9)),
)  # fmt: skip
OF_ONE_KIND = st.one_of(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), st.lists(st.binary()), st.lists(st.text("a\0é")),
    st.lists(st.booleans()), st.lists(st.floats(allow_nan=False)),
)  # fmt: skip


@given(st.lists(VALUES) | OF_ONE_KIND)
@settings(max_examples=examples(40))
def test_numpy_keeps_every_value(values: list[Any]) -> None:
    """numpy alone makes texts of 1 and "a", floats of integers, and cuts zero bytes."""
    kinds = {type(value) for value in values}
    found = run(lambda stream: stream.map_values_batch(lambda array: array, as_="numpy"), values, value_serde="msgpack")
    if kinds == {int, float} and all(abs(value) <= 1 << 53 for value in values if type(value) is int):
        # a column of numbers
        assert found == [float(value) for value in values]
    else:
        assert found == values and [type(each) for each in found] == [type(each) for each in values]


@pytest.mark.parametrize("form", ["numpy", "pandas"])
@pytest.mark.parametrize(
    "values",
    [[1, None], [(1 << 53) + 1, None], [0.5, None], [(1 << 53) + 1, 0.5], [True, 2], [True, None], ["a", None]],
)
def test_a_value_is_the_same_whatever_is_beside_it(form: Any, values: list[Any]) -> None:
    found = run(lambda stream: stream.map_values_batch(lambda column: column, as_=form), values, value_serde="msgpack")
    assert found == values and [type(each) for each in found] == [type(each) for each in values]


def test_records_do_not_share_a_result_or_a_value_that_is_changed_later() -> None:
    class Reusing(Processor):
        def process(self, record: Record) -> None:
            row: dict[str, Any] = {}
            for number in range(3):
                row["n"] = number
                self.context.forward(record.with_value(row))

    class Changing(Processor):
        def process(self, record: Record) -> None:
            record.value["n"] = [record.value["n"]]
            self.context.forward(record)

    def write(stream: Stream) -> Stream:
        return stream.process(Reusing).map_values_batch(lambda values: values)

    assert run(write, [1]) == [{"n": 0}, {"n": 1}, {"n": 2}]
    shared = {"n": 1}
    found = run(lambda stream: stream.map_values_batch(lambda values: [shared] * 2).process(Changing), [1, 2])
    assert found == [{"n": [1]}] * 2


MISTAKES: dict[str, tuple[Callable[[Any], Any], type[PenstockError], str]] = {
    "form": (lambda s: s.map_values_batch(list, as_="torch"), TopologyError, r"as_ is one of 'list', .*'torch'"),
    "number": (lambda s: s.map_values_batch(list, max_records=0), TopologyError, "max_records is a number .* found 0"),
    "wait": (lambda s: s.map_values_batch(list, max_wait="-1s"), ConfigError, "max_wait"),
    "arguments": (
        lambda s: s.map_values_batch(lambda keys, values: values), TopologyError, r"is called with \(values\)",
    ),
    "function": (lambda s: s.map_values_batch("n"), TopologyError, r"expected a function of \(values\), found 'n'"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_where_they_are_written(mistake: str) -> None:
    write, error, match = MISTAKES[mistake]
    with pytest.raises(error, match=match):
        write(StreamsBuilder().stream("in"))
