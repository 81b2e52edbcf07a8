"""A visit of an application on Spark, in batches and continuous, which each continues what the other has begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import visited
from .surroundings import Surroundings
from .test_hosts import fresh, running

pytestmark = pytest.mark.spark


def test_each_key_is_visited_once(tmp_path: Path, spark: Any) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        visited.put_all(surroundings)
        app = surroundings.application(fresh("visited"), visited.topology(), commit_interval="10ms")
        for number, trigger in ((1, "0s"), (2, "continuous")):
            with running(app, spark, trigger) as run:
                run.wait(lambda: visited.are_kept(surroundings, app), "the records")
                run.wait(visited.ask(surroundings, app, number), "the visit")
                run.stop()
            assert surroundings.values_by_key("out") == visited.answers(number)
