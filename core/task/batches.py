"""Batches: the records that nodes hold until they have enough of them to work on all at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import count
from typing import Any

from ..clock import PunctuationType
from ..record import RecordBatch
from ..store.record_cache import SourceRecord
from .failures import RECORD_ERRORS, Failures, ProcessingFailed, shown
from .progress import TaskProgress
from .punctuators import Punctuators
from .schedules import NEVER

Compute = Callable[[Sequence[Any]], Sequence[Any]]
"""Gets records, and returns a result for each."""
Emit = Callable[[Any, Any], None]
"""Gets a record and its result."""


class Place:
    """Where a held record was read, as TaskProgress asks for it."""

    __slots__ = ("batch", "column")

    def __init__(self) -> None:
        self.batch: RecordBatch | None = None
        self.column = 0

    def column_index(self, index: int) -> int:
        """Return the place: there is one record only."""
        return self.column


_Where = tuple[RecordBatch, int]
_Rank = tuple[int, ...]
Held = tuple[Any, _Rank, _Where | None, SourceRecord | None, int, Hashable]
"""A record, its rank, where it was read, the source record of one that a record cache forwarded, the stream time, and
the punctuator, timer or row that forwarded it."""


class Batches:
    """The held records of one task. No record is held over a commit, so an attempt that fails leaves none behind.

    What the nodes behind make of the records is the same as if none were held: they get them in the order in which
    they arrived, at the stream time of the arrival, and what is due by that time is called before the next one. So
    records are let go before any punctuator, and before a record that comes by another way (`run_after`).

    Records have ranks for that: in their order, the nodes would have got them if none were held. A rank begins with the
    number of the record of the loop. The rank of a record that is made of a held one begins with the rank of that.

    Only records that a node holds have a number. Others move the stream time, too: the times that it had between two
    held records are the `steps` after the first one.
    """

    def __init__(self, progress: TaskProgress, failures: Failures, punctuators: Punctuators) -> None:
        self._progress = progress
        self.failures = failures
        self._punctuators = punctuators
        self._nodes: list[HoldingNode] = []
        self._number = 0
        self._index = -1
        """The index of the record with this number in the loop's stretch of records; -1: it is not of this stretch."""
        self._records: Sequence[Any] = ()
        """The records of the stretch, by their index."""
        self._next = 0
        """The index in the stretch up to which steps were added."""
        self._time = -1
        """The stream time after the records before that."""
        self._steps: list[tuple[int, int]] = []
        """Where the stream time rose: the number of the last record that was held by then, and the time."""
        self._ranks = count()
        self._emitted: _Rank = ()
        self.ordered = set[str]()
        """Nodes that held records reach, or whose stores these do."""
        punctuators.let_go = punctuators.timers.let_go = self.let_go_before_call
        self.are_any = False
        """Whether a record may be held."""

    def add(self, node: HoldingNode) -> Callable[[Any], None]:
        """Add a node that holds records; return the function that gets each of its records."""
        self._nodes.append(node)
        return node.hold

    @property
    def are_used(self) -> bool:
        """Whether a node holds records."""
        return bool(self._nodes)

    def begin_stretch(self, records: Sequence[Any], first: int) -> None:
        """Begin a stretch of the loop: `records` from index `first` on."""
        self._records, self._next, self._index = records, first, -1

    def end_stretch(self, end: int) -> None:
        """End the stretch: the records before index `end` were processed."""
        if self.are_any:
            self._add_steps(end)
        self._records = ()

    def _add_steps(self, end: int) -> None:
        """Add the steps of the stretch's records before index `end`, none of which is held from now on."""
        time = self._time
        for place in range(self._next, end):
            timestamp = self._records[place][2]
            if timestamp > time:
                time = timestamp
                self._steps.append((self._number, time))
        self._next, self._time = max(self._next, end), time

    def run_after(self, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return `run` of a node that also gets records, or rows of its stores, from behind a batch: in their order."""

        def run_in_order(record: Any) -> None:
            if self.are_any:
                self._catch_up()
            run(record)

        return run_in_order

    def let_go_before_call(self, node: str | None = None) -> bool:
        """Let go what must precede the next call of a punctuator, or of a timer of `node`; return whether it was any.

        Timers may be many, and those of a node that no held record reaches make one batch.
        """
        return self.are_any and (node is None or node in self.ordered) and self._catch_up()

    def _catch_up(self) -> bool:
        """Let all records go that would have arrived by now."""
        return self.flush((*self._emitted, NEVER) if self._emitted else None)

    def next_due(self) -> int:
        """Return when the first record has waited long enough, by the task's wall clock (ms); NEVER if none waits."""
        return min((node.due for node in self._nodes), default=NEVER)

    def flush(self, before: _Rank | None = None) -> bool:
        """Let all records go, or those with a rank below `before`, also from a node behind another one.

        Return whether there were any.
        """
        fired = False
        while sum(node.let_go(before) for node in reversed(self._nodes)):  # parents first, for larger batches
            fired = True
        return fired

    def emit(self, node: str, results: Iterator[tuple[Held, Any]], emit: Emit) -> None:
        """Hand on each record with its result, at the time of its arrival; an error of `emit` meets the handler."""
        progress, place, emitted = self._progress, Place(), self._emitted
        if not emitted and progress.last >= 0:
            self._add_steps(progress.current_index())
        before = progress.current()
        # What is due behind the active record is called after it.
        current, punctuators, now = self._current(), self._punctuators, progress.stream_time
        due: tuple[int, int] | None = None
        progress.needs_attention = False  # until a record of these makes something due sooner
        try:
            for (record, rank, source, flushed, stream_time, occasion), result in results:
                number = rank[0]
                if due is not None and due[0] != number and (progress.needs_attention or punctuators.stream_due <= now):
                    self._fire_between(*due, number)
                self._emitted = rank
                due = (number, stream_time) if number < current else None
                progress.flushed, progress.stream_time = flushed, stream_time
                progress.record, progress.occasion = None, occasion
                if source is None:
                    progress.input = None
                else:
                    place.batch, place.column = source
                    progress.input = place
                try:
                    if isinstance(result, _Failed):
                        raise result.error
                    emit(record, result)
                except RECORD_ERRORS as error:
                    self.failures.processing(node, record, error)
                progress.input = progress.flushed = progress.occasion = None
            if due is not None:
                self._fire_between(*due, current)
        finally:
            self._emitted = emitted
            self.are_any = any(node.are_any for node in self._nodes)
            progress.set_current(before)
            progress.needs_attention = True  # whatever asked for it, meanwhile or before

    def _fire_between(self, number: int, stream_time: int, until: int) -> None:
        """Call what was due after a record, at each stream time from its own to that before record `until`."""
        self._fire(number, stream_time)
        steps = self._steps
        if steps and steps[-1][1] > stream_time:
            for number, time in steps[bisect_right(steps, stream_time, key=_time_of) :]:
                if number >= until:
                    break
                self._fire(number, time)

    def _fire(self, number: int, stream_time: int) -> None:
        """Call what a record has scheduled behind the node, if it is due by a stream time before the next one."""
        punctuators, progress = self._punctuators, self._progress
        if progress.needs_attention:
            punctuators.look_ahead()
            progress.needs_attention = False
        if punctuators.stream_due > stream_time:
            return
        # In front of the next record, and behind all that is made of this one.
        self._emitted, progress.stream_time = (number, NEVER), stream_time
        self.flush((number + 1,))  # the record may be in another batch
        if punctuators.stream_due <= stream_time:
            punctuators.fire(PunctuationType.STREAM_TIME, stream_time)

    def held(self, record: Any) -> Held:
        """Return a record that a node holds from now on."""
        progress = self._progress
        place = progress.current_place()
        if self._emitted:
            rank = *self._emitted, next(self._ranks)
        else:
            number = self._number
            if progress.last < 0:
                number += 1
            elif (index := progress.current_index()) != self._index:
                number += 1
                self._count(number, index)
            rank = number, next(self._ranks)
        flushed = None if place is not None else progress.flushed
        self.are_any = True
        return record, rank, place, flushed, progress.stream_time, progress.occasion

    def _count(self, number: int, index: int) -> None:
        """Give the active record of the loop, at an index of its stretch, its number."""
        time = self._progress.stream_time
        if self.are_any:
            if index > self._next:
                self._add_steps(index)
            if time > self._time:
                self._steps.append((number, time))
        else:
            self._steps = []  # the list that a loop over steps has stays as it is
        self._number, self._index, self._next, self._time = number, index, index + 1, time

    def _current(self) -> int:
        """Return the number of the active record of the loop, or between two, at a commit for one, of the next."""
        if self._emitted:
            return self._emitted[0]
        progress = self._progress
        if progress.last < 0:
            return self._number + 1
        return self._number + (self._index != progress.current_index())

    @property
    def wall_clock(self) -> int:
        """The task's wall clock (ms)."""
        return self._progress.wall_clock


class HoldingNode(ABC):
    """The held records of one node. `emit`: see `Batches.emit`; `due`: see `Batches.next_due`."""

    def __init__(self, batches: Batches, name: str, emit: Emit, most: int, wait_ms: int) -> None:
        self._batches = batches
        self.name = name
        self._emit_result = emit
        self._most = most
        self._wait_ms = wait_ms
        self._held: list[Held] = []
        self.due = NEVER

    @property
    def are_any(self) -> bool:
        """Whether it holds a record."""
        return bool(self._held)

    def hold(self, record: Any) -> None:
        """Hold a record, or let all go if these are enough."""
        held, batches = self._held, self._batches
        if not held:
            self.begin()
        held.append(batches.held(record))
        if len(held) >= self._most:
            self.let_go()

    def begin(self) -> None:
        """Begin a batch."""
        self.due = self._batches.wall_clock + self._wait_ms

    def let_go(self, before: _Rank | None = None) -> bool:
        """Let the records go, those with a rank below `before` only; return whether there were any."""
        held = self._held
        end = len(held) if before is None else bisect_left(held, before, key=_rank)
        if not end:
            return False
        self._held = held[end:]
        if not self._held:
            self.due = NEVER
        self._batches.emit(self.name, self.results(held[:end]), self._emit_result)
        return True

    @abstractmethod
    def results(self, held: Sequence[Held]) -> Iterator[tuple[Held, Any]]:
        """Yield each record with its result."""


class ComputingNode(HoldingNode):
    """The held records of a node that computes a result for each; see `ProcessorContext.batched`."""

    def __init__(self, batches: Batches, name: str, compute: Compute, emit: Emit, most: int, wait_ms: int) -> None:
        super().__init__(batches, name, emit, most, wait_ms)
        self._compute = compute

    def results(self, held: Sequence[Held]) -> Iterator[tuple[Held, Any]]:
        """Yield each record with its result. A batch that fails is halved until the records at fault are alone."""
        try:
            results = self._compute([each[0] for each in held])
        except RECORD_ERRORS as error:
            if len(held) == 1:
                yield held[0], _Failed(error)
                return
            half = len(held) // 2
            yield from self.results(held[:half])
            yield from self.results(held[half:])
            return
        if not isinstance(results, (list, tuple)) or len(results) != len(held):
            made = f"{len(results)} results" if isinstance(results, (list, tuple)) else shown(results)
            raise ProcessingFailed(
                f"node {self.name!r}: its function of a batch got {len(held)} records and returned {made}, expected a "
                "list with one result for each, in the same order. No record is at fault, so no handler was asked: "
                "mend the function and start again: nothing since the last commit counts, and nothing is lost"
            )
        yield from zip(held, results, strict=True)


class _Failed:
    """In place of a record's result: the error of a batch of this record alone."""

    def __init__(self, error: Exception | SystemExit) -> None:
        self.error = error


def _rank(held: Held) -> _Rank:
    return held[1]


def _time_of(step: tuple[int, int]) -> int:
    return step[1]
