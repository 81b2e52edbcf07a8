"""Loop: processes one chosen record after another. This is the hot path.

Comes in: the queue with the next record. Goes out: calls of the nodes below each source, and of punctuators between two
records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from operator import length_hint
from typing import Any

from ..clock import PunctuationType
from ..compiled import records as compiled
from .batches import Batches
from .failures import RECORD_ERRORS, Failures
from .in_flight import InFlight
from .input_queue import InputQueue
from .inputs import Inputs
from .progress import TaskProgress
from .punctuators import Punctuators
from .schedules import NEVER


def run_records(
    remaining: Iterator[Any], run: Callable[[Any], Any], progress: TaskProgress, queue: InputQueue, stream_due: int
) -> None:
    """Call `run` with each record, until the loop has to look at something between two records.

    That is where the stream time reaches `stream_due`, or `progress.needs_attention`.
    """
    stream_time, highest = progress.stream_time, queue.partition_time
    try:
        for record in remaining:
            timestamp = record[2]
            if timestamp > highest:
                highest = timestamp
                if timestamp > stream_time:
                    progress.stream_time = stream_time = timestamp
            run(record)
            if stream_time >= stream_due or progress.needs_attention:
                return
    finally:
        queue.partition_time = highest


_run_records = run_records if compiled is None else compiled.run_records(run_records, chain)


class Loop:
    """Processes the records of one task. `may_wait`: whether it waits for an empty input (`max_task_idle`)."""

    def __init__(
        self,
        inputs: Inputs,
        progress: TaskProgress,
        failures: Failures,
        punctuators: Punctuators,
        batches: Batches,
        in_flight: InFlight,
        *,
        may_wait: bool,
    ) -> None:
        self._inputs = inputs
        self._progress = progress
        self._failures = failures
        self._punctuators = punctuators
        self._batches = batches
        self._in_flight = in_flight
        self._may_wait = may_wait

    def process(self, limit: int) -> int:
        """Process up to `limit` records; return how many.

        It ends early at a request for a commit or by the driver, and without a record to choose.
        """
        progress, done = self._progress, 0
        if progress.is_firing:
            self._fire(progress.stream_time)
            if progress.is_firing:
                return 0
        while done < limit and not progress.must_end and not self._in_flight.is_full:
            chosen = self._inputs.choose(self._may_wait)
            if chosen is None:
                break
            done += self._process_queue(*chosen, limit - done)
        return done

    def _process_queue(self, queue: InputQueue, bound: int, limit: int) -> int:
        """Process at most `limit` records of a queue, none with a timestamp above `bound`; return how many."""
        first, records = queue.index, queue.records
        end = min(first + limit, len(records))
        if bound < NEVER:
            # Where inputs take turns, a turn is a few records: do not copy all that wait.
            stop = first + 1
            while stop < end and records[stop][2] <= bound:
                stop += 1
            end = stop
        if first > 0 or end < len(records):
            records = records[first:end]
        progress, punctuators = self._progress, self._punctuators
        run, child, failed = queue.run, queue.child, self._failures.processing
        stream_due = punctuators.stream_due
        remaining = progress.remaining = iter(records)
        progress.input, progress.last = queue, first + len(records) - 1
        try:
            while length_hint(remaining):
                # A try costs nothing until something is raised. So every edge has one, and a record is skipped at its
                # node only.
                try:
                    _run_records(remaining, run, progress, queue, stream_due)
                except RECORD_ERRORS as error:
                    failed(child, records[progress.current_index() - first], error)
                if progress.stream_time >= stream_due or progress.needs_attention:
                    self._attend(queue, progress.stream_time)
                    stream_due = punctuators.stream_due
                    if progress.must_end or self._in_flight.is_full:
                        break
        except BaseException:
            queue.index = progress.current_index()
            queue.counts[0] += queue.index + 1 - first  # with the one that failed, which its node has got
            raise
        else:
            queue.index = progress.current_index() + 1
        finally:
            progress.input, progress.last = None, -1
        done = queue.index - first
        progress.last_timestamp = records[done - 1][2]
        queue.counts[0] += done
        return done

    def _attend(self, queue: InputQueue, stream_time: int) -> None:
        """Between two records: fire the stream-time punctuators that are due, and take new schedules into account."""
        progress = self._progress
        progress.needs_attention = False
        queue.index, progress.input = progress.current_index() + 1, None
        self._in_flight.settle()
        if progress.is_out_of_time:
            self._punctuators.postpone(stream_time)
        else:
            self.fire_due()
        progress.input = queue

    def fire_due(self) -> None:
        """Call what is due by the stream time, between two records."""
        self._punctuators.look_ahead()
        if self._progress.stream_time >= self._punctuators.stream_due:
            self._fire(self._progress.stream_time)

    def _fire(self, stream_time: int) -> None:
        """Call what is due by the stream time, after the records that wait in batches."""
        self._batches.flush()
        self._punctuators.fire(PunctuationType.STREAM_TIME, stream_time)


class BatchingLoop(Loop):
    """The loop of a task with a node that holds records: it has to know which others moved the stream time."""

    def _process_queue(self, queue: InputQueue, bound: int, limit: int) -> int:
        self._batches.begin_stretch(queue.records, queue.index)
        done = super()._process_queue(queue, bound, limit)
        self._batches.end_stretch(queue.index)
        return done
