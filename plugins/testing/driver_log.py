"""The log of a test driver: in memory, or one that its caller wants to try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import Application, Clock, Log, World
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.runtime.locations import open_log
from penstock.program.nodes import decorate

from .topic_reader import named_topics


def driver_log(application: Application, given: str | Log | None, count: Callable[[str], int], clock: Clock) -> Log:
    """Return a log that has the topics which `application` names; `count` returns the partitions of a topic.

    `given` None: a memory log, which makes other topics when they are first used.
    """
    if given is None:
        return AutoCreatingLog(count, clock)
    log = given if isinstance(given, Log) else open_log(application.settings)
    make_named_topics(application, log, count)
    return log


def make_named_topics(application: Application, log: Log, count: Callable[[str], int]) -> None:
    """Create the topics that a program names, and that `log` does not have; internal ones are made with the tasks."""
    program = application.program
    internal = {decorate(application.id, each, program.internal_topics) for each in program.internal_topics}
    for topic in {*(named_topics(application) or program.topics())} - internal - log.topics().keys():
        log.create_topic(topic, count(topic))


class AutoCreatingLog(MemoryLog):
    """A memory log that creates an unknown topic when it is first used."""

    def __init__(self, count: Callable[[str], int], clock: Clock) -> None:
        super().__init__(world=World(clock=clock))
        self._count = count

    def _topic(self, name: str) -> Any:
        if name not in self.topics():
            self.create_topic(name, self._count(name))
        return super()._topic(name)
