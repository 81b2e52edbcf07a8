"""Loop: processes one chosen record after another. This is the hot path.

Comes in: the queue with the next record. Goes out: calls of the nodes below each source, and of punctuators between two
records.
"""

from __future__ import annotations

from ..clock import PunctuationType
from .failures import RECORD_ERRORS, Failures
from .input_queue import InputQueue
from .inputs import Inputs
from .progress import Progress
from .punctuators import Punctuators
from .schedules import NEVER


class Loop:
    """Processes the records of one task. `may_wait`: whether it waits for an empty input (`max_task_idle`)."""

    def __init__(
        self, inputs: Inputs, progress: Progress, failures: Failures, punctuators: Punctuators, *, may_wait: bool
    ) -> None:
        self._inputs = inputs
        self._progress = progress
        self._failures = failures
        self._punctuators = punctuators
        self._may_wait = may_wait

    def process(self, limit: int) -> int:
        """Process up to `limit` records; return how many.

        It ends early at a request for a commit or by the driver, and without a record to choose.
        """
        progress, done = self._progress, 0
        if progress.is_firing:
            self._punctuators.fire(PunctuationType.STREAM_TIME, progress.stream_time)
            if progress.is_firing:
                return 0
        while done < limit and not progress.must_end:
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
        stream_time, stream_due = progress.stream_time, punctuators.stream_due
        highest = queue.partition_time
        remaining = progress.remaining = iter(records)
        progress.input, progress.last = queue, first + len(records) - 1
        try:
            for record in remaining:
                timestamp = record[2]
                if timestamp > highest:
                    highest = timestamp
                    if timestamp > stream_time:
                        progress.stream_time = stream_time = timestamp
                # A try costs nothing until something is raised. So every edge has one, and a record is skipped at its
                # node only.
                try:
                    run(record)
                except RECORD_ERRORS as error:
                    failed(child, record, error)
                if stream_time >= stream_due or progress.needs_attention:
                    self._attend(queue, stream_time)
                    stream_due = punctuators.stream_due
                    if progress.must_end:
                        break
        except BaseException:
            queue.index = progress.current_index()
            queue.counts[0] += queue.index + 1 - first  # with the one that failed, which its node has got
            raise
        else:
            queue.index = progress.current_index() + 1
        finally:
            progress.input = None
            queue.partition_time = highest
        done = queue.index - first
        progress.last_timestamp = records[done - 1][2]
        queue.counts[0] += done
        return done

    def _attend(self, queue: InputQueue, stream_time: int) -> None:
        """Between two records: fire the stream-time punctuators that are due, and take new schedules into account."""
        progress = self._progress
        progress.needs_attention = False
        queue.index, progress.input = progress.current_index() + 1, None
        if progress.is_out_of_time:
            self._punctuators.postpone(stream_time)
        else:
            self._punctuators.fire(PunctuationType.STREAM_TIME, stream_time)
        progress.input = queue
