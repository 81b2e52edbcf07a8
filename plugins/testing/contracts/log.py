"""The tests that every log must pass; subclass `LogContract` to run them over yours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.clock import ManualClock
from penstock.errors import (
    FencedError,
    LogError,
    OffsetOutOfRangeError,
    ProductionError,
    RecordRefusedError,
    UnknownTopicError,
)
from penstock.log import Commit, Log
from penstock.record import Headers, OutputBatch, TopicPartition

from .log_history import APPLICATION, MUCH, Found, History, output, read, settled_ends


class LogContract:
    """What any log must keep; a test class of yours runs it.

    >>> from penstock.plugins.logs.local import LocalLog
    >>> class TestLocal(LogContract):
    ...     def open_log(self, directory, clock):
    ...         return LocalLog(str(directory / "log"), clock=clock)

    Needs pytest and hypothesis (`pip install 'penstock[testing]'`).
    """

    examples: ClassVar[int] = 30
    """How many random histories are tried."""
    maintains: ClassVar[bool] = True
    """Whether `maintain` applies retention and compaction (False: a broker does it, when it likes)."""
    sees_successors: ClassVar[bool] = True
    """Whether `is_current` notices a successor at once, and commits deleted, before they committed something."""
    ends_are_exact: ClassVar[bool] = True
    """Whether offsets count records (False: commits, also those that fail, leave markers among them)."""
    earliest_timestamp: ClassVar[int] = 0
    """The smallest timestamp that is kept as it is."""
    sent_is_hidden: ClassVar[bool] = True
    """Whether nobody reads what is sent ahead of a commit before that (False: outputs are guaranteed at least once)."""
    latest_timestamp: ClassVar[int] = (1 << 63) - 1
    """The largest timestamp that records may have."""

    def open_log(self, directory: Path, clock: ManualClock) -> Log:
        """Open the log that belongs to `directory`: a new one in a new directory. Its times are the clock's."""
        raise NotImplementedError

    def reopen_log(self, log: Log, directory: Path, clock: ManualClock) -> Log:
        """Close a log and open it as another process would; override it for a log that lives in its object."""
        log.close()
        return self.open_log(directory, clock)

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

    # -- everything together

    def test_any_history(self) -> None:
        """Records, positions and state versions are what was committed, whatever was fenced, refused or re-opened between."""
        contract = self

        class OverThisLog(History):
            def __init__(self) -> None:
                super().__init__(contract)

        run_state_machine_as_test(
            OverThisLog,
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )

    # -- topics

    def test_topics_are_listed_as_created(self, log: Log) -> None:
        """With partitions, settings, and whether they are internal."""
        assert log.topics() == {}
        log.create_topic("plain", 3)
        log.put_meta(APPLICATION, "note", b"")
        own = f"{APPLICATION}-set-changelog"
        log.create_topic(own, 1, {"cleanup.policy": "compact"}, internal=True)
        found = log.topics()
        assert set(found) == {"plain", own}
        assert found["plain"].partitions == 3 and not found["plain"].internal
        assert found[own].internal and found[own].config["cleanup.policy"] == "compact"

    def test_one_topic_can_be_asked_for(self, log: Log) -> None:
        """As `topics` describes it, and by an id that another topic of the same name does not have."""
        log.put_meta(APPLICATION, "note", b"")
        own = f"{APPLICATION}-set-changelog"
        log.create_topic(own, 2, {"cleanup.policy": "compact"}, internal=True)
        found = log.topic(own)
        assert (found.name, found.partitions, found.internal) == (own, 2, True)
        assert found.config["cleanup.policy"] == "compact"
        assert log.topic(own).id == found.id
        log.delete_topic(own)
        with pytest.raises(UnknownTopicError, match=own):
            log.topic(own)
        log.create_topic(own, 3)
        again = log.topic(own)
        assert again.partitions == 3
        assert again.id != found.id or not found.id

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
    def test_a_bad_topic_name_is_refused(self, log: Log, name: str) -> None:
        """As Kafka does."""
        with pytest.raises(LogError):
            log.create_topic(name, 1)
        assert log.topics() == {}

    def test_a_topic_that_exists_is_refused(self, log: Log) -> None:
        """And stays as it was."""
        log.create_topic("t", 2)
        with pytest.raises(LogError, match="t"):
            log.create_topic("t", 3)
        assert log.topics()["t"].partitions == 2

    def test_an_unknown_setting_is_refused_with_near_names(self, log: Log) -> None:
        """A setting that is misspelled and ignored is found when the disk is full."""
        with pytest.raises(LogError, match=r"retention\.mss"):
            log.create_topic("t", 1, {"retention.mss": "1"})
        with pytest.raises(LogError, match=r"retention\.ms"):
            log.create_topic("t", 1, {"retention.ms": "soon"})
        assert log.topics() == {}

    @pytest.mark.parametrize("partitions", [0, -1])
    def test_a_topic_needs_a_partition(self, log: Log, partitions: int) -> None:
        """At least one."""
        with pytest.raises(LogError):
            log.create_topic("t", partitions)

    def test_a_missing_topic_is_named(self, log: Log) -> None:
        """By every method that takes one."""
        log.create_topic("invoices", 1)
        missing = [TopicPartition("invoice", 0)]
        for call in (
            lambda: log.delete_topic("invoice"),
            lambda: log.start_offsets(missing),
            lambda: log.end_offsets(missing),
            lambda: log.fetch(missing[0], 0, 1, 1),
            lambda: log.append(output("invoice", 1)),
            lambda: log.purge(missing[0], 0),
            lambda: log.offsets_for_time(missing, 0),
            lambda: log.committed(APPLICATION, missing),
            lambda: log.set_positions(APPLICATION, {missing[0]: 0}),
            lambda: log.open_committer(APPLICATION, "0_0", missing),
        ):
            with pytest.raises(UnknownTopicError, match="'?invoice'?"):
                call()

    def test_a_missing_partition_is_named(self, log: Log) -> None:
        """Also a negative one, which is no way to count from the end."""
        log.create_topic("t", 2)
        for partition in (2, -1):
            with pytest.raises(LogError, match=str(partition)):
                log.end_offsets([TopicPartition("t", partition)])
            with pytest.raises(LogError, match=str(partition)):
                log.fetch(TopicPartition("t", partition), 0, 1, 1)

    def test_a_topic_made_again_is_a_new_one(self, log: Log) -> None:
        """It has no records and no positions of the deleted one."""
        partition = TopicPartition("t", 0)
        log.create_topic("t", 1)
        log.append(output("t", 5))
        log.open_committer(APPLICATION, "0_0", [partition]).commit(Commit({partition: 3}, "v1"), [])
        log.delete_topic("t")
        log.create_topic("t", 2)
        assert log.end_offsets([partition]) == {partition: 0}
        assert log.committed(APPLICATION, [partition]) == {partition: None}
        log.append(output("t", 1))
        assert len(_everything(log, "t")) == 1

    # -- records

    def test_a_record_keeps_every_part(self, log: Log) -> None:
        """Null and empty keys and values, headers in order with names repeated, any 64-bit timestamp."""
        log.create_topic("t", 1)
        headers: list[Headers] = [
            (("a", b"1"), ("ü", None), ("a", b"")),
            (),
            (("", b"x"),),
        ]
        log.append(
            OutputBatch(
                "t",
                [b"k", None, b""],
                [None, b"", b"\xff" * 3],
                [self.earliest_timestamp, self.latest_timestamp, 5],
                headers,
            )
        )
        log.append(OutputBatch("t", [b"l"], [b"v"], [7]))
        partition = TopicPartition("t", 0)
        found = read(log, partition)
        assert [each.key for each in found] == [b"k", None, b"", b"l"]
        assert [each.value for each in found] == [None, b"", b"\xff" * 3, b"v"]
        assert [each.timestamp for each in found] == [self.earliest_timestamp, self.latest_timestamp, 5, 7]
        assert [each.headers for each in found] == [*headers, ()]

    def test_keys_go_where_kafkas_clients_send_them(self, log: Log) -> None:
        """So that an application which moves to Kafka finds its keys where they were (Java's Utils.murmur2)."""
        log.create_topic("t", 1000)
        hashes = {
            b"21": -973932308,
            b"foobar": -790332482,
            b"a-little-bit-long-string": -985981536,
            b"a-little-bit-longer-string": -1486304829,
            b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
            b"abc": 479470107,
        }
        log.append(OutputBatch("t", list(hashes), [b""] * len(hashes), [0] * len(hashes)))
        found = {key: partition for partition, key in ((each.partition, each.key) for each in _everything(log, "t"))}
        assert found == {key: (value & 0x7FFFFFFF) % 1000 for key, value in hashes.items()}

    def test_a_key_goes_to_one_partition_however_it_is_produced(self, log: Log) -> None:
        """Alone, in a large batch, or among keys of other lengths."""
        log.create_topic("t", 7)
        keys = [b"%d" % (number * 37) * (number % 5) for number in range(2000)]
        log.append(OutputBatch("t", list(keys), [b"many"] * len(keys), [0] * len(keys)))
        for key in keys[:40]:
            log.append(OutputBatch("t", [key], [b"one"], [0]))
        where: dict[bytes | None, set[int]] = {}
        for record in _everything(log, "t"):
            where.setdefault(record.key, set()).add(record.partition)
        assert all(len(partitions) == 1 for partitions in where.values())

    def test_records_without_a_key_are_spread(self, log: Log) -> None:
        """Over all partitions, in few pieces each."""
        log.create_topic("t", 4)
        log.append(OutputBatch("t", [None] * 20_000, [b"v"] * 20_000, [0] * 20_000))
        counts = [sum(1 for each in _everything(log, "t") if each.partition == partition) for partition in range(4)]
        assert sum(counts) == 20_000
        assert min(counts) > 1000

    def test_partitions_can_be_told(self, log: Log) -> None:
        """One, several (each gets a copy), none (dropped), or by the key."""
        log.create_topic("t", 3)
        keys: list[bytes | None] = [b"one", b"all", b"none", b"foobar", None]
        log.append(OutputBatch("t", keys, [b"v"] * 5, [0] * 5, None, [[2], [0, 1, 2], [], None, (1,)]))
        found = {(each.partition, each.key) for each in _everything(log, "t")}
        by_key = (-790332482 & 0x7FFFFFFF) % 3
        assert found == {(2, b"one"), (0, b"all"), (1, b"all"), (2, b"all"), (by_key, b"foobar"), (1, None)}

    def test_order_is_kept_in_each_partition(self, log: Log) -> None:
        """Over batches of any size."""
        log.create_topic("t", 3)
        count = 30_000
        log.append(
            OutputBatch("t", [b"%d" % (i % 91) for i in range(count)], [b"%d" % i for i in range(count)], [0] * count)
        )
        for partition in range(3):
            values = [int(each.value or b"") for each in read(log, TopicPartition("t", partition))]
            assert values == sorted(values) and values

    def test_fetch_is_bounded_and_goes_on(self, log: Log) -> None:
        """About `max_bytes` at once, at least one record, and each record once."""
        log.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        count = 40_000
        log.append(OutputBatch("t", [b"k"] * count, [b"%099d" % i for i in range(count)], [0] * count))
        end = log.end_offsets([partition])[partition]
        for max_bytes, most in ((1, 1_100_000), (1_000_000, 2_200_000)):
            offset, seen = log.start_offsets([partition])[partition], 0
            while offset < end:
                batches = log.fetch(partition, offset, end, max_bytes)
                assert 1 <= sum(map(len, batches)) <= most / 100
                for batch in batches:
                    assert [int(value or b"") for value in batch.values] == list(range(seen, seen + len(batch)))
                    seen += len(batch)
                offset = batches[-1].next_offset
            assert seen == count

    def test_fetch_stops_before_the_end(self, log: Log) -> None:
        """A batch plans what it reads: records at and after `end` are for later."""
        log.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        for _ in range(3):
            log.append(output("t", 5))
        everything = read(log, partition)
        for first in (0, 3, 5, 9):
            for stop in (first, first + 1, 8, 10, 14):
                found = read(log, partition, everything[first].offset, everything[stop].offset)
                assert found == everything[first:stop]

    def test_an_offset_out_of_range_is_named_with_the_range(self, log: Log) -> None:
        """So that the operator sees what is there."""
        log.create_topic("t", 1)
        log.append(output("t", 5))
        partition = TopicPartition("t", 0)
        end = log.end_offsets([partition])[partition]
        assert log.fetch(partition, end, end + 10, 1) == []
        for offset in (-1, end + 1):
            with pytest.raises(OffsetOutOfRangeError, match=rf"{offset}\D(.|\n)*t\D(.|\n)*0\D(.|\n)*{end}"):
                log.fetch(partition, offset, end + 10, 1)

    def test_the_offset_of_a_time(self, log: Log) -> None:
        """It is the first record's at or after it, in the order of offsets; the end's when there is none."""
        log.create_topic("t", 2)
        partition, empty = TopicPartition("t", 0), TopicPartition("t", 1)
        times = [10, 20, 20, 15, 40, 30, 40]
        for part in (times[:3], times[3:4], times[4:]):
            log.append(OutputBatch("t", [b"k"] * len(part), [b"v"] * len(part), part, None, [[0]] * len(part)))
        offsets = [each.offset for each in read(log, partition)]
        end = log.end_offsets([partition])[partition]
        for time in (0, 10, 11, 20, 21, 40, 41):
            expected = next((offset for offset, at in zip(offsets, times, strict=True) if at >= time), end)
            found = log.offsets_for_time([partition, empty], time)
            assert found == {partition: expected, empty: 0}, time

    def test_the_offset_of_a_time_is_not_of_what_was_deleted(self, log: Log, clock: ManualClock) -> None:
        """Whoever goes there must be able to read it."""
        self._skip_unless_maintaining()
        log.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        log.append(OutputBatch("t", [b"k"] * 6, [b"v"] * 6, [10, 20, 30, 40, 50, 60]))
        log.purge(partition, 3)
        log.maintain(clock.now_ms())
        assert log.offsets_for_time([partition], 20) == {partition: 3}
        log.purge(partition, 6)
        log.maintain(clock.now_ms())
        assert log.offsets_for_time([partition], 20) == {partition: 6}

    def test_a_record_that_is_too_large_changes_nothing(self, log: Log) -> None:
        """Neither do the records beside it get in; the same committer goes on without it."""
        log.create_topic("t", 1)
        log.create_topic("small", 1, {"max.message.bytes": "1000"})
        partition = TopicPartition("t", 0)
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        committer.commit(Commit({partition: 0}, "v0"), [])
        outputs = [output("t", 3), OutputBatch("small", [b"k"] * 3, [b"v", b"v" * 5000, b"v"], [0] * 3)]
        with pytest.raises(RecordRefusedError, match="small") as refused:
            committer.commit(Commit({partition: 1}, "v1"), outputs)
        assert refused.value.topic == "small"
        assert [refused.value.refuses(b"k", value) for value in outputs[1].values] == [False, True, False]
        with pytest.raises(ProductionError, match="small"):
            log.append(outputs[1])
        assert _everything(log, "t") == _everything(log, "small") == []
        assert committer.is_current()
        committer.commit(Commit({partition: 1}, "v1"), outputs[:1])
        assert len(_everything(log, "t")) == 3

    def test_a_partition_that_is_not_there_changes_nothing(self, log: Log) -> None:
        """When a partitioner of the user's chose it."""
        log.create_topic("t", 2)
        for partition in (2, -1):
            with pytest.raises(ProductionError, match="t"):
                log.append(OutputBatch("t", [b"a", b"b"], [b"", b""], [0, 0], None, [None, [0, partition]]))
        assert _everything(log, "t") == []

    def test_a_compacted_topic_takes_no_null_keys(self, log: Log) -> None:
        """As Kafka does: there is no last value of no key."""
        log.create_topic("t", 1, {"cleanup.policy": "compact"})
        with pytest.raises(RecordRefusedError, match="t") as refused:
            log.append(OutputBatch("t", [b"a", None], [b"", b""], [0, 0]))
        assert refused.value.topic == "t"
        assert refused.value.refuses(None, b"") and not refused.value.refuses(b"a", b"")
        assert _everything(log, "t") == []

    # -- commits

    def test_a_commit_is_one_step(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """Outputs to several topics, positions, version and engine state, and all of it is there in another process."""
        log.create_topic("in", 2)
        log.create_topic("out", 1)
        log.create_topic("side", 2)
        partitions = [TopicPartition("in", 0), TopicPartition("in", 1)]
        log.append(output("in", 10))
        committer = log.open_committer(APPLICATION, "0_0", partitions)
        assert committer.committed is None
        assert committer.is_current()
        commit = Commit({partitions[0]: 2, partitions[1]: 3}, "v1", b"\x00engine")
        committer.commit(commit, [output("out", 4), output("side", 5), output("out", 1)])
        assert committer.committed == commit
        assert committer.is_current()
        log = self.reopen_log(log, tmp_path, clock)
        assert log.committed(APPLICATION, partitions) == commit.positions
        assert len(_everything(log, "out")) == len(_everything(log, "side")) == 5
        assert log.open_committer(APPLICATION, "0_0", partitions).committed == commit
        log.close()

    def test_a_commit_takes_an_offset_for_each_record_and_its_markers(self, log: Log) -> None:
        """As many as `commit_markers` says: with fewer, readers who count would pass over records."""
        log.create_topic("in", 1)
        log.create_topic("out", 1)
        log.create_topic("side", 1)
        partition, out, side = (TopicPartition(topic, 0) for topic in ("in", "out", "side"))
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        for number in range(5):
            outputs = [output("out", 2), output("out", 1)] + [output("side", 1)] * (number == 2)
            committer.commit(Commit({partition: 0}, f"v{number}"), outputs)
        committer.close()
        ends = settled_ends(log, [out, side])
        assert ends == {out: 5 * (3 + log.commit_markers), side: 1 + log.commit_markers}

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors where Linux lists them")
    def test_tasks_need_the_open_files_that_it_says(self, log: Log) -> None:
        """At least `open_files`: with fewer, a runner would refuse starts that work."""
        log.create_topic("in", 4)
        log.create_topic("out", 1)
        partitions = [TopicPartition("in", number) for number in range(4)]
        for partition in partitions:
            log.append(replace(output("in", 1), partitions=[(partition.partition,)]))
        before, committers = len(os.listdir("/proc/self/fd")), []
        for partition in partitions:
            committers.append(log.open_committer(APPLICATION, f"0_{partition.partition}", [partition]))
            log.fetch(partition, 0, 1, 1000)
            committers[-1].commit(Commit({partition: 1}, "v1"), [output("out", 1)])
        needed = len(os.listdir("/proc/self/fd")) - before
        for committer in committers:
            committer.close()
        assert log.open_files(0) <= log.open_files(4)
        assert log.open_files(4) - log.open_files(0) <= needed

    def test_nothing_is_committed_before_the_first_commit(self, log: Log) -> None:
        """Opening takes the fence and nothing else."""
        log.create_topic("in", 1)
        partition = TopicPartition("in", 0)
        for _ in range(3):
            assert log.open_committer(APPLICATION, "0_0", [partition]).committed is None
        assert log.committed(APPLICATION, [partition]) == {partition: None}

    def test_whoever_was_replaced_is_fenced(self, log: Log) -> None:
        """It commits nothing, and its successor saw its last commit."""
        log.create_topic("in", 1)
        log.create_topic("out", 1)
        partition = TopicPartition("in", 0)
        zombie = log.open_committer(APPLICATION, "0_0", [partition])
        zombie.commit(Commit({partition: 0}, "v0"), [])
        successor = log.open_committer(APPLICATION, "0_0", [partition])
        assert successor.committed == Commit({partition: 0}, "v0")
        assert not zombie.is_current() or not self.sees_successors
        assert successor.is_current()
        for _ in range(2):
            with pytest.raises(FencedError, match="0_0"):
                zombie.commit(Commit({partition: 9}, "v9", b"zombie"), [output("out", 1)])
        assert _everything(log, "out") == []
        assert log.committed(APPLICATION, [partition]) == {partition: 0}
        successor.commit(Commit({partition: 1}, "v1"), [output("out", 2)])
        assert log.open_committer(APPLICATION, "0_0", [partition]).committed == Commit({partition: 1}, "v1")
        assert len(_everything(log, "out")) == 2

    def test_what_is_sent_ahead_is_there_once(self, log: Log) -> None:
        """In order, before what the commit brings; what was sent and not committed is given up, where nobody reads it before."""
        log.create_topic("in", 1)
        log.create_topic("out", 1)
        partition = TopicPartition("in", 0)
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        if not committer.streams_outputs:
            pytest.skip("this log takes outputs with the commit")
        values = [b"one", b"two", b"three"]
        sent, more, last = [OutputBatch("out", [b"k"], [value], [1]) for value in values]
        committer.send([sent])
        committer.send([more])
        committer.commit(Commit({partition: 1}, "v1"), [last])
        assert [each.value for each in _everything(log, "out")] == values
        committer.send([sent])
        committer.close()
        with pytest.raises(LogError):
            committer.send([sent])
        successor = log.open_committer(APPLICATION, "0_0", [partition])
        assert successor.committed == Commit({partition: 1}, "v1")
        successor.commit(Commit({partition: 2}, "v2"), [more])
        found = [each.value for each in _everything(log, "out")]
        assert found[:3] == values and found[-1] == b"two"
        assert len(found) == 4 or not self.sent_is_hidden

    def test_tasks_and_applications_do_not_fence_each_other(self, log: Log) -> None:
        """And each application has its own positions."""
        log.create_topic("in", 2)
        partitions = [TopicPartition("in", 0), TopicPartition("in", 1)]
        first = log.open_committer(APPLICATION, "0_0", partitions[:1])
        second = log.open_committer(APPLICATION, "0_1", partitions[1:])
        other = log.open_committer(f"{APPLICATION}-2", "0_0", partitions[:1])
        first.commit(Commit({partitions[0]: 1}, "a"), [])
        second.commit(Commit({partitions[1]: 2}, "b"), [])
        other.commit(Commit({partitions[0]: 3}, "c"), [])
        assert first.is_current() and second.is_current() and other.is_current()
        assert log.committed(APPLICATION, partitions) == {partitions[0]: 1, partitions[1]: 2}
        assert log.committed(f"{APPLICATION}-2", partitions) == {partitions[0]: 3, partitions[1]: None}

    def test_an_output_without_a_topic_changes_nothing(self, log: Log) -> None:
        """It is a production error, and names the topic."""
        log.create_topic("in", 1)
        partition = TopicPartition("in", 0)
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        with pytest.raises(ProductionError, match="nowhere"):
            committer.commit(Commit({partition: 1}, "v1"), [output("in", 1), output("nowhere", 1)])
        assert _everything(log, "in") == []
        assert log.committed(APPLICATION, [partition]) == {partition: None}
        committer.commit(Commit({partition: 1}, "v1"), [])

    def test_a_closed_committer_commits_nothing(self, log: Log) -> None:
        """And closing twice is nothing."""
        log.create_topic("in", 1)
        partition = TopicPartition("in", 0)
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        committer.close()
        committer.close()
        assert not committer.is_current()
        with pytest.raises(LogError):
            committer.commit(Commit({partition: 1}, "v1"), [])
        assert log.committed(APPLICATION, [partition]) == {partition: None}

    def test_forgetting_an_application(self, log: Log) -> None:
        """Takes its positions, versions and notes, fences its tasks, and leaves other applications alone."""
        log.create_topic("in", 1)
        partition = TopicPartition("in", 0)
        mine = log.open_committer(APPLICATION, "0_0", [partition])
        other = log.open_committer(f"{APPLICATION}-2", "0_0", [partition])
        mine.commit(Commit({partition: 1}, "v1"), [])
        other.commit(Commit({partition: 2}, "v2"), [])
        log.put_meta(APPLICATION, "note", b"mine")
        log.put_meta(f"{APPLICATION}-2", "note", b"other")
        log.delete_commits(APPLICATION)
        assert not mine.is_current()
        with pytest.raises(FencedError):
            mine.commit(Commit({partition: 2}, "v2"), [])
        assert log.committed(APPLICATION, [partition]) == {partition: None}
        assert log.get_meta(APPLICATION, "note") is None
        assert log.open_committer(APPLICATION, "0_0", [partition]).committed is None
        assert not mine.is_current()
        assert other.is_current()
        assert log.committed(f"{APPLICATION}-2", [partition]) == {partition: 2}
        assert log.get_meta(f"{APPLICATION}-2", "note") == b"other"

    def test_an_application_is_told_where_to_begin(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """In place of its commits; what is not named has no position, and other applications stay as they are."""
        log.create_topic("in", 2)
        log.append(output("in", 20))
        partitions = [TopicPartition("in", 0), TopicPartition("in", 1)]
        zombie = log.open_committer(APPLICATION, "0_0", partitions)
        zombie.commit(Commit(dict.fromkeys(partitions, 4), "v1", b"engine"), [])
        other = log.open_committer(f"{APPLICATION}-2", "0_0", partitions)
        other.commit(Commit(dict.fromkeys(partitions, 3), "v1"), [])
        log.put_meta(APPLICATION, "note", b"mine")
        log.set_positions(APPLICATION, {partitions[0]: 2})
        with pytest.raises(FencedError):
            zombie.commit(Commit(dict.fromkeys(partitions, 5), "v2"), [])
        log = self.reopen_log(log, tmp_path, clock)
        assert log.committed(APPLICATION, partitions) == {partitions[0]: 2, partitions[1]: None}
        assert log.committed(f"{APPLICATION}-2", partitions) == dict.fromkeys(partitions, 3)
        assert log.get_meta(APPLICATION, "note") is None
        committer = log.open_committer(APPLICATION, "0_0", partitions)
        assert committer.committed is None
        committer.commit(Commit({partitions[0]: 2, partitions[1]: 0}, "v0"), [])
        found = log.open_committer(APPLICATION, "0_0", partitions).committed
        assert found == Commit({partitions[0]: 2, partitions[1]: 0}, "v0")
        log.close()

    def test_positions_that_are_told_again_replace_the_first(self, log: Log) -> None:
        """Also for an application that never ran."""
        log.create_topic("in", 2)
        partitions = [TopicPartition("in", 0), TopicPartition("in", 1)]
        log.set_positions(APPLICATION, dict.fromkeys(partitions, 7))
        log.set_positions(APPLICATION, {partitions[1]: 5})
        assert log.committed(APPLICATION, partitions) == {partitions[0]: None, partitions[1]: 5}
        with pytest.raises(UnknownTopicError):
            log.set_positions(APPLICATION, {partitions[0]: 1, TopicPartition("nowhere", 0): 1})
        assert log.committed(APPLICATION, partitions) == {partitions[0]: None, partitions[1]: 5}

    def test_notes_of_an_application(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """They are kept, and replaced."""
        assert log.get_meta(APPLICATION, "a") is None
        log.put_meta(APPLICATION, "a", b"1")
        log.put_meta(APPLICATION, "b", b"")
        log.put_meta(APPLICATION, "a", b"2")
        log = self.reopen_log(log, tmp_path, clock)
        assert log.get_meta(APPLICATION, "a") == b"2"
        assert log.get_meta(APPLICATION, "b") == b""
        assert log.get_meta(f"{APPLICATION}-2", "a") is None
        log.close()

    def test_threads_may_share_a_log(self, log: Log) -> None:
        """Each with a task of its own: commits do not mix, and what is read is always whole."""
        tasks, commits, each = 4, 8, 50
        log.create_topic("in", tasks)
        log.create_topic("out", 1)

        def work(task: int) -> None:
            partition = TopicPartition("in", task)
            committer = log.open_committer(APPLICATION, f"0_{task}", [partition])
            for number in range(1, commits + 1):
                output = OutputBatch("out", [b"%d" % task] * each, [b"%d" % number] * each, [0] * each)
                committer.commit(Commit({partition: number * each}, f"v{number}"), [output])
                _check_blocks(_everything(log, "out"), each)

        with ThreadPoolExecutor(tasks) as threads:
            list(threads.map(work, range(tasks)))
        assert len(_everything(log, "out")) == tasks * commits * each

    # -- leases

    def test_a_lease_keeps_a_second_driver_out(self, log: Log, clock: ManualClock) -> None:
        """Until it is released or has expired; the error names who holds it."""
        lease = log.lease(APPLICATION, "driver one", 10_000)
        with pytest.raises(LogError, match="driver one"):
            log.lease(APPLICATION, "driver two", 10_000)
        log.lease(f"{APPLICATION}-2", "driver two", 10_000).release()
        clock.advance("9s")
        lease.renew()
        clock.advance("9s")
        with pytest.raises(LogError, match="driver one"):
            log.lease(APPLICATION, "driver two", 10_000)
        lease.release()
        lease.release()
        log.lease(APPLICATION, "driver two", 10_000).release()

    def test_an_expired_lease_is_lost_to_the_next(self, log: Log, clock: ManualClock) -> None:
        """Its old holder learns of it when it renews, and cannot take the new one's away."""
        lease = log.lease(APPLICATION, "driver one", 10_000)
        clock.advance("11s")
        lease.renew()  # nobody wanted it
        clock.advance("11s")
        successor = log.lease(APPLICATION, "driver two", 10_000)
        with pytest.raises(FencedError, match="driver one"):
            lease.renew()
        lease.release()
        successor.renew()
        with pytest.raises(LogError, match="driver two"):
            log.lease(APPLICATION, "driver three", 10_000)
        successor.release()

    def test_a_lease_outlives_what_was_committed(self, log: Log) -> None:
        """Who resets an application holds its lease until the last trace is gone: nobody may start it halfway."""
        log.create_topic("in", 1)
        partition = TopicPartition("in", 0)
        lease = log.lease(APPLICATION, "who resets", 10_000)
        log.put_meta(APPLICATION, "note", b"mine")
        log.open_committer(APPLICATION, "0_0", [partition]).commit(Commit({partition: 0}, "v0"), [])
        for positions in ({partition: 0}, None):
            if positions is not None:
                log.set_positions(APPLICATION, positions)
            else:
                log.delete_commits(APPLICATION)
            with pytest.raises(LogError, match="who resets"):
                log.lease(APPLICATION, "driver", 10_000)
            lease.renew()
        lease.release()
        log.lease(APPLICATION, "driver", 10_000).release()

    # -- deletion

    def test_purging_keeps_what_is_at_or_after_the_offset(self, log: Log, clock: ManualClock) -> None:
        """A log may keep more, and may do it when it maintains itself."""
        log.create_topic("t", 1)
        partition = TopicPartition("t", 0)
        log.append(output("t", 10))
        log.append(output("t", 10))
        offset = read(log, partition)[13].offset
        log.purge(partition, offset)
        log.purge(partition, 2)
        log.maintain(clock.now_ms())
        assert log.start_offsets([partition])[partition] <= offset
        assert [each.value for each in read(log, partition, offset)] == [b"%d" % i for i in range(3, 10)]
        if self.maintains:
            assert log.start_offsets([partition])[partition] == offset
            with pytest.raises(OffsetOutOfRangeError, match=str(offset)):
                log.fetch(partition, offset - 1, MUCH, MUCH)
        log.append(output("t", 2))
        assert len(read(log, partition, offset)) == 9
        end = log.end_offsets([partition])[partition]
        log.purge(partition, end)
        log.append(output("t", 3))
        log.maintain(clock.now_ms())
        assert len(read(log, partition, end)) == 3

    def test_retention_by_time(self, log: Log, clock: ManualClock) -> None:
        """Old records go from the front, as their own timestamps say; others stay."""
        self._skip_unless_maintaining()
        log.create_topic("short", 1, {"retention.ms": "1000"})
        log.create_topic("kept", 1)
        log.create_topic("mine", 1, {"retention.ms": "1000", "cleanup.policy": "compact"})
        for topic in ("short", "kept", "mine"):
            for age in (5000, 2000, 500, 3000, 0):
                log.append(OutputBatch(topic, [b"%d" % age], [b"v"], [clock.now_ms() - age]))
        log.maintain(clock.now_ms())
        assert [each.key for each in _everything(log, "short")] == [b"500", b"3000", b"0"]
        assert len(_everything(log, "kept")) == len(_everything(log, "mine")) == 5
        clock.advance("10s")
        log.maintain(clock.now_ms())
        partition = TopicPartition("short", 0)
        assert _everything(log, "short") == []
        assert log.start_offsets([partition]) == log.end_offsets([partition]) == {partition: 5}

    def test_retention_by_size(self, log: Log, clock: ManualClock) -> None:
        """The newest `retention.bytes` of each partition stay."""
        self._skip_unless_maintaining()
        log.create_topic("t", 1, {"retention.bytes": "100000"})
        for number in range(60):
            log.append(OutputBatch("t", [b"%d" % number], [b"v" * 10_000], [clock.now_ms()]))
        log.maintain(clock.now_ms())
        kept = [int(each.key or b"") for each in _everything(log, "t")]
        assert kept == list(range(60 - len(kept), 60))
        assert 10 <= len(kept) <= 12

    def test_compaction_keeps_the_last_record_of_each_key(self, log: Log, clock: ManualClock) -> None:
        """Where it was, with the offset it had; a fetch passes the gaps."""
        self._skip_unless_maintaining()
        log.create_topic("t", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        partition = TopicPartition("t", 0)
        for round_ in range(3):
            for number in range(40):
                key, value = b"%d" % (number % (7 + round_)), b"%d-%d" % (round_, number)
                headers: Headers = (("h", value),)
                # Every fourth is a tombstone: an older one goes like any older record.
                log.append(OutputBatch("t", [key], [value if number % 4 else None], [number], [headers]))
            expected: dict[bytes | None, Found] = {}
            for each in read(log, partition):
                expected[each.key] = each
            log.maintain(clock.now_ms())
            kept = sorted(expected.values(), key=lambda each: each.offset)
            assert read(log, partition) == kept
            end = log.end_offsets([partition])[partition]
            for offset in range(end + 1):
                assert read(log, partition, offset) == [each for each in kept if each.offset >= offset]
        assert log.start_offsets([partition]) == {partition: 0}

    def test_tombstones_go_when_their_time_is_over(self, log: Log, clock: ManualClock) -> None:
        """Counted from when they were appended: until then a reader that is behind must find them."""
        self._skip_unless_maintaining()
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "60000"}
        log.create_topic("t", 1, config)
        log.append(OutputBatch("t", [b"a", b"b", b"a"], [b"1", b"2", None], [0, 0, 0]))
        clock.advance("59s")
        log.maintain(clock.now_ms())
        assert [(each.key, each.value) for each in _everything(log, "t")] == [(b"b", b"2"), (b"a", None)]
        clock.advance("2s")
        log.maintain(clock.now_ms())
        assert [(each.key, each.value) for each in _everything(log, "t")] == [(b"b", b"2")]
        partition = TopicPartition("t", 0)
        assert log.end_offsets([partition]) == {partition: 3}
        assert log.fetch(partition, 2, 3, 100) == []

    def _skip_unless_maintaining(self) -> None:
        if not self.maintains:
            pytest.skip("this log's broker deletes when it likes")


def _everything(log: Log, topic: str) -> list[Found]:
    partitions = range(log.topics()[topic].partitions)
    ends = settled_ends(log, [TopicPartition(topic, each) for each in partitions])
    return [found for each, end in ends.items() if end for found in read(log, each)]


def _check_blocks(records: Sequence[Found], size: int) -> None:
    """Check that commits of `size` records each are whole."""
    blocks = [(each.key, each.value) for each in records]
    assert len(blocks) % size == 0
    for at in range(0, len(blocks), size):
        assert len(set(blocks[at : at + size])) == 1, "half a commit"
