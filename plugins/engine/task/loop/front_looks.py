"""FrontLooks: finds out, for tasks of one process, as of which time everything in front of them has been read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple

from penstock import Application, Log, LogError, TaskId, TopicPartition
from penstock.program.nodes import decorate
from penstock.task.progress import Front
from penstock.task.saved_schedules import are_called

from ..fronts import NOT_KNOWN, Fronts, in_front
from .continuous_worker import ContinuousWorker

_EVERY_SECONDS = 0.2
"""Seconds between two looks, while a task waits for one. It waits for as many as there are tasks one behind another."""
_AGAIN_SECONDS = 1.0
"""Seconds between two looks for tasks that have still to read up to the ends of an earlier one: a log that is truncated
meanwhile never comes to these."""

FrontOf = Callable[[str], Front | None]
"""Returns the `front` of a task by its id; see `Task.plan`."""

_log = logging.getLogger("penstock.worker")


class _Look(NamedTuple):
    """By sub-topology, how far everything in front of it is read once its inputs are read up to `ends`."""

    fronts: Mapping[int, Front]
    ends: Mapping[TopicPartition, int]


class FrontLooks:
    """Looks at the log in a thread of `threads`, only while a task has something to call that waits for it.

    It asks where the inputs of these tasks end: what a follower knows of that may be as old as the process was frozen.
    Where other tasks are in front of them, in whatever process, it also asks for the last commits of those. A partition
    without a leader holds its own task, and for a minute those behind it.
    """

    def __init__(
        self,
        application: Application,
        partitions: Mapping[str, Sequence[TopicPartition]],
        log: Log,
        threads: Executor,
        seconds: Callable[[], float],
    ) -> None:
        self._application = application
        self._log = log
        self._threads = threads
        self._seconds = seconds
        upstream = application.program.upstream()
        self._in_front = in_front(upstream)
        self._tasks: dict[int, dict[str, Sequence[TopicPartition]]] = {number: {} for number in upstream}
        for name, of_task in partitions.items():
            self._tasks[TaskId.parse(name).subtopology][name] = of_task
        self._inputs = {number: sum(map(tuple, of.values()), ()) for number, of in self._tasks.items()}
        internal = application.program.internal_topics
        self._written = {
            decorate(application.id, sink.topic, internal)
            for each in application.program.subtopologies
            for sink in each.sinks
            if isinstance(sink.topic, str)
        }
        self._fronts = Fronts(upstream, self._inputs, application.program.holding())
        self._next = self._again = 0.0
        self._answer: Future[_Look] | None = None

    def look(self, tasks: Collection[ContinuousWorker], clock_ms: int, paused: Collection[int]) -> None:
        """Begin a look if a task waits for one; hand the tasks what the last one has found."""
        answer = self._answer
        if answer is not None:
            if answer.done():
                self._answer = None
                self._take(answer, tasks)
            return
        if (now := self._seconds()) < self._next:
            return
        is_again = now >= self._again
        waiting = {task.id.subtopology for task in tasks if task.waits_for_front and (is_again or not task.is_settling)}
        if waiting:
            self._next = now + _EVERY_SECONDS
            if is_again:
                self._again = now + _AGAIN_SECONDS
            self._answer = self._threads.submit(self._ask, waiting, clock_ms, paused)

    def _take(self, answer: Future[_Look], tasks: Collection[ContinuousWorker]) -> None:
        error = answer.exception()
        if isinstance(error, LogError):
            _log.debug("a log that is away is the follower's matter", exc_info=error)
            return
        found = answer.result()
        for each in tasks:
            if each.id.subtopology in found.fronts:
                each.settle(found.fronts[each.id.subtopology], found.ends)

    def _ask(self, waiting: Collection[int], clock_ms: int, paused: Collection[int]) -> _Look:
        """Ask for the commits first: what these tasks have written is before the ends."""
        fronts, positions, busy = self._fronts, dict[TopicPartition, int](), set[int]()
        in_front_of_them = {other for each in waiting for other in self._in_front[each]}
        for number in in_front_of_them:
            for name, inputs in self._tasks[number].items():
                commit = self._log.visible_commit(self._application.id, name, inputs)
                if commit is None or not are_called(commit.engine_state, fronts.pending(number)):
                    busy.add(number)
                if commit is not None:
                    positions.update(commit.positions)
        asked = {each for number in {*waiting, *in_front_of_them} for each in self._inputs[number]}
        # What a task in front has committed may be readable only some time after that.
        written = [each for each in asked if each.topic in self._written]
        ends = {**self._log.known_end_offsets(list(asked.difference(written)))}
        if written:
            ends.update(self._log.known_end_offsets(written, stable=False))
        fronts.look(clock_ms, dict.fromkeys(asked, NOT_KNOWN) | ends, positions, busy=busy, paused=paused)
        return _Look({number: fronts.fronts[number] for number in waiting}, ends)


def no_front(task: str) -> None:
    """Say of each task that nothing but its records is in front of it."""
