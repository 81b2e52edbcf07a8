"""Group keys: Spark's own hash agrees, and tasks are spread."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock import TaskId
from penstock.plugins.engine.run.slots import slot, slots
from penstock.plugins.spark.group_keys import group_key, slot_key, spark_hash

TASKS = [TaskId(subtopology, partition) for subtopology in range(4) for partition in range(40)]


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16, 200])
def test_keys_land_in_their_slots_and_differ(partitions: int) -> None:
    keys = [group_key(task, partitions) for task in TASKS]
    assert len(set(keys)) == len(TASKS)
    assert [spark_hash(key) % partitions for key in keys] == [slot(task, partitions) for task in TASKS]


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 16, 200])
def test_the_keys_of_slots_land_in_them(partitions: int) -> None:
    keys = [slot_key(number, partitions) for number in range(partitions)]
    assert [spark_hash(key) % partitions for key in keys] == list(range(partitions))


def test_slots_have_every_task_once() -> None:
    found = slots(map(str, TASKS), 7)
    assert sorted(found) == list(range(7))
    assert sorted(task for tasks in found.values() for task in tasks) == sorted(map(str, TASKS))
    assert all(slot(TaskId.parse(task), 7) == number for number, tasks in found.items() for task in tasks)


@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_tasks_are_spread_evenly(partitions: int) -> None:
    loads = Counter(slot(task, partitions) for task in TASKS)
    assert max(loads.values()) - min(loads[each] for each in range(partitions)) <= len(TASKS) // partitions // 10 + 4


def test_more_tasks_move_none() -> None:
    assert [group_key(task, 4) for task in TASKS[:10]] == [group_key(task, 4) for task in TASKS][:10]


@pytest.mark.spark
def test_spark_hashes_alike(spark: Any) -> None:
    values = [0, 1, -1, 42, 1 << 40, (1 << 63) - 1, -(1 << 63)]
    rows = spark.createDataFrame([(value,) for value in values], "value bigint").selectExpr("hash(value)").collect()
    assert [row[0] for row in rows] == [spark_hash(value) for value in values]
