"""The Python Data Source `penstock`: its rows have the end offsets of each slot's tasks; no record passes through it.

Spark makes the source, plans batches, prepares the reading, and reads in a process each, started one after the other.
Only the one that plans batches imports penstock, which takes as long as starting Python.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

from penstock.support.packages import needed

from .sessions import SPARK

with needed(SPARK):
    from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.plugins.engine.run.planning.planner import Offset

    from .planning import Planning

NAME = "penstock"
SCHEMA = "group bigint, plan string"


_sending = Lock()
"""One thread at a time: whether a module is sent by value is one setting for all threads."""


def register(session: SparkSession) -> None:
    """Let a session know the source."""
    with sent_by_value():
        session.dataSource.register(PenstockDataSource)


@contextmanager
def sent_by_value() -> Iterator[None]:
    """Let the block pickle the classes of this module as a whole: who loads them need not import penstock."""
    module = sys.modules[__name__]
    with _sending:
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


class PenstockDataSource(DataSource):
    """Plans the batches of an application. The option `control` is the directory of its control files."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        """Return the columns: the group key of a slot, and its `SlotPlan` as JSON."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader; Spark calls this on the driver's host."""
        return PenstockStreamReader(self.options["control"])


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's view of a planner.

    Spark makes one for planning, in a process of its own on the driver's host, and others that only `read`.
    """

    def __init__(self, control: str) -> None:
        self._directory = control
        self._planning_or_none: Planning | None = None

    @property
    def _planning(self) -> Planning:
        if self._planning_or_none is None:
            from .planning import Planning

            self._planning_or_none = Planning(self._directory)
        return self._planning_or_none

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the setting `max_records_per_batch`."""
        limit = self._planning.max_records()
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends up to which source topics are read."""
        self._planning.drain_only()

    def initialOffset(self) -> Offset:
        """Return the offset before the first batch of a new checkpoint."""
        return self._planning.first()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan the next batch; return `start` when there is nothing to do."""
        return self._planning.next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> Offset:
        """Return the end offsets of the last batch's partitions."""
        return self._planning.latest()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the batch's rows, one a slot, as one partition."""
        return [InputPartition(self._planning.rows(end))]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows; Spark calls this in a worker.

        They are made of buffers: to make Arrow's arrays of Python's objects, PyArrow would import pandas first.
        """
        import pyarrow

        groups, plans = zip(*partition.value, strict=True)
        texts = [plan.encode() for plan in plans]
        ends = array("i", accumulate(map(len, texts), initial=0))
        buffers = [None, pyarrow.py_buffer(ends.tobytes()), pyarrow.py_buffer(b"".join(texts))]
        columns = [
            pyarrow.Array.from_buffers(
                pyarrow.int64(), len(groups), [None, pyarrow.py_buffer(array("q", groups).tobytes())]
            ),
            pyarrow.Array.from_buffers(pyarrow.string(), len(texts), buffers),
        ]
        yield pyarrow.RecordBatch.from_arrays(columns, ["group", "plan"])

    def stop(self) -> None:
        """Close the log."""
        if self._planning_or_none is not None:
            self._planning_or_none.close()
        if isinstance(sys.exc_info()[1], (EOFError, OSError)):
            # Spark ends this process by closing its socket. PySpark takes that for an error, and would print a
            # traceback on the terminal.
            sys.stderr.flush()
            os._exit(0)
