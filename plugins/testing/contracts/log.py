"""The tests that every log must pass; subclass `LogContract` to run them over yours."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import (
    Commit,
    Headers,
    Lease,
    LeaseTakenError,
    Log,
    LogError,
    ManualClock,
    OutputBatch,
    TaskCommitter,
    TopicPartition,
    UnknownTopicError,
)
from penstock.plugins.logs.following import open_follower

from .child import Race, Side, act_as, outcome_of, thread_as
from .expectations import DiskWitness, check, expect, expect_no_descriptors
from .log_commits import CommitTests, LeaseTests
from .log_following import FollowingTests
from .log_processes import INPUTS, DamageTests, Opener, ProcessTests
from .log_tests import APPLICATION, RecordTests, TopicTests, created, everything, fetches, output, read, settled_ends


class PlaceTests(ProcessTests):
    """The log is shared with other processes; records and positions are as large and as many as they may be."""

    def test_records_at_the_ends_of_ranges(self, log: Log) -> None:
        """Keys and headers of 0 and of 70,000 bytes and long names, over several partitions; appended and committed."""
        partitions = created(log, "t", 3)
        headers: list[Headers] = [
            (("\u0436\u65e5" * 100, b"h" * 70_000),), (("none", None),), (("empty", b""), ("none", None)), (),
        ]  # fmt: skip
        keys: list[bytes | None] = [b"k" * 70_000, b"", None, b"\0\xff"]
        values: list[bytes | None] = [b"", None, b"v" * 700_000, None]
        batch = OutputBatch("t", keys, values, [1, 2, 3, 4], headers, [[0], [1], [2], [1]])
        log.append(batch)
        log.open_committer(APPLICATION, "0_0", []).commit(Commit({}, "v1"), [batch])
        rows = list(zip(keys, values, [1, 2, 3, 4], headers, strict=True))
        for partition, own in zip(partitions, ([rows[0]], [rows[1], rows[3]], [rows[2]]), strict=True):
            end = settled_ends(log, [partition])[partition]
            found = [each[2:] for each in read(log, partition, end=end, max_bytes=1)]
            expect(found, own * 2, f"records of partition {partition.partition}, appended and committed")

    def test_a_fetch_of_tombstones_only(self, log: Log) -> None:
        """A fetch of 40,000 tombstones of one key is bounded by their keys, and returns each once."""
        [partition] = created(log, "t")
        count = 40_000
        log.append(OutputBatch("t", [b"k" * 100] * count, [None] * count, list(range(1, count + 1))))
        for max_bytes, most in ((1, 11_000), (1_000_000, 22_000)):
            rule, seen = f"a fetch of {max_bytes} bytes of tombstones with keys of 100 bytes", 0
            for batches in fetches(log, partition, max_bytes):
                found = sum(map(len, batches))
                assert 1 <= found <= most, f"{rule} returned {found} records"
                for batch in batches:
                    expect(list(batch.timestamps), list(range(seen + 1, seen + len(batch) + 1)), rule)
                    check(not any(batch.values))
                    seen += len(batch)
            expect(seen, count, "tombstones that were fetched")

    def test_many_records_in_one_commit(self, log: Log) -> None:
        """40,000 of one key, beside as many of another topic."""
        log.create_topic("t", 2)
        log.create_topic("u", 1)
        count = 40_000
        keys: list[bytes | None] = [b"k"] * count
        values: list[bytes | None] = [b"%d" % number for number in range(count)]
        batches = [OutputBatch(topic, keys, values, [0] * count) for topic in ("t", "u")]
        log.open_committer(APPLICATION, "0_0", []).commit(Commit({}, "v1"), batches)
        for topic in ("t", "u"):
            found = [each.value for each in everything(log, topic)]
            expect(found, values, f"records of {topic} of a commit of 40,000 each")

    def test_a_purge_beyond_the_end(self, log: Log, clock: ManualClock) -> None:
        """A purge beyond the end deletes the existing records, or none; of one partition, and no later records."""
        partition, other = created(log, "t", 2)
        log.append(OutputBatch("t", [b"k"] * 8, [b"v"] * 8, [0] * 8, None, [[0], [1]] * 4))
        end = log.end_offsets([partition])[partition]
        with suppress(LogError):
            log.purge(partition, end + 1000)
        log.append(OutputBatch("t", [b"k"] * 3, [b"1", b"2", b"3"], [0] * 3, None, [[0]] * 3))
        log.maintain(clock.now_ms())
        rule = "after a purge of 1,000 offsets beyond the end"
        expect(
            [each.value for each in read(log, partition, end)], [b"1", b"2", b"3"], f"{rule}: records that came later"
        )
        assert log.start_offsets([partition])[partition] <= end, f"{rule}: the start is behind what came later"
        expect(len(read(log, other)), 4, f"{rule}: records of another partition")

    def test_times_of_several_partitions(self, log: Log) -> None:
        """Each partition has its own offset for a time, in any order of requests, also without records."""
        one, two, empty = created(log, "t", 3)
        for number, times in enumerate(([10, 30, 20, 40], [40, 10, 20, 20])):
            log.append(OutputBatch("t", [b"k"] * 4, [b"v"] * 4, times, None, [[number]] * 4))
        offsets = {each: [found.offset for found in read(log, each)] for each in (one, two)}
        ends = log.end_offsets([one, two, empty])
        for time, at in (
            (5, (0, 0)),
            (25, (1, 0)),
            (40, (3, 0)),
            (41, (None, None)),
            (self.latest_timestamp, (None,) * 2),
        ):
            expected = {
                each: ends[each] if place is None else offsets[each][place]
                for each, place in zip((one, two), at, strict=True)
            }
            for asked in ([one, two, empty], [empty, two, one]):
                found = dict(log.offsets_for_time(asked, time))
                expect(found, {**expected, empty: ends[empty]}, f"offsets for the time {time}")

    def test_large_positions_and_notes(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """Positions of 62 bits, notes of 100 kB with any bytes."""
        [partition] = created(log, "in")
        note = bytes(range(256)) * 400
        log.put_meta(APPLICATION, "note", note)
        log.change_meta(APPLICATION, "other", lambda before: (before or b"") + note)
        position = (1 << 62) + 1 if self.maintains else 1 << 40
        log.open_committer(APPLICATION, "0_0", [partition]).commit(Commit({partition: position}, "v1"), [])
        log = self.reopen_log(log, tmp_path, clock)
        expect(log.committed(APPLICATION, [partition]), {partition: position}, "a position of 62 bits")
        for name in ("note", "other"):
            found = log.get_meta(APPLICATION, name)
            assert found == note, f"a note of {len(note)} bytes has {len(found or b'')} when it is read, or others"
        log.set_positions(APPLICATION, {partition: position + 1})
        expect(log.committed(APPLICATION, [partition]), {partition: position + 1}, "a position of 62 bits that was set")
        log.close()

    def test_notes_of_any_bytes(self, log: Log) -> None:
        """Notes of any bytes are read back unchanged, also by `change_meta`."""
        for note in (b"", b"\0", b"note\0\0", b"\0note", b" note \n", b"\xff\xfe", b"\x80", b"None", b"0"):
            log.put_meta(APPLICATION, "note", note)
            expect(log.get_meta(APPLICATION, "note"), note, "a note of any bytes")
            log.change_meta(APPLICATION, "note", lambda before: b"after " + (b"nothing" if before is None else before))
            expect(
                log.get_meta(APPLICATION, "note"), b"after " + note, f"a note that was {note!r} before it was changed"
            )

    # -- others at its place

    def test_an_object_that_looked_sees_what_others_write(self, tmp_path: Path, clock: ManualClock) -> None:
        """Two processes that have read the log see each other's later changes."""
        self._skip_in_one_process()
        with closing(self.open_log(tmp_path, clock)) as one, closing(self.open_log(tmp_path, clock)) as two:
            created(one, "t", 2)
            for number, (writer, reader) in enumerate([(one, two), (two, one)] * 3):
                partitions = [TopicPartition("t", each) for each in range(writer.topic("t").partitions)]
                # Everything that a process could remember.
                _ = reader.topics(), reader.topic("t"), reader.start_offsets(partitions), reader.end_offsets(partitions)
                _ = reader.committed(APPLICATION, partitions), reader.last_commit(APPLICATION, "0_0", partitions)
                _ = reader.get_meta(APPLICATION, "note"), everything(reader, "t")
                committer = writer.open_committer(APPLICATION, "0_0", partitions)
                commit = Commit(dict.fromkeys(partitions, number), f"v{number}", b"%d" % number)
                before = len(everything(writer, "t"))
                committer.commit(commit, [output("t", 5)])
                writer.append(output("t", 5))
                writer.put_meta(APPLICATION, "note", b"%d" % number)
                writer.create_topic(f"made{number}", 1)
                rule = "what another object wrote after this one had looked"
                assert f"made{number}" in reader.topics(), f"{rule}: a topic"
                for count in (10, 15):
                    expect(len(everything(reader, "t")), before + count, f"{rule}: records")
                    writer.append(output("t", 5))
                expect(
                    reader.committed(APPLICATION, partitions), dict.fromkeys(partitions, number), f"{rule}: positions"
                )
                expect(reader.last_commit(APPLICATION, "0_0", partitions), commit, f"{rule}: the last commit")
                expect(reader.get_meta(APPLICATION, "note"), b"%d" % number, f"{rule}: a note")
                lease = writer.lease(APPLICATION, "driver one", 10_000)
                with pytest.raises(LogError, match="driver one"):
                    reader.lease(APPLICATION, "driver two", 10_000)
                lease.release()
                writer.delete_topic("t")
                writer.create_topic("t", 2 + number % 2)
                expect(
                    reader.topic("t").partitions, 2 + number % 2, f"{rule}: partitions of a topic that was made again"
                )
                expect(everything(reader, "t"), [], f"{rule}: records of a topic that was made again")
                expect(
                    reader.committed(APPLICATION, partitions[:2]), dict.fromkeys(partitions[:2]), f"{rule}: positions"
                )

    def test_a_crash_of_the_machine_loses_no_name(self, tmp_path: Path, clock: ManualClock) -> None:
        """Files that it renames are synced before, and the folders in which they are made, when a call returns."""
        with DiskWitness(tmp_path) as disk:
            log = self._prepared(tmp_path, clock)
            disk.check("create_topic must be durable when it returns")
            log.open_committer(APPLICATION, "0_0", []).commit(Commit({}, "v1"), [output("out", 5)])
            disk.check("commit must be durable when it returns")
            log.append(output("out", 5))
            log.put_meta(APPLICATION, "note", b"1")
            disk.check("append and put_meta must be durable when they return")
            log.close()

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors where Linux lists them")
    def test_closing_frees_what_was_opened(self, tmp_path: Path, clock: ManualClock) -> None:
        """Descriptors and threads, whatever was used, and also where a call failed."""
        self._skip_in_one_process()
        log = self._prepared(tmp_path, clock)
        log.append(output("out", 5))
        log.close()

        def use() -> None:
            log = self.open_log(tmp_path, clock)
            committer = log.open_committer(APPLICATION, "0_0", [])
            committer.commit(Commit({}, "v1"), [output("out", 1)])
            everything(log, "out")
            with pytest.raises(LogError):
                log.append(output("nowhere", 1))
            with closing(open_follower(log)) as follower:
                follower.add({TopicPartition("out", 0): 0})
                follower.poll(0, 10)
            log.lease(APPLICATION, "driver", 1000).release()
            committer.close()
            log.close()

        use()
        before = threading.active_count()
        expect_no_descriptors(use, "close")
        assert threading.active_count() <= before + 1, (
            f"close must end threads: {before}, then {threading.active_count()}"
        )

    def test_what_is_deleted_takes_no_room(self, tmp_path: Path, clock: ManualClock) -> None:
        """Topics that are deleted, and records that are purged or too old, over a long run."""
        self._skip_in_one_process()
        log = self.open_log(tmp_path, clock)
        log.create_topic("kept", 1, {"retention.ms": "1000"})
        sizes: list[int] = []
        for number in range(12):
            [partition] = created(log, "t", 1)
            for topic in ("t", "kept"):
                values: list[bytes | None] = [os.urandom(100_000) for _ in range(10)]
                log.append(OutputBatch(topic, [b"k"] * 10, values, [clock.now_ms()] * 10))
            log.purge(partition, 5)
            clock.advance("10s")
            log.maintain(clock.now_ms())
            log.delete_topic("t")
            log.put_meta(APPLICATION, "note", os.urandom(100_000))
            if number % 4 == 3:
                log.maintain(clock.now_ms())
                sizes.append(sum(each.stat().st_blocks * 512 for each in tmp_path.rglob("*") if each.is_file()))
        log.close()
        assert sizes[-1] < 1.5 * sizes[0] + 1_000_000, (
            f"of 2 MB that are written and deleted 12 times, there are {sizes} bytes on disk: deleted records take room"
        )

    def _skip_in_one_process(self) -> None:
        if self.in_one_process:
            pytest.skip("this log is not in files of this process")


