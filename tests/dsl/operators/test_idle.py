"""Idle input: time goes on with the wall clock where nothing arrives, and not where records wait."""

from __future__ import annotations

from operator import add
from typing import Any

import pytest

from penstock import Application, TopologyError
from penstock.dsl import StreamsBuilder, sessions, tumbling
from penstock.plugins.dsl.graph.serdes import TimeWindowedSerde
from penstock.testing import TopologyTestDriver

SERDES: dict[str, Any] = {"key_serde": "str", "value_serde": "int"}


def chain(first_idle: str, second_idle: str, *, in_one_task: bool) -> StreamsBuilder:
    """Windows of counts behind windows of counts: how many keys a window had."""
    builder = StreamsBuilder()
    first = builder.stream("in").group_by_key()
    counts = first.windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle=first_idle).count("first").to_stream()
    again: Any
    if in_one_task:
        again = counts.group_by_key(key_serde=TimeWindowedSerde("str", 10_000), value_serde="int")
    else:
        again = counts.group_by(lambda key, n: "all", with_key=True, key_serde="str", value_serde="int", name="again")
    second = again.windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle=second_idle).count("second")
    second.to_stream(lambda window, n: window.start, with_key=True).to("out", key_serde="int")
    return builder


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("idle", [("20s", "20s"), ("20s", "5s"), ("5s", "60s")])
def test_a_window_behind_another_one_waits_for_its_results_after_one_big_step(
    idle: tuple[str, str], reopen: bool
) -> None:
    with TopologyTestDriver(
        Application("app", chain(*idle, in_one_task=False), **SERDES), reopen_tasks=reopen, partitions={"in": 2}
    ) as driver:
        for timestamp in 1_000, 12_000:
            for number in range(30):
                driver.pipe("in", f"{number}", number, timestamp=timestamp)
        for _ in range(2):  # the first window closes with the first step, and the other one when it was idle after that
            driver.advance_wall_clock("1d")
        assert [each[:2] for each in driver.read_all("out")] == [(0, 30), (10_000, 30)]
        assert driver.dropped_records() == 0


def test_of_two_windows_in_one_task_the_first_one_looks_first() -> None:
    with TopologyTestDriver(Application("app", chain("20s", "5s", in_one_task=True), **SERDES)) as driver:
        for timestamp in 1_000, 12_000:
            driver.pipe("in", "a", 1, timestamp=timestamp)
        driver.advance_wall_clock("1d")
        driver.advance_wall_clock("1d")
        assert [each[:2] for each in driver.read_all("out")] == [(0, 1), (10_000, 1)]
        assert driver.dropped_records() == 0


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("in_one_task", [False, True])
def test_a_window_behind_another_one_waits_for_what_it_has_just_read_after_a_stop(
    in_one_task: bool, reopen: bool
) -> None:
    """It had been silent during the stop, and closed by that before the first window sent what had waited: all late."""
    application = Application("app", chain("20s", "2m", in_one_task=in_one_task), **SERDES)
    with TopologyTestDriver(application, reopen_tasks=reopen, commit_every=9) as driver:
        driver.pipe("in", "a", 1, timestamp=1_000)
        for _ in range(2):
            driver.advance_wall_clock("30s")
        driver.pause()
        for timestamp in 120_000, 121_000:
            driver.pipe("in", "a", 1, timestamp=timestamp)
        driver.advance_wall_clock("1h")
        driver.resume()
        for _ in range(30):
            driver.advance_wall_clock("10s")
        assert [each[:2] for each in driver.read_all("out")] == [(0, 1), (120_000, 1)]
        assert driver.dropped_records() == 0


