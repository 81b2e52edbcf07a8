"""Batches: the records that nodes hold until they have enough of them to work on all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
_Held = tuple[Any, int, _Where | None, SourceRecord | None, int]
"""A record, its number, where it was read, the source record of one that a record cache forwarded, the stream time."""


class Batches:
    """The held records of one task. No record is held over a commit, so an attempt that fails leaves none behind.

    What the nodes behind make of the records is the same as if none were held: they get them in the order in which
    they arrived, at the stream time of the arrival, and what is due by that time is called before the next one. So
    records are let go before any punctuator, and before a record that comes by another way (`run_after`). Records have
    numbers for that: one for each record that the task reads.
    """

    def __init__(self, progress: TaskProgress, failures: Failures, punctuators: Punctuators) -> None:
        self._progress = progress
        self._failures = failures
        self._punctuators = punctuators
        self._nodes: list[_Node] = []
        self._number = 0
        self._place: _Where | None = None
        self._emitted: int | None = None
        self._emitter: str | None = None
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
                self.flush(self._emitted, self._emitter)
            run(record)

        return run_in_order

    def next_due(self) -> int:
        """Return when the first record has waited long enough, by the task's wall clock (ms); NEVER if none waits."""
        return min((node.due for node in self._nodes), default=NEVER)

    def flush(self, before: int | None = None, emitter: str | None = None) -> bool:
        """Let all records go, or those with a number below `before`, also from a node behind another one.

        And of the record of that number those of nodes in front of `emitter` in the program. Return whether there were
        any.
        """
        fired, names = False, [node.name for node in self._nodes]  # the last ones first
        first = len(names) if emitter is None or before is None else names.index(emitter) + 1
        while any(
            node.let_go(before if before is None or place < first else before + 1)
            for place, node in enumerate(self._nodes)
        ):
            fired = True
        self.are_any = any(node.are_any for node in self._nodes)
        return fired

    def emit(self, node: str, results: Iterator[tuple[_Held, Any]], emit: Emit) -> None:
        """Hand on each record with its result, at the time of its arrival; an error of `emit` meets the handler."""
        progress, place, emitted = self._progress, _Place(), (self._emitted, self._emitter)
        before = progress.input, progress.flushed, progress.record, progress.stream_time
        # The loop over records calls what is due behind a record, and so does a punctuator.
        here, is_between_records = progress.current_place(), progress.occasion is None
        due: tuple[int, int] | None = None
        try:
            for (record, number, source, flushed, stream_time), result in results:
                if due is not None and due[0] != number:
                    self._fire(*due)
                self._emitted, self._emitter = number, node
                due = (number, stream_time) if is_between_records and (source is None or source != here) else None
                progress.needs_attention = False
                progress.flushed, progress.stream_time = flushed, stream_time
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
                progress.input = progress.flushed = None
            if due is not None:
                self._fire(*due)
        finally:
            self._emitted, self._emitter = emitted
            progress.input, progress.flushed, progress.record, progress.stream_time = before
            progress.needs_attention = True  # whatever asked for it, meanwhile or before

    def _fire(self, number: int, stream_time: int) -> None:
        """Call what a record has scheduled behind the node, if it is due already."""
        punctuators = self._punctuators
        if self._progress.needs_attention:
            punctuators.look_ahead()
        if punctuators.stream_due <= stream_time:
            self.flush(number + 1)  # the record may be in another batch
        if punctuators.stream_due <= stream_time:
            punctuators.fire(PunctuationType.STREAM_TIME, stream_time)

    def held(self, record: Any) -> _Held:
        """Return a record that a node holds from now on."""
        self.are_any = True
        progress = self._progress
        place = progress.current_place()
        number = self._emitted
        if number is None:
            if place is None or place != self._place:
                self._number += 1
            self._place, number = place, self._number
        return record, number, place, None if place is not None else progress.flushed, progress.stream_time

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

    def let_go(self, before: int | None = None) -> bool:
        """Let the records go, those with a number below `before` only; return whether there were any."""
        held = self._held
        end = len(held) if before is None else sum(each[1] < before for each in held)
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
