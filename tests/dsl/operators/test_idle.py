"""Idle input: time goes on with the wall clock where nothing arrives, and not where records wait."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Application
from penstock.dsl import StreamsBuilder, tumbling
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