RACES = (
    ("commits", "opens"), ("opens", "commits"), ("opens", "opens"), ("commits", "forgets"), ("forgets", "commits"),
    ("forgets", "opens"), ("opens", "forgets"), ("sets positions", "commits"), ("commits", "sets positions"),
    ("sets positions", "looks"), ("commits", "commits another task"), ("commits", "appends"), ("appends", "commits"),
    ("appends", "appends"), ("counts", "counts"), ("counts", "notes"), ("notes", "counts"), ("leads", "leads"),
    ("renews late", "leads late"), ("leads late", "renews late"), ("notes late", "leads late"),
    ("leads late", "notes late"), ("releases late", "leads late"), ("leads late", "releases late"),
    ("creates", "creates"), ("ensures", "ensures"), ("creates", "deletes"), ("deletes", "creates"),
    ("deletes", "appends to it"), ("appends to it", "deletes"),
)  # fmt: skip
"""The stopped call, and the calls made meanwhile; `_LogSide` has methods of these names."""
_CASES = [
    (held, other, by)
    for held, other in RACES
    for by in ("another thread", "another process")
    # Threads have one clock: what is late for one of them is late for both.
    if by == "another process" or not f"{held} {other}".count("late")
]


class RaceTests(ProcessTests):
    """Two concurrent calls have the result of one of their two orders, wherever one of them is interrupted."""

    races: ClassVar[int] = 12
    """Number of steps of a call at which another call is made, besides each release of a lock (0: none)."""

    @pytest.mark.parametrize(("held", "other", "by"), _CASES, ids=lambda name: str(name).replace(" ", "-"))
    def test_two_calls_at_once(self, tmp_path: Path, clock: ManualClock, held: str, other: str, by: str) -> None:
        """The log is thread-safe, and other processes use it: a zombie, a successor, a reset, another driver."""
        if not self.races:
            pytest.skip("`races` of this suite is 0")
        what = f"{by} did what {other!r} does beside what {held!r} does"
        with ExitStack() as stack:
            log = stack.enter_context(closing(self._prepared(tmp_path, clock)))
            if by == "another process":
                work = self.open_log, (tmp_path, clock.now_ms()), other
                theirs = stack.enter_context(self.children().started(act_when_told, *work))
            else:
                theirs = stack.enter_context(thread_as(_LogSide(log, clock), other, LogError))
            ours = stack.enter_context(thread_as(_LogSide(log, clock), held, LogError))
            Race(ours, theirs, partial(_after_race, log)).check(self.races, what, LogError)


