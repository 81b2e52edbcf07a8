"""The interface to Kafka or another log: topics, records, committed positions, leases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from ..errors import LogError, TopicExistsError, UnknownTopicError
from ..record import OutputBatch, RecordBatch, TopicPartition
from .committer import Commit, TaskCommitter
from .follower import Follower


@dataclass(frozen=True)
class TopicInfo:
    """A topic: its partitions and settings (Kafka's names, e.g. `cleanup.policy`, `retention.ms`).

    `id` changes when a topic is deleted and created again. It is empty where the log has no such id, and may be empty
    in what `Log.topics` returns.
    """

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False
    id: str = ""


class Lease(ABC):
    """The right to be the one driver of an application, for a limited time."""

    @abstractmethod
    def renew(self) -> None:
        """Keep it for another period. Raises FencedError when it was lost."""

    @abstractmethod
    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        """Keep bytes as `Log.put_meta` does, unless the lease was lost; `application_id` may be any.

        Checked and written in one step: a process that was frozen before this step changes nothing after another
        process has taken the lease. Raises FencedError when it was lost; then nothing has changed. After any other
        error it is unknown whether the bytes are there.
        """

    @abstractmethod
    def release(self) -> None:
        """Give it up; idempotent."""


class LogTopics(ABC):
    """The part of a log that creates, lists and deletes topics."""

    keeps_records: ClassVar[bool] = True
    """Whether a topic that was given no retention keeps its records for ever."""
    settle_seconds: ClassVar[float] = 0.0
    """Seconds for which `topics` may lack a topic that another process has created. Only a topic missing for longer is
    missing.
    """

    def cluster_id(self) -> str:
        """Return the id of the cluster that has the topics; "" where the log has no such ids."""
        return ""

    @abstractmethod
    def topics(self) -> Mapping[str, TopicInfo]:
        """Return all topics by name."""

    def topic(self, name: str) -> TopicInfo:
        """Return one topic, with its `id` if the log has ids, as it is now; a planner asks before every batch.

        A log overrides this where `topics` is expensive.
        """
        info = self.topics().get(name)
        if info is None:
            raise UnknownTopicError(f"topic {name!r} does not exist; create it: penstock topics create {name}")
        return info

    def topic_ids(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the present ids of existing topics ("" where the log has no ids).

        A process asks every few seconds. A log overrides this where `topic` is a request for each.
        """
        known = self.topics()
        return {name: self.topic(name).id for name in names if name in known}

    @abstractmethod
    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, internal: bool = False
    ) -> None:
        """Create a topic. Raises TopicExistsError, and LogError when a setting is unknown."""

    def ensure_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create an internal topic unless it is there; other processes may do so at the same time."""
        if name not in self.topics():
            with suppress(TopicExistsError):
                self.create_topic(name, partitions, config, internal=True)

    @abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records and every position in it."""


