"""PartitionLag: how far an application is behind its topics, from the log alone, whether it runs or not."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.log import Log
from penstock.program.assignment import Assignment
from penstock.record import TopicPartition
from penstock.settings.application import Application

from ..positions import starts_at_end


@dataclass(frozen=True)
class PartitionLag:
    """How far a task is behind in one of its partitions.

    `position`: the committed position, None before the first commit. `lag` counts offsets up to `end`, from the start
    that `offset_reset` says if there is no position. `internal`: the topic is one of the application's own.
    """

    task: str
    topic: str
    partition: int
    internal: bool
    position: int | None
    end: int
    lag: int

    @property
    def next_offset(self) -> int:
        """The next offset that the application reads."""
        return self.end - self.lag if self.position is None else self.position


def find_lag(application: Application, assignment: Assignment, log: Log) -> list[PartitionLag]:
    """Return the lag in every partition that the application's tasks read, in the order of tasks."""
    found = []
    missing = assignment.missing
    partitions = [each for read in assignment.tasks.values() for each in read if each.topic not in missing]
    committed = log.committed(application.id, partitions)
    starts = start_positions(application, assignment, log, [each for each in partitions if committed[each] is None])
    # Ask for the ends after the positions: otherwise an application that runs could seem to be ahead of its topics.
    ends = log.end_offsets(partitions)
    for task, read in assignment.tasks.items():
        for each in read:
            position = committed.get(each)
            end = ends.get(each, 0)
            lag = max(0, end - (starts.get(each, 0) if position is None else position))
            found.append(PartitionLag(str(task), *each, each.topic in assignment.internal, position, end, lag))
    return found


def start_positions(
    application: Application, assignment: Assignment, log: Log, partitions: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return where the application would start in each of `partitions` without a position, as `offset_reset` says."""
    if not partitions:
        return {}
    latest = latest_topics(application, assignment)
    starts = dict(log.start_offsets([each for each in partitions if each.topic not in latest]))
    return starts | dict(log.end_offsets([each for each in partitions if each.topic in latest]))


def latest_topics(application: Application, assignment: Assignment) -> list[str]:
    """Return the topics that a new application starts to read at their end."""
    program = application.program
    sources = {source.name: source for each in program.subtopologies for source in each.sources}
    return [
        topic
        for topics in assignment.sources.values()
        for topic, name in topics.items()
        if starts_at_end(sources[name], application.settings)
    ]
