"""The settings of `LogContract`, and its parts about topics and records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest

from penstock import (
    Commit,
    Headers,
    Log,
    LogError,
    ManualClock,
    OffsetOutOfRangeError,
    OutputBatch,
    ProductionError,
    RecordBatch,
    RecordRefusedError,
    TopicExistsError,
    TopicPartition,
    UnknownTopicError,
)

from .expectations import check, expect

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


def fetches(log: Log, partition: TopicPartition, max_bytes: int) -> Iterator[Sequence[RecordBatch]]:
    """Yield the result of each fetch, from the start of a partition to its end."""
    offset, end = log.start_offsets([partition])[partition], log.end_offsets([partition])[partition]
    while offset < end:
        yield (batches := log.fetch(partition, offset, end, max_bytes))
        if not batches:
            break
        offset = batches[-1].next_offset


def settled_ends(log: Log, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Return the ends, once every commit that has returned can be read."""
    while True:
        ends = log.end_offsets(partitions)
        if ends == log.end_offsets(partitions, stable=False):
            return ends


def everything(log: Log, topic: str) -> list[Found]:
    """Return all records of a topic, by partition."""
    ends = settled_ends(log, [TopicPartition(topic, each) for each in range(log.topics()[topic].partitions)])
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
    """The smallest timestamp that the log stores unchanged."""
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


