"""TakesOrders: the part of the test driver that moves the clock, pauses and resumes an application, and visits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

from penstock import Application, ConfigError, Duration, Log, ManualClock, TaskId, TopicPartition, duration_ms
from penstock.plugins.engine.program.pausing import pause, resume
from penstock.plugins.engine.program.visits import ask_for_visit
from penstock.plugins.engine.task.report import TaskReport
from penstock.task.progress import Front


class TakesOrders(ABC):
    """What time and an operator ask of an application."""

    application: Application
    log: Log
    _tasks: Mapping[TaskId, tuple[TopicPartition, ...]]
    _paused: frozenset[int]
    _clock: ManualClock
    _may_wait: bool
    _in_front: Mapping[int, Collection[int]]  # by sub-topology that has any, those in front of it
    _fronts: dict[int, Front]
    _ticks: Mapping[TaskId, int]

    @abstractmethod
    def _run(self, task: TaskId, ends: Mapping[TopicPartition, int]) -> TaskReport: ...

    @abstractmethod
    def _drain(self) -> None: ...

    def advance_wall_clock(self, duration: Duration) -> None:
        """Move the wall clock on, fire what is due, and run everything it causes."""
        if duration_ms(duration, "advance_wall_clock", may_be_negative=True) < 0:
            raise ConfigError("the wall clock does not go back")
        self._clock.advance(duration)
        self._call_what_is_due()

    def _call_what_is_due(self, *, may_wait: bool = False) -> None:
        """Call what is due; `may_wait`: records may wait."""
        for task, partitions in self._tasks.items():
            if task.subtopology not in self._paused:
                # What a task waits with is processed before what is due now, as in a batch that finds both.
                self._run(task, self.log.end_offsets(partitions) if self._may_wait or may_wait else {})
        self._drain()
        self._settle()

    def _settle(self) -> None:
        """Let tasks behind others call what waits for these: everything in front of them is read now."""
        for number in sorted(self._in_front, key=lambda each: len(self._in_front[each])):
            above, now = self._in_front[number], self._clock.now_ms()
            holding = self.application.program.holding().intersection(above)
            inputs = [each for task, of in self._tasks.items() if task.subtopology in holding for each in of]
            read = self.log.committed(self.application.id, inputs).values()
            self._fronts[number] = Front(now, sum(position or 0 for position in read))
            for task in [each for each, tick in self._ticks.items() if each.subtopology == number and tick <= now]:
                if number not in self._paused:
                    self._run(task, {})
            self._drain()

    def pause(self, *subtopologies: int) -> None:
        """Process no records of these sub-topologies, or of any, and call no punctuators of theirs, until `resume`."""
        self._paused = pause(self.application, self.log, subtopologies).of(self.application)

    def resume(self, *subtopologies: int) -> None:
        """End the pause of these sub-topologies, or of all; process what waits, and call punctuators that are due."""
        self._paused = resume(self.application, self.log, subtopologies).of(self.application)
        self._call_what_is_due(may_wait=True)

    def visit(self, visitor: str, argument: Any = None) -> None:
        """Have a visitor called with every key of its store, in all tasks, and run everything that it causes.

        `visitor` is NODE.METHOD, or METHOD where one node alone has it; `argument` is JSON data. Raises ConfigError
        for a visitor that the program does not have, for an argument that does not fit it, and whatever the program
        raises.
        """
        ask_for_visit(self.application, self.log, visitor, self._clock.now_ms(), argument)
        self._call_what_is_due()
