"""BatchPlanner: decides whether a batch runs, up to which offsets it reads, and its wall-clock time; without Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from penstock import Clock, Log, SystemClock, TaskId, TopicPartition, UnknownTopicError
from penstock.plugins.engine.host.reports import SlotPlan
from penstock.plugins.engine.task.fronts import Fronts
from penstock.plugins.engine.task.own_topics import PauseWatch
from penstock.plugins.engine.task.positions import starting_offsets
from penstock.plugins.engine.task.topic_ids import EVERY_SECONDS
from penstock.program.offset_reset import EARLIEST, LATEST
from penstock.task.progress import Front
from penstock.task.saved_schedules import are_called

from ..slots import slot
from .control import Control, ControlFile, Orders, PlannedApplication, Rests

_AGAIN_SECONDS = 1.0
"""Seconds in which the runner reads the reports of a batch."""


class PlannedOpenings:
    """The tasks that the next batch opens. `tasks`: all task ids. `seconds` is a clock that never goes back.

    The runner's list may be older than the last batch. So the tasks opened by that batch are left out until the runner
    replaces the list, or some seconds have passed.
    """

    def __init__(self, tasks: Collection[str], seconds: Callable[[], float]) -> None:
        self._tasks = dict.fromkeys(tasks)
        self._seconds = seconds
        self._noted: list[list[str] | None] = []
        self._again_at: float | None = None

    def due(self, unopened: list[str] | None) -> list[str]:
        """Return the ids of the tasks to open. `unopened`: the runner's list; None for all tasks."""
        if [unopened] != self._noted:
            self._noted = []
        elif self._again_at is None:
            self._again_at = self._seconds() + _AGAIN_SECONDS
        if self._noted and (self._again_at is None or self._seconds() < self._again_at):
            return []
        return list(self._tasks) if unopened is None else [each for each in unopened if each in self._tasks]

    def note(self, unopened: list[str] | None) -> None:
        """Record that the planned batch opens the listed tasks."""
        self._noted, self._again_at = [unopened], None


_PAUSES = 20
"""While some partitions are behind, the ends of all are asked for after so many times the time that it took."""
_FEW = 64
"""So many partitions are always asked for: it takes little longer than asking for one."""
_ACTIVE_SECONDS = 10.0
"""Seconds since a partition's end has moved during which it is asked for at each look."""


@dataclass(eq=False)
class Lags:
    """The lags of one application's input partitions, as of the last `look`.

    `internal`: topics that are the application's own. `resets`: how topics are first read that are not read from their
    start; `now_ms` returns the wall clock, which that may depend on.
    `behind` has the positions that are below their ends, by partition, and `uncommitted` those among them where no
    commit is; `ends` all ends. `seconds` is a clock that never goes back.
    """

    log: Log
    application_id: str
    partitions: Sequence[TopicPartition]
    internal: Collection[str]
    resets: Mapping[str, str]
    now_ms: Callable[[], int]
    seconds: Callable[[], float]

    def __post_init__(self) -> None:
        self._internal = [partition for partition in self.partitions if partition.topic in self.internal]
        self._sources = [partition for partition in self.partitions if partition.topic not in self.internal]
        self._targets: Mapping[TopicPartition, int] = {}
        self._is_settled = False
        self._ask_all_at = 0.0
        self._active: dict[TopicPartition, float] = {}
        """When each partition was last seen behind or moving."""
        self.looked_ms = 0
        """The wall clock (ms) when all ends were asked for last."""
        self.look_seconds = 0.0
        """How long it takes to ask for all ends."""
        self.ends: dict[TopicPartition, int] = {}
        self.behind: dict[TopicPartition, int] = {}
        self.uncommitted: Collection[TopicPartition] = ()

    def stop_at_present_ends(self) -> None:
        """Let the ends of source topics stay where they are now."""
        self._targets = self.log.end_offsets(self._sources)

    def look(self, *, everything: bool) -> None:
        """Ask the log again, only for the needed partitions unless `everything`: a request grows with its partitions.

        While partitions that have had records lately are behind, the ends of the others are asked for now and then.
        """
        if everything or len(self.partitions) <= _FEW or not self._active or self.seconds() >= self._ask_all_at:
            self._look_at_all(everything)
            return
        self._look_at(list(self._active), everything)
        if not self.behind:
            self._look_at_all(everything)

    def _look_at_all(self, everything: bool) -> None:
        began, self.looked_ms = self.seconds(), self.now_ms()
        self._active = {each: at for each, at in self._active.items() if began < at + _ACTIVE_SECONDS}
        self._look_at(self.partitions, everything)
        now = self.seconds()
        self.look_seconds = now - began
        self._ask_all_at = now + _PAUSES * self.look_seconds

    def _look_at(self, partitions: Sequence[TopicPartition], everything: bool) -> None:
        """Ask for the ends of partitions, among them all that are behind.

        A committed position matters only where the end has moved since the last look, or where the position was below
        it: the others are not asked for unless `everything`.
        """
        found = dict(self.log.end_offsets(partitions))
        for partition in self._targets.keys() & found.keys():
            found[partition] = min(found[partition], self._targets[partition])
        moved = {each for each, end in found.items() if self.ends.get(each) != end}
        ends = {**self.ends, **found}
        asked = [each for each in partitions if everything or each in moved or each in self.behind]
        positions = self.log.committed(self.application_id, asked) if asked else {}
        fresh = {each: self.resets.get(each.topic, EARLIEST) for each, at in positions.items() if at is None}
        # The end of one that is read from its end is what was found here: with a later one it could seem to be behind.
        asked_for = {each: reset for each, reset in fresh.items() if reset != LATEST}
        starts = starting_offsets(self.log, asked_for, self.now_ms()) if asked_for else {}
        now = {}
        for each, position in positions.items():
            start = starts.get(each, ends[each]) if position is None else position
            if start < ends[each]:
                now[each] = start
        active = now.keys() | (moved & self.ends.keys())
        self._active |= dict.fromkeys(active, self.seconds())
        self.ends, self.behind, self.uncommitted = ends, now, fresh.keys() & now.keys()

    def begin_batch(self) -> None:
        """Record that tasks will run: they may write to internal topics."""
        self._is_settled = False

    def are_records_on_their_way(self) -> bool:
        """Return whether internal topics have records beyond the ends of the last look.

        Caches False until the next batch. A committed transaction's records can only be read some time after the
        commit.
        """
        if not self._is_settled and self._internal:
            highest = self.log.end_offsets(self._internal, stable=False)
            self._is_settled = all(end <= self.ends[each] for each, end in highest.items())
            return not self._is_settled
        return False


