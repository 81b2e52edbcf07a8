"""Task: one partition of one sub-topology, without I/O: no log, no clock, no thread.

Comes in: batches of records, and the time. Goes out: produced records, positions and state to commit in one step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from ..clock import PunctuationType, duration_ms
from ..errors import ProcessingError, RecordRefusedError
from ..log import ENGINE_STATE_BYTES
from ..processor import NodeMetrics
from ..program.external_sink import staging_name
from ..program.nodes import Subtopology, TaskId
from ..record import OutputBatch, Record, RecordBatch, TopicPartition
from ..settings.settings import Settings
from ..store import StateStore
from ..store.kinds.key_value import KeyValueStore
from ..store.record_cache import FlushListener, SourceRecord
from ..support.repeats import Repeats
from ..world.calls import Calls, InlineCalls
from .batches import Batches
from .compiling import Nodes
from .context import ReadOnlyView, Shared, read_only_views
from .failures import RECORD_ERRORS, FailureKey, Failures
from .in_flight import InFlight
from .input_queue import InputQueue, TaskInput
from .inputs import Inputs, Want
from .loop import BatchingLoop, Loop
from .outputs import Outputs
from .progress import Front, TaskProgress
from .punctuators import Punctuators
from .saved_schedules import saved_names
from .saved_values import SavedValues
from .schedules import NEVER, Schedules
from .sinks import CollectedRecords, OpenedSink, SinkRecords, SinkWrite, StagedRecords, StagedWrite
from .visits import Visits

_LEAST_ROOM = 200
"""So many bytes schedules may take, however many partitions the task reads."""


@dataclass(frozen=True)
class TaskCommit:
    """The state that a task commits beside its `engine_state`. `has_changed`: commit, though nothing else is new.

    `writes` are for targets outside of the log, which get them before the commit.
    """

    positions: Mapping[TopicPartition, int]
    outputs: list[OutputBatch]
    has_changed: bool
    writes: Sequence[SinkWrite | StagedWrite] = ()


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
    for. `calls` makes the calls of nodes whose results come later (None: at once). `sinks`: the opened targets of
    external sinks, by node. `progress_class` and `nodes_class` make its parts: a profile has others, which measure.
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
        calls: Calls | None = None,
        sinks: Mapping[str, OpenedSink] | None = None,
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
        self.in_flight = InFlight(progress, self._failures, calls or InlineCalls(), stores)
        self._punctuators = Punctuators(
            self._schedules, progress, self._failures, self._room_for_schedules, self.inputs.idle_ms, self.in_flight
        )
        self._caches = Caches(name, stores, progress, self._failures, self.in_flight)
        self._batches = Batches(progress, self._failures, self._punctuators)
        self._punctuators.let_all_go = self._forward_held
        shared = Shared(
            application_id, name, settings, stores, self.global_stores, read_only_views(subtopology, stores), progress,
            self._punctuators.schedule, not takes_whole_batches,
            self._punctuators.timers, self._values, self._failures.late, self._batches, self.in_flight,
        )  # fmt: skip
        self._sinks = {node: self._records_of(node, opened) for node, opened in (sinks or {}).items()}
        self.visits = Visits(saved, progress, self._failures.outside_records)
        self._nodes = self.nodes_class(subtopology, shared, self._outputs, self._failures, self._metrics)
        try:
            self._nodes.compile(queues, self.visits, {name: each.collect for name, each in self._sinks.items()})
            self._nodes.init(self._schedules)
            self.in_flight.restore()
        except BaseException:
            self.close()
            raise
        self._punctuators.look_ahead()
        loop_class = BatchingLoop if self._batches.are_used else Loop
        self._loop = loop_class(
            self.inputs, progress, self._failures, self._punctuators, self._batches, self.in_flight,
            may_wait=not takes_whole_batches,
        )  # fmt: skip
        self.in_flight.fire_due = self._loop.fire_due

    def _records_of(self, node: str, opened: OpenedSink) -> CollectedRecords:
        """Return the records of an external sink."""
        progress, failed = self.progress, self._failures.sink
        if opened.staged is None:
            return SinkRecords(node, opened, self._values.of(node), progress, failed)
        store = cast(KeyValueStore[str, bytes], self.stores[staging_name(node)])
        return StagedRecords(node, opened, opened.staged, store, progress, failed)

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
        return [] if self.in_flight.is_full else self.inputs.wants()

    def feed(self, batch: RecordBatch) -> None:
        """Queue records of one input, in offset order. A batch without records moves the position."""
        self.inputs.feed(batch)

    def process(self, limit: int) -> int:
        """Process up to `limit` queued records; return how many.

        Fewer than `limit`: no record is left, the task wants more of an input, it waits for an empty one
        (`max_task_idle`), or a processor requested a commit.
        """
        done = self._loop.process(limit)
        if done:
            self.progress.read_at = self.progress.wall_clock
        self.records_in += done
        return done

    def end_batches(self) -> None:
        """Process what waits in batches, where no `take_commit` does it."""
        self._let_go()

    def hand_to_calls(self, waited_ms: int = 0) -> bool:
        """Forward what batches and record caches hold, if the task has calls, and hand on the results that have come.

        Return whether there was a result, which may fill batches and caches again. `waited_ms`: see `InFlight.settle`.
        """
        if not self.in_flight.is_used:
            return False
        self._forward_held()
        return self.in_flight.settle(waited_ms)

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
        settled = self.in_flight.settle()
        if settled:
            self._loop.fire_due()
        is_due = self.visits.are_due or self._next_due() <= self.progress.wall_clock
        fired = is_due and self._let_go()
        fired |= self._sinks_due() <= self.progress.wall_clock  # the commit does the rest
        fired |= self._fire_wall_clock() | settled
        if fired and self.progress.must_end:
            return True
        has_visited = self.visits.run()
        if has_visited and self._let_go():
            self._fire_wall_clock()
        return has_visited or fired

    def _fire_wall_clock(self) -> bool:
        """Fire what is due by the wall clock, also behind the records that this makes; return whether there was any."""
        fire, now = self._punctuators.fire, self.progress.wall_clock
        fired = has_fired = fire(PunctuationType.WALL_CLOCK_TIME, now)
        while has_fired and self._let_go():
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
        due = min(self._next_due(), self.in_flight.next_look())
        return None if due == NEVER else self.progress.driver_time_of(due)

    def _next_due(self) -> int:
        """Return when something is due by the wall clock, or a batch has waited long enough (ms)."""
        schedules = self._punctuators.next_due(PunctuationType.WALL_CLOCK_TIME)
        return min(schedules, self._batches.next_due(), self.in_flight.next_due(), self._sinks_due())

    def _sinks_due(self) -> int:
        """Return when an external sink has something to write without a record (ms)."""
        return min((each.due for each in self._sinks.values()), default=NEVER)

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
        due = min(self._punctuators.next_call(), self._batches.next_due(), self.in_flight.next_due(), self._sinks_due())
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
        return max(
            _LEAST_ROOM, ENGINE_STATE_BYTES - others - 13 * (len(self.inputs) + (6 if self.in_flight.is_used else 4))
        )

    # ------------------------------------------------------------------ commit

    @property
    def commit_requested(self) -> bool:
        """Whether a processor asked for a commit; `take_commit` answers that."""
        return self.progress.commit_requested

    def output_bytes(self) -> int:
        """Return about the number of bytes produced and not taken."""
        return self._outputs.size_bytes()

    def sink_bytes(self) -> int:
        """Return about the number of bytes collected for targets outside of the log."""
        return sum(each.size_bytes for each in self._sinks.values())

    def take_outputs(self) -> list[OutputBatch]:
        """Return the outputs since the last call, a batch for each topic, to be sent ahead of the commit."""
        return self._outputs.take()

    def take_commit(self) -> TaskCommit:
        """Forward what batches and record caches hold, and return what to commit; the stores are flushed after it.

        A driver that cannot commit them has to reopen the task. Raises the errors of `process`.
        """
        self._forward_held()
        self.in_flight.write_rows()
        self._nodes.note_held_back()
        has_changed = self.progress.take_change()
        writes = [write for each in self._sinks.values() if (write := each.take()) is not None]
        return TaskCommit(self.inputs.positions(), self._outputs.take_last(), has_changed, writes)

    def _forward_held(self) -> None:
        self._let_go()
        self._caches.flush()
        while self._let_go():  # behind a store with a record cache
            self._caches.flush()

    def _let_go(self) -> bool:
        """Let go what batches hold; return whether there was any."""
        had_records = self._batches.flush()
        if had_records and self.in_flight.behind:
            # The loop calls what is due after its own records, and not after those that calls handed on.
            self._loop.fire_due()
        return had_records

    def engine_state(self) -> bytes:
        """Return the state that the next opening of this task needs, as compact JSON."""
        state = self._times_and_values() | self._schedules.saved.state(self._schedules.to_data()) | self.visits.state()
        return json.dumps(state, separators=(",", ":")).encode()

    def _times_and_values(self) -> dict[str, Any]:
        times = {"stream": self.stream_time, "wall": self.wall_clock, **self.inputs.to_data()}
        firing: dict[str, Any] = {"firing": True} if self.progress.is_firing else {}
        if (since := self.in_flight.since()) is not None:
            firing["calls"] = since
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
        self.in_flight.close()
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
        self,
        task_id: str,
        stores: Mapping[str, StateStore],
        progress: TaskProgress,
        failures: Failures,
        in_flight: InFlight,
    ) -> None:
        self._task_id = task_id
        self._progress = progress
        self._in_flight = in_flight
        self._failures = failures
        self._caches = [store.record_cache for store in stores.values() if store.record_cache is not None]
        progress.keeps_sources = failures.need_sources
        for cache in self._caches:
            cache.context, cache.emit = progress.record_context, self._forward
            cache.windows.flush = self._flush_windows

    def _flush_windows(self) -> None:
        """Flush every record cache, unless one is flushed now: its updates are on their way."""
        if not any(cache.is_flushing for cache in self._caches):
            self.flush()

    def flush(self) -> None:
        """Flush every record cache until none has updates: a flush may put into another cache."""
        for _ in range(_MOST_FLUSHES):
            if not sum(cache.flush() for cache in self._caches):
                for cache in self._caches:
                    cache.windows.forget()
                return
        names = ", ".join(repr(cache.store) for cache in self._caches)
        raise ProcessingError(
            f"task {self._task_id}: after {_MOST_FLUSHES} flushes, the record caches of {names} still have updates: a "
            "flush listener puts into its own store, or its children do; put into it in `process` only"
        )

    def _forward(self, node: str, listener: FlushListener, record: Record, source: SourceRecord | None) -> None:
        progress = self._progress
        before = progress.record, progress.input, progress.flushed, progress.stream_time
        if self._in_flight.behind:
            self._in_flight.show_time(node)
        progress.record, progress.input, progress.flushed = record, None, source
        try:
            listener(record)
        except RECORD_ERRORS as error:
            self._failures.processing(node, record, error)
        finally:
            progress.record, progress.input, progress.flushed, progress.stream_time = before
