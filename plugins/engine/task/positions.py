"""The input partitions of a task: where it starts to read, fetching, and positions that are out of range."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from penstock import (
    Application,
    Commit,
    Log,
    OffsetOutOfRangeError,
    RecordBatch,
    Settings,
    SourceNode,
    Subtopology,
    TaskId,
    TopicPartition,
    TopologyError,
    UnknownTopicError,
)
from penstock.program.nodes import decorate
from penstock.program.offset_reset import EARLIEST, LATEST, offset_reset_text, oldest_ms
from penstock.task.failures import FailureKey
from penstock.task.inputs import Want
from penstock.task.task import Task, partitions_read

from . import topic_ids
from .local_state.refill import Refill

_log = logging.getLogger("penstock.worker")


class InputPartitions:
    """The partitions that a task reads, by their names in the log, and the source node that reads each."""

    def __init__(
        self, application: Application, task_id: TaskId, partitions: Sequence[TopicPartition], log: Log
    ) -> None:
        self._application = application
        self._settings = application.settings
        self._log = log
        self._task_id = task_id
        self._where = f"application {application.id!r}, task {task_id}"
        subtopology = application.program.subtopology(task_id.subtopology)
        self.sources = [(partition, self._source_of(partition, subtopology)) for partition in partitions]
        internal = application.program.internal_topics
        names = {decorate(application.id, topic, internal) for topic in internal}
        self.internal = [partition for partition in partitions if partition.topic in names]
        self.topic_ids: Mapping[str, str] = {}
        """The ids of the topics as of the opening; "" where the log has none."""

    def _source_of(self, partition: TopicPartition, subtopology: Subtopology) -> SourceNode:
        internal = self._application.program.internal_topics
        for source in subtopology.sources:
            for topic in source.topics:
                if decorate(self._application.id, topic, internal) == partition.topic:
                    return source
        for source in subtopology.sources:
            if source.pattern is not None and source.pattern.fullmatch(partition.topic):
                return source
        raise TopologyError(f"{self._where}: no source of sub-topology {subtopology.id} reads {partition}")

    def topic_name(self, topic: str) -> str:
        """Return the name in the log of a topic of the program."""
        return decorate(self._application.id, topic, self._application.program.internal_topics)

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic in the log. Raises TopologyError if there is no such topic."""
        try:
            return self._log.topic(topic).partitions
        except UnknownTopicError as error:
            raise TopologyError(
                f"topic {topic!r} does not exist in the log; create it: penstock topics create {topic}"
            ) from error

    def starting_positions(
        self, given: Mapping[TopicPartition, int | None], wall_clock_ms: int
    ) -> dict[TopicPartition, int]:
        """Return a position for every partition: the given one; for None, where `offset_reset` says."""
        resets = {
            partition: offset_reset_of(source, self._settings, is_internal=partition in self.internal)
            for partition, source in self.sources
        }
        positions = starting_offsets(self._log, resets, wall_clock_ms)
        return positions | {partition: position for partition, position in given.items() if position is not None}

    def proven_at_first(self) -> Mapping[TopicPartition, int]:
        """Return the first offsets of the internal topics: earlier records were purged, so they are not needed."""
        return self._log.start_offsets(self.internal)

    def refills(self, commit: Commit, attempt: Callable[[FailureKey], int]) -> list[Refill]:
        """Return the refill of each read-only store, up to the positions of `commit`."""
        stores = self._application.program.subtopology(self._task_id.subtopology).read_only_stores
        return [
            Refill(
                self._application,
                self._task_id,
                store,
                self._log,
                {
                    partition: commit.positions[partition]
                    for partition, source in self.sources
                    if source == store.source
                },
                attempt,
            )
            for store in stores
        ]

    # ------------------------------------------------------------------ topics that are made again

    def read_topic_ids(self) -> None:
        """Read and keep the ids of the task's topics."""
        self.topic_ids = self._log.topic_ids({partition.topic for partition, _ in self.sources})

    def moved_to_new_topics(self, commit: Commit) -> Commit:
        """Return a commit with other positions in topics that were made again since, as `offset_out_of_range` says.

        Most logs delete the positions with the topic. Raises OffsetOutOfRangeError if the position is still there, also
        in an internal topic: records missing there are missing in the state.
        """
        again = topic_ids.replaced(commit.engine_state, self.topic_ids)
        policy = self._settings.offset_out_of_range
        known = set(commit.positions) | (partitions_read(commit.engine_state) if policy != "fail" else set())
        moved = [partition for partition, _ in self.sources if partition.topic in again and partition in known]
        if not moved:
            return commit
        names = ", ".join(map(repr, sorted({each.topic for each in moved})))
        internal = any(each in self.internal for each in moved)
        if internal or policy == "fail":
            raise OffsetOutOfRangeError(
                f"{self._where}: topic {names} was deleted and made again since its positions were committed "
                f"({', '.join(f'{each} {commit.positions.get(each, 0)}' for each in moved)}): they are of records that "
                "are gone. What was committed stays; "
                + (
                    "it is an internal topic, and what is missing there is missing in the state: run the application "
                    "under a new id, or `penstock reset` it"
                    if internal
                    else "to go on with what the new topic has, set `offset_out_of_range` to earliest or latest, run "
                    "the application under a new id, or `penstock reset` it"
                )
            )
        find = self._log.start_offsets if policy == "earliest" else self._log.end_offsets
        positions = find(moved)
        for each, position in positions.items():
            _log.warning(
                "%s: topic %r was deleted and made again: %s goes on from offset %d (offset_out_of_range=%s)",
                self._where, each.topic, each, position, policy,
            )  # fmt: skip
        return Commit({**commit.positions, **positions}, commit.version, self.with_topic_ids(commit.engine_state))

    def with_topic_ids(self, engine_state: bytes) -> bytes:
        """Return the engine state to commit: the task's own, and the topic ids of its positions."""
        return topic_ids.with_ids(engine_state, self.topic_ids)

    def check_topics(self) -> None:
        """Raise TopicMadeAgainError if a topic is another than at the opening."""
        if topic_ids.differ(self.topic_ids, self._log.topic_ids(self.topic_ids)):
            raise topic_ids.TopicMadeAgainError(f"{self._where}: a topic was deleted and made again")

    # ------------------------------------------------------------------ records

    def fetch(self, task: Task, want: Want, version: str) -> Sequence[RecordBatch]:
        """Return the next records for a task's wants; at least one batch, which may only move the position.

        `version` is that of the task's last commit. Raises OffsetOutOfRangeError.
        """
        partition, start, end = want
        try:
            batches = self._log.fetch(partition, start, end, self._settings.fetch_bytes)
        except OffsetOutOfRangeError as error:
            return [_no_records(partition, self.go_on(task, partition, start, error, version))]
        if batches:
            return batches
        if self._log.end_offsets([partition])[partition] < end:
            self.check_topics()
            raise OffsetOutOfRangeError(
                f"{self._where}: {partition} was planned to be read up to offset {end} and ends before "
                "it: the log lost records, or the topic was deleted and made again. What was committed stays; "
                "run it under a new application id"
            )
        # Compaction or transaction markers may leave no record below the end: the position still moves there.
        return [_no_records(partition, end)]

    def check_ends(self, task: Task, commit: Commit) -> None:
        """Treat a position after the log's end as out of range, and move it in the task.

        Otherwise records that are produced later below the position would be skipped without an error.
        """
        ends = self._log.end_offsets([partition for partition, _ in self.sources], stable=False)
        for partition, position in commit.positions.items():
            if position > ends[partition]:
                try:
                    self._log.fetch(partition, position, position + 1, 1)
                except OffsetOutOfRangeError as error:
                    self.move(task, partition, position, error, commit.version)

    def move(
        self, task: Task, partition: TopicPartition, offset: int, error: OffsetOutOfRangeError, version: str
    ) -> int:
        """Move a task's position to `go_on`'s result; return that offset."""
        next_offset = self.go_on(task, partition, offset, error, version)
        task.feed(_no_records(partition, next_offset))
        return next_offset

    def go_on(
        self, task: Task, partition: TopicPartition, offset: int, error: OffsetOutOfRangeError, version: str
    ) -> int:
        """Return where to continue in a partition when the log does not have `offset`, as `offset_out_of_range` says.

        `version` is that of the task's last commit. No record of an internal topic is skipped: these are the
        application's own, and it deletes only records that it has committed. Raises OffsetOutOfRangeError, and
        TopicMadeAgainError if the log has another topic of that name.
        """
        self.check_topics()
        policy, source = self._settings.offset_out_of_range, dict(self.sources)[partition]
        start = self._log.start_offsets([partition])[partition]
        beyond = (
            "The topic ends before what was processed: the log lost records, or the topic was deleted and made again"
        )
        if partition in self.internal:
            behind = (
                "Only this application deletes records there, and only those that a commit has passed. So the log lost "
                f"a later commit than the one it has (state version {version}), or somebody else deleted records"
            )
            raise OffsetOutOfRangeError(
                f"{self._where}: {error}. {behind if offset < start else beyond}. "
                "It is an internal topic: what is missing is missing in the state, so "
                "nothing is skipped, whatever `offset_out_of_range` says. What was committed stays; "
                "bring back what the log lost, run the application under a new id, or `penstock reset` it"
            ) from error
        if policy == "fail":
            behind = "The records in between were deleted before they were processed"
            raise OffsetOutOfRangeError(
                f"{self._where}: {error}. {behind if offset < start else beyond}. "
                "What was committed stays; to go on with what the log still has, set "
                "`offset_out_of_range` to earliest or latest, run it under a new application id, or `penstock reset` it"
            ) from error
        next_offset = start if policy == "earliest" else self._log.end_offsets([partition])[partition]
        skipped = max(0, next_offset - offset)
        _log.warning(
            "%s: %s; goes on from offset %d (offset_out_of_range=%s), %d offsets are skipped",
            self._where, error, next_offset, policy, skipped,
        )  # fmt: skip
        task.drop(source.name, "offset_out_of_range", skipped)
        return next_offset


