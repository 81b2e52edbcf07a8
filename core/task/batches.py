"""Batches: the records that nodes hold until they have enough of them to work on all at once."""

from __future__ import annotations

from bisect import bisect_left
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


class _Place:
    """Where a held record was read, as TaskProgress asks for it."""

    __slots__ = ("batch", "column")

    def __init__(self) -> None:
        self.batch: RecordBatch | None = None
        self.column = 0

    def column_index(self, index: int) -> int:
        return self.column


_Where = tuple[RecordBatch, int]
_Rank = tuple[int, ...]
_Held = tuple[Any, _Rank, _Where | None, SourceRecord | None, int, Hashable]
"""A record, its rank, where it was read, the source record of one that a record cache forwarded, the stream time, and
the punctuator, timer or row that forwarded it."""


class Batches:
    """The held records of one task. No record is held over a commit, so an attempt that fails leaves none behind.

    What the nodes behind make of the records is the same as if none were held: they get them in the order in which
    they arrived, at the stream time of the arrival, and what is due by that time is called before the next one. So
    records are let go before any punctuator, and before a record that comes by another way (`run_after`).

    Records have ranks for that: in their order, the nodes would have got them if none were held. A rank begins with the
    number of the record of the loop. The rank of a record that is made of a held one begins with the rank of that.
    """

    def __init__(self, progress: TaskProgress, failures: Failures, punctuators: Punctuators) -> None:
        self._progress = progress
        self._failures = failures
        self._punctuators = punctuators
        self._nodes: list[_Node] = []
        self._number = 0
        self._turn: tuple[Iterator[Any], int] | None = None
        """The record of the loop that has this number: its stretch of records, and its index."""
        self._ranks = count()
        self._emitted: _Rank = ()
        self.ordered = set[str]()
        """Nodes that held records reach, or whose stores these do."""
        punctuators.let_go = punctuators.timers.let_go = self.let_go_before_call
        self.are_any = False
        """Whether a record may be held."""

    def add(self, node: str, compute: Compute, emit: Emit, most: int, wait_ms: int) -> Callable[[Any], None]:
        """Return the function that gets each record of a node; see `ProcessorContext.batched`."""
        made = _Node(self, node, compute, emit, most, wait_ms)
        self._nodes.append(made)
        return made.hold

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
        self.are_any = any(node.are_any for node in self._nodes)
        return fired

    def emit(self, node: str, results: Iterator[tuple[_Held, Any]], emit: Emit) -> None:
        """Hand on each record with its result, at the time of its arrival; an error of `emit` meets the handler."""
        progress, place, emitted = self._progress, _Place(), self._emitted
        before = progress.input, progress.flushed, progress.record, progress.stream_time, progress.occasion
        # What is due behind the active record is called after it.
        current = self._current()
        due: tuple[int, int] | None = None
        progress.needs_attention = False  # until a record of these makes something due sooner
        try:
            for (record, rank, source, flushed, stream_time, occasion), result in results:
                number = rank[0]
                if due is not None and due[0] != number:
                    self._fire(*due)
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
                    self._failures.processing(node, record, error)
                progress.input = progress.flushed = progress.occasion = None
            if due is not None:
                self._fire(*due)
        finally:
            self._emitted = emitted
            progress.input, progress.flushed, progress.record, progress.stream_time, progress.occasion = before
            progress.needs_attention = True  # whatever asked for it, meanwhile or before

    def _fire(self, number: int, stream_time: int) -> None:
        """Call what a record has scheduled behind the node, if it is due already."""
        punctuators = self._punctuators
        if self._progress.needs_attention:
            punctuators.look_ahead()
            self._progress.needs_attention = False
        if punctuators.stream_due <= stream_time:
            self.flush((number + 1,))  # the record may be in another batch
        if punctuators.stream_due <= stream_time:
            punctuators.fire(PunctuationType.STREAM_TIME, stream_time)

    def held(self, record: Any) -> _Held:
        """Return a record that a node holds from now on."""
        self.are_any = True
        progress = self._progress
        place = progress.current_place()
        if self._emitted:
            rank = *self._emitted, next(self._ranks)
        else:
            number = self._current()
            if progress.last >= 0 and number > self._number:
                self._number, self._turn = number, (progress.remaining, progress.current_index())
            rank = number, next(self._ranks)
        flushed = None if place is not None else progress.flushed
        return record, rank, place, flushed, progress.stream_time, progress.occasion

    def _current(self) -> int:
        """Return the number of the active record of the loop, or between two, at a commit for one, of the next."""
        if self._emitted:
            return self._emitted[0]
        progress, turn = self._progress, self._turn
        if progress.last < 0 or turn is None or turn[0] is not progress.remaining:
            return self._number + 1
        return self._number + (turn[1] != progress.current_index())

    @property
    def wall_clock(self) -> int:
        """The task's wall clock (ms)."""
        return self._progress.wall_clock


class _Failed:
    """In place of a record's result: the error of a batch of this record alone."""

    def __init__(self, error: Exception | SystemExit) -> None:
        self.error = error


class _Node:
    """The held records of one node. `due`: see `Batches.next_due`."""

    def __init__(self, batches: Batches, name: str, compute: Compute, emit: Emit, most: int, wait_ms: int) -> None:
        self._batches = batches
        self.name = name
        self._compute = compute
        self._emit = emit
        self._most = most
        self._wait_ms = wait_ms
        self._held: list[_Held] = []
        self.due = NEVER

    @property
    def are_any(self) -> bool:
        """Whether it holds a record."""
        return bool(self._held)

    def hold(self, record: Any) -> None:
        """Hold a record, or let all go if these are enough."""
        held, batches = self._held, self._batches
        if not held:
            self.due = batches.wall_clock + self._wait_ms
        held.append(batches.held(record))
        if len(held) >= self._most:
            self.let_go()

    def let_go(self, before: _Rank | None = None) -> bool:
        """Let the records go, those with a rank below `before` only; return whether there were any."""
        held = self._held
        end = len(held) if before is None else bisect_left(held, before, key=_rank)
        if not end:
            return False
        self._held = held[end:]
        if not self._held:
            self.due = NEVER
        self._batches.emit(self.name, self._results(held[:end]), self._emit)
        return True

    def _results(self, held: Sequence[_Held]) -> Iterator[tuple[_Held, Any]]:
        """Yield each record with its result. A batch that fails is halved until the records at fault are alone."""
        try:
            results = self._compute([each[0] for each in held])
        except RECORD_ERRORS as error:
            if len(held) == 1:
                yield held[0], _Failed(error)
                return
            half = len(held) // 2
            yield from self._results(held[:half])
            yield from self._results(held[half:])
            return
        if not isinstance(results, (list, tuple)) or len(results) != len(held):
            made = f"{len(results)} results" if isinstance(results, (list, tuple)) else shown(results)
            raise ProcessingFailed(
                f"node {self.name!r}: its function of a batch got {len(held)} records and returned {made}, expected a "
                "list with one result for each, in the same order. No record is at fault, so no handler was asked: "
                "mend the function and start again: nothing since the last commit counts, and nothing is lost"
            )
        yield from zip(held, results, strict=True)


def _rank(held: _Held) -> _Rank:
    return held[1]
