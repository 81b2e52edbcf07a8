"""A log in this process; the test driver uses it."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, count
from typing import Any

from penstock import (
    Commit,
    Headers,
    Lease,
    LeaseTakenError,
    Log,
    OutputBatch,
    RecordBatch,
    TaskCommitter,
    TopicInfo,
    TopicPartition,
    World,
)

from .messages import (
    check_partition,
    check_sizes,
    fenced,
    lease_lost,
    no_key,
    out_of_range,
    record_size,
    unknown_topic,
    unknown_topics_as_production_errors,
)
from .partitioner import Partitioner, Share
from .topics import TopicSettings, check_new_topic, parse_config

_FETCH_STEP = 256


@dataclass(slots=True)
class MemoryPartition:
    """Records by column, from offset `start` up to, not including, `end`.

    `headers` is None until a record has some. `appended` (milliseconds) is filled in compacted topics only.
    """

    start: int = 0
    end: int = 0
    offsets: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: list[Headers] | None = None
    appended: list[int] = field(default_factory=list)

    def append(self, share: Share, settings: TopicSettings, now_ms: int) -> None:
        """Add records at the end."""
        added = len(share.keys)
        if share.headers is not None and self.headers is None and any(share.headers):
            self.headers = [()] * len(self.keys)
        if self.headers is not None:
            self.headers.extend(share.headers if share.headers is not None else [()] * added)
        self.offsets.extend(range(self.end, self.end + added))
        self.keys.extend(share.keys)
        self.values.extend(share.values)
        self.timestamps.extend([now_ms] * added if settings.log_append_time else share.timestamps)
        if settings.compact:
            self.appended.extend([now_ms] * added)
        self.end += added

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        """Return records as `Log.fetch` does. Raises OffsetOutOfRangeError."""
        if not self.start <= offset <= self.end:
            raise out_of_range(partition, offset, self.start, self.end)
        end = min(end, self.end)
        first, stop = bisect_left(self.offsets, offset), bisect_left(self.offsets, end)
        if first >= stop:
            return []
        last, size = first, 0
        while last < stop and size < max_bytes:
            step = min(last + _FETCH_STEP, stop)
            present = filter(None, chain(self.keys[last:step], self.values[last:step]))
            size += sum(map(len, present)) + 8 * (step - last)
            last = step
        return [
            RecordBatch(
                partition.topic,
                partition.partition,
                self.offsets[first:last],
                self.keys[first:last],
                self.values[first:last],
                self.timestamps[first:last],
                None if self.headers is None else self.headers[first:last],
                end if last == stop else self.offsets[last],
            )
        ]

    def offset_for_time(self, timestamp_ms: int) -> int:
        """Return the offset of the first record at or after a time; the end where there is none."""
        found = (offset for offset, at in zip(self.offsets, self.timestamps, strict=True) if at >= timestamp_ms)
        return next(found, self.end)

    def purge(self, before: int) -> None:
        """Delete records below offset `before`."""
        self.start = max(self.start, min(before, self.end))
        self._keep_from(bisect_left(self.offsets, self.start))

    def maintain(self, settings: TopicSettings, now_ms: int) -> None:
        """Apply compaction and retention."""
        if settings.compact:
            self._compact(settings, now_ms)
        if settings.delete:
            index = 0
            if settings.retention_ms >= 0:
                oldest = now_ms - settings.retention_ms
                index = next((i for i, at in enumerate(self.timestamps) if at >= oldest), len(self.timestamps))
            if settings.retention_bytes >= 0:
                totals = list(accumulate(map(record_size, self.keys, self.values)))
                excess = (totals[-1] if totals else 0) - settings.retention_bytes
                index = max(index, bisect_right(totals, excess))
            if index:
                self.purge(self.offsets[index] if index < len(self.offsets) else self.end)

    def _compact(self, settings: TopicSettings, now_ms: int) -> None:
        stop = len(self.keys)
        if settings.min_compaction_lag_ms:
            young = now_ms - settings.min_compaction_lag_ms
            stop = next((index for index, at in enumerate(self.timestamps) if at > young), stop)
        newest = dict(zip(self.keys[:stop], self.offsets, strict=False))
        horizon = now_ms - settings.delete_retention_ms
        kept = [
            index
            for index, (key, value, offset, appended) in enumerate(
                zip(self.keys, self.values, self.offsets, self.appended, strict=True)
            )
            if index >= stop or (newest[key] == offset and (value is not None or appended > horizon))
        ]
        for column in self._columns():
            column[:] = [column[index] for index in kept]

    def _keep_from(self, index: int) -> None:
        for column in self._columns():
            del column[:index]

    def _columns(self) -> list[list[Any]]:
        columns: list[list[Any] | None] = [
            self.offsets, self.keys, self.values, self.timestamps, self.appended, self.headers,
        ]  # fmt: skip
        return [column for column in columns if column]


class MemoryLog(Log):
    """Topics and commits in this process, lost at its end; otherwise it behaves like a durable log.

    `location` and `settings` have no effect: two objects share nothing.
    """

    def __init__(
        self, location: str = "", settings: Mapping[str, str] | None = None, *, world: World | None = None
    ) -> None:
        self._world = world = world or World()
        self._clock = world.clock
        self._lock = threading.RLock()
        self._topics: dict[str, _Topic] = {}
        self._positions: dict[tuple[str, TopicPartition], int] = {}
        self._commits: dict[tuple[str, str], _TaskCommit] = {}
        self._meta: dict[tuple[str, str], bytes] = {}
        self._leases: dict[str, _MemoryLease] = {}
        self._epochs = count(1)

    # -- topics

    def topics(self) -> Mapping[str, TopicInfo]:
        with self._lock:
            return {name: topic.info for name, topic in self._topics.items()}

    def topic(self, name: str) -> TopicInfo:
        with self._lock:
            return self._topic(name).info

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, internal: bool = False
    ) -> None:
        with self._lock:
            info = check_new_topic(name, partitions, config or {}, self._topics, internal=internal)
            self._topics[name] = _Topic(replace(info, id=self._world.token(16)))

    def delete_topic(self, name: str) -> None:
        with self._lock:
            self._topic(name)
            del self._topics[name]
            for key in [key for key in self._positions if key[1].topic == name]:
                del self._positions[key]

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        with self._lock:
            return {partition: self._partition(partition).start for partition in partitions}

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        with self._lock:
            return {partition: self._partition(partition).end for partition in partitions}

    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> Mapping[TopicPartition, int]:
        with self._lock:
            return {partition: self._partition(partition).offset_for_time(timestamp_ms) for partition in partitions}

    # -- records

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        with self._lock:
            return self._partition(partition).fetch(partition, offset, end, max_bytes)

    def append(self, batch: OutputBatch) -> None:
        with self._lock:
            self._apply(self._split(batch))

    def purge(self, partition: TopicPartition, before: int, topic_id: str = "") -> None:
        with self._lock:
            if topic_id in ("", self._topic(partition.topic).info.id):
                self._partition(partition).purge(before)

    def maintain(self, now_ms: int) -> None:
        with self._lock:
            for topic in self._topics.values():
                for partition in topic.partitions:
                    partition.maintain(topic.settings, now_ms)

    # -- commits

    def committed(
        self, application_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        with self._lock:
            for partition in partitions:
                self._partition(partition)
            return {partition: self._positions.get((application_id, partition)) for partition in partitions}

    def last_commit(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> Commit | None:
        with self._lock:
            positions = self.committed(application_id, partitions)
            old = self._commits.get((application_id, task_id))
            if old is None or old.version is None:
                return None
            return Commit({each: at for each, at in positions.items() if at is not None}, old.version, old.engine_state)

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        with self._lock:
            commit = self.last_commit(application_id, task_id, partitions)
            old = self._commits.get((application_id, task_id))
            epoch = next(self._epochs)
            self._commits[application_id, task_id] = _TaskCommit(
                epoch, old.version if old else None, old.engine_state if old else b""
            )
            return _MemoryCommitter(self, application_id, task_id, epoch, commit)

    def delete_commits(self, application_id: str) -> None:
        with self._lock:
            everything: tuple[dict[Any, Any], ...] = self._positions, self._commits, self._meta
            for rows in everything:
                for key in [key for key in rows if key[0] == application_id]:
                    del rows[key]

    def set_positions(
        self, application_id: str, positions: Mapping[TopicPartition, int], to_end: Collection[TopicPartition] = ()
    ) -> None:
        with self._lock:
            for each in positions:
                self._partition(each)
            ends = {each: self._partition(each).end for each in to_end}
            self.delete_commits(application_id)
            for each, position in {**positions, **ends}.items():
                self._positions[application_id, each] = position

    def get_meta(self, application_id: str, key: str) -> bytes | None:
        with self._lock:
            return self._meta.get((application_id, key))

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        with self._lock:
            self._meta[application_id, key] = value

    def change_meta(self, application_id: str, key: str, change: Callable[[bytes | None], bytes]) -> None:
        with self._lock:
            self._meta[application_id, key] = change(self._meta.get((application_id, key)))

    def lease(self, application_id: str, owner: str, ttl_ms: int) -> Lease:
        with self._lock:
            current = self._leases.get(application_id)
            now_ms = self._clock.now_ms()
            if current is not None and current.expires_ms > now_ms:
                raise LeaseTakenError(
                    f"application {application_id!r} is already run by {current.owner}, whose lease in this process's "
                    f"memory log ends in {(current.expires_ms - now_ms) / 1000:.1f} s: stop it first"
                )
            lease = self._leases[application_id] = _MemoryLease(self, application_id, owner, ttl_ms, now_ms + ttl_ms)
            return lease

    def close(self) -> None:
        """Do nothing: the log ends with this object."""

    # -- inside

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise unknown_topic(name, self._topics, "this process's memory log")
        return topic

    def _partition(self, partition: TopicPartition) -> MemoryPartition:
        partitions = self._topic(partition.topic).partitions
        check_partition(partition.topic, partition.partition, len(partitions))
        return partitions[partition.partition]

    def _split(self, batch: OutputBatch) -> tuple[_Topic, list[Share]]:
        topic = self._topic(batch.topic)
        check_sizes(batch, topic.settings.max_message_bytes)
        if topic.settings.compact and None in batch.keys:
            raise no_key(batch.topic)
        return topic, topic.partitioner.split(batch, lambda: sum(partition.end for partition in topic.partitions))

    def _apply(self, split: tuple[_Topic, list[Share]]) -> None:
        topic, shares = split
        now_ms = self._clock.now_ms() if topic.needs_time else 0
        for share in shares:
            topic.partitions[share.partition].append(share, topic.settings, now_ms)


class _Topic:
    def __init__(self, info: TopicInfo) -> None:
        self.info = info
        self.settings = parse_config(info.name, info.config)
        self.needs_time = self.settings.compact or self.settings.log_append_time
        self.partitioner = Partitioner(info.partitions)
        self.partitions = [MemoryPartition() for _ in range(info.partitions)]


@dataclass
class _TaskCommit:
    epoch: int
    version: str | None
    engine_state: bytes


class _MemoryCommitter(TaskCommitter):
    def __init__(self, log: MemoryLog, application_id: str, task_id: str, epoch: int, committed: Commit | None) -> None:
        self._log = log
        self._application_id = application_id
        self._task_id = task_id
        self._epoch = epoch
        self._committed = committed
        self._closed = False

    @property
    def committed(self) -> Commit | None:
        return self._committed

    def is_current(self) -> bool:
        with self._log._lock:
            found = self._log._commits.get((self._application_id, self._task_id))
            return not self._closed and found is not None and found.epoch == self._epoch

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        log = self._log
        with log._lock:
            if not self.is_current():
                raise fenced(self._application_id, self._task_id)
            for partition in commit.positions:
                log._partition(partition)
            with unknown_topics_as_production_errors():
                split = [log._split(batch) for batch in outputs]
            for each in split:
                log._apply(each)
            for partition, position in commit.positions.items():
                log._positions[self._application_id, partition] = position
            log._commits[self._application_id, self._task_id] = _TaskCommit(
                self._epoch, commit.version, commit.engine_state
            )
            self._committed = commit

    def close(self) -> None:
        self._closed = True


class _MemoryLease(Lease):
    def __init__(self, log: MemoryLog, application_id: str, owner: str, ttl_ms: int, expires_ms: int) -> None:
        self._log = log
        self._application_id = application_id
        self.owner = owner
        self._ttl_ms = ttl_ms
        self.expires_ms = expires_ms

    def renew(self) -> None:
        with self._log._lock:
            if self._log._leases.get(self._application_id) is not self:
                raise lease_lost(self._application_id, self.owner)
            self.expires_ms = self._log._clock.now_ms() + self._ttl_ms

    def put_meta(self, application_id: str, key: str, value: bytes) -> None:
        with self._log._lock:
            self.renew()
            self._log.put_meta(application_id, key, value)

    def release(self) -> None:
        with self._log._lock:
            if self._log._leases.get(self._application_id) is self:
                del self._log._leases[self._application_id]
