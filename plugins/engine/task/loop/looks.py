"""Looks of a loop at its log: the fronts of its tasks, topics that are made again, and the global stores' topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from penstock import Application, Log, LogError, TaskId, TopicPartition
from penstock.program.nodes import decorate
from penstock.task.failures import RetryRequested
from penstock.task.progress import Front
from penstock.task.saved_schedules import are_called

from .. import topic_ids
from ..fronts import NOT_KNOWN, Fronts, in_front
from ..own_topics import PauseWatch
from ..process_resources import ProcessResources
from .continuous_worker import ContinuousWorker

_log = logging.getLogger("penstock.worker")

_EVERY_SECONDS = 0.2
"""Seconds between two looks, while a task waits for one. It waits for as many as there are tasks one behind another."""
_AGAIN_SECONDS = 1.0
"""Seconds between two looks for tasks that have still to read up to the ends of an earlier one: a log that is truncated
meanwhile never comes to these."""

FrontOf = Callable[[str], Front | None]
"""Returns the `front` of a task by its id; see `Task.plan`."""
_UPDATE_SECONDS = 0.1
"""Seconds between two looks at the topics of global stores."""
_PORTION_SECONDS = 0.05
"""How long the loop's thread reads on in them at a time."""


class _Look(NamedTuple):
    """By sub-topology, how far everything in front of it is read once its inputs are read up to `ends`."""

    fronts: Mapping[int, Front]
    ends: Mapping[TopicPartition, int]


@dataclass(eq=False)
class FrontLooks:
    """Looks at the log in a thread of `threads`, only while a task has something to call that waits for it.

    It asks for the ends of these tasks' inputs, and for the last commits of the tasks in front of them. A partition
    without a leader holds its own task, and for a minute those behind it.
    """

    application: Application
    partitions: Mapping[str, Sequence[TopicPartition]]
    log: Log
    threads: Executor
    seconds: Callable[[], float]

    def __post_init__(self) -> None:
        upstream = self.application.program.upstream()
        self._in_front = in_front(upstream)
        self._tasks: dict[int, dict[str, Sequence[TopicPartition]]] = {number: {} for number in upstream}
        for name, of_task in self.partitions.items():
            self._tasks[TaskId.parse(name).subtopology][name] = of_task
        self._inputs = {number: sum(map(tuple, of.values()), ()) for number, of in self._tasks.items()}
        internal = self.application.program.internal_topics
        self._written = {
            decorate(self.application.id, sink.topic, internal)
            for subtopology in self.application.program.subtopologies
            for sink in subtopology.sinks
            if isinstance(sink.topic, str)
        }
        self._fronts = Fronts(upstream, self._inputs, self.application.program.holding())
        self._next = self._again = 0.0
        self._answer: Future[_Look] | None = None

    def look(self, tasks: Collection[ContinuousWorker], clock_ms: int, paused: Collection[int]) -> None:
        """Begin a look if a task waits for one; hand the tasks the results of the last look."""
        answer = self._answer
        if answer is not None:
            if answer.done():
                self._answer = None
                self._take(answer, tasks)
            return
        if (now := self.seconds()) < self._next:
            return
        is_again = now >= self._again
        waiting = {task.id.subtopology for task in tasks if task.waits_for_front and (is_again or not task.is_settling)}
        if waiting:
            self._next = now + _EVERY_SECONDS
            if is_again:
                self._again = now + _AGAIN_SECONDS
            self._answer = self.threads.submit(self._ask, waiting, clock_ms, paused)

    def _take(self, answer: Future[_Look], tasks: Collection[ContinuousWorker]) -> None:
        error = answer.exception()
        if isinstance(error, LogError):
            _log.debug("a log that is away is the follower's matter", exc_info=error)
            return
        found = answer.result()
        for task in tasks:
            if task.id.subtopology in found.fronts:
                task.settle(found.fronts[task.id.subtopology], found.ends)

    def _ask(self, waiting: Collection[int], clock_ms: int, paused: Collection[int]) -> _Look:
        """Ask for the commits first, so that the records written by these tasks are before the ends."""
        fronts, positions, busy = self._fronts, dict[TopicPartition, int](), set[int]()
        in_front_of_them = {other for each in waiting for other in self._in_front[each]}
        for number in in_front_of_them:
            for name, inputs in self._tasks[number].items():
                commit = self.log.visible_commit(self.application.id, name, inputs)
                if commit is None or not are_called(commit.engine_state, fronts.pending(number)):
                    busy.add(number)
                if commit is not None:
                    positions.update(commit.positions)
        asked = {each for number in {*waiting, *in_front_of_them} for each in self._inputs[number]}
        # What a task in front has committed may be readable only some time after that.
        written = [each for each in asked if each.topic in self._written]
        ends = {**self.log.known_end_offsets(list(asked.difference(written)))}
        if written:
            ends.update(self.log.known_end_offsets(written, stable=False))
        fronts.look(clock_ms, dict.fromkeys(asked, NOT_KNOWN) | ends, positions, busy=busy, paused=paused)
        return _Look({number: fronts.fronts[number] for number in waiting}, ends)


