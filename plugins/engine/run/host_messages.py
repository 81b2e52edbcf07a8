"""HostMessages: what the task hosts of a query said, made into batches and errors for its run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from penstock import PenstockError
from penstock.plugins.engine.host.log_lines import forward
from penstock.plugins.engine.host.reports import SlotMessage, TaskFailure
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_runner import is_taken_over
from penstock.support.repeats import Repeats

from .progress import EndedBatch
from .settings import UncaughtExceptionHandler, replaces
from .slots import Slots

_MOST_FENCES = 3
"""How often a task may be taken over without a report in between."""

_log = logging.getLogger("penstock.runs")


class HostMessages:
    """Takes the messages of the hosts of one query; notes in `slots` what they say.

    `uncaught`: the setting `uncaught_exception_handler`.
    """

    def __init__(self, slots: Slots, repeats: Repeats, uncaught: UncaughtExceptionHandler) -> None:
        self._slots = slots
        self._uncaught = uncaught
        self._repeats = repeats
        self._fenced: Counter[str] = Counter()

    def batch(
        self, number: int | None, seconds: float, messages: Sequence[SlotMessage], failures: list[TaskFailure]
    ) -> EndedBatch:
        """Return the work of hosts as a batch; add their failures to `failures`. `number`: None for heartbeats."""
        reports: list[TaskReport] = []
        for message in messages:
            for line in message.lines:
                forward(line)
            slot_reports, slot_failures = self._slots.take(message, is_heartbeat=number is None)
            reports += slot_reports
            failures += slot_failures
        losses = self._slots.take_losses()
        for loss in losses:
            self._repeats.log(_log, logging.WARNING, "host lost", "%s; another one was started", loss)
        return EndedBatch(number, seconds, reports, tuple(self._slots.hosts.values()), losses)

    def judge(self, failures: Sequence[TaskFailure], batches: Sequence[EndedBatch]) -> PenstockError | None:
        """Return the error that ends the run, if there is one.

        The first fences of a task are no errors: an attempt that was given up was still at work. The next batch starts
        from the log's commit.
        """
        replaced = [failure for failure in failures if not is_taken_over(failure.error())]
        for failure in replaced:
            error = failure.error()
            if not (failure.is_of_task and replaces(self._uncaught, error)):
                return error
            text = "%s; the task is opened again, from its last commit"
            self._repeats.log(_log, logging.WARNING, ("replaced", failure.task_id), text, failure.message)
        failures = [failure for failure in failures if failure not in replaced]
        for report in (each for batch in batches for each in batch.reports):
            self._fenced.pop(report.task_id, None)
        for failure in failures:
            self._fenced[failure.task_id] += 1
            if self._fenced[failure.task_id] >= _MOST_FENCES:
                return failure.error()
        if failures:
            text = "%s; the next batch takes it up again"
            self._repeats.log(_log, logging.WARNING, "fenced", text, failures[0].message)
        return None
