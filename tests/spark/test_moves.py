"""Changes of the trigger and of the number of slots, and of who runs a task, on real Spark: results are those of an
undisturbed run."""

from __future__ import annotations

from typing import Any

import pytest

from ..rotation import by_turns
from . import apps
from .moves import TRIGGERS, check_moves
from .surroundings import Surroundings
from .test_hosts import fresh, running

pytestmark = pytest.mark.spark


@by_turns(0, 2)
def test_moves_between_triggers_and_slots(surroundings: Surroundings, spark: Any) -> None:
    check_moves(surroundings, spark, TRIGGERS, fresh("moving"))


def test_tasks_that_another_process_took_come_back(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 4, "out": 1})
    application = surroundings.application(fresh("taken"), apps.count(), commit_interval="10ms")
    tasks = surroundings.partitions("in")
    with running(application, spark, "continuous") as one:
        for count in (1, 2):
            for partition in tasks:
                surroundings.put("in", [(f"k{partition.partition}", "v", count)], partition.partition)
            expected = {f"k{each.partition}": ["1", "2"][:count] for each in tasks}
            one.wait(lambda: surroundings.values_by_key("out") == expected, "all records")  # noqa: B023
            for partition in tasks:
                surroundings.log.open_committer(application.id, f"0_{partition.partition}", [partition]).close()
        one.stop()
