"""Verbs whose functions may wait: the results of those that do not, whenever the calls return."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    ConfigError,
    DeadLetter,
    ProcessingError,
    Processor,
    Record,
    Retry,
    TopologyError,
    key_value_store,
    skip,
)
from penstock.plugins.dsl import KStream, StreamsBuilder, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples
from .test_batch import closed, repartitioned, ringing, windows

Stream = KStream[Any, Any]
Program = Callable[[Stream], Stream]


def alone(stream: Stream) -> Stream:
    return stream


def table(stream: Stream) -> Stream:
    return stream.to_table("latest", cached=False).map_values(lambda value: [*value, "t"]).to_stream()


def behind_a_batch(stream: Stream) -> Stream:
    return windows(stream.map_values_batch(lambda values: [[*value, "b"] for value in values], max_records=3))


def expiring_sums(stream: Stream) -> Stream:
    """What has expired for the task has not for a node behind records in flight."""
    summed = stream.group_by_key().aggregate(
        lambda: 0, lambda total, value: total + value[0], "sums", value_serde="int", ttl="6ms", ttl_clock=STREAM_TIME,
        cached=False,
    )  # fmt: skip
    return summed.to_stream().map_values(lambda total: [total, "of"])


class Latest(Processor):
    """Forwards what its store has of the key, and how many rows it has, which expire after some ms."""

    def process(self, record: Record) -> None:
        latest = self.context.get_store("latest")
        before = latest.get(record.key)
        latest.put(record.key, record.value[0])
        self.context.forward(record.with_value([*record.value, before, len(list(latest.all()))]))


def expiring(stream: Stream) -> Stream:
    return stream.process(Latest, stores=[key_value_store("latest", ttl="8ms")])


def behind_another(stream: Stream) -> Stream:
    return ringing(stream.map_values_async(lambda value: value, name="again", order="none"))


PROGRAMS: dict[str, Program] = {
    "alone": alone, "processor": ringing, "windows": windows, "closed windows": closed, "table": table,
    "repartition": repartitioned, "batch and windows": behind_a_batch, "rows that expire": expiring,
    "another call": behind_another,
}  # fmt: skip
IN_ORDER = {
    "processor", "windows", "closed windows", "table", "batch and windows", "rows that expire", "another call",
}  # fmt: skip
"""Programs with a node that reads time behind the calls, in the same task."""


def doubled(value: int) -> list[Any]:
    return [2 * value, "of", value]


async def later(value: int) -> list[Any]:
    await asyncio.sleep(0)
    return doubled(value)


class Lost(Exception):
    pass


def lost(value: int) -> list[Any]:
    if value > 7:
        raise Lost(value)
    return doubled(value)


async def lost_later(value: int) -> list[Any]:
    await asyncio.sleep(0)
    return lost(value)


Rows = list[tuple[Any, Any, int]]


def rows_of(driver: TopologyTestDriver) -> Rows:
    return [(record.key, record.value, record.timestamp) for record in driver.read_all("out")]


SETTINGS: dict[str, Any] = {"value_serde": "json", "statestore_cache_max_bytes": 0, "processing_handler": skip}


def results_at_once(program: Program, records: Sequence[tuple[Any, ...]], *, fails: bool) -> Rows:
    builder = StreamsBuilder()
    program(builder.stream("in", value_serde="int").map_values(lost if fails else doubled)).to("out")
    with TopologyTestDriver(Application("app", builder, **SETTINGS)) as driver:
        driver.pipe_many("in", records)
        return rows_of(driver)


def results_later(
    program: Program, records: Sequence[tuple[Any, ...]], choices: Sequence[int], *, is_async: bool, fails: bool,
    commit_every: int, in_front: int, **options: Any,
) -> Rows:  # fmt: skip
    """Pipe records, and answer a call, in an order that `choices` say; if the first is 0, calls return at once.

    `in_front`: the size of batches in front, or 0.
    """
    builder = StreamsBuilder()
    at_once, in_a_while = (lost, lost_later) if fails else (doubled, later)
    stream: Stream = builder.stream("in", value_serde="int")
    if in_front:
        stream = stream.map_values_batch(list, max_records=in_front)
    looked_up = stream.map_values_async(in_a_while if is_async else at_once, name="look", **options)
    program(looked_up).to("out")
    application = Application("app", builder, **SETTINGS)
    with TopologyTestDriver(application, hold_calls=choices[0] != 0, commit_every=commit_every) as driver:
        left, turns = list(records), count()
        while left or driver.calls:
            choice = choices[next(turns) % len(choices)]
            calls = driver.calls
            if left and (choice % 3 == 0 or not calls):
                some, left = left[: 1 + choice % 4], left[1 + choice % 4 :]
                driver.pipe_many("in", some)
            elif calls:
                # A restart forgets a result that waits for its turn: the first one goes on in any case.
                calls[0 if choice > 7 else choice % len(calls)].run()
            if choice > 7:
                driver.move() if choice == 8 else driver.reopen()
                driver.advance_wall_clock("0ms")
        return rows_of(driver)


def records_of(rows: Rows) -> list[str]:
    """Key, result and time of each record, without what depends on the order of those of other keys."""
    return sorted(repr((key, value[:3], time)) for key, value, time in rows if "of" in value)


def by_key(rows: Rows) -> dict[Any, Rows]:
    found: dict[Any, Rows] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return found


RECORDS = st.lists(st.tuples(st.sampled_from([None, "", "a", "b"]), st.integers(0, 9), st.integers(0, 40)), max_size=12)


@pytest.mark.parametrize("program", PROGRAMS)
@given(
    RECORDS, st.lists(st.integers(0, 9), min_size=1, max_size=12), st.booleans(), st.booleans(),
    st.sampled_from(["key", "partition", "none"]), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4),
    st.sampled_from([0, 0, 2, 3]),
)  # fmt: skip
@example(  # a restart when all records have left the first call, and none the second one
    records=[("", 0, 0), ("a", 0, 0), ("", 0, 0)], choices=[1, 1, 8, 0, 0, 0], is_async=False, fails=False, order="key",
    capacity=2, max_pending=2, commit_every=1, in_front=0,
)  # fmt: skip
@example(  # a restart while a record whose call failed waits for its turn
    records=[("", 9, 34), ("b", 9, 37), ("", 6, 19), ("a", 0, 31)], choices=[1, 0, 7, 9, 0, 0, 0, 5], is_async=False,
    fails=True, order="partition", capacity=2, max_pending=3, commit_every=2, in_front=0,
)  # fmt: skip
@settings(max_examples=examples(25))
def test_results_are_those_of_the_verb_that_does_not_wait(
    program: str, records: list[tuple[Any, int, int]], choices: list[int], is_async: bool, fails: bool, order: Any,
    capacity: int, max_pending: int, commit_every: int, in_front: int,
) -> None:  # fmt: skip
    """Whatever call returns or fails, over restarts and moves: in order where a node behind reads time, or by key."""
    if program in IN_ORDER:
        records = [each for each in records if each[0] is not None]
    fails &= program != "another call"  # the second one does not get what the first one drops, nor its time
    expected = results_at_once(PROGRAMS[program], records, fails=fails)
    made = results_later(
        PROGRAMS[program], records, choices, is_async=is_async, fails=fails, order=order, capacity=capacity,
        max_pending=max_pending, commit_every=commit_every, in_front=in_front,
    )  # fmt: skip
    if program in IN_ORDER or (program == "alone" and order == "partition"):
        assert made == expected
    elif order == "key" and program == "alone":
        assert by_key(made) == by_key(expected)
    elif program == "alone":
        assert sorted(map(repr, made)) == sorted(map(repr, expected))
    else:
        assert records_of(made) == records_of(expected)


def opened(function: Any, *, to: Callable[[Stream], Stream] = alone, hold_calls: bool = True, **given: Any) -> Any:
    options = {name: given.pop(name) for name in [*given] if name in ("order", "retries", "capacity", "timeout")}
    builder = StreamsBuilder()
    looked_up = builder.stream("in", key_serde="str", value_serde="int").map_values_async(
        function, name="look", **options
    )
    to(looked_up).to("out")
    return TopologyTestDriver(Application("app", builder, value_serde="json", **given), hold_calls=hold_calls)


def test_nodes_behind_have_what_had_not_expired_when_their_record_arrived() -> None:
    """Stores free expired entries at commits, by the stream time that these nodes know, which may be behind."""
    with opened(doubled, to=expiring_sums) as driver:
        driver.pipe_all("in", [("a", 1, 0), ("a", 2, 3), ("b", 3, 60)])
        for _ in range(3):
            driver.calls[0].run()
            driver.reopen()
            driver.advance_wall_clock("0ms")
        assert {record.key: record.value[0] for record in driver.read_all("out")} == {"a": 6, "b": 6}


def test_a_key_has_one_call_at_a_time_and_others_go_on() -> None:
    with opened(doubled, capacity=2) as driver:
        driver.pipe_all("in", [("a", 1), ("a", 2), ("b", 3), ("c", 4)])
        first, of_b = driver.calls
        assert (first.arguments, of_b.arguments) == ((1,), (3,))
        of_b.answer("three")
        assert [call.arguments for call in driver.calls] == [(1,), (4,)]
        first.answer("one")
        assert [call.arguments for call in driver.calls] == [(4,), (2,)]
        assert [(record.key, record.value) for record in driver.read_all("out")] == [("b", "three"), ("a", "one")]


def test_a_call_that_fails_is_made_again_after_the_delay_while_others_go_on() -> None:
    with opened(doubled, retries=Retry(2, "1s", then=skip)) as driver:
        driver.pipe_all("in", [("a", 1, 5), ("a", 2, 6), ("b", 3, 7)])
        first, other = driver.calls
        first.fail(Lost("away"))
        other.answer("three")
        driver.pipe("in", "b", 4)
        assert [call.arguments for call in driver.calls] == [(4,)]
        driver.advance_wall_clock("1s")
        assert [call.arguments for call in driver.calls] == [(4,), (1,)]
        driver.reopen()
        driver.advance_wall_clock("0ms")
        assert {call.arguments for call in driver.calls} == {(4,), (1,)}
        for _ in range(2):
            again = next(call for call in driver.calls if call.arguments == (1,))
            again.fail(TimeoutError())
            driver.advance_wall_clock("1s")
        assert [call.arguments for call in driver.calls] == [(4,), (2,)], "the second retry was the last one"
        assert driver.dropped_records() == 1


def test_a_dead_letter_has_the_source_record_also_after_a_restart() -> None:
    with opened(doubled, processing_handler=DeadLetter("letters")) as driver:
        driver.pipe("in", "a", 1, 5, (("trace", b"7"),))
        driver.move()
        driver.advance_wall_clock("0ms")
        (call,) = driver.calls
        call.fail(Lost("away"))
        (letter,) = driver.output_topic("letters", key_serde="str", value_serde="int").read_all()
        assert (letter.key, letter.value) == ("a", 1) and ("trace", b"7") in letter.headers
        assert driver.calls == []


def test_a_failure_behind_it_is_retried_as_often_as_the_handler_says() -> None:
    tries = []

    def failing(stream: Stream) -> Stream:
        def fail(value: Any) -> Any:
            tries.append(value)
            raise Lost(value)

        return stream.map_values(fail)

    with opened(doubled, to=failing, processing_handler=Retry(3, "1s", then=skip)) as driver:
        driver.pipe("in", "a", 1)
        driver.pipe("in", "b", 2)
        for _ in range(4):
            next(call for call in driver.calls if call.arguments == (1,)).answer("one")
        assert [call.arguments for call in driver.calls] == [(2,)]
        assert tries == ["one"] * 4


def test_a_value_that_could_not_be_stored_is_refused_on_arrival() -> None:
    builder = StreamsBuilder()
    strange = builder.stream("in", key_serde="str", value_serde="int").map_values(lambda value: object())
    strange.map_values_async(str, name="look").to("out", value_serde="str")
    with (
        TopologyTestDriver(builder, hold_calls=True) as driver,
        pytest.raises(ProcessingError, match="node 'look'.*object"),
    ):
        driver.pipe("in", "a", 1)


def test_what_a_function_does_to_its_value_is_not_stored() -> None:
    def changing(value: Any) -> Any:
        value.append("changed")
        raise Lost

    builder = StreamsBuilder()
    builder.stream("in", key_serde="str", value_serde="json").map_values_async(
        changing, name="look", retries=Retry(9, "1s")
    ).to("out", value_serde="json")
    with TopologyTestDriver(builder, hold_calls=True) as driver:
        driver.pipe("in", "a", [1])
        driver.calls[0].run()
        driver.reopen()
        driver.advance_wall_clock("5s")
        assert driver.calls[0].arguments == ([1],)


def test_the_other_verbs() -> None:
    async def is_odd(value: int) -> bool:
        return value % 2 == 1

    def both(key: str, value: int) -> Any:
        yield key
        yield value

    seen: list[int] = []
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde="str", value_serde="int")
    stream.filter_async(is_odd, name="odd").to("odd")
    stream.flat_map_values_async(both, with_key=True, name="both").to("both", value_serde="json")
    stream.foreach_async(seen.append, name="each")
    with TopologyTestDriver(builder) as driver:
        driver.pipe_all("in", [("a", 1), ("b", 2), ("c", 3)])
        assert [record.value for record in driver.read_all("odd")] == [1, 3]
        assert [record.value for record in driver.read_all("both")] == ["a", 1, "b", 2, "c", 3]
        assert seen == [1, 2, 3]


async def generated(value: Any) -> Any:
    yield value


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (later, {"capacity": 0}, "map_values_async: capacity is a number from 1 on, found 0"),
        (later, {"max_pending": "many"}, "max_pending is a number from 1 on, found 'many'"),
        (later, {"timeout": "0ms"}, "timeout='0ms': expected 1ms or longer"),
        (later, {"order": "keys"}, "order is one of 'key', 'partition', 'none', found 'keys'"),
        (later, {"retries": 3}, r"retries is an error handler such as Retry\(\), found 3"),
        (later, {"with_key": True}, r"its function is called with \(key, value\)"),
        (generated, {}, "its function is an async generator"),
        ("look", {}, "expected a function of"),
    ],
)
def test_wrong_options_are_refused(function: Any, options: Any, said: str) -> None:
    with pytest.raises((TopologyError, ConfigError), match=said):
        StreamsBuilder().stream("in").map_values_async(function, **options)


@pytest.mark.parametrize("verb", ["map_values", "flat_map_values", "filter", "foreach"])
def test_a_verb_that_does_not_wait_names_the_one_that_does(verb: str) -> None:
    with pytest.raises(TopologyError, match=rf"Use {verb}_async\(...\), which awaits it"):
        getattr(StreamsBuilder().stream("in"), verb)(later)


def test_a_dead_letter_of_its_own_handler_has_the_source_record_behind_a_record_cache() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", key_serde="str", value_serde="int").group_by_key().count("counts").to_stream()
    counts.map_values_async(doubled, name="look", retries=DeadLetter("letters")).to("out", value_serde="json")
    with TopologyTestDriver(builder, hold_calls=True) as driver:
        driver.pipe("in", "a", 7)
        driver.calls[0].fail(Lost("away"))
        (letter,) = driver.output_topic("letters", key_serde="str", value_serde="int").read_all()
        assert (letter.key, letter.value) == ("a", 7)


@pytest.mark.parametrize("hold_calls", [False, True])
def test_calls_behind_batches_and_record_caches_are_made_before_the_driver_returns(hold_calls: bool) -> None:
    """They were let go by the commit, and the calls behind them had results when the next record was piped."""
    builder = StreamsBuilder()
    doubled_twice: Stream = builder.stream("in", key_serde="str", value_serde="int").to_table("latest").to_stream()
    for name in ("once", "twice"):
        looked_up = doubled_twice.map_values_batch(list, max_records=5).map_values_async(doubled, name=name)
        doubled_twice = looked_up.map_values(lambda value: value[0], name=f"of-{name}")
    doubled_twice.to("out", value_serde="int")
    with TopologyTestDriver(builder, hold_calls=hold_calls, commit_every=100) as driver:
        driver.pipe_many("in", [("a", 3, 0), ("b", 4, 1), ("a", 5, 2)])
        while driver.calls:
            driver.calls[0].run()
        assert driver.read_pairs("out") == [("b", 16), ("a", 20)]


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_record_in_flight_is_no_silence(is_behind: bool) -> None:
    def windowed(stream: Stream) -> Stream:
        if is_behind:
            stream = stream.repartition("again", value_serde="json")
        windows = stream.group_by_key(value_serde="json").windowed_by(
            tumbling("1s", grace="0s"), emit="on_close", idle="1s", late="late"
        )
        return windows.count("counts").to_stream(lambda key, value: key.key, with_key=True)

    with opened(doubled, to=windowed, order="none") as driver:
        driver.pipe_all("in", [("a", 1, 5), ("a", 2, 6)])
        driver.calls[0].answer("one")
        driver.advance_wall_clock("10s")
        driver.reopen()
        driver.advance_wall_clock("10s")
        assert driver.read_all("out") == []
        driver.calls[0].answer("two")
        driver.advance_wall_clock("10s")
        assert ([record.value for record in driver.read_all("out")], driver.read_all("late")) == ([2], [])


def test_rows_that_expire_stay_for_the_records_in_flight_that_are_earlier() -> None:
    """A commit freed them by the time of records that had not been handed on: the second "a" was no duplicate."""
    with opened(doubled, to=lambda stream: stream.process("contrib.dedupe", window="10ms")) as driver:
        driver.pipe("in", "a", 1, 0)
        driver.calls[0].answer("first")
        driver.pipe_all("in", [("a", 2, 5), ("b", 3, 60_000)])
        driver.move()
        driver.advance_wall_clock("0ms")
        for call in driver.calls:
            call.answer(call.arguments)
        assert [record.value for record in driver.read_all("out")] == ["first", [3]]


class Telling(Processor):
    """Forwards each record, and at times of the wall clock a record, with the stream time that it is told."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1s", self.tell, WALL_CLOCK_TIME)

    def tell(self, at: int) -> None:
        self.process(Record("clock", None, 0))

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(self.context.current_stream_time_ms()))