Offset = dict[str, Any]
"""Spark's note of a batch: `seq` counts batches, `clock_ms` is their wall clock, `step` the test's step, and `ends`
has for each topic and partition that the batch reads the offset up to which it may. `globals` has the same for topics
of global stores, and `topics` their ids. `owners`: see Control. `settled_in`: the directory of the run in which every
task was open. `fronts`: see `SlotPlan`."""

_FIRST_WAIT, _LONGEST_WAIT = 0.02, 0.5
_MOST_DOUBLINGS = 10
"""After so many doublings a wait has its longest time; a larger power of two may not fit into a float."""
RENEWAL_SECONDS = 50.0
"""Seconds after which a batch runs without work: task hosts end when no batch has come for three times as long."""
_BATCH_SECONDS = 30.0
"""How long the tasks of a slot read in a batch, or twice Spark's trigger interval where that is longer: else a backlog
would be read with pauses. After a batch progress is reported, and a stop or a move is possible."""
_RESTORE_SECONDS = 1.0
"""How long a batch waits for tasks whose state is restored, or Spark's trigger interval where that is longer: then the
others have their next batch."""
_LOOK_AT_ALL_SECONDS = 30.0
"""Seconds after which all committed positions are asked for again."""
_MOST_LOOKS = 100
"""Number of times that the planner waits for records of an open transaction; then a batch opens its task."""


