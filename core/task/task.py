"""Task: one partition of one sub-topology, without I/O: no log, no clock, no thread.

Comes in: batches of records, and the time. Goes out: produced records, positions and state to commit in one step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..clock import PunctuationType, duration_ms
from ..context import NodeMetrics
from ..errors import ProcessingError, RecordRefusedError
from ..log import ENGINE_STATE_BYTES
from ..program.nodes import Subtopology, TaskId
from ..record import OutputBatch, Record, RecordBatch, TopicPartition
from ..settings.settings import Settings
from ..store import StateStore
from ..store.record_cache import FlushListener, SourceRecord
from ..support.repeats import Repeats
from .batches import Batches
from .compiling import Nodes
from .context import ReadOnlyView, Shared, read_only_views
from .failures import RECORD_ERRORS, FailureKey, Failures
from .input_queue import InputQueue, TaskInput
from .inputs import Inputs, Want
from .loop import Loop
from .outputs import Outputs
from .progress import Front, TaskProgress
from .punctuators import Punctuators
from .saved_schedules import saved_names
from .saved_values import SavedValues
from .schedules import NEVER, Schedules
from .visits import Visits

_LEAST_ROOM = 200
"""So many bytes schedules may take, however many partitions the task reads."""


@dataclass(frozen=True)
class TaskCommit:
    """The state that a task commits beside its `engine_state`. `has_changed`: commit, though nothing else is new."""

    positions: Mapping[TopicPartition, int]
    outputs: list[OutputBatch]
    has_changed: bool


class Task:
    """One partition of one sub-topology: processors, stores, record queues, stream time, punctuators.

    No threads, no sockets, no clock of its own; called from one thread. A driver calls `plan` when a batch begins. Then
    it fetches what the task `wants`, hands that to `feed`, and calls `process`, until nothing is left. It commits what
    `take_commit` returns.

    `inputs` are in the order of the sources. `topic_name` maps a sink's topic to its name in the log; `partition_count`
    returns how many partitions a topic has (only asked where a partitioner is used). `saved` is the `engine_state` of
    the last commit. `attempt` returns how often a failure was met, this time included. `refusals`: the log's refusals
    in earlier attempts, by topic: the production handler decides about each such record. `stopwatch` returns seconds,
    and serves `decode_seconds` only. `takes_whole_batches`: the driver feeds each batch whole and commits it as one, so
    the task waits for no input and takes no request for a commit. `repeats` writes log lines that may come with every
    record (None: by the task's wall clock). `progress` has the task's clocks, and `visits` takes those that are asked
    for. `progress_class` and `nodes_class` make its parts: a profile has others, which measure.
    """

    progress_class: ClassVar[type[TaskProgress]] = TaskProgress
    nodes_class: ClassVar[type[Nodes]] = Nodes

    def __init__(
        self,
        task_id: TaskId,
        subtopology: Subtopology,
        application_id: str,
        settings: Settings,
        inputs: Sequence[TaskInput],
        stores: Mapping[str, StateStore],
        global_stores: Mapping[str, StateStore],
        *,
        topic_name: Callable[[str], str] = str,
        partition_count: Callable[[str], int] | None = None,
        saved: bytes = b"",
        wall_clock_ms: int = 0,
        attempt: Callable[[FailureKey], int] = lambda failed: 1,
        refusals: Mapping[str, Sequence[RecordRefusedError]] | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
        takes_whole_batches: bool = False,
        repeats: Repeats | None = None,
    ) -> None:
        self.id = task_id
        self.stores = stores
        self.global_stores = {name: ReadOnlyView(store) for name, store in global_stores.items()}
        self.records_in = 0
        self._metrics = {node.name: NodeMetrics() for node in subtopology.nodes}

        state: dict[str, Any] = json.loads(saved) if saved else {}
        progress = self.progress = self.progress_class(state.get("wall", wall_clock_ms))
        progress.driver_clock = state.get("driver", progress.wall_clock)
        progress.move_wall_clock(wall_clock_ms)
        progress.opened_at = progress.wall_clock
        progress.stream_time, progress.is_firing = state.get("stream", -1), state.get("firing", False)
        name = str(task_id)
        self._values = SavedValues(state, subtopology)
        self._schedules = Schedules(state, progress.note_change, saved_names(subtopology))
        self._outputs = Outputs(name, settings, self._metrics, topic_name, partition_count, refusals or {})
        self._failures = Failures(
            name, application_id, settings, progress, self._metrics, repeats, attempt,
            lambda topic, failure: self._outputs.add_dead_letter(topic, failure, progress.stream_time),
        )  # fmt: skip
        metrics, failures = self._metrics, self._failures
        queues = [
            InputQueue(each, settings, application_id, name, progress, failures, metrics[each.source.name], stopwatch)
            for each in inputs
        ]
        max_idle = None if settings.max_task_idle is None else duration_ms(settings.max_task_idle)
        self.inputs = Inputs(name, queues, max_idle, progress)
        self.inputs.restore(state)
        self._punctuators = Punctuators(
            self._schedules, progress, self._failures, self._room_for_schedules, self.inputs.idle_ms
        )
        self._caches = Caches(name, stores, progress, self._failures)
        self._batches = Batches(progress, self._failures, self._punctuators)
        shared = Shared(
            application_id, name, settings, stores, self.global_stores, read_only_views(subtopology, stores), progress,
            self._punctuators.schedule, not takes_whole_batches,
            self._punctuators.timers, self._values, self._failures.late, self._batches,
        )  # fmt: skip
        self.visits = Visits(saved, progress, self._failures.outside_records)
        self._nodes = self.nodes_class(subtopology, shared, self._outputs, self._failures, self._metrics)
        try:
            self._nodes.compile(queues, self.visits)
            self._nodes.init(self._schedules)
        except BaseException:
            self.close()
            raise
        self._punctuators.look_ahead()
        self._loop = Loop(
            self.inputs, progress, self._failures, self._punctuators, self._batches, may_wait=not takes_whole_batches
        )

    # ------------------------------------------------------------------ records in

    def plan(self, ends: Mapping[TopicPartition, int | None], wall_clock_ms: int, front: Front | None = None) -> None:
        """Begin a batch: set up to which offset each input has records, and the wall clock of the driver.

        The task's own never goes back. It depends on committed clocks and those of `plan` alone, so a batch that is
        repeated after the last commit sees the same time. `front`: the task's front once it has read up to `ends`.
        None: nothing but these records is in front of it.
        """
        self.inputs.plan(ends)
        self.progress.begin()
        self.progress.move_wall_clock(wall_clock_ms)
        self.inputs.mark(Front(wall_clock_ms) if front is None else front)

    def wants(self) -> list[Want]:
        """Return the next offset to fetch of every empty input that has more records."""
        return self.inputs.wants()

    def feed(self, batch: RecordBatch) -> None:
        """Queue records of one input, in offset order. A batch without records moves the position."""
        self.inputs.feed(batch)

    def process(self, limit: int) -> int:
        """Process up to `limit` queued records; return how many.

        Fewer than `limit`: no record is left, the task wants more of an input, it waits for an empty one
        (`max_task_idle`), or a processor requested a commit.
        """
        done = self._loop.process(limit)
        self.records_in += done
        return done

    # ------------------------------------------------------------------ time

    @property
    def stream_time(self) -> int:
        """The highest timestamp processed (ms); -1 before the first record."""
        return self.progress.stream_time

    @property
    def wall_clock(self) -> int:
        """The wall clock (ms) as the driver last said."""
        return self.progress.wall_clock

    def punctuate_wall_clock(self) -> bool:
        """Fire the punctuators and timers of the wall clock that are due, and visit a portion of entries.

        Return whether there was anything to do.
        """
        self.inputs.settle()
        is_due = self.visits.are_due or self._next_due() <= self.progress.wall_clock
        fired = is_due and self._batches.flush()
        fired |= self._fire_wall_clock()
        if fired and self.progress.must_end:
            return True
        has_visited = self.visits.run()
        if has_visited and self._batches.flush():
            self._fire_wall_clock()
        return has_visited or fired

    def _fire_wall_clock(self) -> bool:
        """Fire what is due by the wall clock, also behind the records that this makes; return whether there was any."""
        fire, now = self._punctuators.fire, self.progress.wall_clock
        fired = has_fired = fire(PunctuationType.WALL_CLOCK_TIME, now)
        while has_fired and self._batches.flush():
            has_fired = fire(PunctuationType.WALL_CLOCK_TIME, now)
        return fired

    def next_wall_clock_punctuation(self, driver_ms: int | None = None) -> int | None:
        """Return when the next punctuator or timer of the wall clock is due, or None; 0: a visit is not over.

        In ms, by the driver's clock, which shows `driver_ms` now (None: as the driver last said).
        """
        if driver_ms is not None:
            self.progress.note_driver_clock(driver_ms)
        if self.visits.are_due:
            return 0
        due = self._next_due()
        return None if due == NEVER else self.progress.driver_time_of(due)

    def _next_due(self) -> int:
        """Return when something is due by the wall clock, or a batch has waited long enough (ms)."""
        return min(self._punctuators.next_due(PunctuationType.WALL_CLOCK_TIME), self._batches.next_due())

    def is_wall_clock_due(self, driver_ms: int) -> bool:
        """Return whether a wall-clock punctuator or timer is due now, or a visit is unfinished.

        Also True after the driver's clock was set back: the next due time has to be computed again.
        """
        was_set_back = driver_ms < self.progress.driver_clock
        due = self.next_wall_clock_punctuation(driver_ms)
        return due is not None and (was_set_back or due <= driver_ms)

    def next_wall_clock_call(self) -> int | None:
        """Return when the next call is due by the task's own clock (ms).

        A call that is due and held counts as later than now.
        """
        if self.visits.are_due:
            return 0
        self.inputs.settle()
        due = min(self._punctuators.next_call(), self._batches.next_due())
        return None if due == NEVER else due

    @property
    def waits_for_front(self) -> bool:
        """Whether a wall-clock schedule is due that waits until the inputs in front of the task are read."""
        return self._punctuators.are_waiting

    def wall_clock_nodes(self) -> list[str]:
        """Return the nodes that schedule by the wall clock."""
        return self._punctuators.nodes(PunctuationType.WALL_CLOCK_TIME)

    def _room_for_schedules(self) -> int:
        """Return the maximum bytes of schedules in the engine's state."""
        others = len(json.dumps(self._times_and_values(), separators=(",", ":")))
        # Times that are not known yet will have 13 digits.
        return max(_LEAST_ROOM, ENGINE_STATE_BYTES - others - 13 * (len(self.inputs) + 4))

    # ------------------------------------------------------------------ commit

    @property
    def commit_requested(self) -> bool:
        """Whether a processor asked for a commit; `take_commit` answers that."""
        return self.progress.commit_requested

    def output_bytes(self) -> int:
        """Return about the number of bytes produced and not taken."""
        return self._outputs.size_bytes()

    def take_outputs(self) -> list[OutputBatch]:
        """Return the outputs since the last call, a batch for each topic, to be sent ahead of the commit."""
        return self._outputs.take()

    def take_commit(self) -> TaskCommit:
        """Forward what batches and record caches hold, and return what to commit; the stores are flushed after it.

        A driver that cannot commit them has to reopen the task. Raises the errors of `process`.
        """
        self._batches.flush()
        self._caches.flush()
        while self._batches.flush():  # behind a store with a record cache
            self._caches.flush()
        has_changed = self.progress.take_change()
        return TaskCommit(self.inputs.positions(), self._outputs.take_last(), has_changed)

    def engine_state(self) -> bytes:
        """Return the state that the next opening of this task needs, as compact JSON."""
        state = self._times_and_values() | self._schedules.saved.state(self._schedules.to_data()) | self.visits.state()
        return json.dumps(state, separators=(",", ":")).encode()

    def _times_and_values(self) -> dict[str, Any]:
        times = {"stream": self.stream_time, "wall": self.wall_clock, **self.inputs.to_data()}
        firing = {"firing": True} if self.progress.is_firing else {}
        if self.progress.driver_clock < self.wall_clock:
            times["driver"] = self.progress.driver_clock
        return {**times, **firing, **self._values.state()}

    # ------------------------------------------------------------------ counts, and the end

    def drop(self, node: str, reason: str, count: int = 1) -> None:
        """Count records that were dropped at a node outside of `process`."""
        self._metrics[node].drop(reason, count)

    def metrics(self) -> Mapping[str, NodeMetrics]:
        """Return the counters of every node since the task was opened."""
        self._nodes.count()
        return self._metrics

    @property
    def punctuations(self) -> int:
        """How many punctuators were called since the task was opened; timers of keys are not counted."""
        return self._punctuators.called

    def decode_seconds(self) -> float:
        """Return how long decoding took since the task was opened."""
        return self.inputs.decode_seconds()

    def close(self) -> None:
        """Close every processor, parents first; idempotent. Errors of one are logged, and the others are closed."""
        self._nodes.close()


def partitions_read(engine_state: bytes) -> set[TopicPartition]:
    """Return the partitions with processed records of a task with this `engine_state`."""
    times: dict[str, int] = json.loads(engine_state).get("partitions", {}) if engine_state else {}
    read = (name.rpartition(":") for name, time in times.items() if time >= 0)
    return {TopicPartition(topic, int(partition)) for topic, _, partition in read}


_MOST_FLUSHES = 100


class Caches:
    """The record caches of one task, in the order in which its stores were declared."""

    def __init__(
        self, task_id: str, stores: Mapping[str, StateStore], progress: TaskProgress, failures: Failures
    ) -> None:
        self._task_id = task_id
        self._progress = progress
        self._failures = failures
        self._caches = [store.record_cache for store in stores.values() if store.record_cache is not None]
        progress.keeps_sources = failures.need_sources
        for cache in self._caches:
            cache.context, cache.emit = progress.record_context, self._forward

    def flush(self) -> None:
        """Flush every record cache until none has updates: a flush may put into another cache."""
        for _ in range(_MOST_FLUSHES):
            if not sum(cache.flush() for cache in self._caches):
                return
        names = ", ".join(repr(cache.store) for cache in self._caches)
        raise ProcessingError(
            f"task {self._task_id}: after {_MOST_FLUSHES} flushes, the record caches of {names} still have updates: a "
            "flush listener puts into its own store, or its children do; put into it in `process` only"
        )

    def _forward(self, node: str, listener: FlushListener, record: Record, source: SourceRecord | None) -> None:
        progress = self._progress
        before = progress.record, progress.input, progress.flushed
        progress.record, progress.input, progress.flushed = record, None, source
        try:
            listener(record)
        except RECORD_ERRORS as error:
            self._failures.processing(node, record, error)
        finally:
            progress.record, progress.input, progress.flushed = before
