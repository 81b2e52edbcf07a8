"""Helpers of all parts of `LogContract`: opening a log, and reading it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from penstock import Headers, Log, ManualClock, OutputBatch, TopicPartition

MUCH = 1 << 40
APPLICATION = "application"


class Found(NamedTuple):
    """A record as it was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def created(log: Log, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> list[TopicPartition]:
    """Create a topic, and return its partitions."""
    log.create_topic(topic, partitions, config)
    return [TopicPartition(topic, number) for number in range(partitions)]


def output(topic: str, count: int) -> OutputBatch:
    """Return `count` records with keys of their own."""
    return OutputBatch(topic, [b"key-%d" % i for i in range(count)], [b"%d" % i for i in range(count)], [0] * count)


def read(
    log: Log, partition: TopicPartition, offset: int | None = None, end: int | None = None, max_bytes: int = MUCH
) -> list[Found]:
    """Read up to `end`, and check the contract of each batch."""
    if offset is None:
        offset = log.start_offsets([partition])[partition]
    if end is None:
        end = log.end_offsets([partition])[partition]
    found: list[Found] = []
    while offset < end:
        batches = log.fetch(partition, offset, end, max_bytes)
        if not batches:
            break
        for batch in batches:
            assert (batch.topic, batch.partition) == partition, f"a batch of {batch.topic} for a fetch of {partition}"
            columns: Sequence[Sequence[object]] = [batch.offsets, batch.keys, batch.values, batch.timestamps]
            assert {len(column) for column in columns} == {len(batch)}, "columns of different lengths"
            assert len(batch), "an empty batch"
            assert batch.headers is None or len(batch.headers) == len(batch), "headers are None or one for each record"
            assert list(batch.offsets) == sorted(set(batch.offsets)), "offsets must ascend"
            assert offset <= batch.offsets[0] and batch.offsets[-1] < batch.next_offset <= end, (
                f"a batch of {batch.offsets[0]} to {batch.offsets[-1]}, next {batch.next_offset}, for {offset} to {end}"
            )
            headers = batch.headers if batch.headers is not None else [()] * len(batch)
            rows = zip(batch.offsets, batch.keys, batch.values, batch.timestamps, headers, strict=True)
            found.extend(Found(batch.partition, *row) for row in rows)
            offset = batch.next_offset
    return found


def settled_ends(log: Log, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Return the ends, once every commit that has returned can be read."""
    while True:
        ends = log.end_offsets(partitions)
        if ends == log.end_offsets(partitions, stable=False):
            return ends


def everything(log: Log, topic: str) -> list[Found]:
    """Return all records of a topic, by partition."""
    partitions = range(log.topics()[topic].partitions)
    ends = settled_ends(log, [TopicPartition(topic, each) for each in partitions])
    return [found for each, end in ends.items() if end for found in read(log, each)]


class LogTests:
    """The settings and fixtures of `LogContract`."""

    examples: ClassVar[int] = 30
    """How many random histories are tried."""
    maintains: ClassVar[bool] = True
    """Whether `maintain` applies retention and compaction (False: a broker does, at some time)."""
    sees_successors: ClassVar[bool] = True
    """Whether `is_current` notices a successor, and deleted commits, before the next commit."""
    ends_are_exact: ClassVar[bool] = True
    """Whether offsets count records (False: commits, also failed ones, add control records)."""
    earliest_timestamp: ClassVar[int] = 0
    """The smallest timestamp that is kept as it is."""
    sent_is_hidden: ClassVar[bool] = True
    """Whether records sent ahead of a commit are hidden until then (False: the guarantee is at least once)."""
    latest_timestamp: ClassVar[int] = (1 << 63) - 1
    """The largest timestamp that records may have."""

    def open_log(self, directory: Path, clock: ManualClock) -> Log:
        """Open the log that belongs to `directory`: a new one in a new directory. Its times are the clock's."""
        raise NotImplementedError

    def reopen_log(self, log: Log, directory: Path, clock: ManualClock) -> Log:
        """Close a log and open it as another process would; override it for a log that exists only in its object."""
        log.close()
        return self.open_log(directory, clock)

    def delete_old_commits(self, log: Log, application_id: str) -> None:
        """Delete the commits that the log forgets if nobody repeats them; override it for a log that does that."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock of the log."""
        return ManualClock(1_000_000)

    @pytest.fixture
    def log(self, tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
        """Open an empty log."""
        log = self.open_log(tmp_path, clock)
        yield log
        log.close()

    def skip_unless_maintaining(self) -> None:
        """Skip the test where `maintain` does nothing."""
        if not self.maintains:
            pytest.skip("this log's broker deletes when it likes")