@pytest.mark.parametrize("moves", [False, True])
def test_what_a_window_in_front_gets_is_no_silence(moves: bool) -> None:
    """Also where the task is opened again between each record and the next look for silence."""
    with TopologyTestDriver(Application("app", chain("40s", "1m", in_one_task=True), **SERDES)) as driver:
        driver.pipe("in", "a", 1, timestamp=1_000)
        for number in range(20):
            driver.pipe("in", "a", 1, timestamp=12_000 + number)
            if moves:
                driver.move()
            driver.advance_wall_clock("10s")
        driver.pipe("in", "a", 1, timestamp=23_000)
        for _ in range(20):
            driver.advance_wall_clock("10s")
        assert [each[:2] for each in driver.read_all("out")] == [(0, 1), (10_000, 1), (20_000, 1)]
        assert driver.dropped_records() == 0


async def returned(value: Any) -> Any:
    return value


def windows(*, repartitioned: bool) -> StreamsBuilder:
    """Counts of each key in windows of 10 s; `repartitioned`: behind a repartition topic."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    grouped: Any = stream.group_by(lambda key, n: key, with_key=True, name="again") if repartitioned else None
    windowed = (grouped or stream.group_by_key()).windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle="20s")
    windowed.count("counts").to_stream(lambda window, n: window.key, with_key=True).to("out", key_serde="str")
    return builder


@pytest.mark.parametrize("repartitioned", [False, True])
def test_silence_is_that_of_a_partition_while_others_have_records(repartitioned: bool) -> None:
    """What has no stores holds nothing back, so what it reads breaks no silence behind it."""
    with TopologyTestDriver(Application("app", windows(repartitioned=repartitioned), **SERDES), partitions=2) as driver:
        driver.pipe("in", "a", 1, timestamp=1_000)
        for _ in range(10):
            driver.pipe("in", "d", 1, timestamp=1_000)  # of another partition
            driver.advance_wall_clock("5s")
        assert [each[:2] for each in driver.read_all("out")] == [("a", 1)]


@pytest.mark.parametrize("verb", ["on_close", "suppress", "suppress a filter", "suppress a cogroup"])
def test_a_session_that_closed_while_nothing_arrived_takes_no_record_more(verb: str) -> None:
    builder = StreamsBuilder()
    grouped, gap = builder.stream("in").group_by_key(), sessions("5s", grace="0s")
    counts: Any
    if verb == "on_close":
        counts = grouped.windowed_by(gap, emit="on_close", idle="1s").count("counts")
    elif verb == "suppress a cogroup":
        both = grouped.cogroup(add).cogroup(builder.stream("other").group_by_key(), add)
        sums = both.windowed_by(gap).aggregate(int, "counts", merger=add, value_serde="int")
        counts = sums.suppress("window_closes", idle="1s", name="wait")
    else:
        counts = grouped.windowed_by(gap).count("counts")
        if verb == "suppress a filter":
            counts = counts.filter(lambda n: n > 0)
        counts = counts.suppress("window_closes", idle="1s", name="wait")
    counts.to_stream(lambda window, n: window.start, with_key=True).to("out", key_serde="int", value_serde="int")
    with TopologyTestDriver(Application("app", builder, **SERDES)) as driver:
        driver.pipe("in", "a", 1, timestamp=10_000)
        driver.advance_wall_clock("8s")  # by its clock it is 17 s now
        assert [each[:2] for each in driver.read_all("out")] == [(10_000, 1)]
        for timestamp in 14_000, 30_000:  # 4 s after the record that was sent, and not late
            driver.pipe("in", "a", 1, timestamp=timestamp)
        assert [each[:2] for each in driver.read_all("out")] == [(14_000, 1)]
        assert driver.dropped_records() == 0


def test_after_a_pause_what_waits_is_read_before_windows_close() -> None:
    with TopologyTestDriver(Application("app", windows(repartitioned=False), **SERDES)) as driver:
        driver.pipe("in", "a", 1, timestamp=1_000)
        driver.pause()
        for _ in range(3):
            driver.pipe("in", "a", 1, timestamp=2_000)
        driver.advance_wall_clock("1d")
        driver.resume()
        driver.advance_wall_clock("1d")
        assert [each[:2] for each in driver.read_all("out")] == [("a", 4)]
        assert driver.dropped_records() == 0


@pytest.mark.parametrize("closing", ["suppressed", "windowed", "windowed behind a batch"])
def test_an_update_in_the_record_cache_above_is_no_silence(closing: str) -> None:
    """Silence was counted from the last commit: a window left without records that had been read in time."""
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    counts: Any
    if closing == "suppressed":
        windows = grouped.windowed_by(tumbling("10s", grace="0s")).count("counts")
        counts = windows.suppress("window_closes", idle="20s", name="wait").to_stream()
    else:
        updates = grouped.count("counts").to_stream()
        if closing == "windowed behind a batch":
            updates = updates.map_values_batch(lambda numbers: numbers, max_wait="1h")
        again = updates.group_by_key(value_serde="int")
        windowed = again.windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle="20s")
        counts = windowed.reduce(max, "highest").to_stream()
    counts.map(lambda window, n: (window.key, n), with_key=True).to("out", key_serde="str", value_serde="int")
    with TopologyTestDriver(Application("app", builder, **SERDES)) as driver:
        driver.pipe("in", "a", 1, timestamp=1_000)
        driver.pause()
        driver.pipe("in", "a", 1, timestamp=2_000)
        driver.advance_wall_clock("1d")
        driver.resume()  # what has been read, and is not committed, waits in the cache when it looks for silence
        driver.advance_wall_clock("1d")
        assert driver.read_pairs("out") == [("a", 2)]
        assert driver.dropped_records() == 0


def test_a_join_finds_a_window_as_it_has_left() -> None:
    """A record that came after a window had left was dropped below the table above, which had counted it."""
    builder = StreamsBuilder()
    left = builder.stream("in").group_by_key().windowed_by(tumbling("10s", grace="0s"), late="late").count("counts")
    right = builder.stream("other").group_by_key().windowed_by(tumbling("10s", grace="0s")).count("others")
    both = right.join(left.suppress("window_closes", idle="1s", name="wait"), lambda other, n: [other, n])
    both.to_stream(lambda window, n: window.start, with_key=True).to("out", key_serde="int", value_serde="json")
    with TopologyTestDriver(Application("app", builder, **SERDES), reopen_tasks=True) as driver:
        driver.pipe("in", "a", 1, timestamp=1_000)
        driver.advance_wall_clock("10s")
        driver.pipe("in", "a", 1, timestamp=2_000)
        driver.pipe("other", "a", 1, timestamp=3_000)
        assert driver.read_pairs("out") == [(0, [1, 1])]
        assert driver.read_pairs("late") == [("a", 1)]


def test_a_suppression_lets_the_windows_close_that_the_table_above_has_not_sent() -> None:
    builder = StreamsBuilder()
    closing = builder.stream("in").group_by_key().windowed_by(tumbling("10s", grace="0s"), emit="on_close")
    counts = closing.count("counts").suppress("window_closes", idle="1s", name="wait").to_stream()
    counts.map(lambda window, n: (window.start, n), with_key=True).to("out", key_serde="int", value_serde="int")
    with TopologyTestDriver(Application("app", builder, **SERDES)) as driver:
        for timestamp in 1_000, 11_000, 12_000:
            driver.pipe("in", "a", 1, timestamp=timestamp)
        driver.advance_wall_clock("1m")
        assert driver.read_pairs("out") == [(0, 1), (10_000, 2)]


@pytest.mark.parametrize("cache_bytes", [0, 100_000])
@pytest.mark.parametrize("windows", [sessions("5s", grace="0s"), tumbling("10s", grace="0s")])
def test_windows_that_a_suppression_closes_may_wait_in_a_record_cache(windows: Any, cache_bytes: int) -> None:
    """They were dropped as late: they came to the suppression after its time had moved. And before a record had closed
    the first window, nothing was closed."""
    builder = StreamsBuilder()
    closing = builder.stream("in").group_by_key().windowed_by(windows, emit="on_close", late="late").count("counts")
    counts = closing.filter(lambda n: n > 0, "kept").suppress("window_closes", idle="20s", name="wait").to_stream()
    counts.map(lambda window, n: (window.key, n), with_key=True).to("out", key_serde="str", value_serde="int")
    application = Application("app", builder, **SERDES, statestore_cache_max_bytes=cache_bytes)
    with TopologyTestDriver(application) as driver:
        driver.pipe("in", "a", 1, timestamp=3_000)
        driver.pipe("in", "b", 1, timestamp=4_000)
        driver.advance_wall_clock("19s")
        assert "out" not in driver.output_topics()
        driver.advance_wall_clock("2s")
        assert driver.read_pairs("out") == [("a", 1), ("b", 1)]
        driver.pipe("in", "b", 1, timestamp=4_500)
        driver.pipe("in", "a", 1, timestamp=30_000)
        driver.advance_wall_clock("1h")
        assert driver.read_pairs("out") == [("a", 1)]
        assert driver.read_pairs("late") == [("b", 1)]


def test_a_suppression_adds_no_idle_time_to_that_of_the_windows_in_front() -> None:
    builder = StreamsBuilder()
    closing = builder.stream("in").group_by_key().windowed_by(tumbling("1h", grace="0s"), emit="on_close", idle="20s")
    counts = closing.count("counts").suppress("window_closes", idle="20s", name="wait").to_stream()
    counts.map(lambda window, n: (window.start, n), with_key=True).to("out", key_serde="int", value_serde="int")
    with TopologyTestDriver(Application("app", builder, **SERDES)) as driver:
        driver.pipe("in", "a", 1, timestamp=0)
        for _ in range(59):
            driver.advance_wall_clock("1m")
        assert "out" not in driver.output_topics()
        driver.advance_wall_clock("2m")
        driver.advance_wall_clock("1h")
        assert driver.read_pairs("out") == [(0, 1)]


@pytest.mark.parametrize("windows", [sessions("5s", grace="0s"), tumbling("5s", grace="0s")])
def test_sessions_in_front_of_a_topic_are_not_suppressed_with_idle(windows: Any) -> None:
    """Their aggregation would not know that they have closed; windows of fixed times do not grow."""
    counts = StreamsBuilder().stream("in").group_by_key().windowed_by(windows).count("counts")
    again = counts.to_stream().repartition("again").to_table("table")
    again.suppress("window_closes", name="wait")
    if windows == sessions("5s", grace="0s"):
        with pytest.raises(TopologyError, match=r"in front of a topic, would not know that it has closed"):
            again.suppress("window_closes", idle="1s", name="silent")
    else:
        again.suppress("window_closes", idle="1s", name="silent")


@pytest.mark.parametrize("verb", ["on_close", "suppress"])
def test_a_record_in_flight_is_no_silence(verb: str) -> None:
    builder = StreamsBuilder()
    called = builder.stream("in").map_values_async(returned, name="call", timeout="10d", order="none")
    grouped, windows = called.group_by_key(value_serde="int"), tumbling("10s", grace="0s")
    counts: Any
    if verb == "on_close":
        counts = grouped.windowed_by(windows, emit="on_close", idle="20s").count("counts")
    else:
        counts = grouped.windowed_by(windows).count("counts").suppress("window_closes", idle="20s", name="wait")
    counts.to_stream(lambda window, n: window.key, with_key=True).to("out", key_serde="str", value_serde="int")
    with TopologyTestDriver(Application("app", builder, **SERDES), hold_calls=True) as driver:
        driver.pipe("in", "a", 1, timestamp=1_000)
        driver.calls[0].answer(1)
        driver.pipe("in", "a", 1, timestamp=2_000)
        driver.advance_wall_clock("50s")
        driver.calls[0].answer(1)
        driver.advance_wall_clock("10s")
        assert "out" not in driver.output_topics()
        driver.advance_wall_clock("1d")
        assert driver.read_pairs("out") == [("a", 2)]
        assert driver.dropped_records() == 0
