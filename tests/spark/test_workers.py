"""What an application does to Spark's Python workers, which other queries of the session use as well."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plugins.spark import worker
from penstock.plugins.spark.dataframe.packing import Unpacker, _binary


def test_collections_after_tasks_leave_out_what_a_worker_keeps(spark: Any) -> None:
    """A full one runs after each task: it took 40 ms."""

    unpacker = Unpacker()

    def freeze_count(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        assert list(unpacker(batches)) == []
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


def test_a_worker_without_pyarrow_has_the_systems_allocator_from_its_start() -> None:
    """Arrow reads the variable when it is imported: memory that it takes inside is then of the same allocator."""
    code = """
import sys
from penstock.plugins.spark import worker
assert "pyarrow" not in sys.modules
worker.use_system_allocator()
assert "pyarrow" not in sys.modules  # set_memory_pool would be for what Python asks for alone
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
    assert in_new_process(code) == "system"


def test_packing_bytes_does_not_import_pandas() -> None:
    """It takes 36 MB in each task host, which needs it for nothing else."""
    code = """
import sys
from penstock import OutputBatch, TopicPartition
from penstock.plugins.spark.dataframe.packing import Packer, Rows, Unpacker, packed, serialized
import pyarrow
batch = OutputBatch("out", [b"k", None], [None, b"v"], [1, 2], None)
(chunk,) = packed([batch], {})
(rows,) = pyarrow.ipc.open_stream(chunk)
times = rows.column("timestamp").cast(pyarrow.int64())
rows = pyarrow.RecordBatch.from_arrays([rows.column("key"), rows.column("value"), times], ["key", "value", "time"])
taken = Rows(TopicPartition("in", 0), [serialized(rows)], 0).take(2)
assert (taken.keys, taken.values, taken.timestamps) == ([b"k", None], [None, b"v"], [1, 2])
print("pandas" in sys.modules)
"""
    assert in_new_process(code) == "False"


def in_new_process(code: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@given(st.lists(st.none() | st.binary(max_size=9), max_size=40))
def test_cells_of_bytes_are_those_that_pyarrow_makes(cells: list[bytes | None]) -> None:
    array = _binary(cells)
    array.validate(full=True)
    assert array.equals(pyarrow.array(cells, pyarrow.binary()))


def test_the_environments_allocator_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(pyarrow, "set_memory_pool", chosen.append)
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "mimalloc")
    worker.use_system_allocator()
    assert chosen == []
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL")
    worker.use_system_allocator()
    assert [each.backend_name for each in chosen] == ["system"]
