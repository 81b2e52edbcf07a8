"""Openings: which tasks a batch must open, from what the runner knows about the hosts."""

from __future__ import annotations

from collections.abc import Callable, Collection

_AGAIN_SECONDS = 1.0
"""Seconds in which the runner reads the reports of a batch."""


class Openings:
    """The tasks that the next batch opens. `tasks`: all task ids. `seconds` is a clock that never goes back.

    The runner's list is older than the batch that has just ended: the tasks that this batch opened are left out until
    the runner has replaced the list, or until it had time to.
    """

    def __init__(self, tasks: Collection[str], seconds: Callable[[], float]) -> None:
        self._tasks = dict.fromkeys(tasks)
        self._seconds = seconds
        self._noted: list[list[str] | None] = []
        self._again_at: float | None = None

    def due(self, unopened: list[str] | None) -> list[str]:
        """Return the ids of the tasks to open. `unopened`: the runner's list; None for all tasks."""
        if [unopened] != self._noted:
            self._noted = []
        elif self._again_at is None:
            self._again_at = self._seconds() + _AGAIN_SECONDS
        if self._noted and (self._again_at is None or self._seconds() < self._again_at):
            return []
        return list(self._tasks) if unopened is None else [each for each in unopened if each in self._tasks]

    def note(self, unopened: list[str] | None) -> None:
        """Note that a batch is planned that opens the tasks of the list."""
        self._noted, self._again_at = [unopened], None
