"""A visit on a real broker: a kill of the task host in its middle costs nothing, and the status says how far it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.plugins.engine.program.run_status import StatusTopic, VisitOfRun
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..spark import visited
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .names import fresh_name

pytestmark = pytest.mark.broker


def test_a_kill_in_the_middle_of_a_visit_costs_nothing(broker: KafkaBroker, tmp_path: Path) -> None:
    name, killed = fresh_name("visited"), tmp_path / "killed"
    with Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as surroundings:
        visited.put_all(surroundings, f"{name}-")
        topology = visited.topology(f"{name}-", killed=str(killed), killed_at=visited.KEYS[20])
        app = surroundings.application(
            name, topology, engine="embedded", processes=1, changelog="topic:", commit_interval="100ms"
        )
        with app.start("continuous") as running:
            wait_until(lambda: visited.are_kept(surroundings, app, f"{name}-"))
            wait_until(visited.ask(surroundings, app, 1))
            assert running.state in ("running", "rebalancing")
        assert killed.exists()
        assert surroundings.values_by_key(f"{name}-out") == visited.answers(1)
        status = StatusTopic(surroundings.log, name).read()
        assert status is not None and status.workers_lost == 1
        assert status.visits == (VisitOfRun("keep.visit", 1, "over", tasks=2, done=2, visited=len(visited.KEYS)),)