class BatchPlanner:
    """Plans the batches of one run of a query. `seconds` is a clock that never goes back.

    The log's committed positions count; Spark's offsets are only an upper bound.
    """

    def __init__(
        self,
        plan: PlannedApplication,
        log: Log,
        clock: Clock | None = None,
        wait: Callable[[float], object] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
        orders: Orders | None = None,
    ) -> None:
        self._plan = plan
        self._log = log
        self._clock, self._wait, self._seconds = clock or SystemClock(), wait, seconds
        self._control = orders or ControlFile(plan.control)
        self._inputs = {
            task: [TopicPartition(*partition) for partition in partitions] for task, partitions in plan.tasks.items()
        }
        self._readers = {partition: task for task, partitions in self._inputs.items() for partition in partitions}
        self._slots = {task: slot(TaskId.parse(task), plan.parallelism) for task in plan.tasks}
        self._lags = Lags(
            log,
            plan.application_id,
            list(self._readers),
            plan.internal,
            plan.resets,
            lambda: self._now_ms(self._control.peek()),
            seconds,
        )
        self._drains_only = self._has_run = self._is_running = False
        self._quiet_until = 0.0
        self._look_at_all_at = 0.0
        self._behind_before: Mapping[TopicPartition, int] = {}
        self._idle_batches = 0
        self._batch_seconds = max(_BATCH_SECONDS, 2 * plan.interval_ms / 1000)
        self._restore_seconds = max(_RESTORE_SECONDS, plan.interval_ms / 1000)
        self._rests = Rests(self._control, wait, seconds)
        self._owners: Mapping[str, str] = {}
        self._openings = PlannedOpenings(plan.tasks, seconds)
        self._planned: dict[TopicPartition, int] = {}
        self._pauses = PauseWatch(log, plan.application_id, seconds)
        self._look_for_pause_at = seconds() + EVERY_SECONDS
        self._paused = frozenset[int]()
        self._batch_orders: tuple[object, ...] = (), ()
        inputs: dict[int, list[TopicPartition]] = {}
        for task, partitions in self._inputs.items():
            inputs.setdefault(TaskId.parse(task).subtopology, []).extend(partitions)
        self._fronts = Fronts({number: plan.upstream.get(str(number), ()) for number in inputs}, inputs, plan.holding)
        above = {each for of in plan.upstream.values() for each in of}
        self._calling = above.intersection(plan.calling)
        self._front_ms = 0  # as of this time everything in front of all is to be read before a drain or a step ends

    def first(self) -> Offset:
        """Return the offset before the first batch."""
        return {"seq": 0, "clock_ms": 0, "step": -1, "ends": {}}

    def drain_only(self) -> None:
        """Read source topics only to their present ends, and internal topics until they are empty."""
        self._drains_only = True
        self._lags.stop_at_present_ends()

    def next(self, start: Offset, max_records: int | None) -> Offset:
        """Return the offset of the next batch, or `start` when there is nothing to do.

        A batch runs at the start, for a step, a task that is not open, a slot that moves or a due tick, and while a
        position is below its end. `max_records` and the plan's time limit what it reads.
        """
        if self._is_running:
            self._is_running = False
            self._quiet_until = self._seconds() + RENEWAL_SECONDS
        for _ in range(_MOST_LOOKS):
            control = self._control_after_pause()
            if control.stopping:
                return start
            self._paused = frozenset(control.paused)
            unopened = self._openings.due(control.unopened)
            self._look(everything=bool(unopened) or control.owners != self._owners)
            is_wanted = self._is_wanted(control, start, bool(unopened))
            if is_wanted or self._behind():
                return self._batch(control, start, max_records, unopened, is_wanted)
            # A task that is closed waits for a target outside of the log, and may have read everything already.
            has_to_write = self._drains_only and bool(control.unopened)
            if not has_to_write and not self._lags.are_records_on_their_way():
                self._rest(control, start)
                return start
            # The last batch's records in internal topics are committed, but not readable yet.
            self._wait(_FIRST_WAIT)
        # A transaction stays open. Opening its task ends it.
        return self._batch(control, start, max_records, list(self._inputs), True)

    def latest(self) -> Offset:
        """Return the present ends of the last batch's partitions, for Spark's report of the lag."""
        ends = self._lags.ends
        return {**self.first(), "ends": _nested({each: ends[each] for each in self._planned if each in ends})}

    def plans(self, end: Offset) -> list[SlotPlan]:
        """Return the plans of the batch that ends at `end`: one for every slot."""
        numbers = range(self._plan.parallelism)
        tasks: dict[int, dict[str, dict[TopicPartition, int]]] = {number: {} for number in numbers}
        for partition, up_to in _flat(end.get("ends", {})).items():
            task = self._readers.get(partition)
            if task is not None:
                tasks[self._slots[task]].setdefault(task, {})[partition] = up_to
        left: Mapping[str, int] = end.get("left", {})
        starts = _flat(end.get("starts", {}))
        owners, ids, global_ends = end.get("owners", {}), end.get("topics", {}), _flat(end.get("globals", {}))
        step = _step(end)
        now = self._control.peek()
        return [
            SlotPlan(
                number,
                owners.get(str(number), ""),
                end["clock_ms"],
                tasks[number],
                global_ends,
                ids,
                step,
                left.get(str(number), 0),
                {each: at for each, at in starts.items() if self._slots.get(self._readers.get(each, "")) == number},
                seconds=self._batch_seconds if step < 0 else None,
                restore_seconds=None if self._drains_only or step >= 0 else self._restore_seconds,
                is_settled=end.get("settled_in") == self._plan.control,
                standbys=now.standbys.get(str(number), ()),
                fronts=end.get("fronts", {}),
                **now.of_tasks(),
            )
            for number in numbers
        ]

    # ------------------------------------------------------------------ whether a batch runs

    def _control_after_pause(self) -> Control:
        """Return the control file's content, after the pause that a backup has asked for."""
        control = self._control.read()
        if control.step is None and self._seconds() >= self._look_for_pause_at:
            self._look_for_pause_at = self._seconds() + EVERY_SECONDS
            self._pauses.look(self._log.topic_ids([self._pauses.topic]))
        while self._pauses.is_on(self._now_ms(control)) and not control.stopping:
            self._wait(_FIRST_WAIT)
            control = self._control.read()
        return control

    def _behind(self) -> Mapping[TopicPartition, int]:
        """Return the positions below their ends, without paused tasks'."""
        every = self._slots if self._paused else ()
        paused = {each for each in every if TaskId.parse(each).subtopology in self._paused}
        return {each: at for each, at in self._lags.behind.items() if self._readers[each] not in paused}

    def _look(self, *, everything: bool) -> None:
        now = self._seconds()
        everything = everything or now >= self._look_at_all_at
        self._lags.look(everything=everything)
        if everything:
            self._look_at_all_at = now + _LOOK_AT_ALL_SECONDS

    def _is_wanted(self, control: Control, start: Offset, has_unopened: bool) -> bool:
        """Return whether a batch runs even if nothing is to be read."""
        if not self._has_run:
            return True
        if control.step is not None:
            is_due = control.next_tick is not None and self._now_ms(control) >= control.next_tick
            return bool(control.step > _step(start)) or (is_due and self._has_front)
        return (
            has_unopened
            or (self._drains_only and self._has_front)
            or any(control.owners.get(number) != owner for number, owner in self._owners.items())
            or (control.paused, control.visits) != self._batch_orders
            or self._is_tick_due(control, start)
            or (not self._drains_only and self._seconds() >= self._quiet_until)
        )

    @property
    def _has_front(self) -> bool:
        """Whether a task waits for the outputs of everything in front of it to be read, which takes one more batch."""
        return any(front.time < self._front_ms for front in self._fronts.fronts.values())

    def _is_tick_due(self, control: Control, start: Offset) -> bool:
        """Return whether a tick is due, or has to be computed again because the clock was set back."""
        if control.next_tick is None:
            return False
        now = self._now_ms(control)
        return now < int(start["clock_ms"]) or now >= self._earliest_tick(control, start)

    def _earliest_tick(self, control: Control, start: Offset) -> int:
        return max(control.next_tick or 0, int(start["clock_ms"]) + self._plan.punctuation_interval_ms)

    def _now_ms(self, control: Control) -> int:
        return self._clock.now_ms() if control.clock_ms is None else control.clock_ms

    def _rest(self, control: Control, start: Offset) -> None:
        """Wait, as there is nothing to do."""
        if control.step is not None:
            self._control.write_drained(_step(start))
        if not self._drains_only:
            # Spark calls again after milliseconds, and each call asks the log.
            tick = (
                None if control.step is not None or control.next_tick is None else self._earliest_tick(control, start)
            )
            self._rests.rest(self._lags.look_seconds, None if tick is None else tick - self._now_ms(control))

    # ------------------------------------------------------------------ what a batch has

    def _batch(
        self, control: Control, start: Offset, max_records: int | None, unopened: Collection[str], is_wanted: bool
    ) -> Offset:
        """Return the offset of a batch."""
        behind = self._behind()
        before = self._behind_before
        if before and not is_wanted and all(behind.get(each) == position for each, position in before.items()):
            # Tasks wait (max_task_idle) or fail: run them again, but not at once.
            self._wait(_doubled(_FIRST_WAIT, _LONGEST_WAIT, self._idle_batches))
            self._idle_batches += 1
            self._look_at_all_at = 0.0
        else:
            self._idle_batches = 0
        self._rests.end()
        self._has_run = self._is_running = True
        self._behind_before, self._owners = behind, control.owners
        self._batch_orders = control.paused, control.visits
        step = _step(start) if control.step is None else control.step
        if step != _step(start) or not self._front_ms:
            self._front_ms = self._lags.looked_ms
        self._look_at_fronts()
        self._lags.begin_batch()
        if unopened:
            self._openings.note(control.unopened)
        seq = start["seq"] + 1
        limited = _limit(behind, self._lags.ends, max_records, seq)
        self._planned = self._ends(limited, unopened)
        offset: Offset = {
            "seq": seq,
            "clock_ms": self._now_ms(control),
            "step": step,
            "ends": _nested(self._planned),
        }
        waiting = {self._readers[each] for each, end in limited.items() if end < self._lags.ends[each]}
        offset["fronts"] = {str(number): self._front(front) for number, front in self._fronts.fronts.items()}
        offset["fronts"] |= {task: [-1] for task in sorted(waiting)}
        if left := self._left_by_slot():
            offset["left"] = left
        if starts := self._starts(unopened):
            offset["starts"] = _nested(starts)
        if control.owners:
            offset["owners"] = dict(control.owners)
        if control.unopened == []:
            offset["settled_in"] = self._plan.control
        return {**offset, **self._globals()}

    def _front(self, front: Front) -> list[int]:
        """Return a front in its saved form; in a drain it is the last one when all in front of the task is drained."""
        is_last = self._drains_only and front.time >= self._front_ms
        return [front.time, front.read, *([1] if is_last else [])]

    def _look_at_fronts(self) -> None:
        """Record how far sub-topologies have read, as soon as their outputs can be read."""
        lags = self._lags
        busy: Collection[int] = self._fronts.fronts if self._plan.upstream and lags.are_records_on_their_way() else ()
        if self._calling:
            busy = {*busy, *self._calls_under_way()}
        positions = {**lags.ends, **lags.behind}
        self._fronts.look(lags.looked_ms, lags.ends, positions, busy=busy, paused=self._paused)

    def _calls_under_way(self) -> Iterator[int]:
        """Return the sub-topologies in front of others that wait for results: their records are not read."""
        for task, inputs in self._inputs.items():
            if (number := TaskId.parse(task).subtopology) in self._calling:
                commit = self._log.visible_commit(self._plan.application_id, task, inputs)
                if commit is not None and not are_called(commit.engine_state, self._fronts.pending(number)):
                    yield number

    def _ends(self, limited: Mapping[TopicPartition, int], unopened: Collection[str]) -> dict[TopicPartition, int]:
        """Return the ends of all input partitions of tasks that have something to read, or are not open.

        `limited`: how far partitions that are behind are read; where that is their position, they wait.
        """
        behind, ends = self._lags.behind, self._lags.ends
        tasks = {self._readers[each] for each, end in limited.items() if end > behind[each]}.union(unopened)
        ends = {**ends, **behind, **limited}
        return {each: ends[each] for task in sorted(tasks) for each in self._inputs[task]}

    def _starts(self, unopened: Collection[str]) -> dict[TopicPartition, int]:
        """Return the start offsets of partitions of which Spark may know no commit."""
        lags = self._lags
        return {
            each: at
            for each, at in lags.behind.items()
            if each in self._planned and (each in lags.uncommitted or self._readers[each] in unopened)
        }

    def _left_by_slot(self) -> dict[str, int]:
        """Return the number of records that the batch leaves unread, for each slot with any."""
        left: Counter[str] = Counter()
        for partition, position in self._lags.behind.items():
            at = self._planned.get(partition, position)
            left[str(self._slots[self._readers[partition]])] += max(0, self._lags.ends[partition] - at)
        return {slot: number for slot, number in left.items() if number}

    def _globals(self) -> Offset:
        """Return the ids and ends of the present topics of global stores; a task that misses one raises an error."""
        topics = []
        for name in self._plan.globals:
            with suppress(UnknownTopicError):
                topics.append(self._log.topic(name))
        if not topics:
            return {}
        partitions = [TopicPartition(topic.name, each) for topic in topics for each in range(topic.partitions)]
        return {
            "topics": {topic.name: topic.id for topic in topics},
            "globals": _nested(self._log.end_offsets(partitions)),
        }


def _step(offset: Offset) -> int:
    """Return the step of a batch; an offset of the continuous mode, which may be in the checkpoint, has none."""
    return int(offset.get("step", -1))


def _doubled(first: float, longest: float, times: int) -> float:
    return min(longest, first * (1 << min(times, _MOST_DOUBLINGS)))


def _limit(
    behind: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], max_records: int | None, seq: int
) -> dict[TopicPartition, int]:
    """Return the end offset for each partition with lag: together at most `max_records`, shared out by lag."""
    planned = {partition: ends[partition] for partition in behind}
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


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): end for topic, ends in nested.items() for partition, end in ends.items()
    }
