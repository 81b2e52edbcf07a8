"""PlannerWatch: notices that the process in which Spark runs the planner does not answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from penstock.support.private_files import write_private_text

SILENT_SECONDS = 60.0
"""Seconds after which a planner that Spark asks counts as silent: it answers within some seconds, also to rest."""
_FILE = "planner"


class PlannerPulse:
    """The planner's end: a file beside the control file, with the number of its process, that is touched at each call.

    `directory` is that of the control files.
    """

    def __init__(self, directory: str | Path) -> None:
        self._path = Path(directory) / _FILE
        self._is_made = False

    def beat(self) -> None:
        """Record a call to the planner, or its answer."""
        try:
            if self._is_made:
                os.utime(self._path)
            else:
                write_private_text(self._path, str(os.getpid()))
                self._is_made = True
        except OSError:
            pass  # the runner has ended


class PlannerWatch:
    """The driver's end. `seconds` is a clock that never goes back; the file's times are only compared with each other.

    Spark waits for a frozen planner for ever, and says nothing.
    """

    def __init__(self, directory: str | Path, seconds: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(directory) / _FILE
        self._seconds = seconds
        self._seen: int | None = None
        self._since = seconds()

    def complaint(self, doing: Callable[[], str]) -> str | None:
        """Return a complaint if the planner does not answer, with advice; None if it does.

        `doing`: Spark's text for its present work. Costs microseconds while the planner answers.
        """
        now = self._seconds()
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._seen:
                self._seen, self._since = stamp, now
            if now - self._since < SILENT_SECONDS or "Getting offsets" not in doing():
                return None
            process = self._path.read_text()
        except OSError:
            return None
        return (
            f"no batch is planned: process {process}, in which Spark runs the planner, does not answer since "
            f"{now - self._since:.0f} s. It may be frozen, or wait for the log. Batches continue when it answers; if "
            "you end it (SIGKILL), the query starts again"
        )