class LogRecords(ABC):
    """The part of a log that has records: offsets, and reading, producing and deleting outside of any commit."""

    commit_markers: ClassVar[int] = 0
    """Number of offsets that a task's commit adds to each partition it writes to, beside the records'."""

    @abstractmethod
    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the first offset that can still be read, for each."""

    @abstractmethod
    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        """Return the offset after the last committed record, for each.

        Not `stable`: after the last record, including records of open transactions.
        """

    def known_end_offsets(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, int]:
        """Return `end_offsets` of the partitions that have a leader now.

        A log whose `end_offsets` waits for a leader overrides this: it must not wait for long.
        """
        try:
            return self.end_offsets(partitions, stable=stable)
        except LogError:
            found: dict[TopicPartition, int] = {}
            for partition in partitions:
                with suppress(LogError):
                    found.update(self.end_offsets([partition], stable=stable))
            return found

    @abstractmethod
    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        """Return the offset of the first record whose timestamp is at or after `timestamp_ms`, for each.

        First by offset: timestamps need not be in order. The end offset where there is no such record.
        """

    @abstractmethod
    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        """Return committed records from `offset` up to, not including, `end`: at most about `max_bytes`.

        Returns at least one record if there is any. An empty list means that there is none below `end`: continue at
        `end`. Otherwise continue at the last batch's `next_offset`, which may skip offsets without a record, up to
        `end`. Raises OffsetOutOfRangeError when `offset` was deleted or is after the end of the log.
        """

    def follow(self) -> Follower | None:
        """Return a new follower; None if this log has none of its own: callers then poll `end_offsets` and `fetch`.

        A log overrides this where asking for the ends every few milliseconds is expensive.
        """
        return None

    @abstractmethod
    def append(self, batch: OutputBatch) -> None:
        """Produce outside any task (the command line, tests); durable when it returns."""

    @abstractmethod
    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        """Delete records below offset `before`, or fewer, now or later, if the topic has this id ("": any id)."""


class LogCommits(ABC):
    """The part of a log that keeps an application's commits and positions, and a few bytes beside them."""

    @abstractmethod
    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """Return the application's committed positions, without any fence; None for a partition without one.

        Includes every commit that has returned, except while the same task is in the middle of its next one.
        """

    @abstractmethod
    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        """Return the last commit of a task, without its fence; None when the task never had one.

        Every commit that has returned is included. Where the task is in the middle of a commit, this waits for its end.
        `partitions`: the task's input partitions. The task may commit again before this returns.
        """

    def visible_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        """Return the last commit of a task that readers see now; None if there is none.

        It does not wait for a running commit, and may miss a commit of the last milliseconds. A log overrides this
        where `last_commit` waits.
        """
        return self.last_commit(application_id, task_id, partitions)

    @abstractmethod
    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        """Take the task's fence, then read its last commit."""

    def open_lasting_committer(
        self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]
    ) -> TaskCommitter:
        """Do as `open_committer`, but the log keeps the commit until another commit replaces it.

        For tools: the application may start much later, and until then no process repeats a commit that `expires`. A
        log overrides this where it deletes old commits.
        """
        return self.open_committer(application_id, task_id, partitions)

    def are_current(self, committers: Sequence[TaskCommitter]) -> Sequence[bool]:
        """Return `is_current()` of each committer, in order; raises as it. A task host asks before every batch.

        `committers` were opened by this log. A log overrides this where one request for all is cheaper.
        """
        return [committer.is_current() for committer in committers]

    def commits_kept_until(self, application_id: str, partitions: Sequence[TopicPartition]) -> int | None:
        """Return when (ms since 1970) the log deletes the first of these committed positions, unless it is repeated.

        None: it keeps them, or does not say. A log overrides this where it deletes old commits.
        """
        return None

    @abstractmethod
    def delete_commits(self, application_id: str) -> None:
        """Delete every commit of an application and its bytes of `put_meta`, and fence open committers.

        A lease stays.
        """

    @abstractmethod
    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        """Delete commits as `delete_commits` does, and let the application begin at `positions`, in one step.

        `to_end`: partitions in which it begins at the high end offset, behind every record of a commit that was made
        before this step. From then on `committed` returns these positions (None for every other partition), a new
        committer finds no commit, and the first commit of a task starts from them. Durable when it returns. A crash
        leaves either the commits from before or the new positions. Offsets are not checked against the topics.
        """

    @abstractmethod
    def get_meta(self, application_id: str, key: str) -> bytes | None:
        """Return the bytes that `put_meta` kept; None if there are none."""

    @abstractmethod
    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        """Keep a few bytes for an application beside its commits, e.g. partition counts; durable when it returns."""

    @abstractmethod
    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        """Replace the bytes of `put_meta` by the result of `change` for them, in one step; durable when it returns.

        For notes that several processes change: no change by `change_meta` is lost. `change` gets the bytes as
        `get_meta` returns them, may be called several times, and must not use the log. What it raises is raised here,
        and then nothing has changed; after any other error it is unknown whether it has.
        """


class LogLeases(ABC):
    """The part of a log by which only one driver of an application runs."""

    @abstractmethod
    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        """Take the application's driver lease.

        Raises LeaseTakenError with the owner that has it: LeaseHeldError if the log cannot tell whether that owner
        still runs; the caller then waits for the lease to expire.
        """


class Log(LogTopics, LogRecords, LogCommits, LogLeases):
    """Topics with partitions, and commits. One object per process and location; thread-safe.

    Every log fences: it refuses a committer that was replaced, whatever the guarantee for outputs. Otherwise a late
    commit would set the positions back to repartition records that were already purged.

    Every method that names a topic raises UnknownTopicError when it does not exist, and LogError with the location when
    the log cannot be reached.
    """

    def open_files(self, tasks: int) -> int:
        """Return the minimum number of file descriptors of this process for this log with `tasks` open tasks.

        A runner refuses to start where the limit is lower; if in doubt, return a lower number. 0 means hardly any.
        """
        return 0

    def maintain(self, now_ms: int) -> None:
        """Apply the topics' retention and compaction as of `now_ms`; a runner calls it now and then.

        A broker does that by itself.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""


class LogFactory(Protocol):
    """Opens a log at a location; a plugin gives it a name.

    It may also be a `TakesPath`.
    """

    def __call__(self, location: str, settings: Mapping[str, str]) -> Log:
        """Open; `location` is what follows the name in the application's `log` setting, e.g. a directory or brokers.

        `settings` are the application's `clients` and, by Kafka's names, `processing.guarantee`, `task.timeout.ms` and
        `replication.factor`; `sends.at.once` is "true" in continuous mode, where records that are readable before a
        commit should not wait for more records. A log ignores those that are not its own, and shows no value, which may
        be a secret.
        """
        ...


@runtime_checkable
class TakesPath(Protocol):
    """A factory that says whether locations are paths: relative ones are then under `data_dir`."""

    location_is_path: bool
