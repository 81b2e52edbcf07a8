"""The log of a test driver, in memory or one that its caller wants to try, and which of its records are next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock import Application, Clock, Log, TopicPartition, World
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.logs.memory import MemoryLog
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


_MANY_BYTES = 1 << 20

Waiting = dict[TopicPartition, Sequence[tuple[int, int]]]
"""Records of each partition in the order of their offsets: the timestamp (ms), and the offset after the record."""


def oldest_first(waiting: Mapping[TopicPartition, Sequence[tuple[int, int]]], most: int) -> dict[TopicPartition, int]:
    """Return up to which offset of each partition the first `most` records are.

    Of the partitions' next records the one with the lowest timestamp is first, as in a task.
    """
    ends: dict[TopicPartition, int] = {}
    taken = dict.fromkeys(waiting, 0)
    for _ in range(most):
        heads = [(waiting[each][at][0], each) for each, at in taken.items() if at < len(waiting[each])]
        if not heads:
            break
        _, first = min(heads, key=lambda head: head[0])
        ends[first] = waiting[first][taken[first]][1]
        taken[first] += 1
    return ends


def waiting_records(log: Log, application_id: str, partitions: Sequence[TopicPartition], most: int) -> Waiting:
    """Return up to `most` of the first records of each partition that were not processed yet."""
    ends = log.end_offsets(partitions)
    found: Waiting = {}
    for partition, position in log.committed(application_id, partitions).items():
        if position is not None and position < ends[partition]:
            batches = log.fetch(partition, position, ends[partition], 1 if most == 1 else _MANY_BYTES)
            offsets = [
                (timestamp, offset + 1)
                for batch in batches
                for timestamp, offset in zip(batch.timestamps, batch.offsets, strict=True)
            ]
            if offsets:
                found[partition] = offsets[:most]
    return found
