"""What an application does to Spark's Python workers, which other queries of the session use as well."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow
import pytest

from penstock.plugins.spark import worker
from penstock.plugins.spark.dataframe.packing import unpacked


def test_collections_after_tasks_leave_out_what_a_worker_keeps(spark: Any) -> None:
    """A full one runs after each task: it took 40 ms."""

    def freeze_count(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        assert list(unpacked(batches)) == []
        pool = pyarrow.default_memory_pool().backend_name
        yield pyarrow.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()], "pool": [pool]})

    empty = spark.createDataFrame([], "chunk binary").repartition(1)
    # Spark has a few workers, and takes any of them that waits.
    rows = [empty.mapInArrow(freeze_count, "frozen long, pool string").collect()[0] for _ in range(12)]
    assert max(row.frozen for row in rows) > 10_000
    assert {row.pool for row in rows} == {"system"}


def test_objects_are_frozen_before_tasks_that_are_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """So garbage that is missed for ever does not grow with the number of tasks."""
    frozen: list[int] = []
    monkeypatch.setattr(worker, "_tasks", 0)
    worker.begin_task()  # in no task
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: object())
    monkeypatch.setattr(worker, "use_system_allocator", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(worker._tasks))
    for _ in range(40):
        worker.begin_task()
    assert frozen == [2, 4, 8, 16, 32]


def test_the_environments_allocator_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(pyarrow, "set_memory_pool", chosen.append)
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "mimalloc")
    worker.use_system_allocator()
    assert chosen == []
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL")
    worker.use_system_allocator()
    assert [each.backend_name for each in chosen] == ["system"]
