"""The Python Data Source `penstock`: its rows say how far each slot's tasks read; no record passes through it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.plugins.engine.host.log_lines import log_to_driver
from penstock.plugins.engine.run.planning.control import ControlFile, LogFile
from penstock.plugins.engine.run.planning.planner import BatchPlanner, Offset
from penstock.plugins.engine.run.planning.renewals import RenewalPlanner
from penstock.plugins.engine.run.planning.run_plan import Plan
from penstock.plugins.engine.task.locations import open_log
from penstock.support.packages import needed

from .group_keys import slot_key
from .planner_watch import PlannerPulse
from .sessions import SPARK

with needed(SPARK):
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType

NAME = "penstock"
SCHEMA = "group bigint, plan string"

Row = tuple[int, str]
"""(group, plan): the group key of a slot, and its `SlotPlan` as JSON."""


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


class RowsPartition(InputPartition):
    """All rows of one batch: one a slot, so one partition carries them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(0)
        self.rows = rows


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's view of a planner.

    Spark makes one for planning, in a process of its own on the driver's host, and others that only `read`.
    """

    def __init__(self, control: str) -> None:
        self._directory = control
        self._planner_or_none: BatchPlanner | RenewalPlanner | None = None
        self._pulse = PlannerPulse(control)

    @property
    def _planner(self) -> BatchPlanner | RenewalPlanner:
        if self._planner_or_none is None:
            plan = Plan.read(self._directory)
            log_to_driver(Path(self._directory), plan.log_level)
            if plan.is_continuous and ControlFile(self._directory).read().step is None:
                self._planner_or_none = RenewalPlanner(plan)
            else:
                self._log = open_log(LogFile(self._directory).take())
                self._planner_or_none = BatchPlanner(plan, self._log)
        return self._planner_or_none

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the setting `max_records_per_batch`."""
        limit = Plan.read(self._directory).max_records
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the ends up to which source topics are read."""
        planner = self._planner
        assert isinstance(planner, BatchPlanner)
        planner.drain_only()

    def initialOffset(self) -> Offset:
        """Return the offset before the first batch of a new checkpoint."""
        return self._planner.first()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Plan the next batch; return `start` when there is nothing to do."""
        self._pulse.beat()
        offset = self._planner.next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        self._pulse.beat()
        return offset

    def reportLatestOffset(self) -> Offset:
        """Return the end offsets of what the last batch read."""
        return self._planner.latest()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the batch's rows as one partition."""
        plans = self._planner.plans(end)
        return [RowsPartition([(slot_key(each.slot, len(plans)), each.to_json()) for each in plans])]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """Yield the rows; Spark calls this in a worker."""
        assert isinstance(partition, RowsPartition)
        yield from partition.rows

    def stop(self) -> None:
        """Close the log."""
        planner, self._planner_or_none = self._planner_or_none, None
        if isinstance(planner, BatchPlanner):
            self._log.close()
        if isinstance(sys.exc_info()[1], (EOFError, OSError)):
            # Spark ends this process by closing its socket. PySpark takes that for an error, and would print a
            # traceback on the terminal.
            sys.stderr.flush()
            os._exit(0)
