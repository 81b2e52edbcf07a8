"""CommittedPartitions: the partitions that an application has committed, noted in its log, to see when one is lost."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from penstock import Application, Assignment, IncompatibleStateError, Log, TaskId, TopicPartition
from penstock.plugins.engine.task import notes, topic_ids
from penstock.plugins.engine.task.refusals import MADE_AGAIN, NO_COMMIT, ways_on

_IDS_SECONDS = 60.0
"""Seconds between two looks at the ids of topics while the application runs: its tasks may continue in a new topic."""
_MOST_NAMED = 5

Positions = Mapping[TopicPartition, int | None]
"""Committed positions; None where nothing is committed."""


class LostPositionsError(IncompatibleStateError):
    """Committed positions are gone: `partitions`. `made_again`: their topics that are others now."""

    def __init__(self, message: str, partitions: Collection[TopicPartition], made_again: Collection[str]) -> None:
        super().__init__(message)
        self.partitions = partitions
        self.made_again = made_again


class CommittedPartitions:
    """The partitions in which one application has committed a position, and the ids of their topics.

    Positions may expire or be deleted while the note stays. Without the note such an application would look like a new
    one. `identity` is the application's incarnation in the log: a late write of an earlier incarnation does not count.
    """

    def __init__(self, log: Log, application_id: str, identity: str) -> None:
        self._log = log
        self._application_id = application_id
        self._note, self._ids_note = notes.COMMITTED.of(identity), notes.COMMITTED_IDS.of(identity)
        topics: Mapping[str, Sequence[int]] = self._note.read(application_id, log)
        self._known = {TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers}
        self._ids: Mapping[str, str] = self._ids_note.read(application_id, log)
        self._look_at = time.monotonic() + _IDS_SECONDS

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Record partitions with a committed position; writes only if one is new, or a topic is another."""
        new = set(partitions) - self._known
        if new:
            self._write(self._known | new)
        if new or time.monotonic() >= self._look_at:
            self._write_ids()

    def lost(self, assignment: Assignment) -> dict[TaskId, list[TopicPartition]]:
        """Return the partitions whose committed position is gone, by task."""
        return self._lost(assignment, self.positions(assignment))

    def gone(self) -> list[TopicPartition]:
        """Return all partitions whose committed position is gone, read by a task or not."""
        there = self._log.topics()
        positions = self._log.committed(self._application_id, [each for each in self._known if each.topic in there])
        return sorted(each for each in self._known if positions.get(each) is None)

    def check(self, application: Application, assignment: Assignment) -> Positions:
        """Return the committed positions. Raises LostPositionsError if positions are lost."""
        positions = self.positions(assignment)
        lost = self._lost(assignment, positions)
        if lost:
            partly = all(set(gone) < set(assignment.tasks[task]) for task, gone in lost.items())
            again = self._made_again(lost)
            cause = f"topic {', '.join(map(repr, sorted(again)))} {MADE_AGAIN}" if again else NO_COMMIT
            raise LostPositionsError(
                f"application {application.id!r} had committed positions that are gone: {_named(lost)}: {cause}. "
                f"{ways_on(application.settings, partly=partly)}",
                [each for gone in lost.values() for each in gone],
                again,
            )
        return positions

    def note(self, positions: Positions) -> None:
        """Record the partitions that have a position now.

        Partitions that no task reads any more are removed: if one is read again later, it counts as new.
        """
        now = {each for each, position in positions.items() if position is not None}
        if now != self._known:
            self._write(now)
        self._write_ids()

    def _made_again(self, lost: Mapping[TaskId, Sequence[TopicPartition]]) -> set[str]:
        """Return the topics of lost positions that were deleted and made again since the positions were committed."""
        noted = {each.topic: self._ids.get(each.topic, "") for gone in lost.values() for each in gone}
        now = self._topic_ids(noted)
        return {topic for topic, before in noted.items() if topic_ids.differ({topic: before}, now)}

    def _lost(self, assignment: Assignment, positions: Positions) -> dict[TaskId, list[TopicPartition]]:
        gone = {each for each in self._known if positions.get(each) is None}
        return {
            task: lost
            for task, partitions in assignment.tasks.items()
            if (lost := [partition for partition in partitions if partition in gone])
        }

    def positions(self, assignment: Assignment) -> Positions:
        """Return the committed positions in all partitions that tasks read."""
        there = self._log.topics()
        read = [
            partition
            for partitions in assignment.tasks.values()
            for partition in partitions
            if partition.topic in there
        ]
        return self._log.committed(self._application_id, read)

    def _write(self, partitions: set[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            topics.setdefault(topic, []).append(number)
        self._note.write(self._application_id, self._log, topics)
        self._known = partitions

    def _write_ids(self) -> None:
        self._look_at = time.monotonic() + _IDS_SECONDS
        ids = self._topic_ids({each.topic for each in self._known})
        if ids != self._ids:
            self._ids_note.write(self._application_id, self._log, ids)
            self._ids = ids

    def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        found = self._log.topic_ids(topics) if topics else {}
        return {topic: found[topic] for topic in topics if found.get(topic)}


def has_lost_commit(
    log: Log, application_id: str, identity: str, task: str, partitions: Collection[TopicPartition]
) -> bool:
    """Return whether a task that was found without a commit has made one, in this incarnation of the application.

    Its positions are gone then, and its state is not a new task's. Raises LogError.
    """
    topics = notes.COMMITTED.of(identity).read(application_id, log)
    if not any(partition.partition in topics.get(partition.topic, ()) for partition in partitions):
        return False
    # Its first commit, and the note, may have come since.
    return log.last_commit(application_id, task, list(partitions)) is None


def _named(lost: Mapping[TaskId, Sequence[TopicPartition]]) -> str:
    named = [f"task {task} in {', '.join(map(str, gone))}" for task, gone in lost.items()]
    more = f"; and {len(named) - _MOST_NAMED} more tasks" if len(named) > _MOST_NAMED else ""
    return "; ".join(named[:_MOST_NAMED]) + more
