"""TopicWatch: notices that a topic of an open task was deleted and made again, and that a pause was asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future

from penstock import Log

from .. import topic_ids
from ..pause_requests import PauseWatch
from .continuous_worker import ContinuousWorker


class TopicWatch:
    """Asks for the ids of the tasks' topics now and then, in a thread of `threads`: the loop does not wait for it.

    The same request says whether there is the topic with requests, which is made for the first one. `seconds` is a
    stopwatch. `fail` is called with the name of a task, and a TopicMadeAgainError.
    """

    def __init__(
        self,
        application_id: str,
        log: Log,
        threads: Executor,
        seconds: Callable[[], float],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self._log = log
        self._fail = fail
        self._threads = threads
        self._seconds = seconds
        self._next = seconds() + topic_ids.EVERY_SECONDS
        self._asked: dict[str, Mapping[str, str]] = {}
        self._answer: Future[Mapping[str, str]] | None = None
        self.pauses = PauseWatch(log, application_id, seconds)
        """Whether all tasks rest, because that was asked for."""

    def look(self, tasks: Mapping[str, ContinuousWorker]) -> None:
        """Fail the open tasks of which a topic is another than when they were opened, as far as known."""
        answer, now = self._answer, self._seconds()
        if answer is None:
            if now >= self._next:
                self._next = now + topic_ids.EVERY_SECONDS
                self._asked = {name: task.topic_ids for name, task in tasks.items() if task.is_open}
                topics = {topic for ids in self._asked.values() for topic in ids}
                if topics:
                    self._answer = self._threads.submit(self._ask, topics)
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

    def _ask(self, topics: Collection[str]) -> Mapping[str, str]:
        ids = self._log.topic_ids({*topics, self.pauses.topic})
        self.pauses.look(ids)
        return ids