def act_when_told(connection: Connection, opener: Opener, where: tuple[Path, int], side: str) -> None:
    """Open the log, and act as a side of races until the connection ends."""
    clock = ManualClock(where[1])
    act_as(connection, _LogSide(opener(where[0], clock), clock), side, LogError)


class _LogSide(Side):
    def __init__(self, log: Log, clock: ManualClock) -> None:
        self._log = log
        self._clock = clock
        self._committers: list[TaskCommitter] = []
        self._leases: list[Lease] = []

    def begin(self, name: str, number: int) -> None:
        """Begin a race when the leases of the previous race have expired."""
        self.end()
        self.afterwards = lambda: None
        self._mine, self._number, self._now_ms = b"-" + name.encode(), number, 1_000_000 * number
        self._name, self._topic = f"race-{number}", f"topic-{number}"
        self._set_clock(0)

    def end(self) -> None:
        for committer in self._committers:
            committer.close()
        for lease in self._leases:
            with suppress(LogError):
                lease.release()
        self._committers, self._leases = [], []

    def _set_clock(self, seconds: int) -> None:
        self._clock.advance(timedelta(milliseconds=self._now_ms + seconds * 1000 - self._clock.now_ms()))

    def _open(self, task: str = "0_0") -> TaskCommitter:
        committer = self._log.open_committer(self._name, task, INPUTS[task == "0_1" :][:1])
        self._committers.append(committer)
        return committer

    def _output(self, *values: bytes, topic: str = "out") -> OutputBatch:
        mine: list[bytes | None] = [value + self._mine for value in values]
        return OutputBatch(topic, [b"%d" % self._number] * len(mine), mine, [0] * len(mine))

    def commits(self) -> Callable[[], object]:
        committer = self._open()
        outputs = [self._output(b"one"), self._output(b"two")]
        return lambda: committer.commit(Commit({INPUTS[0]: 1}, "v1", b"state"), outputs)

    def commits_another_task(self) -> Callable[[], object]:
        committer = self._open("0_1")
        return lambda: committer.commit(Commit({INPUTS[1]: 1}, "v1"), [self._output(b"of another task")])

    def opens(self) -> Callable[[], object]:
        """Take over the task; afterwards commit."""

        def open_committer() -> object:
            committer = self._open()
            commit = Commit({INPUTS[0]: 2}, "v2")
            self.afterwards = lambda: committer.commit(commit, [self._output(b"of the successor")])
            found = committer.committed
            return found and found.version

        return open_committer

    def forgets(self) -> Callable[[], object]:
        return lambda: self._log.delete_commits(self._name)

    def sets_positions(self) -> Callable[[], object]:
        """Let the application begin anew."""
        return lambda: self._log.set_positions(self._name, {INPUTS[0]: 5})

    def looks(self) -> Callable[[], object]:
        """Read the position of an earlier commit."""
        self._open().commit(Commit({INPUTS[0]: 0}, "v0"), [])
        return lambda: self._log.committed(self._name, INPUTS)

    def appends(self) -> Callable[[], object]:
        return lambda: self._log.append(self._output(b"appended", b"also"))

    def counts(self) -> Callable[[], object]:
        return lambda: self._log.change_meta(self._name, "note", lambda before: b"%d" % (int(before or 0) + 1))

    def notes(self) -> Callable[[], object]:
        return lambda: self._log.put_meta(self._name, "note", b"5")

    def _lease(self, owner: str) -> Lease:
        lease = self._log.lease(self._name, owner, 10_000)
        self._leases.append(lease)
        self.afterwards = lease.renew
        return lease

    def _late_lease(self) -> Lease:
        lease = self._lease("driver one")
        self._set_clock(11)
        return lease

    def leads(self) -> Callable[[], object]:
        """Take the lease; afterwards renew it."""
        return lambda: self._lease("driver one") and None

    def leads_late(self) -> Callable[[], object]:
        """Take the lease when the first one has expired, and keep a note under it."""

        def lead() -> None:
            self._set_clock(22)
            self._lease("driver two").put_meta(self._name, "note", b"of driver two")

        return lead

    def renews_late(self) -> Callable[[], object]:
        self._set_clock(0)
        return self._late_lease().renew

    def notes_late(self) -> Callable[[], object]:
        self._set_clock(0)
        lease = self._late_lease()
        return lambda: lease.put_meta(self._name, "note", b"of driver one")

    def releases_late(self) -> Callable[[], object]:
        self._set_clock(0)
        return self._late_lease().release

    def creates(self) -> Callable[[], object]:
        return lambda: self._log.create_topic(self._topic, 2)

    def ensures(self) -> Callable[[], object]:
        return lambda: self._log.ensure_topic(self._topic, 2)

    def deletes(self) -> Callable[[], object]:
        self._log.create_topic(self._topic, 1)
        return lambda: self._log.delete_topic(self._topic)

    def appends_to_it(self) -> Callable[[], object]:
        return lambda: self._log.append(self._output(b"appended", topic=self._topic))


