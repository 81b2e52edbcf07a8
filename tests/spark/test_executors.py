"""SparkExecutors and LateExecutors: what the driver's JVM says of executors, and when they are worth a new start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.plugins.spark.placement import (
    DECOMMISSIONED,
    EXCLUDED,
    Executor,
    LateExecutors,
    SparkExecutors,
    expected_executors,
)


class FakeSpark:
    """A SparkContext in the JVM, as far as it is asked; a real one is in test_cluster.py."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.known: dict[str, tuple[int, bool]] = {}
        self.decommissioned: set[str] = set()
        self.ended: dict[str, str] = {}
        self.looks = self.details = 0
        self.now = 0.0
        self.look_takes = 0.0

    def add(self, executor: str, cores: int = 2) -> None:
        self.ids.append(executor)
        self.known[executor] = (cores, False)

    def getExecutorIds(self) -> Any:
        self.looks += 1
        self.now += self.look_takes
        return SimpleNamespace(mkString=lambda separator: separator.join(self.ids))

    def schedulerBackend(self) -> Any:
        pending = SimpleNamespace(size=lambda: len(self.decommissioned))
        return SimpleNamespace(executorsPendingDecommission=lambda: pending)

    def taskScheduler(self) -> Any:
        return SimpleNamespace(
            getExecutorDecommissionState=lambda each: SimpleNamespace(isDefined=lambda: each in self.decommissioned)
        )

    def statusStore(self) -> Any:
        self.details += 1
        return SimpleNamespace(executorList=self.executor_list)

    def executor_list(self, active_only: bool) -> Any:
        rows = [Summary(name, *each) for name, each in {"driver": (0, False), **self.known}.items()]
        if not active_only:
            rows += [Summary(name, 2, False, reason) for name, reason in self.ended.items()]
        return SimpleNamespace(size=lambda: len(rows), apply=lambda index: rows[index])


class Summary:
    def __init__(self, name: str, cores: int, is_excluded: bool, removed: str | None = None) -> None:
        self.id = lambda: name
        self.totalCores = lambda: cores
        self.isExcluded = lambda: is_excluded
        self.removeReason = lambda: SimpleNamespace(isDefined=lambda: removed is not None, get=lambda: removed)


@pytest.fixture
def spark() -> FakeSpark:
    return FakeSpark()


@pytest.fixture
def executors(spark: FakeSpark) -> SparkExecutors:
    context: Any = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark))
    return SparkExecutors(context, lambda: spark.now)


def look(executors: SparkExecutors, spark: FakeSpark) -> Any:
    spark.now += 2
    return executors.poll()


def test_only_changes_are_returned(executors: SparkExecutors, spark: FakeSpark) -> None:
    assert look(executors, spark) is None, "before the first executor"
    spark.add("0")
    spark.add("1", cores=4)
    assert look(executors, spark) == {"0": Executor(2), "1": Executor(4)}
    assert look(executors, spark) is None
    spark.ids.remove("0")
    assert look(executors, spark) == {"1": Executor(4)}
    spark.ids.remove("1")
    assert look(executors, spark) == {}, "the last one is gone"


def test_one_that_is_decommissioned_or_excluded_is_unfit(executors: SparkExecutors, spark: FakeSpark) -> None:
    spark.add("0")
    spark.add("1")
    look(executors, spark)
    spark.decommissioned.add("0")
    assert look(executors, spark) == {"0": Executor(2, DECOMMISSIONED), "1": Executor(2)}
    spark.known["1"] = (2, True)
    assert look(executors, spark) is None, (
        "it costs several calls, so it is asked only when a slot was placed elsewhere"
    )
    executors.look_closely()
    assert look(executors, spark) == {"0": Executor(2, DECOMMISSIONED), "1": Executor(2, EXCLUDED)}


def test_one_that_ended_between_two_looks_is_lost_unless_it_was_decommissioned(
    executors: SparkExecutors, spark: FakeSpark
) -> None:
    for each in "012":
        spark.add(each)
    look(executors, spark)
    spark.ended = {"0": "Executor decommission.", "1": "Command exited with code 137"}
    spark.ids = ["2"]
    assert look(executors, spark) == {"0": Executor(0, DECOMMISSIONED), "2": Executor(2)}
    executors.look_closely()
    assert look(executors, spark) == {"2": Executor(2)}, "once"


def test_an_executor_that_the_status_store_does_not_know_yet_is_waited_for(
    executors: SparkExecutors, spark: FakeSpark
) -> None:
    spark.ids.append("0")
    assert look(executors, spark) is None
    spark.known["0"] = (2, False)
    assert look(executors, spark) == {"0": Executor(2)}


def test_it_looks_once_a_second_and_rarely_where_a_look_takes_long(executors: SparkExecutors, spark: FakeSpark) -> None:
    spark.add("0")
    executors.poll()
    for _ in range(20):
        spark.now += 0.1
        executors.poll()
    assert spark.looks in (2, 3)
    assert spark.details == 1
    spark.look_takes = 0.015
    spark.now += 1
    executors.poll()
    before = spark.looks
    spark.now += 1.4
    executors.poll()
    assert spark.looks == before
    # On a busy machine a look may take seconds; the next one comes soon all the same.
    spark.look_takes = 3.0
    spark.now += 0.2
    executors.poll()
    assert spark.looks == before + 1
    spark.now += 1.9
    executors.poll()
    assert spark.looks == before + 1
    spark.now += 0.2
    executors.poll()
    assert spark.looks == before + 2


def test_late_executors_are_due_once_when_they_are_steady() -> None:
    now = [0.0]
    late = LateExecutors(lambda: now[0])
    assert not late.is_due()
    late.note({"0": Executor(2)})
    now[0] = 3
    late.note({"0": Executor(2), "1": Executor(2)})
    now[0] = 7
    assert not late.is_due(), "another one has come 4 seconds ago"
    late.note({"0": Executor(2), "1": Executor(2)})
    now[0] = 8
    assert late.is_due()
    assert not late.is_due(), "once for each change"


def test_each_new_start_doubles_how_long_they_must_be_steady() -> None:
    now = [0.0]
    late = LateExecutors(lambda: now[0])
    for count, seconds in enumerate((5, 10, 20, 40)):
        late.note({str(each): Executor(2) for each in range(count + 1)})
        now[0] += seconds - 1
        assert not late.is_due()
        now[0] += 1
        assert late.is_due()
        late.started_again()


def test_how_many_executors_are_expected() -> None:
    instances = {"spark.executor.instances": "4"}
    assert expected_executors("yarn", instances) == expected_executors("k8s://h", instances) == 4
    assert expected_executors("yarn", {}) == 0
    assert expected_executors("spark://m:7077", instances) == 0, "a standalone cluster starts as many as fit"
    pinned = {**instances, "spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "3"}
    assert expected_executors("yarn", pinned) == 3
