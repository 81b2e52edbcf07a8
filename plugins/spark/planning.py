"""Planning: the part of the source `penstock` in the process in which Spark plans batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock import Log
from penstock.plugins.engine.host.log_lines import log_to_driver
from penstock.plugins.engine.run.planning.control import ControlFile, LogFile, PlannedApplication
from penstock.plugins.engine.run.planning.planner import BatchPlanner, Offset
from penstock.plugins.engine.run.planning.renewals import RenewalPlanner
from penstock.plugins.engine.task.locations import open_log

from .group_keys import slot_key
from .planner_watch import PlannerPulse

Row = tuple[int, str]
"""(group, plan): the group key of a slot, and its `SlotPlan` as JSON."""


class Planning:
    """The planner that the orders in a directory ask for, opened at its first use, and its pulse."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pulse = PlannerPulse(directory)
        self._planner_or_none: BatchPlanner | RenewalPlanner | None = None
        self._log: Log | None = None

    @property
    def _planner(self) -> BatchPlanner | RenewalPlanner:
        if self._planner_or_none is None:
            plan = PlannedApplication.read(self._directory)
            log_to_driver(Path(self._directory), plan.log_level)
            if plan.is_continuous and ControlFile(self._directory).read().step is None:
                self._planner_or_none = RenewalPlanner(plan)
            else:
                self._log = open_log(LogFile(self._directory).take())
                self._planner_or_none = BatchPlanner(plan, self._log)
        return self._planner_or_none

    def max_records(self) -> int | None:
        """Return the setting `max_records_per_batch`."""
        return PlannedApplication.read(self._directory).max_records

    def drain_only(self) -> None:
        """Fix the ends up to which source topics are read."""
        planner = self._planner
        assert isinstance(planner, BatchPlanner)
        planner.drain_only()

    def first(self) -> Offset:
        """Return the offset before the first batch of a new checkpoint."""
        return self._planner.first()

    def next(self, start: Offset, max_records: int | None) -> Offset:
        """Plan the next batch; return `start` when there is nothing to do."""
        self._pulse.beat()
        offset = self._planner.next(start, max_records)
        self._pulse.beat()
        return offset

    def latest(self) -> Offset:
        """Return the end offsets of the last batch's partitions."""
        return self._planner.latest()

    def rows(self, end: Offset) -> Sequence[Row]:
        """Return the rows of the batch that ends at `end`: one a slot."""
        plans = self._planner.plans(end)
        return [(slot_key(plan.slot, len(plans)), plan.to_json()) for plan in plans]

    def close(self) -> None:
        """Close the log."""
        self._planner_or_none = None
        if self._log is not None:
            self._log.close()
            self._log = None
