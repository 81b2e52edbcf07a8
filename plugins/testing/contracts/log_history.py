"""The state machine of `LogContract`: any history of a log, against a model in lists and dicts."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock import (
    Commit,
    FencedError,
    Headers,
    ManualClock,
    OutputBatch,
    ProductionError,
    TaskCommitter,
    TopicPartition,
    default_partitioner,
)

from .expectations import check, expect
from .log_tests import APPLICATION, Found, LogTests, output, read, settled_ends

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


class History(RuleBasedStateMachine):
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
        """Close and delete the log."""
        self._log.close()
        self._directory.cleanup()

    def _commit(self, positions: Mapping[TopicPartition, int], engine_state: bytes) -> Commit:
        self._version += 1
        return Commit(positions, f"{self._version:012d}-ab", engine_state)

    def _partitions_of(self, task: str) -> list[TopicPartition]:
        index = _TASKS.index(task)
        return [each for place, each in enumerate(_PARTITIONS) if place % len(_TASKS) == index]

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
        """Produce outside any task."""
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
        """Commit outputs to any topics, positions, a version and an engine state."""
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
        """Read any range in pieces of any size."""
        log_end = settled_ends(self._log, [partition])[partition]
        offset = data.draw(st.integers(0, log_end))
        end = data.draw(st.integers(offset, log_end + 3))
        found = read(self._log, partition, offset, end, max_bytes)
        expect(found, [each for each in self._records[partition] if offset <= each.offset < end])

    @rule(key=st.sampled_from("ab"), value=_bytes)
    def put_meta(self, key: str, value: bytes) -> None:
        """Keep a note."""
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
        """Compare positions, notes, fences and ends with the model."""
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