@pytest.mark.parametrize("is_cached", [False, True])
def test_nodes_behind_are_told_the_time_of_the_last_result_over_a_restart_and_by_a_cache(is_cached: bool) -> None:
    def told(stream: Stream) -> Stream:
        if is_cached:
            stream = stream.to_table("latest", cached=True).to_stream()
        return stream.process(Telling)

    with opened(doubled, to=told) as driver:
        driver.pipe("in", "a", 1, 5)
        driver.advance_wall_clock("1s")
        driver.calls[0].answer([1])
        driver.pipe_all("in", [("a", 2, 7), ("b", 3, 60_000)])
        driver.calls[0].answer([2])
        driver.move()
        driver.advance_wall_clock("1s")
        for call in driver.calls:
            call.answer([3])
        driver.move()
        driver.pipe("in", "a", 4, 60_000)
        driver.advance_wall_clock("1s")
        told_times = [(record.key, record.value) for record in driver.read_all("out")]
    assert told_times == [("clock", -1), ("a", 5), ("a", 7), ("clock", 7), ("b", 60_000), ("clock", 60_000)]


def test_a_record_that_is_dropped_before_its_turn_moves_the_time_at_its_turn() -> None:
    """The punctuator was called at the time of a later record, and the record before it came after it."""
    with opened(doubled, to=ringing, processing_handler=DeadLetter("letters")) as driver:
        driver.pipe_all("in", [("a", 1, 5), ("b", 2, 60_000), ("a", 3, 60_000)])
        first, other = driver.calls
        other.fail(Lost("away"))
        driver.pipe("in", "b", 4, 60_000)
        first.answer([4])
        told = [(record.key, record.timestamp, record.value[-2:]) for record in driver.read_all("out")]
        assert told == [
            ("a", 5, [5, 0]),
            ("rang", 5, [5, 5]),
            ("rang", 60_000, [60_000, 60_000]),
            ("a", 9, [9, 60_000]),
        ]
        driver.reopen()
        driver.advance_wall_clock("0ms")
        assert {call.arguments for call in driver.calls} == {(3,), (4,)}
        assert len(driver.output_topic("letters", key_serde="str", value_serde="int").read_all()) == 1
