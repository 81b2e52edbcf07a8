"""The part of `LogContract` about followers, and any history of a log against a model in lists and dicts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock import (
    Commit,
    FencedError,
    Follower,
    Headers,
    Log,
    LogError,
    ManualClock,
    OffsetOutOfRangeError,
    OutputBatch,
    ProductionError,
    TaskCommitter,
    TopicPartition,
    UnknownTopicError,
    default_partitioner,
)
from penstock.plugins.logs.following import open_follower

from .expectations import check, expect, run_histories
from .log_tests import APPLICATION, Found, LogTests, created, output, read, settled_ends

_FOLLOWED_TOPICS = {"one": 2, "two": 2}
_FOLLOWED = [TopicPartition(topic, number) for topic, count in _FOLLOWED_TOPICS.items() for number in range(count)]
_some = st.sets(st.sampled_from(_FOLLOWED), min_size=1)

Read = dict[TopicPartition, list[tuple[int, bytes | None]]]
"""Offsets and values by partition."""


def records_in(log: Log, partition: TopicPartition, offset: int = 0) -> list[tuple[int, bytes | None]]:
    """Return the committed offsets and values of a partition by `fetch`."""
    end = settled_ends(log, [partition])[partition]
    return [(each.offset, each.value) for each in read(log, partition, offset, end)]


def poll_into(follower: Follower, found: Read, positions: dict[TopicPartition, int], seconds: float, most: int) -> None:
    """Poll, check the contract of each batch, and move `positions`."""
    ends_before = {each: positions[each] for each in positions}
    for batch in follower.poll(seconds, most):
        partition = TopicPartition(batch.topic, batch.partition)
        assert partition in positions, "a partition that is not read"
        columns = [batch.offsets, batch.keys, batch.values, batch.timestamps, batch.headers or batch.keys]
        assert {len(column) for column in columns} == {len(batch)}, "columns of different lengths"
        position = positions[partition]
        assert batch.next_offset > position, "a batch that moves nothing"
        if len(batch):
            check(position <= batch.offsets[0] and batch.offsets[-1] < batch.next_offset)
        found.setdefault(partition, []).extend(zip(batch.offsets, batch.values, strict=True))
        positions[partition] = batch.next_offset
    ends = follower.ends()
    for each, before in ends_before.items():
        end = ends[each]
        check(positions[each] >= before)
        assert end is None or end >= positions[each], f"{each}: the end {end} is before what was read"


def follow_until(follower: Follower, positions: dict[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Read:
    """Poll until the positions are at `ends`; return the records."""
    found: Read = {}
    deadline = time.monotonic() + 60
    while any(positions[each] < end for each, end in ends.items()):
        assert time.monotonic() < deadline, f"only up to {positions}, not {ends}"
        poll_into(follower, found, positions, 0.2, 100)
    return found


def caught_up(follower: Follower, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> bool:
    """Return whether a follower has reached `ends` in all of its partitions, and reports that."""
    return all(position == ends[each] == follower.ends()[each] for each, position in positions.items())


class FollowingTests(LogTests):
    """Followers: arriving records, pauses, and errors of one partition."""

    def test_a_record_that_comes_ends_the_wait(self, log: Log) -> None:
        """A poll returns with the first record; with a wait of 0 it returns at once."""
        partition, other = created(log, "t", 2)
        with closing(open_follower(log)) as follower:
            follower.add({partition: 0, other: 0})
            expect(follower.poll(0.01, 10), [])
            for number in range(3):
                log.append(OutputBatch("t", [b"k"], [b"%d" % number], [0], None, [[0]]))
                began = time.monotonic()
                batches = [each for each in follower.poll(30, 10) if len(each)]
                while not batches:
                    batches = [each for each in follower.poll(30, 10) if len(each)]
                check(time.monotonic() - began < 20)
                expect([value for batch in batches for value in batch.values], [b"%d" % number])

    def test_about_as_many_records_as_asked_for(self, log: Log) -> None:
        """A poll returns about as many records as asked for; no partition waits for the end of another."""
        positions = dict.fromkeys(created(log, "t", 2), 0)
        for number in range(2):
            log.append(OutputBatch("t", [b"k"] * 5000, [b"v"] * 5000, [0] * 5000, None, [[number]] * 5000))
        with closing(open_follower(log)) as follower:
            follower.add(positions)
            found: Read = {}
            while sum(map(len, found.values())) < 10_000:
                before = sum(map(len, found.values()))
                poll_into(follower, found, positions, 1, 300)
                check(sum(map(len, found.values())) - before <= 600)
        for partition, records in found.items():
            expect(records, records_in(log, partition))

    def test_an_error_of_one_partition_leaves_the_others_alone(self, log: Log) -> None:
        """An error names its partition, until that is removed; then the partition may be added again."""
        partitions = created(log, "t", 3)
        log.append(OutputBatch("t", [b"k"] * 9, [b"v"] * 9, [0] * 9, None, [[0], [1], [2]] * 3))
        ends = settled_ends(log, partitions)
        for bad in (ends[partitions[1]] + 5, -1):
            with closing(open_follower(log)) as follower:
                positions = {partitions[0]: 0, partitions[2]: 1}
                follower.add({**positions, partitions[1]: bad})
                found: Read = {}
                for _ in range(2):
                    with pytest.raises(OffsetOutOfRangeError, match=rf"{bad}\D") as caught:
                        while True:
                            poll_into(follower, found, positions, 1, 100)
                    expect(caught.value.partition, partitions[1])
                follower.remove([partitions[1]])
                follower.add({partitions[1]: 1})
                positions[partitions[1]] = 1
                more = follow_until(follower, positions, ends)
                for each, start in zip(partitions, (0, 1, 1), strict=True):
                    expect(found.get(each, []) + more.get(each, []), records_in(log, each, start))

    def test_a_topic_that_is_not_there_is_not_followed(self, log: Log) -> None:
        """`add` refuses a missing topic, and `poll` reports a deleted one, with the partition."""
        [kept], [gone] = created(log, "t"), created(log, "gone")
        with closing(open_follower(log)) as follower:
            with pytest.raises(UnknownTopicError, match="nowhere"):
                follower.add({TopicPartition("nowhere", 0): 0})
            with pytest.raises(LogError, match="partition 7"):
                follower.add({TopicPartition("t", 7): 0})
            positions = {kept: 0}
            follower.add({kept: 0, gone: 0})
            expect(follower.poll(0, 10), [])
            log.delete_topic("gone")
            with pytest.raises(UnknownTopicError, match="gone") as caught:
                while True:
                    follower.poll(1, 10)
            expect(caught.value.partition, gone)
            follower.remove([gone])
            log.append(output("t", 3))
            expect(len(follow_until(follower, positions, settled_ends(log, [kept]))[kept]), 3)
            check(caught_up(follower, positions, positions))

    def test_an_end_is_never_before_what_the_log_had(self, log: Log) -> None:
        """Until the log has said where it is, the end is None: a task would continue without an input that has records.

        At the start, for a partition that is added to others, and after each change. Then it becomes known, also where
        there is no record.
        """
        partitions = created(log, "t", 4)
        empty = partitions[3]
        log.append(OutputBatch("t", [b"k"] * 300, [b"v" * 100] * 300, [0] * 300, None, [[0], [1], [2]] * 100))
        had = settled_ends(log, partitions)
        with closing(open_follower(log)) as follower:
            positions: dict[TopicPartition, int] = {}
            for added in ([partitions[0], partitions[1]], [partitions[2], empty], [partitions[1]], partitions[:1]):
                follower.remove(added)
                follower.add(dict.fromkeys(added, 0))
                positions.update(dict.fromkeys(added, 0))
                found: Read = {}
                while not (caught_up(follower, positions, had)):
                    early = {each: end for each, end in follower.ends().items() if end is not None and end < had[each]}
                    assert not early, f"taken for the end: {early}; the log has records up to {had}"
                    poll_into(follower, found, positions, 0.05, 20)

    def test_any_history(self) -> None:
        """Records, positions and versions are as committed, whatever was fenced, refused or re-opened meanwhile."""
        run_histories(lambda: _History(self), examples=self.examples, steps=25)

    def test_any_following(self) -> None:
        """Exactly the committed records, whatever was added, removed, paused or moved back meanwhile."""
        run_histories(lambda: _Following(self), examples=self.examples, steps=25)


class _Following(RuleBasedStateMachine):
    """A follower of partitions into which tasks commit, compared with the results of `fetch`."""

    def __init__(self, contract: LogTests) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._log = contract.open_log(Path(self._directory.name), ManualClock(1_000_000))
        for topic, partitions in _FOLLOWED_TOPICS.items():
            self._log.create_topic(topic, partitions)
        self._sends = contract.sent_is_hidden
        self._committer: TaskCommitter | None = None
        self._follower = open_follower(self._log)
        self._positions: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._found: Read = {}
        self._number = 0

    def teardown(self) -> None:
        """Read the rest, and close and delete the log."""
        try:
            self.resume(set(_FOLLOWED))
            self.catch_up()
        finally:
            self._follower.close()
            self._log.close()
            self._directory.cleanup()

    def _outputs(self, partitions: set[TopicPartition], count: int) -> list[OutputBatch]:
        outputs = []
        for topic, number in sorted(partitions):
            values: list[bytes | None] = [b"%d" % (self._number + at) for at in range(count)]
            self._number += count
            outputs.append(OutputBatch(topic, [b"k"] * count, values, [1] * count, None, [[number]] * count))
        return outputs

    @initialize()
    def begin(self) -> None:
        self.add(_FOLLOWED[0], 0.0)

    @rule(partitions=_some, count=st.integers(1, 40))
    def append(self, partitions: set[TopicPartition], count: int) -> None:
        for each in self._outputs(partitions, count):
            self._log.append(each)

    @rule(partitions=_some, count=st.integers(1, 40), ends_well=st.booleans())
    def commit(self, partitions: set[TopicPartition], count: int, ends_well: bool) -> None:
        """Commit outputs, or send them and give them up."""
        if self._committer is None:
            self._committer = self._log.open_committer("writer", "0_0", [])
        outputs = self._outputs(partitions, count)
        if ends_well:
            self._committer.commit(Commit({}, f"{self._number:012d}-ab"), outputs)
        elif self._committer.streams_outputs and self._sends:
            self._committer.send(outputs)
            self._committer.close()
            self._committer = None

    @rule(partition=st.sampled_from(_FOLLOWED), share=st.floats(0, 1))
    def add(self, partition: TopicPartition, share: float) -> None:
        if partition in self._positions:
            self.remove({partition})
        offset = int(share * self._log.end_offsets([partition])[partition])
        self._follower.add({partition: offset})
        self._positions[partition] = self._starts[partition] = offset
        self._found[partition] = []

    @rule(partitions=_some)
    def remove(self, partitions: set[TopicPartition]) -> None:
        """Stop reading some partitions; check the records read so far."""
        self._follower.remove(partitions)
        for each in partitions & set(self._positions):
            self._check(each, self._positions.pop(each))
        self._paused -= partitions

    @rule(partitions=_some)
    def pause(self, partitions: set[TopicPartition]) -> None:
        self._follower.pause(partitions)
        self._paused |= partitions & set(self._positions)

    @rule(partitions=_some)
    def resume(self, partitions: set[TopicPartition]) -> None:
        self._follower.resume(partitions)
        self._paused -= partitions

    @rule(most=st.integers(1, 50), seconds=st.sampled_from([0.0, 0.01]))
    def poll(self, most: int, seconds: float) -> None:
        """Read a little; nothing of paused partitions."""
        before = {each: self._positions[each] for each in self._paused}
        poll_into(self._follower, self._found, self._positions, seconds, most)
        assert before == {each: self._positions[each] for each in self._paused}, "records of a paused partition"

    @rule()
    def catch_up(self) -> None:
        """Read the partitions that are not paused up to their ends."""
        running = [position for position in self._positions if position not in self._paused]
        ends = settled_ends(self._log, running)
        for partition, records in follow_until(self._follower, self._positions, ends).items():
            self._found[partition] += records
        for each in running:
            self._check(each, self._positions[each])
        deadline = time.monotonic() + 60
        while any(self._follower.ends()[each] is None for each in running):
            assert time.monotonic() < deadline, "an end does not become known"
            poll_into(self._follower, {}, self._positions, 0.01, 1)
        expect({each: self._follower.ends()[each] for each in running}, ends)

    def _check(self, partition: TopicPartition, position: int) -> None:
        expected = records_in(self._log, partition, self._starts[partition])
        assert self._found[partition] == [each for each in expected if each[0] < position], partition


_TOPICS = {"one": 1, "three": 3}
_PARTITIONS = [TopicPartition(topic, partition) for topic, count in _TOPICS.items() for partition in range(count)]
_MANY = 150
"""So many keys that a log may hash them together."""
_TASKS = ["0_0", "0_1", "1_0"]
_bytes = st.binary(max_size=6)
_headers: st.SearchStrategy[Headers] = st.lists(
    st.tuples(st.text("abc", max_size=2), st.none() | _bytes), max_size=2
).map(tuple)


@st.composite
def _outputs(draw: st.DrawFn) -> OutputBatch:
    topic = draw(st.sampled_from(sorted(_TOPICS)))
    size = draw(st.integers(0, 6) | st.just(_MANY))
    if size == _MANY:
        keys: list[bytes | None] = [None if i % 50 == 7 else b"%d" % i for i in range(size)]
        hashed = draw(st.none() | st.just([None if key is None else key[:1] for key in keys]))
        return OutputBatch(topic, keys, [b"%d" % i for i in range(size)], [1] * size, hashed=hashed)
    columns = [draw(st.lists(each, min_size=size, max_size=size)) for each in (st.none() | _bytes, st.none() | _bytes)]
    batch = OutputBatch(topic, columns[0], columns[1], [1] * size)
    if draw(st.booleans()):
        batch.headers = draw(st.lists(_headers, min_size=size, max_size=size))
    if draw(st.booleans()):
        targets: st.SearchStrategy[Sequence[int]] = st.lists(
            st.integers(0, _TOPICS[topic] - 1), max_size=2, unique=True
        )
        batch.partitions = draw(st.lists(st.none() | targets, min_size=size, max_size=size))
    if draw(st.booleans()):
        batch.hashed = draw(st.lists(st.none() | _bytes, min_size=size, max_size=size))
    return batch


class _History(RuleBasedStateMachine):
    """Several tasks, their zombies and other producers on one log, against a model in lists and dicts."""

    def __init__(self, contract: LogTests) -> None:
        super().__init__()
        self._contract = contract
        self._directory = tempfile.TemporaryDirectory()
        self._clock = ManualClock(1_000_000)
        self._log = contract.open_log(Path(self._directory.name), self._clock)
        for topic, partitions in _TOPICS.items():
            self._log.create_topic(topic, partitions)
        self._records: dict[TopicPartition, list[Found]] = {each: [] for each in _PARTITIONS}
        self._ends = self._log.end_offsets(_PARTITIONS)
        self._commits: dict[str, Commit] = {}
        self._meta: dict[str, bytes] = {}
        self._open: dict[str, TaskCommitter] = {}
        self._zombies: list[tuple[str, TaskCommitter]] = []
        self._version = 0
        self._stamped = 1

    def teardown(self) -> None:
        self._log.close()
        self._directory.cleanup()

    def _commit(self, positions: Mapping[TopicPartition, int], engine_state: bytes) -> Commit:
        self._version += 1
        return Commit(positions, f"{self._version:012d}-ab", engine_state)

    def _partitions_of(self, task: str) -> list[TopicPartition]:
        return [each for place, each in enumerate(_PARTITIONS) if place % len(_TASKS) == _TASKS.index(task)]

    def _stamp(self, batches: Sequence[OutputBatch]) -> None:
        """Give every record a timestamp of its own, to recognise it by."""
        for batch in batches:
            batch.timestamps = list(range(self._stamped, self._stamped + len(batch)))
            self._stamped += len(batch)

    def _produced(self, batches: Sequence[OutputBatch]) -> None:
        """Read everything, compare it with the model and the produced records, and update the model."""
        self._ends = settled_ends(self._log, _PARTITIONS)
        where: dict[int, set[int]] = {}
        added: dict[tuple[str, int], Found] = {}
        for name, known in self._records.items():
            everything = read(self._log, name)
            assert everything[: len(known)] == known, f"what was there has changed: {known} is {everything}"
            new = everything[len(known) :]
            assert [each.timestamp for each in new] == sorted(each.timestamp for each in new), "the order has changed"
            for each in new:
                assert each.partition not in where.setdefault(each.timestamp, set()), "a record is there twice"
                where[each.timestamp].add(each.partition)
                added[name.topic, each.timestamp] = each
            self._records[name] = everything
        for batch in batches:
            for index, (key, value, stamp) in enumerate(zip(batch.keys, batch.values, batch.timestamps, strict=True)):
                targets = batch.partitions[index] if batch.partitions is not None else None
                hashed = key if batch.hashed is None else batch.hashed[index]
                found = where.pop(stamp, set())
                if targets is not None:
                    expect(found, set(targets))
                elif hashed is not None:
                    expect(found, {default_partitioner(hashed, _TOPICS[batch.topic])})
                else:
                    expect(len(found), 1)
                if found:
                    headers = batch.headers[index] if batch.headers is not None else ()
                    expect(added[batch.topic, stamp][2:], (key, value, stamp, headers))
        assert not where, "records that were not produced"

    @rule(batch=_outputs())
    def append(self, batch: OutputBatch) -> None:
        self._stamp([batch])
        self._log.append(batch)
        self._produced([batch])

    @rule(task=st.sampled_from(_TASKS))
    def open_task(self, task: str) -> None:
        """Take over a task; its committer from before is a zombie from now on."""
        if task in self._open:
            self._zombies.append((task, self._open[task]))
        committer = self._open[task] = self._log.open_committer(APPLICATION, task, self._partitions_of(task))
        expect(committer.committed, self._commits.get(task))

    @rule(
        task=st.sampled_from(_TASKS),
        outputs=st.lists(_outputs(), max_size=3),
        positions=st.lists(st.integers(0, 1000), min_size=2, max_size=2),
        state=_bytes,
    )
    def commit(self, task: str, outputs: list[OutputBatch], positions: list[int], state: bytes) -> None:
        if task not in self._open:
            self.open_task(task)
        commit = self._commit(dict(zip(self._partitions_of(task), positions, strict=False)), state)
        self._stamp(outputs)
        self._open[task].commit(commit, outputs)
        expect(self._open[task].committed, commit)
        self._commits[task] = commit
        self._produced(outputs)

    @rule(task=st.sampled_from(_TASKS), outputs=st.lists(_outputs(), max_size=2), unknown=st.booleans())
    def commit_what_cannot_be_produced(self, task: str, outputs: list[OutputBatch], unknown: bool) -> None:
        """Check that the commit fails and changes nothing."""
        if task not in self._open:
            self.open_task(task)
        bad = output("nowhere", 1) if unknown else OutputBatch("one", [b""], [b""], [0], None, [[1]])
        with pytest.raises(ProductionError):
            self._open[task].commit(self._commit({}, b"bad"), [*outputs, bad])

    @rule(data=st.data(), outputs=st.lists(_outputs(), max_size=2))
    def zombie_commits(self, data: st.DataObject, outputs: list[OutputBatch]) -> None:
        """Check that the commit is fenced and changes nothing."""
        if not self._zombies:
            return
        task, zombie = data.draw(st.sampled_from(self._zombies))
        check(not zombie.is_current() or not self._contract.sees_successors)
        with pytest.raises(FencedError):
            zombie.commit(self._commit(dict.fromkeys(self._partitions_of(task), 7), b"zombie"), outputs)

    @rule(data=st.data(), partition=st.sampled_from(_PARTITIONS), max_bytes=st.integers(1, 200))
    def fetch(self, data: st.DataObject, partition: TopicPartition, max_bytes: int) -> None:
        log_end = settled_ends(self._log, [partition])[partition]
        offset = data.draw(st.integers(0, log_end))
        end = data.draw(st.integers(offset, log_end + 3))
        found = read(self._log, partition, offset, end, max_bytes)
        expect(found, [each for each in self._records[partition] if offset <= each.offset < end])

    @rule(key=st.sampled_from("ab"), value=_bytes)
    def put_meta(self, key: str, value: bytes) -> None:
        self._log.put_meta(APPLICATION, key, value)
        self._meta[key] = value

    @rule()
    def reopen(self) -> None:
        """End the process: its committers end, and everything that was committed stays."""
        self._open.clear()
        self._zombies.clear()
        self._log = self._contract.reopen_log(self._log, Path(self._directory.name), self._clock)
        self._produced([])

    @rule()
    def forget(self) -> None:
        """Delete the application's commits; its tasks are fenced."""
        self._log.delete_commits(APPLICATION)
        self._zombies.extend(
            (task, committer)
            for task, committer in self._open.items()
            if self._contract.sees_successors or task in self._commits
        )
        self._open.clear()
        self._commits.clear()
        self._meta.clear()

    @invariant()
    def only_what_was_committed(self) -> None:
        expected: dict[TopicPartition, int | None] = dict.fromkeys(_PARTITIONS)
        for commit in self._commits.values():
            expected.update(commit.positions)
        expect(self._log.committed(APPLICATION, _PARTITIONS), expected)
        for key in "ab":
            expect(self._log.get_meta(APPLICATION, key), self._meta.get(key))
        for task, committer in self._open.items():
            assert committer.is_current(), task
        ends = settled_ends(self._log, _PARTITIONS)
        if self._contract.ends_are_exact:
            expect(ends, self._ends)
        else:
            check(all(ends[each] >= end for each, end in self._ends.items()))
