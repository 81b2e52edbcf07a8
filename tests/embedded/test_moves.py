"""An application moves between the embedded engine and Spark, with its local state, and counts each record once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import run

from ..spark import apps
from ..spark.surroundings import Surroundings
from .test_run import counts, records


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 4, "out": 4})
        yield made


@pytest.mark.spark
def test_from_one_engine_to_the_other_and_back(surroundings: Surroundings, spark: Any) -> None:
    given = surroundings.application("app", apps.count())
    for number, engine in enumerate(["embedded", "spark", "embedded", "spark"]):
        surroundings.put("in", records(140)[number * 35 : number * 35 + 35])
        options = {"session": spark} if engine == "spark" else {}
        summary = run(given, engine=engine, **options)
        assert (summary.records_in, summary.restored, summary.lag) == (35, 0, 0)  # local state is used, not restored
    assert surroundings.values_by_key("out") == counts(140)