def _no_records(partition: TopicPartition, next_offset: int) -> RecordBatch:
    """Return a batch that only moves the position."""
    return RecordBatch(partition.topic, partition.partition, [], [], [], [], None, next_offset)


def offset_reset_of(source: SourceNode, settings: Settings, *, is_internal: bool) -> str:
    """Return "earliest", "latest" or a length of time. An internal topic is always read from its start.

    All its records belong to the application, also the ones written before the task is opened.
    """
    if is_internal:
        return EARLIEST
    return offset_reset_text(source.offset_reset or settings.offset_reset, f"source {source.name!r}: offset_reset")


def starting_offsets(log: Log, resets: Mapping[TopicPartition, str], now_ms: int) -> dict[TopicPartition, int]:
    """Return the offset that each partition is first read from. `resets`: the result of `offset_reset_of` for each.

    By a length of time, that is the first record whose timestamp is not older than it at `now_ms`, or else the end.
    """
    found: dict[TopicPartition, int] = {}
    for reset in dict.fromkeys(resets.values()):
        partitions = [each for each, of in resets.items() if of == reset]
        if reset == EARLIEST:
            found |= log.start_offsets(partitions)
        elif reset == LATEST:
            found |= log.end_offsets(partitions)
        else:
            found |= log.offsets_for_time(partitions, oldest_ms(reset, now_ms))
    return found