class TopicTests(LogTests):
    """Topics: creation, listing, deletion, and errors for missing ones."""

    def test_topics_that_are_almost_the_same(self, log: Log) -> None:
        """Names that differ only in case are different topics; `ensure_topic` does not change an existing one."""
        for number, name in enumerate(("topic", "Topic", "TOPIC"), 1):
            log.create_topic(name, number)
            log.append(OutputBatch(name, [b"k"], [name.encode()], [0]))
        for name in ("topic", "Topic", "TOPIC"):
            log.ensure_topic(name, 4)
        for number, name in enumerate(("topic", "Topic", "TOPIC"), 1):
            expect(log.topic(name).partitions, number, f"partitions of {name!r}, which was there before ensure_topic")
            found = [each.value for each in everything(log, name)]
            expect(found, [name.encode()], f"records of {name!r}, beside topics whose names differ in case only")

    def test_topics_are_listed_as_created(self, log: Log) -> None:
        """Topics are listed as created: with partitions, settings, and whether they are internal."""
        expect(log.topics(), {})
        log.create_topic("plain", 3)
        log.put_meta(APPLICATION, "note", b"")
        own = f"{APPLICATION}-set-changelog"
        log.create_topic(own, 1, {"cleanup.policy": "compact"}, internal=True)
        found = log.topics()
        expect(set(found), {"plain", own})
        check(found["plain"].partitions == 3 and not found["plain"].internal)
        check(found[own].internal and found[own].config["cleanup.policy"] == "compact")

    def test_one_topic_can_be_asked_for(self, log: Log) -> None:
        """`topic` returns one topic, as `topics` does; its id differs from that of another topic of the same name."""
        log.put_meta(APPLICATION, "note", b"")
        own = f"{APPLICATION}-set-changelog"
        log.create_topic(own, 2, {"cleanup.policy": "compact"}, internal=True)
        found = log.topic(own)
        expect((found.name, found.partitions, found.internal), (own, 2, True))
        expect(found.config["cleanup.policy"], "compact")
        expect(log.topic(own).id, found.id)
        log.delete_topic(own)
        with pytest.raises(UnknownTopicError, match=own):
            log.topic(own)
        log.create_topic(own, 3)
        again = log.topic(own)
        expect(again.partitions, 3)
        check(again.id != found.id or not found.id)

    def test_the_ids_of_topics(self, log: Log) -> None:
        """`topic_ids` returns the ids of existing topics, as `topic` does; a topic made again has another id."""
        for name in ("a", "b"):
            log.create_topic(name, 2)
        expect(log.topic_ids([]), {})
        before = dict(log.topic_ids(["a", "b", "missing"]))
        expect(before, {name: log.topic(name).id for name in ("a", "b")})
        log.create_topic("missing", 1)
        log.delete_topic("a")
        expect(log.topic_ids(["a", "b"]), {"b": before["b"]})
        log.create_topic("a", 2)
        now = dict(log.topic_ids({"missing", "a", "b"}))
        check(set(now) == {"missing", "a", "b"} and now["b"] == before["b"])
        if before["a"]:
            expect(len({before["a"], *now.values()}), 4)
        else:
            check(not any(now.values()))

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
    def test_a_bad_topic_name_is_refused(self, log: Log, name: str) -> None:
        """A name that Kafka would refuse is refused."""
        with pytest.raises(LogError):
            log.create_topic(name, 1)
        expect(log.topics(), {})

    def test_a_topic_that_exists_is_refused(self, log: Log) -> None:
        """An existing topic is refused, and stays unchanged."""
        log.create_topic("t", 2)
        with pytest.raises(TopicExistsError, match="t"):
            log.create_topic("t", 3)
        expect(log.topics()["t"].partitions, 2)

    def test_an_internal_topic_is_made_once(self, log: Log) -> None:
        """The first of several processes creates an internal topic."""
        own = f"{APPLICATION}-set-changelog"
        for _ in range(2):
            log.ensure_topic(own, 1, {"cleanup.policy": "compact"})
        expect(log.topics()[own].partitions, 1)

    def test_an_unknown_setting_is_refused_with_near_names(self, log: Log) -> None:
        """A setting that is misspelled and ignored is found when the disk is full."""
        with pytest.raises(LogError, match=r"retention\.mss"):
            log.create_topic("t", 1, {"retention.mss": "1"})
        with pytest.raises(LogError, match=r"retention\.ms"):
            log.create_topic("t", 1, {"retention.ms": "soon"})
        expect(log.topics(), {})

    @pytest.mark.parametrize("partitions", [0, -1])
    def test_a_topic_needs_a_partition(self, log: Log, partitions: int) -> None:
        """A topic has at least one partition."""
        with pytest.raises(LogError):
            log.create_topic("t", partitions)

    def test_a_missing_topic_is_named(self, log: Log) -> None:
        """Every method with a topic names a missing one in its error."""
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

    def test_known_ends_are_had_without_the_others(self, log: Log) -> None:
        """A partition whose end cannot be had now is left out: of a missing topic, or without a leader."""
        [partition] = created(log, "t")
        log.append(output("t", 5))
        for stable in (True, False):
            expect(log.known_end_offsets([TopicPartition("gone", 0), partition], stable=stable), {partition: 5})
        expect(log.known_end_offsets([]), {})

    def test_a_missing_partition_is_named(self, log: Log) -> None:
        """Every method names a missing partition, also a negative one, which does not count from the end."""
        log.create_topic("t", 2)
        for partition in (2, -1):
            with pytest.raises(LogError, match=str(partition)):
                log.end_offsets([TopicPartition("t", partition)])
            with pytest.raises(LogError, match=str(partition)):
                log.fetch(TopicPartition("t", partition), 0, 1, 1)

    def test_a_topic_made_again_is_a_new_one(self, log: Log) -> None:
        """A topic that is made again has no records and no positions of the deleted one."""
        [partition] = created(log, "t")
        log.append(output("t", 5))
        log.open_committer(APPLICATION, "0_0", [partition]).commit(Commit({partition: 3}, "v1"), [])
        log.delete_topic("t")
        log.create_topic("t", 2)
        expect(log.end_offsets([partition]), {partition: 0})
        expect(log.committed(APPLICATION, [partition]), {partition: None})
        log.append(output("t", 1))
        expect(len(everything(log, "t")), 1)


