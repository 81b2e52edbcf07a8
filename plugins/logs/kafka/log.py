"""KafkaLog: the log on a Kafka cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from penstock import (
    Commit,
    ConfigError,
    Lease,
    Log,
    LogError,
    OutputBatch,
    RecordBatch,
    TaskCommitter,
    TopicInfo,
    TopicPartition,
)

from ..messages import check_sizes
from ..messages import out_of_range as out_of_range_error
from .clients import Clients
from .committers import AtLeastOnce, ExactlyOnce, KafkaCommitter
from .copies import missing, with_copies
from .failures import is_retriable, is_unknown_topic
from .following import KafkaFollower
from .groups import ConsumerGroups, renewal_seconds, retention_seconds
from .notes import Notes
from .positions import committed_at, from_kafka, plain, position_of, start_positions, task_of, without_position
from .producing import SharedOutbox, largest_message
from .reading import CONSUMER_FILES, Readers, out_of_range
from .topics import SETTLE_SECONDS, KafkaTopics
from .transactions import Transactions, transactional_id

_GUARANTEES = {"exactly_once": ExactlyOnce, "exactly_once_v2": ExactlyOnce, "at_least_once": AtLeastOnce}
_SETTLE_SECONDS = 1.0
"""How long to wait until the positions of a commit that has returned can be read; most take a tenth of a second."""


class KafkaLog(Log):
    """Topics of a Kafka cluster; positions are committed offsets of the group named as the application.

    `location` is HOST:PORT, or several of them with commas. `settings` are client settings by Kafka's names, with or
    without `consumer.`, `producer.` or `admin.` in front, and `processing.guarantee`, `task.timeout.ms`,
    `replication.factor`, `sends.at.once`. Connects when first used. Raises ConfigError for settings that cannot work.
    """

    settle_seconds = SETTLE_SECONDS
    keeps_records = False
    """A broker deletes records after a week by default (log.retention.hours)."""
    commit_markers = 1
    """The transaction's control record; both guarantees commit by a transaction."""

    def __init__(self, location: str, settings: Mapping[str, str] | None = None) -> None:
        self._clients = Clients(location, settings or {})
        committer = _GUARANTEES.get(self._clients.guarantee)
        if committer is None:
            raise ConfigError(
                f"setting 'processing_guarantee': expected one of {', '.join(_GUARANTEES)}, found "
                f"{self._clients.guarantee!r}"
            )
        self._committer = committer
        self._patience = self._clients.patience
        self._topics = KafkaTopics(self._clients)
        self._groups = ConsumerGroups(self._clients)
        self._notes = Notes(self._clients, self._topics, self._group)
        self._readers = Readers(self._clients)
        self._lock = threading.Lock()
        self._outbox = SharedOutbox(self._clients, self._topics.count)
        self._measured: dict[str, int | None] = {}
        self._positions: dict[tuple[str, str], Consumer] = {}
        self._renewal_seconds: float | None = None

    def open_files(self, tasks: int) -> int:
        """Return the descriptors for committers of `tasks` tasks and one reader, with one broker."""
        return tasks * self._committer.open_files + min(tasks, 1) * CONSUMER_FILES

    # -- topics

    def cluster_id(self) -> str:
        return self._clients.admin.list_topics("reading the id of the cluster").cluster_id or ""

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics.all()

    def topic(self, name: str) -> TopicInfo:
        """Return one topic, without asking for the others."""
        return self._topics.one(name)

    def topic_ids(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the ids of topics, by one request for all."""
        return self._topics.ids(names)

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, internal: bool = False
    ) -> None:
        self._topics.create(name, partitions, config or {})

    def ensure_topic(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        self._topics.ensure(name, partitions, config or {})

    def delete_topic(self, name: str) -> None:
        self._readers.forget(name)
        self._measured.pop(name, None)
        self._topics.delete(name)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._topics.check(partitions)
        return self._topics.start_offsets(partitions)

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        self._topics.check(partitions)
        return self._topics.end_offsets(partitions, stable=stable)

    def known_end_offsets(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, int]:
        """Ask the leaders of those partitions that have one: librdkafka answers for none before all have."""
        return self._topics.known_end_offsets(partitions, stable=stable)

    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        self._topics.check(partitions)
        return self._topics.offsets_for_time(partitions, timestamp_ms)

    # -- records

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        self._topics.check([partition])
        if 0 <= end <= offset:
            return []
        if offset < 0:
            raise self._out_of_range(partition, offset)
        doing = f"reading {partition} from offset {offset}"

        def read(seconds: float) -> list[RecordBatch]:
            try:
                with self._readers.reader(partition, offset) as reader:
                    return reader.fetch(end, max_bytes, lambda: self._end(partition))
            except KafkaException as exception:
                if not is_unknown_topic(exception):
                    raise
                self._topics.check([partition], fresh=True)
                # It is there after all: it is so new that not every broker knows it.
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, str(exception))) from exception

        try:
            return self._patience.call(doing, read)
        except KafkaException as exception:
            if out_of_range(exception):
                raise self._out_of_range(partition, offset) from exception
            raise self._patience.failed(doing, exception) from exception

    def follow(self) -> KafkaFollower:
        """Return a follower, which has a consumer of its own; its caller closes it."""
        return KafkaFollower(self._clients, self._topics, self._out_of_range)

    def append(self, batch: OutputBatch) -> None:
        self._topics.count(batch.topic)
        self._check_sizes(batch)
        self._outbox.deliver(batch)

    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        """Delete records below offset `before`, about once a second."""
        self._topics.check([partition])
        self._topics.purges.add(partition, before, topic_id)

    # -- commits

    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        self._topics.check(partitions)
        if not partitions:
            return {}
        consumer = self._group(application_id, "read_committed")
        doing = f"reading the positions of {application_id!r}"

        def read(seconds: float) -> list[KafkaPartition]:
            try:
                return consumer.committed(plain(partitions), timeout=min(seconds, _SETTLE_SECONDS))
            except KafkaException as exception:
                if not is_retriable(exception):
                    raise
            # A transaction is open, for up to a minute if its process is dead: until it ends, the commit before it
            # counts.
            return self._group(application_id).committed(plain(partitions), timeout=seconds)

        with self._patience.naming(doing):
            found = self._patience.call(doing, read, consumer)
            for each in found:
                if each.error is not None:
                    raise self._patience.failed(f"{doing} in {each.topic}-{each.partition}", each.error)
            found = self._with_copies(application_id, found, lambda: self._patience.call(doing, read, consumer))
        positions = {TopicPartition(each.topic, each.partition): position_of(each) for each in found}
        return {partition: positions[partition] for partition in partitions}

    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        """Let an application begin at `positions`: one transaction, which also removes its other positions and notes.

        These positions have copies in the notes, since nobody repeats this commit before a task's first one.
        """
        self._topics.check([*positions, *to_end])
        self._groups.check_members(application_id)
        before = self._fence_all(application_id)
        if to_end:  # not earlier: until the fence was taken, a task could commit behind them
            positions = {**positions, **self._topics.end_offsets(list(to_end), stable=False)}
        # The broker keeps positions in a deleted topic for a while, and refuses new ones.
        existing = self._topics.counts(fresh=True)
        others = [TopicPartition(each.topic, each.partition) for each in before if each.topic in existing]
        starts, gone = start_positions(positions), [each for each in others if each not in positions]
        self._notes.begin_at(application_id, starts, without_position(gone))
        # Until they can be read, a list of the group's positions may lack them.
        self.committed(application_id, [*positions, *gone])

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        return self._commit(application_id, task_id, partitions, "read_committed")

    def visible_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        """Return the last commit of a task that readers see now.

        Without waiting: librdkafka asks again after 100 ms and more while a transaction is open, and beside ten commits
        a second the next one is open by then.
        """
        return self._commit(application_id, task_id, partitions, "read_uncommitted")

    def _commit(
        self, application_id: str, task_id: str, partitions: Sequence[TopicPartition], level: str
    ) -> Commit | None:
        self._topics.check(partitions)
        if not partitions:
            return None
        consumer = self._group(application_id, level)
        doing = (
            f"reading the last commit of task {task_id} of application {application_id!r} (transactional id "
            f"{transactional_id(application_id, task_id)!r})"
        )
        with self._patience.naming(doing):

            def ask() -> list[KafkaPartition]:
                return self._patience.call(
                    doing, lambda seconds: consumer.committed(plain(partitions), timeout=seconds), consumer
                )

            found = ask()
            for each in found:
                if each.error is not None:
                    raise self._patience.failed(doing, each.error)
            return from_kafka(task_id, self._with_copies(application_id, found, ask))[0]

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return self._open_committer(application_id, task_id, partitions, is_lasting=False)

    def open_lasting_committer(
        self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]
    ) -> TaskCommitter:
        """Open a committer whose commits have copies in the notes, which brokers do not forget."""
        return self._open_committer(application_id, task_id, partitions, is_lasting=True)

    def _open_committer(
        self, application_id: str, task_id: str, partitions: Sequence[TopicPartition], *, is_lasting: bool
    ) -> TaskCommitter:
        self._topics.check(partitions)
        consumer = self._group(application_id, "read_committed")
        if self._renewal_seconds is None:
            self._renewal_seconds = renewal_seconds(self._clients)
        return self._committer(
            self._clients, application_id, task_id, partitions, self._topics.count, consumer, self._renewal_seconds,
            self._notes.copies(application_id), is_lasting=is_lasting,
        )  # fmt: skip

    def are_current(self, committers: Sequence[TaskCommitter]) -> Sequence[bool]:
        """Return `is_current()` of each, by one request."""
        own = [committer for committer in committers if isinstance(committer, KafkaCommitter)]
        if len(own) == len(committers):
            try:
                return KafkaCommitter.are_current(own, _SETTLE_SECONDS)
            except KafkaException:
                pass  # The positions of one task fail, or its successor died in a transaction: ask for each task.
        return super().are_current(committers)

    def commits_kept_until(self, application_id: str, partitions: Sequence[TopicPartition]) -> int | None:
        """Return when the brokers forget the first of these offsets that has no copy (`offsets.retention.minutes`)."""
        kept = retention_seconds(self._clients)
        if kept is None or not partitions:
            return None
        consumer, doing = self._group(application_id), f"reading the positions of {application_id!r}"
        with self._patience.naming(doing):
            found = self._patience.call(
                doing, lambda seconds: consumer.committed(plain(partitions), timeout=seconds), consumer
            )
        made = [at for each in found if (at := committed_at(each)) is not None]
        return int((min(made) + kept) * 1000) if made else None

    def delete_commits(self, application_id: str) -> None:
        self._fence_all(application_id)
        self._groups.delete(application_id)
        self._notes.delete(application_id)

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        return self._notes.get(application_id, key)

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        self._notes.put(application_id, key, value)

    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        self._notes.change(application_id, key, change)

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        """Take the application's driver lease. Raises LogError also when the application's group has members."""
        self._groups.check_members(application_id)
        return self._notes.lease(application_id, owner, ttl_ms)

    def close(self) -> None:
        with self._lock:
            consumers, self._positions = list(self._positions.values()), {}
        self._outbox.close()
        self._topics.purges.flush()
        self._notes.close()
        self._readers.close()
        for consumer in consumers:
            consumer.close()
        self._clients.admin.close()

    # -- inside

    def _check_sizes(self, batch: OutputBatch) -> None:
        """Raise RecordRefusedError for a record that is too large, and limit the producer's batches to that size."""
        topic = batch.topic
        if topic not in self._measured:
            self._measured[topic] = most = largest_message(self._clients, topic)
            if most is not None and self._clients.limit_batches(most):
                self._outbox.close()
        most = self._measured[topic]
        if most is not None:
            check_sizes(batch, most)

    def _end(self, partition: TopicPartition) -> int:
        return self._topics.end_offsets([partition], stable=True)[partition]

    def _out_of_range(self, partition: TopicPartition, offset: int) -> LogError:
        start = self._topics.start_offsets([partition])[partition]
        return out_of_range_error(partition, offset, start, self._end(partition))

    def _with_copies(
        self, application_id: str, found: list[KafkaPartition], ask: Callable[[], list[KafkaPartition]]
    ) -> list[KafkaPartition]:
        """Return a group's positions, with copies of missing ones; `ask` reads the positions again."""
        if not (gone := missing(found)):
            return found
        copies, was_removed = self._notes.copies(application_id).of(gone)
        return with_copies(ask() if was_removed else found, copies)

    def _group(self, application_id: str, level: str = "read_uncommitted") -> Consumer:
        """Return a consumer that reads a group's positions; "read_committed" waits for open transactions to end."""
        with self._lock:
            found = self._positions.get((application_id, level))
            if found is None:
                found = self._clients.consumer(application_id, {"isolation.level": level})
                self._positions[application_id, level] = found
            return found

    def _fence_all(self, application_id: str) -> list[KafkaPartition]:
        """Fence every task that has commits; return the group's positions, which no task changes from then on.

        The first read does not wait for open transactions, because fencing ends those of the tasks that it finds. Later
        reads wait: a commit that has just returned may not be readable before. A task's first commit is listed when it
        returns.
        """
        fenced: set[str] = set()
        stable = False
        while True:
            positions = self._groups.positions(application_id, stable=stable)
            tasks = {task for position in positions if (task := task_of(position)) is not None} - fenced
            if stable and not tasks:
                return positions
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda task: self._fence(application_id, task), sorted(tasks)))
            fenced |= tasks
            stable = True

    def _fence(self, application_id: str, task_id: str) -> None:
        """Fence a task."""
        with (
            self._patience.naming(f"fencing task {task_id} of application {application_id!r}"),
            closing(Transactions(self._clients, self._topics.count, application_id, task_id)) as transactions,
        ):
            transactions.take_fence()
