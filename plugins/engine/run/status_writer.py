"""StatusWriter: keeps the status of a run in the log, for `penstock status`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from penstock import Log, PenstockError, SystemClock
from penstock.plugins.engine.program.run_status import LOST_AFTER_SECONDS, RunStatus, StatusTopic
from penstock.support.repeats import Repeats

from .companion import Companion
from .open_application import OpenApplication

INTERVAL_SECONDS = 5.0
_LAST_SECONDS = 10.0

_log = logging.getLogger("penstock.runs")


class WrittenStatus(Companion):
    """The status of the run in the log."""

    def beside(self, running: OpenApplication) -> StatusWriter:
        return StatusWriter(running.log, running.application.id, self.run.status)


class StatusWriter:
    """A context manager: writes from a thread of its own every few seconds, and once more at the end.

    So a log that is away does not hold up the run. A driver that was frozen writes nothing over its successor's.
    """

    def __init__(
        self, log: Log, application_id: str, status: Callable[[], RunStatus], interval: float = INTERVAL_SECONDS
    ) -> None:
        self._topic = StatusTopic(log, application_id)
        self._status = status
        self._interval = interval
        self._number = 0
        self._written_at = 0.0
        self._repeats = Repeats(SystemClock().now_ms)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-status", daemon=True)

    def __enter__(self) -> StatusWriter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        while True:
            is_last = self._ended.is_set()
            try:
                if not self._write(is_last):
                    return
            except PenstockError as error:
                _log.debug("the run's status was not written: %s", error)
            except Exception as error:  # a run whose status ends would seem to be lost
                self._repeats.log(_log, logging.ERROR, None, "the run's status was not written: %r", error)
            if is_last:
                return
            self._ended.wait(self._interval)

    def _write(self, is_last: bool) -> bool:
        """Write the status; return False if a later run has written one."""
        is_late = time.monotonic() > self._written_at + LOST_AFTER_SECONDS / 2
        if self._number == 0 or is_late or is_last:
            before = self._topic.read()
            if self._number == 0:
                self._number = 1 if before is None else before.number + 1
            elif before is not None and before.number > self._number:
                return False
        self._topic.write(replace(self._status(), number=self._number))
        self._written_at = time.monotonic()
        return True