class RecordTests(LogTests):
    """Records: appended, fetched, refused, and deleted."""

    def test_a_record_keeps_every_part(self, log: Log) -> None:
        """Null and empty keys and values, headers in order with names repeated, any 64-bit timestamp."""
        log.create_topic("t", 1)
        headers: list[Headers] = [(("a", b"1"), ("ü", None), ("a", b"")), (), (("", b"x"),)]
        times = [self.earliest_timestamp, self.latest_timestamp, 5]
        # Without headers before those with some, and after them: a fetch may merge them.
        log.append(OutputBatch("t", [b"j"], [b"v"], [4]))
        log.append(OutputBatch("t", [b"k", None, b""], [None, b"", b"\xff" * 3], times, headers))
        log.append(OutputBatch("t", [b"l"], [b"v"], [7]))
        found = read(log, TopicPartition("t", 0))[1:]
        expect([each.key for each in found], [b"k", None, b"", b"l"])
        expect([each.value for each in found], [None, b"", b"\xff" * 3, b"v"])
        expect([each.timestamp for each in found], [*times, 7])
        expect([each.headers for each in found], [*headers, ()])

    def test_keys_go_where_kafkas_clients_send_them(self, log: Log) -> None:
        """Keys go to the partitions of Kafka's clients (Java's Utils.murmur2): an application may move to Kafka."""
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
        found = {key: partition for partition, key in ((each.partition, each.key) for each in everything(log, "t"))}
        expect(found, {key: (value & 0x7FFFFFFF) % 1000 for key, value in hashes.items()})

    def test_the_part_of_a_key_that_a_batch_names_chooses_the_partition(self, log: Log) -> None:
        """Windowed keys go where their key goes, in few records and in many; a partition that was chosen wins."""
        log.create_topic("t", 7)
        names: list[bytes | None] = [b"%d" % number for number in range(150)]
        keys: list[bytes | None] = [b"window of %d" % number for number in range(150)]
        values: list[bytes | None] = [b""] * 150
        log.append(OutputBatch("t", names, values, [1] * 150))
        log.append(OutputBatch("t", keys, values, [2] * 150, hashed=names))
        for key, name in zip(keys, names, strict=True):
            log.append(OutputBatch("t", [key], [b""], [3], [(("h", b""),)], hashed=[name]))
        log.append(OutputBatch("t", [b"a", *keys[1:3]], values[:3], [4] * 3, None, [[6], None, [0, 5]], names[:3]))
        found = everything(log, "t")
        of_name = {each.key: each.partition for each in found if each.timestamp == 1}
        expected = {key: of_name[name] for key, name in zip(keys, names, strict=True)}
        for stamp in (2, 3):
            expect({each.key: each.partition for each in found if each.timestamp == stamp}, expected)
        chosen = sorted((each.key or b"", each.partition) for each in found if each.timestamp == 4)
        expect(chosen, sorted([(b"a", 6), (keys[1] or b"", expected[keys[1]]), *((keys[2] or b"", n) for n in (0, 5))]))

    def test_a_key_goes_to_one_partition_however_it_is_produced(self, log: Log) -> None:
        """A key goes to one partition, in a batch of any size, among keys of any length."""
        log.create_topic("t", 7)
        keys = [b"%d" % (number * 37) * (number % 5) for number in range(2000)]
        log.append(OutputBatch("t", list(keys), [b"many"] * len(keys), [0] * len(keys)))
        for key in keys[:40]:
            log.append(OutputBatch("t", [key], [b"one"], [0]))
        where: dict[bytes | None, set[int]] = {}
        for record in everything(log, "t"):
            where.setdefault(record.key, set()).add(record.partition)
        check(all(len(partitions) == 1 for partitions in where.values()))

    def test_records_without_a_key_are_spread(self, log: Log) -> None:
        """Over all partitions, in few pieces each."""
        log.create_topic("t", 4)
        log.append(OutputBatch("t", [None] * 20_000, [b"v"] * 20_000, [0] * 20_000))
        counts = [sum(1 for each in everything(log, "t") if each.partition == partition) for partition in range(4)]
        expect(sum(counts), 20_000)
        check(min(counts) > 1000)

    def test_partitions_can_be_told(self, log: Log) -> None:
        """One, several (each gets a copy), none (dropped), or by the key."""
        log.create_topic("t", 3)
        keys: list[bytes | None] = [b"one", b"all", b"none", b"foobar", None]
        log.append(OutputBatch("t", keys, [b"v"] * 5, [0] * 5, None, [[2], [0, 1, 2], [], None, (1,)]))
        found = {(each.partition, each.key) for each in everything(log, "t")}
        by_key = (-790332482 & 0x7FFFFFFF) % 3
        expect(found, {(2, b"one"), (0, b"all"), (1, b"all"), (2, b"all"), (by_key, b"foobar"), (1, None)})

    def test_order_is_kept_in_each_partition(self, log: Log) -> None:
        """Over batches of any size."""
        log.create_topic("t", 3)
        count = 30_000
        log.append(
            OutputBatch("t", [b"%d" % (i % 91) for i in range(count)], [b"%d" % i for i in range(count)], [0] * count)
        )
        for partition in range(3):
            values = [int(each.value or b"") for each in read(log, TopicPartition("t", partition))]
            check(values == sorted(values) and values)

    def test_fetch_is_bounded_and_goes_on(self, log: Log) -> None:
        """About `max_bytes` at once, at least one record, and each record once."""
        [partition] = created(log, "t")
        count = 40_000
        log.append(OutputBatch("t", [b"k"] * count, [b"%099d" % i for i in range(count)], [0] * count))
        for max_bytes, most in ((1, 1_100_000), (1_000_000, 2_200_000)):
            seen = 0
            for batches in fetches(log, partition, max_bytes):
                check(1 <= sum(map(len, batches)) <= most / 100)
                for batch in batches:
                    expect([int(value or b"") for value in batch.values], list(range(seen, seen + len(batch))))
                    seen += len(batch)
            expect(seen, count)

    def test_fetch_stops_before_the_end(self, log: Log) -> None:
        """`fetch` stops before `end`: records at and after it belong to a later batch."""
        [partition] = created(log, "t")
        for _ in range(3):
            log.append(output("t", 5))
        everything = read(log, partition)
        for first in (0, 3, 5, 9):
            for stop in (first, first + 1, 8, 10, 14):
                expect(read(log, partition, everything[first].offset, everything[stop].offset), everything[first:stop])

    def test_an_offset_out_of_range_is_named_with_the_range(self, log: Log) -> None:
        """An error about an offset out of range names the existing offsets."""
        [partition] = created(log, "t")
        log.append(output("t", 5))
        end = log.end_offsets([partition])[partition]
        expect(log.fetch(partition, end, end + 10, 1), [])
        for offset in (-1, end + 1):
            with pytest.raises(OffsetOutOfRangeError, match=rf"{offset}\D(.|\n)*t\D(.|\n)*0\D(.|\n)*{end}"):
                log.fetch(partition, offset, end + 10, 1)

    def test_the_offset_of_a_time(self, log: Log) -> None:
        """The offset of the first record at or after it, by offset; the end offset when there is none."""
        partition, empty = created(log, "t", 2)
        times = [10, 20, 20, 15, 40, 30, 40]
        for part in (times[:3], times[3:4], times[4:]):
            log.append(OutputBatch("t", [b"k"] * len(part), [b"v"] * len(part), part, None, [[0]] * len(part)))
        offsets = [each.offset for each in read(log, partition)]
        end = log.end_offsets([partition])[partition]
        for time in (0, 10, 11, 20, 21, 40, 41):
            expected = next((offset for offset, at in zip(offsets, times, strict=True) if at >= time), end)
            assert log.offsets_for_time([partition, empty], time) == {partition: expected, empty: 0}, time

    def test_the_offset_of_a_time_is_not_of_what_was_deleted(self, log: Log, clock: ManualClock) -> None:
        """The offset of a time is a readable one, not a deleted one."""
        self.skip_unless_maintaining()
        [partition] = created(log, "t")
        log.append(OutputBatch("t", [b"k"] * 6, [b"v"] * 6, [10, 20, 30, 40, 50, 60]))
        log.purge(partition, 3)
        log.maintain(clock.now_ms())
        expect(log.offsets_for_time([partition], 20), {partition: 3})
        log.purge(partition, 6)
        log.maintain(clock.now_ms())
        expect(log.offsets_for_time([partition], 20), {partition: 6})

    def test_a_record_that_is_too_large_changes_nothing(self, log: Log) -> None:
        """A record that is too large is refused with all records beside it; the same committer continues without it."""
        [partition] = created(log, "t")
        log.create_topic("small", 1, {"max.message.bytes": "1000"})
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        committer.commit(Commit({partition: 0}, "v0"), [])
        outputs = [output("t", 3), OutputBatch("small", [b"k"] * 3, [b"v", b"v" * 5000, b"v"], [0] * 3)]
        with pytest.raises(RecordRefusedError, match="small") as refused:
            committer.commit(Commit({partition: 1}, "v1"), outputs)
        expect(refused.value.topic, "small")
        expect([refused.value.refuses(b"k", value) for value in outputs[1].values], [False, True, False])
        with pytest.raises(ProductionError, match="small"):
            log.append(outputs[1])
        expect(everything(log, "t"), everything(log, "small"))
        expect(everything(log, "small"), [])
        check(committer.is_current())
        committer.commit(Commit({partition: 1}, "v1"), outputs[:1])
        expect(len(everything(log, "t")), 3)

    def test_a_partition_that_is_not_there_changes_nothing(self, log: Log) -> None:
        """Records for a missing partition, which a user's partitioner may choose, change nothing."""
        log.create_topic("t", 2)
        for partition in (2, -1):
            with pytest.raises(ProductionError, match="t"):
                log.append(OutputBatch("t", [b"a", b"b"], [b"", b""], [0, 0], None, [None, [0, partition]]))
        expect(everything(log, "t"), [])

    def test_a_compacted_topic_takes_no_null_keys(self, log: Log) -> None:
        """A compacted topic refuses records without a key, as Kafka does."""
        log.create_topic("t", 1, {"cleanup.policy": "compact"})
        with pytest.raises(RecordRefusedError, match="t") as refused:
            log.append(OutputBatch("t", [b"a", None], [b"", b""], [0, 0]))
        expect(refused.value.topic, "t")
        check(refused.value.refuses(None, b"") and not refused.value.refuses(b"a", b""))
        expect(everything(log, "t"), [])

    # -- deletion

    def test_purging_keeps_what_is_at_or_after_the_offset(self, log: Log, clock: ManualClock) -> None:
        """A log may keep more, and may do it when it maintains itself."""
        [partition] = created(log, "t")
        log.append(output("t", 10))
        log.append(output("t", 10))
        offset = read(log, partition)[13].offset
        log.purge(partition, offset)
        log.purge(partition, 2)
        log.maintain(clock.now_ms())
        check(log.start_offsets([partition])[partition] <= offset)
        expect([each.value for each in read(log, partition, offset)], [b"%d" % i for i in range(3, 10)])
        if self.maintains:
            expect(log.start_offsets([partition])[partition], offset)
            with pytest.raises(OffsetOutOfRangeError, match=str(offset)):
                log.fetch(partition, offset - 1, MUCH, MUCH)
        log.append(output("t", 2))
        expect(len(read(log, partition, offset)), 9)
        end = log.end_offsets([partition])[partition]
        log.purge(partition, end)
        log.append(output("t", 3))
        log.maintain(clock.now_ms())
        expect(len(read(log, partition, end)), 3)

    def test_a_purge_of_a_topic_that_was_made_again_deletes_nothing(self, log: Log, clock: ManualClock) -> None:
        """Its offset is of records that are gone; a process that was frozen meanwhile does not know."""
        [partition] = created(log, "t")
        before = log.topic("t").id
        log.delete_topic("t")
        log.create_topic("t", 1)
        log.append(output("t", 10))
        now = log.topic("t").id
        if not now:
            pytest.skip("this log's topics have no ids")
        log.purge(partition, 5, before)
        log.maintain(clock.now_ms())
        expect(len(read(log, partition)), 10)
        log.purge(partition, 5, now)
        log.maintain(clock.now_ms())
        if self.maintains:
            expect(log.start_offsets([partition])[partition], 5)

    def test_retention_by_time(self, log: Log, clock: ManualClock) -> None:
        """Old records are deleted from the front, by their own timestamps; others stay."""
        self.skip_unless_maintaining()
        [partition] = created(log, "short", 1, {"retention.ms": "1000"})
        log.create_topic("kept", 1)
        log.create_topic("mine", 1, {"retention.ms": "1000", "cleanup.policy": "compact"})
        for topic in ("short", "kept", "mine"):
            for age in (5000, 2000, 500, 3000, 0):
                log.append(OutputBatch(topic, [b"%d" % age], [b"v"], [clock.now_ms() - age]))
        log.maintain(clock.now_ms())
        expect([each.key for each in everything(log, "short")], [b"500", b"3000", b"0"])
        expect(len(everything(log, "kept")), len(everything(log, "mine")))
        expect(len(everything(log, "mine")), 5)
        clock.advance("10s")
        log.maintain(clock.now_ms())
        expect(everything(log, "short"), [])
        expect(log.start_offsets([partition]), log.end_offsets([partition]))
        expect(log.end_offsets([partition]), {partition: 5})

    def test_retention_by_size(self, log: Log, clock: ManualClock) -> None:
        """The newest `retention.bytes` of each partition stay."""
        self.skip_unless_maintaining()
        log.create_topic("t", 1, {"retention.bytes": "100000"})
        for number in range(60):
            log.append(OutputBatch("t", [b"%d" % number], [b"v" * 10_000], [clock.now_ms()]))
        log.maintain(clock.now_ms())
        kept = [int(each.key or b"") for each in everything(log, "t")]
        expect(kept, list(range(60 - len(kept), 60)))
        check(10 <= len(kept) <= 12)

    def test_compaction_keeps_the_last_record_of_each_key(self, log: Log, clock: ManualClock) -> None:
        """Compaction keeps the last record of each key with its offset; a fetch skips the gaps."""
        self.skip_unless_maintaining()
        [partition] = created(log, "t", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
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
            expect(read(log, partition), kept)
            end = log.end_offsets([partition])[partition]
            for offset in range(end + 1):
                expect(read(log, partition, offset), [each for each in kept if each.offset >= offset])
        expect(log.start_offsets([partition]), {partition: 0})

    def test_tombstones_go_when_their_time_is_over(self, log: Log, clock: ManualClock) -> None:
        """Counted from their append: until then, a reader that lags behind must find them."""
        self.skip_unless_maintaining()
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "60000"}
        [partition] = created(log, "t", 1, config)
        log.append(OutputBatch("t", [b"a", b"b", b"a"], [b"1", b"2", None], [0, 0, 0]))
        clock.advance("59s")
        log.maintain(clock.now_ms())
        expect([(each.key, each.value) for each in everything(log, "t")], [(b"b", b"2"), (b"a", None)])
        clock.advance("2s")
        log.maintain(clock.now_ms())
        expect([(each.key, each.value) for each in everything(log, "t")], [(b"b", b"2")])
        expect(log.end_offsets([partition]), {partition: 3})
        expect(log.fetch(partition, 2, 3, 100), [])
