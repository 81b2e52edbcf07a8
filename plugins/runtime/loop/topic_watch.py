"""TopicWatch: notices that a topic of an open task was deleted and made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

from penstock import Log

from .. import topic_ids
from .continuous_worker import ContinuousWorker


class TopicWatch:
    """Asks for the ids of the tasks' topics now and then, in a thread of `threads`: the loop does not wait for it.

    `seconds` is a stopwatch. `fail` is called with the name of a task, and a TopicMadeAgainError.
    """

    def __init__(
        self, log: Log, threads: Executor, seconds: Callable[[], float], fail: Callable[[str, BaseException], None]
    ) -> None:
        self._log = log
        self._fail = fail
        self._threads = threads
        self._seconds = seconds
        self._next = seconds() + topic_ids.EVERY_SECONDS
        self._asked: dict[str, Mapping[str, str]] = {}
        self._answer: Future[Mapping[str, str]] | None = None

    def look(self, tasks: Mapping[str, ContinuousWorker]) -> None:
        """Fail the open tasks of which a topic is another than when they were opened, as far as known."""
        answer, now = self._answer, self._seconds()
        if answer is None:
            if now >= self._next:
                self._next = now + topic_ids.EVERY_SECONDS
                self._asked = {name: task.topic_ids for name, task in tasks.items() if task.is_open}
                topics = {topic for ids in self._asked.values() for topic in ids}
                if topics:
                    self._answer = self._threads.submit(self._log.topic_ids, topics)
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
                self._fail(name, topic_ids.TopicMadeAgainError(f"task {name}: a topic was deleted and made again"))
