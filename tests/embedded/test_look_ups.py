"""Functions that wait, in real processes: a run to the end has all results, and a killed process loses none."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import Application, IncompatibleStateError, run
from penstock.plugins.dsl import KStream, StreamsBuilder
from penstock.plugins.engine.program.run_status import StatusTopic

from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .test_run import records


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 2, "out": 2})
        yield made


async def slowly(value: str) -> str:
    await asyncio.sleep(0.3)
    return value.upper()


def program(**options: Any) -> StreamsBuilder:
    builder = StreamsBuilder()
    looked_up: KStream[Any, str] = builder.stream("in", key_serde="str", value_serde="str").map_values_async(
        slowly, name="look", **options
    )
    looked_up.to("out", value_serde="str")
    return builder


def application(surroundings: Surroundings, processes: int, **options: Any) -> Application:
    return surroundings.application("app", program(**options), engine="embedded", processes=processes)


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_to_the_end_has_all_results(surroundings: Surroundings, processes: int) -> None:
    surroundings.put("in", records(20))
    summary = run(application(surroundings, processes, capacity=50, order="none"))
    assert sum(map(len, surroundings.values_by_key("out").values())) == 20 and summary.records_in == 20


def behind_what_holds_records(stream: KStream[str, str]) -> KStream[str, str]:
    """A record cache in front of calls, whose results reach another cache, which has calls behind it as well."""
    looked_up = stream.to_table("first").to_stream().map_values_async(slowly, name="look")
    batched = looked_up.map_values_batch(lambda values: [f"{value}!" for value in values], max_records=50)
    return batched.to_table("second").to_stream().map_values_async(slowly, name="again")


@pytest.mark.parametrize("is_repartitioned", [False, True])
def test_a_run_to_the_end_has_the_results_of_what_waits_for_the_commit(
    surroundings: Surroundings, is_repartitioned: bool
) -> None:
    """The last commit let a batch and the record caches go, and then nobody waited for the calls behind them."""
    builder = StreamsBuilder()
    stream: KStream[str, str] = builder.stream("in", key_serde="str", value_serde="str")
    found = behind_what_holds_records(stream.repartition("between") if is_repartitioned else stream)
    found.to("out", value_serde="str")
    surroundings.put("in", records(20))
    run(surroundings.application("app", builder, engine="embedded", state_serde="str"))
    last = {key: value[-1] for key, value in surroundings.values_by_key("out").items()}
    assert last == {key: f"{str(value).upper()}!" for key, value, *_ in records(20)}


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_hosts_that_are_killed_while_calls_are_under_way_lose_none(surroundings: Surroundings, trigger: str) -> None:
    """Each key's results come once, and in the order of its records, whenever a process was killed."""
    status, keys = StatusTopic(surroundings.log, "app"), 7
    sent: list[tuple[str, str, int]] = []

    def send(count: int) -> None:
        more = [(f"k{number % keys}", f"v{number}", number) for number in range(len(sent), len(sent) + count)]
        surroundings.put("in", more)
        sent.extend(more)

    def results() -> int:
        return sum(map(len, surroundings.values_by_key("out").values()))

    def processes() -> set[int]:
        found = status.read()
        return set() if found is None else {each.process for each in found.hosts if psutil.pid_exists(each.process)}

    made = application(surroundings, 2, capacity=5).with_settings(commit_interval="20ms")
    with made.start(trigger) as running:
        for _ in range(3):
            before = results()
            send(30)
            wait_until(lambda: len(processes()) == 2 and results() > before)  # noqa: B023
            os.kill(min(processes()), signal.SIGKILL)
        wait_until(lambda: results() >= len(sent) or running.state == "failed")
        summary = running.stop()
    assert summary.workers_lost >= 1
    expected: dict[str, list[str]] = {}
    for key, value, _ in sent:
        expected.setdefault(key, []).append(value.upper())
    assert surroundings.values_by_key("out") == expected


def test_a_program_without_the_verb_does_not_forget_records_in_flight(surroundings: Surroundings) -> None:
    async def never(value: str) -> str:
        await asyncio.sleep(3600)
        return value

    def named(function: Any, name: str) -> Application:
        builder = StreamsBuilder()
        looked_up = builder.stream("in").map_values_async(function, timeout="1h", name=name)
        looked_up.to("out")
        return surroundings.application("app", builder, engine="embedded")

    surroundings.put("in", records(3))
    with named(never, "look").start("continuous"):
        wait_until(
            lambda: (
                sum(each or 0 for each in surroundings.log.committed("app", surroundings.partitions("in")).values())
                == 3
            )
        )
    with pytest.raises(IncompatibleStateError, match="store 'look-pending' has records in flight .* stores drop"):
        run(named(slowly, "other"))
    run(named(slowly, "look"))
    assert sum(map(len, surroundings.values_by_key("out").values())) == 3
    run(named(slowly, "other"))  # nothing is in flight now