def no_front(task: str) -> None:
    """Say of each task that nothing but its records is in front of it."""


@dataclass(eq=False)
class TopicWatch:
    """Asks for the ids of the tasks' topics now and then, in a thread of `threads`: the loop does not wait for it.

    The same request finds the topic with requests. `seconds` is a stopwatch; `fail` gets a task's name and an error.
    """

    application_id: str
    log: Log
    threads: Executor
    seconds: Callable[[], float]
    fail: Callable[[str, BaseException], None]

    def __post_init__(self) -> None:
        self._next = self.seconds() + topic_ids.EVERY_SECONDS
        self._asked: dict[str, Mapping[str, str]] = {}
        self._answer: Future[Mapping[str, str]] | None = None
        self.pauses = PauseWatch(self.log, self.application_id, self.seconds)
        """Whether all tasks rest, because that was asked for."""

    def look(self, tasks: Mapping[str, ContinuousWorker]) -> None:
        """Fail open tasks whose topics were deleted and made again since the opening, as far as known."""
        answer, now = self._answer, self.seconds()
        if answer is None:
            if now >= self._next:
                self._next = now + topic_ids.EVERY_SECONDS
                self._asked = {name: task.topic_ids for name, task in tasks.items() if task.is_open}
                topics = {topic for ids in self._asked.values() for topic in ids}
                if topics:
                    self._answer = self.threads.submit(self._ask, topics)
            return
        if not answer.done():
            return
        self._answer = None
        if answer.exception() is not None:
            return  # a log that is away is the follower's matter
        ids = answer.result()
        for name, before in self._asked.items():
            is_same = tasks[name].is_open and tasks[name].topic_ids is before
            if is_same and topic_ids.differ(before, ids):
                self.fail(name, topic_ids.TopicMadeAgainError(f"task {name}: a topic was deleted and made again"))

    def _ask(self, topics: Collection[str]) -> Mapping[str, str]:
        ids = self.log.topic_ids({*topics, self.pauses.topic})
        self.pauses.look(ids)
        return ids


@dataclass(eq=False)
class GlobalUpdates:
    """The global stores of an application. The loop's thread calls all methods; any thread may call `still`.

    Stores belong to one thread: once tasks are open that may read them, that is the loop's.
    """

    application: Application
    log: Log
    resources: ProcessResources
    threads: Executor

    def __post_init__(self) -> None:
        self._seconds = self.resources.world.seconds
        self._at = 0.0 if self.application.program.global_stores else inf
        self._filling: Future[bool] | None = None
        self.are_filled = not self.application.program.global_stores
        """Whether tasks may be opened, and work."""

    @property
    def are_filling(self) -> bool:
        """Whether another thread is at work."""
        return self._filling is not None

    def update(self, clock_ms: int, *, are_used: bool, all_of_it: bool = False) -> None:
        """Read on if it is time to: in another thread, unless they `are_used` by open tasks.

        `all_of_it`: up to the present ends, however long that takes.
        """
        try:
            if self._filling is not None:
                self._end_filling()
            elif self._at < inf and (all_of_it or self._seconds() >= self._at):
                self._update(clock_ms, are_used, all_of_it)
        except RetryRequested as retry:
            self.are_filled, self._at = False, self._seconds() + retry.delay_ms / 1000

    def begin_anew(self) -> None:
        """Fill them again, after a StaleStoreError of `update`. No task may be open."""
        self.resources.close_globals(self.application)
        self.are_filled, self._at = False, self._seconds() + _UPDATE_SECONDS

    def _update(self, clock_ms: int, are_used: bool, all_of_it: bool) -> None:
        if not self.are_filled and not are_used:
            self.resources.filling.begin(self._seconds())
            self._filling = self.threads.submit(
                lambda: self.resources.globals_of(self.application).update(self.log, {}, clock_ms)
            )
            return
        until = self._seconds() + (inf if all_of_it else _PORTION_SECONDS)
        stores = self.resources.globals_of(self.application)
        stores.update(self.log, {}, clock_ms, is_over=lambda: self._seconds() >= until)
        # Those that were filled once are read on while tasks work, as by Kafka Streams' thread of global stores.
        self.are_filled, self._at = True, self._seconds() + _UPDATE_SECONDS

    def _end_filling(self) -> None:
        filling = self._filling
        if filling is not None and filling.done():
            self._filling = None
            filling.result()
            self.are_filled, self._at = True, self._seconds() + _UPDATE_SECONDS

    def still(self) -> tuple[float, str]:
        """Return the seconds since the filling last read a record, and its name; 0.0 if nothing is filled."""
        is_filled = self._filling is None
        return 0.0 if is_filled else self.resources.filling.still(self._seconds()), "the filling of the global stores"

    def close(self, seconds: float) -> None:
        """End the filling as soon as possible, and wait for its end, at most so long."""
        if self._filling is not None and not self._filling.cancel():
            self.resources.filling.end()
            self.resources.world.wait([self._filling], seconds)
