"""The commit point of a task in a local log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack

from penstock import (
    Commit,
    FencedError,
    LogError,
    OutputBatch,
    ProductionError,
    TaskCommitter,
    TopicPartition,
    UnknownTopicError,
)

from ..messages import check_sizes, fenced, no_key, unknown_topics_as_production_errors
from .catalogue import CatalogueTopics, Topic
from .layout import PackedBatch, named_key, number, number_row, pack_share, partition_key
from .storage import LogStorage
from .transaction import Transaction


@dataclass(frozen=True)
class PackedOutput:
    """An output batch, split by partition and packed; stale if its topic was created again meanwhile."""

    topic: Topic
    batches: dict[int, list[PackedBatch]]


def pack_outputs(storage: LogStorage, outputs: Sequence[OutputBatch]) -> list[PackedOutput]:
    """Partition and pack. Raises UnknownTopicError, and ProductionError for records that a topic refuses."""
    if not outputs:
        return []
    with storage.read() as (_, topics):
        targets = [topics.named(batch.topic) for batch in outputs]
    appended_ms = storage.clock.now_ms()
    return [
        PackedOutput(topic, _pack(storage, topic, batch, appended_ms))
        for topic, batch in zip(targets, outputs, strict=True)
    ]


def is_stale(packed: Sequence[PackedOutput], topics: CatalogueTopics) -> bool:
    """Return whether a topic was deleted or created again since packing."""
    return any(topics.named(each.topic.info.name).id != each.topic.id for each in packed)


def append_packed(transaction: Transaction, packed: Sequence[PackedOutput]) -> None:
    """Append packed batches to their partitions."""
    for output in packed:
        for partition, batches in output.batches.items():
            transaction.append(output.topic.id, partition, batches)


def _pack(storage: LogStorage, topic: Topic, batch: OutputBatch, appended_ms: int) -> dict[int, list[PackedBatch]]:
    if topic.settings.compact and None in batch.keys:
        raise no_key(topic.info.name)

    def appended() -> int:
        with storage.read() as (transaction, _):
            return sum(transaction.extent(topic.id, partition).end for partition in range(topic.info.partitions))

    packed: dict[int, list[PackedBatch]] = {}
    for share in topic.partitioner.split(batch, appended):
        batches = list(pack_share(share, appended_ms, use_append_time=topic.settings.log_append_time))
        packed[share.partition] = batches
        # A record above the limit can only be in a batch above it.
        if any(len(each.data) > topic.settings.max_message_bytes for each in batches):
            check_sizes(batch, topic.settings.max_message_bytes)
    return packed


_EPOCH_BYTES = 8


class LocalCommitter(TaskCommitter):
    """A task's row has the epoch of its last opener; a commit requires the whole row to be as this object left it."""

    def __init__(
        self, storage: LogStorage, application_id: str, task_id: str, partitions: Sequence[TopicPartition]
    ) -> None:
        self._storage = storage
        self._application_id = application_id
        self._task_id = task_id
        self._key = named_key(application_id, task_id.encode())
        with storage.write(f"open task {task_id} of {application_id!r}") as (transaction, topics):
            self._epoch = number_row(storage.catalogue.next_id(transaction))
            self._committed = read_commit(transaction, topics, application_id, task_id, partitions)
            row = self._epoch + bytes(transaction.get("commits", self._key) or b"")[_EPOCH_BYTES:]
            transaction.put("commits", self._key, row)
        self._row: bytes | None = row
        self._is_writing = False

    @property
    def committed(self) -> Commit | None:
        return self._committed

    def is_current(self) -> bool:
        """Return whether nobody else has opened the task: one read transaction.

        Another thread may ask while `commit` writes, when the rest of the row is unknown.
        """
        if self._row is None and not self._is_writing:
            return False
        with self._storage.environment.read() as transaction:
            return bytes(transaction.get("commits", self._key) or b"").startswith(self._epoch)

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        """Make outputs, positions and version visible in one LMDB transaction, fsynced."""
        if self._row is None:
            raise LogError(
                f"task {self._task_id} of application {self._application_id!r}: this committer was closed, or the "
                "outcome of its last commit is unknown: open another and read `committed`"
            )
        state: bytes = msgpack.packb((commit.version, commit.engine_state))
        while not self._try_commit(commit, outputs, self._row, self._epoch + state):
            # The topic of an output was deleted and created again after its records were packed.
            pass
        self._committed = commit

    def close(self) -> None:
        self._row = None

    def _try_commit(self, commit: Commit, outputs: Sequence[OutputBatch], before: bytes, after: bytes) -> bool:
        storage = self._storage
        with unknown_topics_as_production_errors():
            packed = pack_outputs(storage, outputs)
        self._is_writing, self._row = True, None
        try:
            with storage.write(f"commit task {self._task_id} of {self._application_id!r}") as (transaction, topics):
                if bytes(transaction.get("commits", self._key) or b"") != before:
                    raise fenced(self._application_id, self._task_id)
                with unknown_topics_as_production_errors():
                    stale = is_stale(packed, topics)
                if not stale:
                    put_positions(transaction, topics, self._application_id, commit.positions)
                    append_packed(transaction, packed)
                    transaction.put("commits", self._key, after)
        except (FencedError, ProductionError, UnknownTopicError):
            # These are raised before anything is committed.
            self._row = before
            raise
        else:
            self._row = before if stale else after
        finally:
            self._is_writing = False
        return not stale


def read_commit(
    transaction: Transaction,
    topics: CatalogueTopics,
    application_id: str,
    task_id: str,
    partitions: Sequence[TopicPartition],
) -> Commit | None:
    """Return the last commit of a task, None where there is none."""
    positions = read_positions(transaction, topics, application_id, partitions)
    state = bytes(transaction.get("commits", named_key(application_id, task_id.encode())) or b"")[_EPOCH_BYTES:]
    if not state:
        return None
    version, engine_state = msgpack.unpackb(state)
    return Commit({each: at for each, at in positions.items() if at is not None}, version, engine_state)


def read_positions(
    transaction: Transaction,
    topics: CatalogueTopics,
    application_id: str,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, int | None]:
    """Return an application's positions, None where there is none."""
    found: dict[TopicPartition, int | None] = {}
    for partition in partitions:
        key = partition_key(topics.of(partition).id, partition.partition)
        row = transaction.get("positions", named_key(application_id, key))
        found[partition] = None if row is None else number(row)
    return found


def put_positions(
    transaction: Transaction,
    topics: CatalogueTopics,
    application_id: str,
    positions: Mapping[TopicPartition, int],
) -> None:
    """Set an application's positions."""
    for each, position in positions.items():
        key = partition_key(topics.of(each).id, each.partition)
        transaction.put("positions", named_key(application_id, key), number_row(position))
