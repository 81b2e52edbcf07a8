"""The continuous mode on real Spark: records flow between batches, and whatever ends a host, each counts once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import ProcessingError
from penstock.plugins.engine.task.own_topics import HEARTBEATS
from penstock.plugins.spark import watching

from ..processes import is_alive
from ..rotation import by_turns
from ..waiting import wait_until
from . import apps
from .surroundings import Surroundings
from .test_hosts import fresh, hosts, running

pytestmark = pytest.mark.spark

KEYS = 20


def put(surroundings: Surroundings, count: int) -> None:
    surroundings.put("in", [(f"k{number % KEYS}", "v", number) for number in range(count)])


def counted(surroundings: Surroundings) -> int:
    return sum(map(len, surroundings.values_by_key("out").values()))


def test_hosts_work_between_batches_and_a_killed_one_is_replaced(tmp_path: Path, spark: Any) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 4, "out": 2})
        application = surroundings.application(fresh("flowing"), apps.count(), commit_interval="10ms")
        put(surroundings, 100)
        with running(application, spark, "continuous") as run:
            run.wait(lambda: counted(surroundings) == 100, "the first records")
            # The next batch is many seconds away.
            for sent in range(1, 11):
                put(surroundings, KEYS)
                run.wait(lambda: counted(surroundings) == 100 + sent * KEYS, "records between two batches")  # noqa: B023
            # Progress comes from heartbeats.
            # The message of the first batch may come after the first heartbeats.
            run.wait(lambda: (run.news[-1].records_in, run.news[-1].tasks) == (300, 4), "progress between two batches")
            last = run.news[-1]
            assert last.tasks == 4 and last.records_per_second > 0 and last.records_out_per_second > 0
            assert sum(each.records_in for news in run.news for each in news.reports) == 300
            run.wait(lambda: len(hosts(application.id)) == 2, "two hosts")
            victim = hosts(application.id)[0]
            victim.kill()
            put(surroundings, 100)
            run.wait(lambda: counted(surroundings) == 400, "the successor of a killed host")
            put(surroundings, 100)
            summary = run.stop()
        assert summary.stopped_by == "stop" and summary.lag == 0
        # What the killed host did after its last heartbeat was not reported. On a busy machine a host that starts may
        # be silent for so long that it counts as lost, too.
        assert summary.records_in <= 500 and summary.workers_lost >= 1
        assert sum(summary.openings.values()) >= 4
        for key, found in surroundings.values_by_key("out").items():
            assert found == [str(number) for number in range(1, len(found) + 1)], key
        assert counted(surroundings) == 500
        assert not is_alive(victim) and not hosts(application.id)
        # A run in batches takes the state from there.
        put(surroundings, KEYS)
        with running(application, spark, "0s") as run:
            run.wait(lambda: counted(surroundings) == 500 + KEYS, "batches after the continuous mode")
            assert run.stop().workers_lost == 0
        assert HEARTBEATS.of(application.id) in surroundings.log.topics()


@by_turns(1, 2)
def test_a_host_whose_tasks_are_stuck_is_replaced(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "STUCK_SECONDS", 2.0)
    flag = tmp_path / "flag"
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 4, "out": 2})
        topology = apps.count(partial(apps.LingersOnce, str(flag)))
        # Slots wait for no core of Spark's: there are more than it has.
        application = surroundings.application(fresh("stuck"), topology, commit_interval="10ms", parallelism=4)
        put(surroundings, 100)
        with running(application, spark, "continuous") as run:
            run.wait(lambda: counted(surroundings) == 100, "the first records")
            run.wait(lambda: len(hosts(application.id)) == 4, "a host for each slot")
            surroundings.put("in", [("k0", "linger", 1)])
            run.wait(flag.exists, "the record that takes for ever")
            victim = psutil.Process(int(flag.read_text()))
            put(surroundings, 100)
            run.wait(lambda: counted(surroundings) >= 150, "the tasks of other slots")
            run.wait(lambda: counted(surroundings) == 201, "the successor of the stuck host")
            summary = run.stop()
        assert summary.workers_lost >= 1 and summary.lag == 0 and not is_alive(victim)
        for key, found in surroundings.values_by_key("out").items():
            assert found == [str(number) for number in range(1, len(found) + 1)], key
        [said] = [each.getMessage() for each in caplog.records if "no turn" in each.getMessage()]
        assert "(task 0_" in said and "node 'count', in LingersOnce.process (apps.py, line " in said


def test_a_task_that_fails_ends_the_run_with_its_error(tmp_path: Path, spark: Any) -> None:
    with Surroundings(tmp_path / "data") as surroundings:
        surroundings.create(**{"in": 2, "out": 1})
        application = surroundings.application(fresh("poisoned"), apps.count(apps.Poisoned))
        surroundings.put("in", [("a", "good", 1)], 1)
        with running(application, spark, "continuous") as run:
            run.wait(lambda: counted(surroundings) == 1, "the first record")
            surroundings.put("in", [("b", "poison", 2)], 0)
            wait_until(lambda: run.error is not None, "the failure", 60)
            assert isinstance(run.error, ProcessingError) and "0_0" in str(run.error)
        assert not hosts(application.id)
