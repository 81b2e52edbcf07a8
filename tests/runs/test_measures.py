"""What runs measure: times of records and commits, punctuations, rows of stores, and the size of local state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    HISTOGRAM_BOUNDS,
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Processor,
    Record,
    SystemClock,
    Topology,
    key_value_store,
    run,
    skip,
)
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.engine.program.run_status import RunStatus, StatusTopic
from penstock.plugins.engine.task import commit
from penstock.plugins.engine.task.report import Histogram, added

from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 1, "out": 1})
        yield made


class Count(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1h", lambda at: None, STREAM_TIME)
        context.schedule("10ms", lambda at: None, WALL_CLOCK_TIME, start=0)

    def process(self, record: Record) -> None:
        store = self.context.get_store("counts")
        store.put(record.key, (store.get(record.key) or 0) + 1)


TOPOLOGY = Topology().add_source("in", "in").add_processor("count", Count, "in", stores=[key_value_store("counts")])


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
def test_what_a_run_measures(surroundings: Surroundings, trigger: str) -> None:
    now_ms = SystemClock().now_ms()
    # The last record is an hour behind the one before it, which is of ten minutes ago.
    times = [now_ms - 7_200_000] * 5 + [now_ms - 600_000] * 4 + [now_ms - 4_200_000]
    surroundings.put("in", [(f"k{number % 3}", "v", at) for number, at in enumerate(times)])
    given = surroundings.application("app", TOPOLOGY, engine="embedded")
    if trigger == "available_now":
        run(given)
    else:
        with given.start(trigger) as running:
            inputs = surroundings.partitions("in")
            wait_until(lambda: list(surroundings.log.committed("app", inputs).values()) == [10])
        running.wait()
    status = StatusTopic(surroundings.log, "app").read()
    assert isinstance(status, RunStatus) and status.records_in == 10
    assert counted(status, "latency") == counted(status, "lateness") == 10
    # One stretch of records: its last one stands for all.
    assert status.times["lateness"]["0"][0] == pytest.approx(10 * 3_600, rel=0.01)
    assert status.times["latency"]["0"][0] == pytest.approx(10 * 4_200, rel=0.05)
    assert counted(status, "commit") == status.commits > 0
    assert dict(status.store_changes) == {"counts": 3}
    gets, puts, reads, _ = status.store_calls["counts"]
    assert (gets, puts, reads) == (10, 10, 3)
    (task,) = status.tasks
    assert task.punctuations >= 1
    assert task.state_bytes is not None and task.state_bytes > 0
    # In continuous mode the run may be stopped before the first one.
    assert trigger == "continuous" or status.phases["punctuate"] >= 0


async def look_up(value: str) -> str:
    if value == "late":
        await asyncio.sleep(60)
    if value == "bad":
        raise ValueError(value)
    await asyncio.sleep(0.02)
    return value


def test_what_a_run_measures_of_calls(surroundings: Surroundings) -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values_async(look_up, timeout="100ms", name="look").to("out")
    surroundings.put("in", [("k", "good", 1), ("k", "bad", 2), ("j", "late", 3), ("i", "good", 4)])
    run(surroundings.application("app", builder, engine="embedded", processing_handler=skip))
    status = StatusTopic(surroundings.log, "app").read()
    assert isinstance(status, RunStatus)
    *results, seconds = status.calls["look"]
    assert results == [2, 1, 1]
    assert 0.14 <= seconds <= 60
    assert [task.in_flight for task in status.tasks] == [0]


def counted(status: RunStatus, name: str) -> float:
    return sum(status.times[name]["0"][1:])


SECONDS = st.lists(st.floats(-1, 1e5), max_size=20)


@given(SECONDS, SECONDS)
def test_histograms_add_up(one: Sequence[float], other: Sequence[float]) -> None:
    def data(seconds: Sequence[float]) -> list[float]:
        histogram = Histogram()
        for each in seconds:
            histogram.observe(each)
        found = histogram.take()
        assert histogram.take() == []
        return found

    found, together = added(data(one), data(other)), data([*one, *other])
    assert found[1:] == together[1:] and (found or [0.0])[0] == pytest.approx((together or [0.0])[0])
    for index, bound in enumerate(HISTOGRAM_BOUNDS):
        below = sum(each <= bound for each in [*one, *other])
        assert sum(found[1 : index + 2]) == below


def test_the_size_of_the_state_is_measured_beside_the_loop(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def measured(directory: Path) -> int:
        threads.append(threading.current_thread().name)
        return 4_096

    monkeypatch.setattr(commit, "disk_bytes", measured)
    surroundings.put("in", [("k", "v", 0)])
    with surroundings.application("app", TOPOLOGY, engine="embedded").start("continuous") as running:
        inputs = surroundings.partitions("in")
        wait_until(lambda: list(surroundings.log.committed("app", inputs).values()) == [1])
    running.wait()
    assert threads and not any(each.startswith("penstock-tasks") for each in threads)
