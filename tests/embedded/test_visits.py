"""Visits on the embedded engine: beside it, before it, by any trigger, and through a kill in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import run

from ..spark import visited
from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        visited.put_all(made)
        yield made


def test_each_key_is_visited_once_for_each_visit_by_any_trigger(surroundings: Surroundings) -> None:
    app = surroundings.application("app", visited.topology(), engine="embedded", commit_interval="10ms")
    run(app)
    visited.ask(surroundings, app, 1)  # before a run
    run(app, "available_now")
    assert surroundings.values_by_key("out") == visited.answers(1)
    for number, trigger in ((2, "continuous"), (3, "0s")):
        with app.start(trigger) as running:
            wait_until(lambda: running.state == "running")
            wait_until(visited.ask(surroundings, app, number))
        assert surroundings.values_by_key("out") == visited.answers(number)


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_a_kill_in_the_middle_of_a_visit_costs_nothing(
    surroundings: Surroundings, trigger: str, tmp_path: Path
) -> None:
    topology = visited.topology(killed=str(tmp_path / "killed"), killed_at=visited.KEYS[20])
    app = surroundings.application("app", topology, engine="embedded", processes=1, commit_interval="10ms")
    with app.start(trigger) as running:
        wait_until(lambda: visited.are_kept(surroundings, app))
        wait_until(visited.ask(surroundings, app, 1))
        assert running.state in ("running", "rebalancing")
    assert (tmp_path / "killed").exists()
    assert surroundings.values_by_key("out") == visited.answers(1)