def _after_race(log: Log, number: int) -> dict[str, Any]:
    name, topic = f"race-{number}", f"topic-{number}"
    commits = [log.last_commit(name, task, [each]) for task, each in zip(("0_0", "0_1"), INPUTS, strict=True)]
    return {
        "outputs": sorted(each.value or b"" for each in everything(log, "out") if each.key == b"%d" % number),
        "positions": [log.committed(name, INPUTS)[each] for each in INPUTS],
        "commits": [commit and commit.version for commit in commits],
        "note": log.get_meta(name, "note"),
        "topic": outcome_of(lambda: (log.topic(topic).partitions, len(everything(log, topic))), UnknownTopicError),
        "lease": _holder(log, name),
    }


def _holder(log: Log, application: str) -> str:
    try:
        log.lease(application, "looks", 10).release()
    except LeaseTakenError as error:
        return next(each for each in ("one", "two") if each in str(error))
    return "free"


class LogContract(TopicTests, RecordTests, FollowingTests, CommitTests, LeaseTests, PlaceTests, DamageTests, RaceTests):
    """The contract of a log, as tests; run them in a test class of yours.

    >>> from penstock.plugins.logs.local import LocalLog
    >>> class TestLocal(LogContract):
    ...     def open_log(self, directory, clock):
    ...         return LocalLog(str(directory / "log"), clock=clock)

    Needs pytest and hypothesis (`pip install 'penstock-streams[testing]'`).
    """
