"""BatchPlanner: decides whether a batch runs, up to which offsets it reads, and its wall-clock time; without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from penstock.clock import Clock, SystemClock, duration_ms
from penstock.errors import UnknownTopicError
from penstock.log import Log, TopicInfo
from penstock.plugins.runtime.application.lag import latest_topics
from penstock.plugins.runtime.application.preparation import Prepared
from penstock.program.nodes import TaskId
from penstock.record import TopicPartition

from .control import ControlFile
from .placement import group_key

Offset = dict[str, Any]
"""What Spark logs for a batch: `seq` counts batches, `clock_ms` is their wall clock, `step` the test's step, and `ends`
has for each topic and partition the offset that the batch may read up to. `topics` has the ids of topics that fill
global stores."""

Row = tuple[int, str, str, int, int, int, str]
"""(group, task, topic, partition, end, clock_ms, topic_id): one input partition of a task in a batch.

`topic_id` is set for topics of global stores only.
"""

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5
_FIRST_IDLE_WAIT, _LONGEST_IDLE_WAIT = 0.005, 0.05
_MOST_DOUBLINGS = 10
"""After so many doublings a wait has its longest time; a larger power of two may not fit into a float."""
_LONGEST_QUIET = 6 * 3600.0
"""Seconds after which a batch runs without any records: a log may expire commits that are not renewed."""
_MOST_LOOKS = 100
"""Number of times that the planner waits for records of an open transaction; then a batch opens its task."""


@dataclass(frozen=True)
class Plan:
    """What the source reads about an application; goes through a Spark option as JSON, which Spark's UI shows.

    `tasks`: (topic, partition) pairs by task id. `internal`: the application's own topics. `latest`: topics that are
    first read at their end. `globals`: topics of global stores.
    """

    application_id: str
    tasks: Mapping[str, Sequence[tuple[str, int]]]
    internal: Sequence[str]
    latest: Sequence[str]
    globals: Sequence[str]
    parallelism: int
    max_records: int | None
    punctuation_interval_ms: int
    control: str

    @classmethod
    def of(cls, prepared: Prepared, parallelism: int, control: str) -> Plan:
        """Return the plan of a prepared application."""
        application, assignment = prepared.application, prepared.assignment
        settings = application.settings
        return cls(
            application.id,
            {task: [(topic, partition) for topic, partition in each] for task, each in prepared.tasks().items()},
            list(assignment.internal),
            [topic for topic in latest_topics(application, assignment) if topic not in assignment.internal],
            sorted({each.topic for each in assignment.globals}),
            parallelism,
            settings.max_records_per_batch,
            duration_ms(settings.punctuation_interval),
            control,
        )

    def to_json(self) -> str:
        """Return this as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return what `to_json` wrote."""
        return cls(**json.loads(text))


class BatchPlanner:
    """Plans the batches of one run of a query.

    The log's committed positions count; Spark's offsets are only an upper bound.
    """

    def __init__(
        self, plan: Plan, log: Log, clock: Clock | None = None, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._plan = plan
        self._log = log
        self._clock = clock or SystemClock()
        self._wait = wait
        self._control = ControlFile(plan.control)
        self._read = [TopicPartition(*each) for partitions in plan.tasks.values() for each in partitions]
        self._internal = frozenset(plan.internal)
        self._own = [each for each in self._read if each.topic in self._internal]
        self._latest = frozenset(plan.latest)
        self._targets: Mapping[TopicPartition, int] | None = None
        self._has_run = False
        self._quiet_until = time.monotonic() + _LONGEST_QUIET
        self._last_positions: Mapping[TopicPartition, int | None] = {}
        self._idle_batches = 0
        self._pending_looks = self._idle_looks = 0
        self._rows: dict[str, int] = {}

    def first(self) -> Offset:
        """Return the offset before the first batch."""
        return {"seq": 0, "clock_ms": 0, "step": -1, "ends": {}}

    def drain_only(self) -> None:
        """Read source topics only to their present ends, and internal topics until they are empty."""
        self._targets = self._log.end_offsets([each for each in self._read if each.topic not in self._internal])

    def next(self, start: Offset, max_records: int | None) -> Offset:
        """Return the offset of the next batch, or `start` when there is nothing to do.

        A batch runs at the start, when the control file asks for a step, when a wall-clock tick is due, and while some
        position is below its end.
        """
        control = self._control.read()
        if control.stopping:
            return start
        now = self._clock.now_ms() if control.clock_ms is None else control.clock_ms
        positions = self._log.committed(self._plan.application_id, self._read)
        # Committed records that are not readable yet lie between the stable and the high end offset: ask for the high
        # one first.
        on_their_way = self._log.end_offsets(self._own, stable=False) if self._own else {}
        ends = self._ends()
        behind = self._behind(positions, ends)
        wanted = not self._has_run or (control.step is not None and control.step > start["step"])
        tick_is_due = (
            control.step is None
            and control.next_tick is not None
            and now >= max(control.next_tick, start["clock_ms"] + self._plan.punctuation_interval_ms)
        )
        wanted = wanted or time.monotonic() >= self._quiet_until
        is_pending = any(ends[partition] < end for partition, end in on_their_way.items())
        if not (wanted or tick_is_due or behind) and is_pending:
            # The last batch's records in internal topics are committed, but not readable yet.
            if self._pending_looks < _MOST_LOOKS:
                self._pending_looks += 1
                self._wait(_FIRST_WAIT)
                return self.next(start, max_records)
            wanted = True
        self._pending_looks = 0
        if not (wanted or tick_is_due or behind):
            if control.step is not None:
                self._control.write_drained(start["step"])
            if self._targets is None:
                # Wait: Spark calls again after milliseconds, and each call asks the log.
                self._wait(_doubled(_FIRST_IDLE_WAIT, _LONGEST_IDLE_WAIT, self._idle_looks))
                self._idle_looks += 1
            return start
        self._idle_looks = 0
        if not wanted and not tick_is_due and positions == self._last_positions:
            # Tasks wait (max_task_idle) or fail: run them again, but not at once.
            self._wait(_doubled(_FIRST_WAIT, _LONGEST_WAIT, self._idle_batches))
            self._idle_batches += 1
        else:
            self._idle_batches = 0
        self._has_run = True
        self._quiet_until = time.monotonic() + _LONGEST_QUIET
        self._last_positions = dict(positions)
        seq = start["seq"] + 1
        planned = _limit(behind, ends, max_records, seq)
        offset = {"seq": seq, "clock_ms": now, "step": start["step"] if control.step is None else control.step}
        topics = self._global_topics()
        if topics:
            offset["topics"] = {topic.name: topic.id for topic in topics}
            partitions = [TopicPartition(topic.name, each) for topic in topics for each in range(topic.partitions)]
            planned |= self._log.end_offsets(partitions)
        return {**offset, "ends": _nested(planned)}

    def latest(self) -> Offset:
        """Return the topics' end offsets, for Spark's report of the lag."""
        return {**self.first(), "ends": _nested(self._log.end_offsets(self._read))}

    def rows(self, end: Offset) -> list[Row]:
        """Return the rows of the batch that ends at `end`: at least one for every task."""
        ends, clock_ms, ids = end["ends"], end["clock_ms"], end.get("topics", {})
        shared = [
            (topic, int(partition), up_to, clock_ms, ids.get(topic, ""))
            for topic in self._plan.globals
            for partition, up_to in ends.get(topic, {}).items()
        ]
        rows: list[Row] = []
        for task, partitions in self._plan.tasks.items():
            group = self._group(task)
            own = [
                (topic, partition, ends.get(topic, {}).get(str(partition), 0), clock_ms, "")
                for topic, partition in partitions
            ]
            rows += [(group, task, *each) for each in (*own, *shared)]
        return rows

    def _global_topics(self) -> list[TopicInfo]:
        """Return the present topics of global stores; a task that misses one raises an error."""
        found = []
        for topic in self._plan.globals:
            with suppress(UnknownTopicError):
                found.append(self._log.topic(topic))
        return found

    def _group(self, task: str) -> int:
        if task not in self._rows:
            self._rows[task] = group_key(TaskId.parse(task), self._plan.parallelism)
        return self._rows[task]

    def _ends(self) -> dict[TopicPartition, int]:
        ends = dict(self._log.end_offsets(self._read))
        if self._targets is not None:
            for partition, target in self._targets.items():
                ends[partition] = min(ends[partition], target)
        return ends

    def _behind(
        self, positions: Mapping[TopicPartition, int | None], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the positions that are below their ends."""
        fresh = [each for each, position in positions.items() if position is None and each.topic not in self._latest]
        starts = self._log.start_offsets(fresh) if fresh else {}
        behind = {}
        for partition, end in ends.items():
            position = positions.get(partition)
            if position is None:
                position = starts.get(partition, end)
            if position < end:
                behind[partition] = position
        return behind


def _doubled(first: float, longest: float, times: int) -> float:
    return min(longest, first * (1 << min(times, _MOST_DOUBLINGS)))


def _limit(
    behind: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], max_records: int | None, seq: int
) -> dict[TopicPartition, int]:
    """Return how far each partition is read, so that all together stay within `max_records`, shared out by lag."""
    planned = dict(ends)
    lags = {partition: ends[partition] - position for partition, position in behind.items()}
    total = sum(lags.values())
    if max_records is None or total <= max_records:
        return planned
    shares = {partition: lag * max_records // total for partition, lag in lags.items()}
    rest = max_records - sum(shares.values())
    turns = list(shares)
    # Give the rest of the rounding to one partition after the other: a small one beside large ones gets its turn.
    for index in range(rest):
        shares[turns[(seq + index) % len(turns)]] += 1
    for partition, share in shares.items():
        planned[partition] = behind[partition] + min(share, lags[partition])
    return planned


def _nested(ends: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), end in ends.items():
        nested.setdefault(topic, {})[str(partition)] = end
    return nested
