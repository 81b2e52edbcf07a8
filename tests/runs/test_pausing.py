"""Pausing and resuming an application or a sub-topology: in batches and continuous, and in the test driver."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Application, ConfigError, Processor, Record, Topology, run
from penstock.plugins.engine.program.pausing import pause, read_paused, resume
from penstock.plugins.engine.task.notes import Paused
from penstock.testing import TopologyTestDriver

from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 2, "out": 2})
        yield made


def application(surroundings: Surroundings, **settings: Any) -> Application:
    """Return an application of two sub-topologies: the second counts by value what the first writes."""
    settings = {"engine": "embedded", "commit_interval": "10ms", **settings}
    return surroundings.application("app", apps.count_by_value(), **settings)


def records(count: int, since: int = 0) -> list[tuple[str | None, str | None, int]]:
    return [(f"k{number % 3}", f"v{number % 2}", number) for number in range(since, since + count)]


def written(surroundings: Surroundings, topic: str = "out") -> int:
    return sum(map(len, surroundings.read(topic).values()))


def between(surroundings: Surroundings) -> str:
    """Return the name of the repartition topic."""
    (found,) = [name for name, info in surroundings.log.topics().items() if info.internal and "repartition" in name]
    return found


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
@pytest.mark.parametrize("processes", [0, 1])
def test_a_paused_sub_topology_processes_nothing_and_loses_nothing(
    surroundings: Surroundings, trigger: str, processes: int
) -> None:
    surroundings.put("in", records(10))
    with application(surroundings, processes=processes).start(trigger) as running:
        wait_until(lambda: written(surroundings) == 10)
        running.pause(1)
        wait_until(lambda: running.paused == {1})
        surroundings.put("in", records(20, 10))
        wait_until(lambda: written(surroundings, between(surroundings)) == 30)
        wait_until(lambda: running.state == "running")
        assert written(surroundings) == 10
        running.resume()
        wait_until(lambda: written(surroundings) == 30)
        assert running.paused == frozenset()
    assert [len(values) for values in surroundings.values_by_key("out").values()] == [15, 15]


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
def test_a_pause_survives_restarts(surroundings: Surroundings, trigger: str) -> None:
    given = application(surroundings)
    surroundings.put("in", records(6))
    pause(given, surroundings.log)
    if trigger == "available_now":
        summary = run(given)
        assert (summary.records_in, summary.lag, summary.tasks) == (0, 6, 5)
    else:
        with given.start(trigger) as running:
            wait_until(lambda: running.state == "running" and running.paused == {0, 1})
        assert running.wait().records_in == 0
    resume(given, surroundings.log)
    assert run(given).lag == 0
    assert written(surroundings) == 6


def test_what_is_paused_is_a_note_in_the_log(surroundings: Surroundings) -> None:
    given = application(surroundings)
    now = partial(read_paused, "app", surroundings.log)
    assert now() == Paused(frozenset())
    pause(given, surroundings.log, [1])
    assert now().of(given) == {1}
    pause(given, surroundings.log)
    assert now() == Paused(None) and now().of(given) == {0, 1}
    pause(given, surroundings.log, [0])
    assert now() == Paused(None)
    resume(given, surroundings.log, [0])
    assert now().of(given) == {1}
    for change in (pause, resume):
        with pytest.raises(ConfigError, match="'app' has no sub-topology 2; it has 0, 1"):
            change(given, surroundings.log, [2])
    assert now().of(given) == {1}
    resume(given, surroundings.log)
    assert now() == Paused(frozenset())


class Rings(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10s", self.wall, WALL_CLOCK_TIME)
        context.schedule("10s", self.stream, STREAM_TIME)

    def wall(self, at: int) -> None:
        self.context.forward(Record("wall", str(at), at))

    def stream(self, at: int) -> None:
        self.context.forward(Record("stream", str(at), at))

    def process(self, record: Record) -> None:
        self.context.forward(record)


@pytest.mark.parametrize("reopen", [False, True])
def test_punctuators_of_a_paused_task_wait(reopen: bool) -> None:
    topology = Topology().add_source("in", "in").add_processor("rings", Rings, "in").add_sink("out", "out", "rings")
    with TopologyTestDriver(topology, reopen_tasks=reopen) as driver:
        driver.pipe("in", "a", "1", timestamp=0)
        driver.advance_wall_clock("10s")
        first = [record.key for record in driver.read_all("out")]
        assert first.count("wall") == 1
        driver.pause()
        driver.advance_wall_clock("60s")
        driver.pipe("in", "a", "2", timestamp=30_000)
        assert driver.read_all("out") == []
        driver.resume()
        found = [(record.key, record.value) for record in driver.read_all("out")]
        assert found.count(("a", "2")) == 1
        assert [key for key, _ in found].count("wall") == 1
        assert "stream" in [key for key, _ in found]


def test_a_paused_sub_topology_of_the_test_driver() -> None:
    with TopologyTestDriver(apps.count_by_value()) as driver:
        driver.pause(1)
        driver.pipe("in", "a", "x")
        assert driver.read_all("out") == []
        driver.resume(1)
        assert [record.key for record in driver.read_all("out")] == ["x"]
