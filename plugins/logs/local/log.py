"""The local log itself, and reading it: from stored batches to columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from penstock import (
    Clock,
    Commit,
    Follower,
    Lease,
    Log,
    LogError,
    OutputBatch,
    RecordBatch,
    SystemClock,
    TaskCommitter,
    TopicInfo,
    TopicPartition,
)

from ..following import FetchFollower
from ..messages import out_of_range
from ..topics import check_new_topic
from .catalogue import Topic
from .committer import LocalCommitter, append_packed, is_stale, pack_outputs, put_positions, read_commit, read_positions
from .environment import Options, split_location
from .layout import Extent, StoredColumns, named_key, partition_key, unpack, unpack_header
from .leases import LocalLease
from .maintenance import maintain
from .storage import LogStorage, naming_damage
from .transaction import Transaction

_MERGED_RECORDS = 8192
"""Small stored batches are merged up to this many records, because each batch costs its readers some work."""


def fetch(
    transaction: Transaction,
    topic_id: int,
    partition: TopicPartition,
    offset: int,
    end: int,
    max_bytes: int,
) -> list[RecordBatch]:
    """Return records from `offset` up to `end`, decoded straight from LMDB's map. Raises DamagedBatchError."""
    found: list[RecordBatch] = []
    size, following = 0, offset
    if offset >= end:
        return found
    for base, data in transaction.batches_from(topic_id, partition.partition, offset):
        if base >= end or (found and size >= max_bytes):
            break
        header, columns = unpack(base, data)
        following = base + header.span
        batch = _slice(partition, base, header.span, columns, offset, end)
        if not batch.keys:
            continue
        size += len(data)
        if found and len(found[-1].keys) + len(batch.keys) <= _MERGED_RECORDS:
            found[-1] = _merge(found[-1], batch)
        else:
            found.append(batch)
    if found:
        # Offsets that compaction emptied after the last record are passed as well.
        found[-1].next_offset = min(max(following, found[-1].next_offset), end)
    return found


def offset_for_time(transaction: Transaction, topic_id: int, partition: int, has: Extent, timestamp_ms: int) -> int:
    """Return the offset of the first record at or after a time, else the end. Raises DamagedBatchError."""
    for base, data in transaction.batches_from(topic_id, partition, has.start):
        if unpack_header(base, data).max_timestamp < timestamp_ms:
            continue
        _, columns = unpack(base, data)
        deltas = columns.deltas if columns.deltas is not None else range(len(columns.timestamps))
        for delta, timestamp in zip(deltas, columns.timestamps, strict=True):
            if timestamp >= timestamp_ms and base + delta >= has.start:
                return base + delta
    return has.end


def _slice(
    partition: TopicPartition, base: int, span: int, columns: StoredColumns, offset: int, end: int
) -> RecordBatch:
    keys, values, timestamps, headers = columns.keys, columns.values, columns.timestamps, columns.headers
    offsets: Sequence[int]
    if columns.deltas is None:
        offsets = range(base, base + span)
    else:
        offsets = [base + delta for delta in columns.deltas]
    if base < offset or base + span > end:
        part = slice(bisect_left(offsets, offset), bisect_left(offsets, end))
        offsets, keys, values, timestamps = offsets[part], keys[part], values[part], timestamps[part]
        headers = None if headers is None else headers[part]
    return RecordBatch(
        partition.topic, partition.partition, offsets, keys, values, timestamps, headers, min(base + span, end)
    )


def _merge(first: RecordBatch, second: RecordBatch) -> RecordBatch:
    offsets: Sequence[int]
    if (
        isinstance(first.offsets, range)
        and isinstance(second.offsets, range)
        and first.offsets.stop == second.offsets.start
    ):
        offsets = range(first.offsets.start, second.offsets.stop)
    else:
        offsets = _extended(first.offsets, second.offsets)
    headers = None
    if first.headers is not None or second.headers is not None:
        headers = _extended(
            first.headers if first.headers is not None else [()] * len(first.keys),
            second.headers if second.headers is not None else [()] * len(second.keys),
        )
    return RecordBatch(
        first.topic,
        first.partition,
        offsets,
        _extended(first.keys, second.keys),
        _extended(first.values, second.values),
        _extended(first.timestamps, second.timestamps),
        headers,
        second.next_offset,
    )


