"""TakesOrders: the part of the test driver that pauses and resumes an application, and makes visits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from penstock import Application, Log, ManualClock
from penstock.plugins.applications.pausing import pause, resume
from penstock.plugins.applications.visits import ask_for_visit


class TakesOrders(ABC):
    """What an operator asks of an application."""

    application: Application
    log: Log
    _paused: frozenset[int]
    _clock: ManualClock

    @abstractmethod
    def _call_what_is_due(self) -> None:
        """Call what is due in tasks that are not paused, and run everything that it causes."""

    def pause(self, *subtopologies: int) -> None:
        """Process no records of these sub-topologies, or of any, and call no punctuators of theirs, until `resume`."""
        self._paused = pause(self.application, self.log, subtopologies).of(self.application)

    def resume(self, *subtopologies: int) -> None:
        """End the pause of these sub-topologies, or of all; process what waits, and call punctuators that are due."""
        self._paused = resume(self.application, self.log, subtopologies).of(self.application)
        self._call_what_is_due()

    def visit(self, visitor: str, argument: Any = None) -> None:
        """Have a visitor called with every key of its store, in all tasks, and run everything that it causes.

        `visitor` is NODE.METHOD, or METHOD where one node alone has it; `argument` is JSON data. Raises ConfigError
        for a visitor that the program does not have, and whatever the program raises.
        """
        ask_for_visit(self.application, self.log, visitor, self._clock.now_ms(), argument)
        self._call_what_is_due()
