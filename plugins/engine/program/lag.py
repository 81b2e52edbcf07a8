"""PartitionLag: an application's distance to the ends of its topics, from the log alone, whether it runs or not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock import Application, Assignment, Log, SystemClock, TopicPartition
from penstock.plugins.engine.task.positions import offset_reset_of, starting_offsets
from penstock.program.offset_reset import EARLIEST

from .preparation import resolve

_log = logging.getLogger("penstock.applications")


@dataclass(frozen=True)
class PartitionLag:
    """How far a task is behind in one of its partitions.

    `position`: the committed position, None before the first commit. `lag` counts offsets up to `end`, from the start
    that `offset_reset` says if there is no position. `internal`: the topic is one of the application's own. `held`:
    number of offsets below `end` that an open transaction of a producer holds back; of a topic of the application's own
    those are not counted at all.
    """

    task: str
    topic: str
    partition: int
    internal: bool
    position: int | None
    end: int
    lag: int
    held: int = 0

    @property
    def next_offset(self) -> int:
        """The next offset that the application reads."""
        return self.end - self.lag if self.position is None else self.position


def present_lag(application: Application, log: Log) -> list[PartitionLag]:
    """Return the present lag of an application, for each partition of a task.

    Raises TopologyError for topics that are missing or do not fit, and LogError.
    """
    return find_lag(application, resolve(application, log), log, SystemClock().now_ms())


def find_lag(application: Application, assignment: Assignment, log: Log, now_ms: int) -> list[PartitionLag]:
    """Return the lag in every partition that the application's tasks read, in the order of tasks."""
    found = []
    missing = assignment.missing
    partitions = [each for read in assignment.tasks.values() for each in read if each.topic not in missing]
    committed = log.committed(application.id, partitions)
    fresh = [partition for partition in partitions if committed[partition] is None]
    starts = start_positions(application, assignment, log, fresh, now_ms)
    # Ask for the ends after the positions: otherwise an application that runs could seem to be ahead of its topics.
    ends = log.end_offsets(partitions)
    highest = log.end_offsets(
        [partition for partition in partitions if partition.topic not in assignment.internal], stable=False
    )
    for task, read in assignment.tasks.items():
        for each in read:
            position = committed.get(each)
            stable = ends.get(each, 0)
            end = max(stable, highest.get(each, 0))
            lag = max(0, end - (starts.get(each, 0) if position is None else position))
            is_internal = each.topic in assignment.internal
            found.append(PartitionLag(str(task), *each, is_internal, position, end, lag, min(lag, end - stable)))
    return found


def held_back(lag: Iterable[PartitionLag]) -> str:
    """Return the number of records held back by open transactions, and their topics, as text; "" if none are."""
    held: dict[str, int] = {}
    for each in lag:
        if each.held:
            held[each.topic] = held.get(each.topic, 0) + each.held
    if not held:
        return ""
    return f"{sum(held.values()):,} held back by open transactions in {', '.join(map(repr, sorted(held)))}"


class HeldBack:
    """Warns of records of source topics that an open transaction holds back from one `look` to the next."""

    def __init__(self, application_id: str) -> None:
        self._application_id = application_id
        self._ends: dict[TopicPartition, int] = {}
        self._warned: dict[TopicPartition, int] = {}
        """The stable ends of partitions with held-back records: at the last look, and at the last logged line."""

    def look(self, log: Log, partitions: Sequence[TopicPartition]) -> None:
        """Log a warning for each partition whose stable end has not moved since the last look; one until it moves."""
        stable = log.end_offsets(partitions)
        highest = log.end_offsets(partitions, stable=False)
        ends = {partition: stable[partition] for partition in partitions if stable[partition] < highest[partition]}
        for each, end in ends.items():
            if self._ends.get(each) == end and self._warned.get(each) != end:
                self._warned[each] = end
                _log.warning(
                    "application %r: %d records of %s, from offset %d on, cannot be read: a producer's transaction is "
                    "open there. If that producer does not end it, the broker does after its transaction.timeout.ms; "
                    "`kafka-transactions.sh find-hanging` finds one whose end the brokers have lost",
                    self._application_id, highest[each] - end, each, end,
                )  # fmt: skip
        self._ends = ends


def start_positions(
    application: Application, assignment: Assignment, log: Log, partitions: list[TopicPartition], now_ms: int
) -> dict[TopicPartition, int]:
    """Return where the application would start in each of `partitions` without a position, as `offset_reset` says."""
    resets = offset_resets(application, assignment)
    return starting_offsets(log, {partition: resets.get(partition.topic, EARLIEST) for partition in partitions}, now_ms)


def offset_resets(application: Application, assignment: Assignment) -> dict[str, str]:
    """Return how topics are first read that a new application does not read from their start."""
    program = application.program
    sources = {source.name: source for subtopology in program.subtopologies for source in subtopology.sources}
    resets = {
        topic: offset_reset_of(sources[name], application.settings, is_internal=topic in assignment.internal)
        for topics in assignment.sources.values()
        for topic, name in topics.items()
    }
    return {topic: reset for topic, reset in resets.items() if reset != EARLIEST}