def _extended(column: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    # A merged column is a list that this function made, so many small batches merge in linear time.
    extended = column if isinstance(column, list) else list(column)
    extended.extend(more)
    return extended


class LocalLog(Log):
    """Topics, positions and commits in a directory of this host; any number of processes may use it at once.

    `location` is the directory, made when it does not exist. It must be on a local disk: LMDB maps its file, and its
    locks are the kernel's. Commits and appends are durable when they return (fsync); a process that is killed at any
    moment leaves nothing half done.

    `DIRECTORY?NAME=VALUE&...`, or those among `settings`: `map_size`, the most bytes that the log may take (default 1
    TiB; disk space is taken as it is used); `lock_timeout`, how long to wait for another process's write ("30s").
    """

    location_is_path = True

    def __init__(self, location: str, settings: Mapping[str, str] | None = None, *, clock: Clock | None = None) -> None:
        directory, given = split_location(location)
        if not directory:
            raise LogError("local log: no directory given; write `local:DIRECTORY`")
        self._storage = LogStorage(directory, Options.parse(given, settings or {}), clock or SystemClock())

    # -- topics

    def topics(self) -> Mapping[str, TopicInfo]:
        with self._storage.read() as (_, topics):
            return {name: topic.info for name, topic in topics.items()}

    def topic(self, name: str) -> TopicInfo:
        with self._storage.read() as (_, topics):
            return topics.named(name).info

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, internal: bool = False
    ) -> None:
        storage = self._storage
        with storage.write(f"create topic {name!r}") as (transaction, topics):
            info = check_new_topic(name, partitions, config or {}, topics, internal=internal)
            topic = Topic.make(storage.catalogue.next_id(transaction), info)
            storage.catalogue.put(transaction, topic)

    def delete_topic(self, name: str) -> None:
        storage = self._storage
        with storage.write(f"delete topic {name!r}") as (transaction, topics):
            topic = topics.named(name)
            storage.catalogue.delete(transaction, topic)
            prefix = partition_key(topic.id, 0)[:4]
            for database in ("ends", "batches", "cleaned"):
                transaction.delete_prefix(database, prefix)
            transaction.delete_positions_of_topic(topic.id)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {each: found.start for each, found in self._extents(partitions).items()}

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        """Return the offset after the last committed record, for each; waits for no writer and costs microseconds."""
        return {each: found.end for each, found in self._extents(partitions).items()}

    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        """Return the offset of the first record at or after a time, for each; decodes one stored batch for each."""
        storage, found = self._storage, {}
        with storage.read() as (transaction, topics):
            for partition in partitions:
                topic_id = topics.of(partition).id
                has = transaction.extent(topic_id, partition.partition)
                with naming_damage(storage, *partition):
                    found[partition] = offset_for_time(transaction, topic_id, partition.partition, has, timestamp_ms)
        return found

    def _extents(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Extent]:
        with self._storage.read() as (transaction, topics):
            return {
                partition: transaction.extent(topics.of(partition).id, partition.partition) for partition in partitions
            }

    # -- records

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        """Return records from `offset` up to, not including, `end`; `max_bytes` may be passed by one stored batch."""
        storage = self._storage
        with storage.read() as (transaction, topics):
            topic_id = topics.of(partition).id
            has = transaction.extent(topic_id, partition.partition)
            if not has.start <= offset <= has.end:
                raise out_of_range(partition, offset, has.start, has.end)
            end = min(end, has.end)
            with naming_damage(storage, *partition):
                return fetch(transaction, topic_id, partition, offset, end, max_bytes)

    def follow(self) -> Follower:
        """Return a follower that looks for new transactions of any process, every few milliseconds."""
        return FetchFollower(self, lambda: self._storage.environment.last_transaction())

    def append(self, batch: OutputBatch) -> None:
        storage, stale = self._storage, True
        while stale:
            packed = pack_outputs(storage, [batch])
            with storage.write(f"append to topic {batch.topic!r}") as (transaction, topics):
                # Stale: the topic was deleted and created again meanwhile, maybe with another number of partitions.
                stale = is_stale(packed, topics)
                if not stale:
                    append_packed(transaction, packed)

    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        """Delete records below offset `before` with this process's next write, with `maintain` or with `close`."""
        with self._storage.read() as (_, topics):
            topic = topics.of(partition)
        if topic_id in ("", topic.info.id):
            self._storage.purge_later(topic.id, partition.partition, before)

    def maintain(self, now_ms: int) -> None:
        """Purge, and apply retention and compaction as of `now_ms`, unless another process does so already."""
        self._storage.purge_now()
        maintain(self._storage, now_ms)

    # -- commits

    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        with self._storage.read() as (transaction, topics):
            return read_positions(transaction, topics, application_id, partitions)

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        with self._storage.read() as (transaction, topics):
            return read_commit(transaction, topics, application_id, task_id, partitions)

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return LocalCommitter(self._storage, application_id, task_id, partitions)

    def delete_commits(self, application_id: str) -> None:
        with self._storage.write(f"delete the commits of {application_id!r}") as (transaction, _):
            transaction.delete_application(named_key(application_id))

    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        """Forget every commit of an application and let it begin at `positions`: one LMDB transaction."""
        with self._storage.write(f"set the positions of {application_id!r}") as (transaction, topics):
            ends = {each: transaction.extent(topics.of(each).id, each.partition).end for each in to_end}
            transaction.delete_application(named_key(application_id))
            put_positions(transaction, topics, application_id, {**positions, **ends})

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        with self._storage.read() as (transaction, _):
            row = transaction.get("meta", named_key(application_id, key.encode()))
            return None if row is None else bytes(row)

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        with self._storage.write(f"keep {key!r} of {application_id!r}") as (transaction, _):
            transaction.put("meta", named_key(application_id, key.encode()), value)

    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        name = named_key(application_id, key.encode())
        with self._storage.write(f"keep {key!r} of {application_id!r}") as (transaction, _):
            row = transaction.get("meta", name)
            transaction.put("meta", name, change(None if row is None else bytes(row)))

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        return LocalLease(self._storage, application_id, owner, ttl_ms)

    def close(self) -> None:
        self._storage.close()
