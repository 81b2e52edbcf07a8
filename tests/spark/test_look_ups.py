"""Functions that wait, on real Spark: in batches, continuously, and in a pipeline of DataFrames."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock import run
from penstock.plugins.dsl import KStream, StreamsBuilder

from ..embedded.test_run import records
from .surroundings import Surroundings
from .test_hosts import fresh, running

pytestmark = pytest.mark.spark


async def slowly(value: str) -> str:
    await asyncio.sleep(0.3)
    return value.upper()


def program() -> StreamsBuilder:
    builder = StreamsBuilder()
    looked_up: KStream[Any, str] = builder.stream("in", key_serde="str", value_serde="str").map_values_async(
        slowly, name="look", order="none"
    )
    looked_up.to("out", value_serde="str")
    return builder


def test_a_run_to_the_end_has_all_results(tmp_path: Path, spark: Any) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        surroundings.put("in", records(20))
        run(surroundings.application(fresh("looking"), program()), "available_now", session=spark)
        assert sum(map(len, surroundings.values_by_key("out").values())) == 20


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_results_come_in_batches_and_between_them(tmp_path: Path, spark: Any, trigger: str) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 2})
        application = surroundings.application(fresh("looking"), program(), commit_interval="10ms")
        with running(application, spark, trigger) as made:
            for count in (20, 40):
                surroundings.put("in", records(20))
                made.wait(
                    lambda: sum(map(len, surroundings.values_by_key("out").values())) == count,  # noqa: B023
                    "the results",
                )
            made.stop()
        assert sum(map(len, surroundings.values_by_key("out").values())) == 40
