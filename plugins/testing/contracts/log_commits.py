"""The part of `LogContract` about commits, positions, fences and notes, and about driver leases."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest

from penstock import (
    Commit,
    FencedError,
    LeaseTakenError,
    Log,
    LogError,
    ManualClock,
    OutputBatch,
    ProductionError,
    TopicPartition,
    UnknownTopicError,
)

from .expectations import check, expect, expect_no_error
from .log_tests import APPLICATION, Found, LogTests, created, everything, output, settled_ends


class CommitTests(LogTests):
    """Commits: atomic, fenced, and given up."""

    def test_a_commit_is_one_step(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """Outputs to several topics, positions, version and engine state; another process reads all of it."""
        partitions = created(log, "in", 2)
        log.create_topic("out", 1)
        log.create_topic("side", 2)
        log.append(output("in", 10))
        committer = log.open_committer(APPLICATION, "0_0", partitions)
        check(committer.committed is None)
        check(committer.is_current())
        commit = Commit({partitions[0]: 2, partitions[1]: 3}, "v1", b"\x00engine")
        committer.commit(commit, [output("out", 4), output("side", 5), output("out", 1)])
        expect(committer.committed, commit)
        check(committer.is_current())
        log = self.reopen_log(log, tmp_path, clock)
        expect(log.committed(APPLICATION, partitions), commit.positions)
        expect(len(everything(log, "out")), len(everything(log, "side")))
        expect(len(everything(log, "side")), 5)
        expect(log.open_committer(APPLICATION, "0_0", partitions).committed, commit)
        log.close()

    def test_a_commit_takes_an_offset_for_each_record_and_its_markers(self, log: Log) -> None:
        """A commit takes `commit_markers` further offsets: with fewer, a reader that counts would skip records."""
        [partition], [out], [side] = (created(log, topic) for topic in ("in", "out", "side"))
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        for number in range(5):
            outputs = [output("out", 2), output("out", 1)] + [output("side", 1)] * (number == 2)
            committer.commit(Commit({partition: 0}, f"v{number}"), outputs)
        committer.close()
        expect(settled_ends(log, [out, side]), {out: 5 * (3 + log.commit_markers), side: 1 + log.commit_markers})

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors where Linux lists them")
    def test_tasks_need_the_open_files_that_it_says(self, log: Log) -> None:
        """Tasks need at least `open_files` descriptors: else a runner would refuse starts that work."""
        partitions = created(log, "in", 4)
        log.create_topic("out", 1)
        for partition in partitions:
            log.append(replace(output("in", 1), partitions=[(partition.partition,)]))
        claimed = log.open_files(4) - log.open_files(0)
        for attempt in range(3):  # other threads of this process close files, too
            gc.collect()
            before, committers = len(os.listdir("/proc/self/fd")), []
            for partition in partitions:
                committers.append(log.open_committer(APPLICATION, f"0_{partition.partition}", [partition]))
                log.fetch(partition, 0, 1, 1000)
                committers[-1].commit(Commit({partition: 1}, f"v{attempt}"), [output("out", 1)])
            needed = len(os.listdir("/proc/self/fd")) - before
            for committer in committers:
                committer.close()
            if claimed <= needed:
                break
        check(0 <= claimed <= needed)

    def test_nothing_is_committed_before_the_first_commit(self, log: Log) -> None:
        """Opening only takes the fence."""
        [partition] = created(log, "in")
        for _ in range(3):
            check(log.open_committer(APPLICATION, "0_0", [partition]).committed is None)
        expect(log.committed(APPLICATION, [partition]), {partition: None})

    def test_which_committers_are_current(self, log: Log) -> None:
        """Many at once, of several applications: in order, and as each of them says."""
        partitions = created(log, "in", 3)
        committers = [log.open_committer(APPLICATION, f"0_{each.partition}", [each]) for each in partitions]
        committers.append(log.open_committer(f"{APPLICATION}-2", "0_1", partitions))
        expect(list(log.are_current([])), [])
        expect(list(log.are_current(committers)), [True] * 4)
        for committer, partition in zip(committers, [*partitions, partitions[1]], strict=True):
            committer.commit(Commit({partition: 5}, "v1"), [])
        expect(list(log.are_current(committers)), [True] * 4)
        successor = log.open_committer(APPLICATION, "0_1", partitions[1:2])
        successor.commit(Commit({partitions[1]: 6}, "v2"), [])
        committers[0].close()
        expect(list(log.are_current(committers)), [each.is_current() for each in committers])
        expect(list(log.are_current([*committers[1:], successor])), [False, True, True, True])

    def test_the_last_commit_is_read_without_the_fence(self, log: Log) -> None:
        """The last returned commit of a task is read without taking its fence: the task continues."""
        partitions = created(log, "in", 2)
        committer = log.open_committer(APPLICATION, "0_0", partitions)
        other = log.open_committer(APPLICATION, "0_1", [])
        expect(log.last_commit(APPLICATION, "0_0", partitions), None)
        for number in range(4):
            commit = Commit({partitions[0]: number, partitions[1]: 2 * number}, f"v{number}", b"\x00engine")
            committer.commit(commit, [])
            expect(log.last_commit(APPLICATION, "0_0", partitions), commit)
            expect(log.visible_commit(APPLICATION, "0_0", partitions), commit)
            check(committer.is_current())
        expect(log.last_commit(f"{APPLICATION}-2", "0_0", partitions), None)
        expect(log.last_commit(APPLICATION, "0_2", []), None)
        successor = log.open_committer(APPLICATION, "0_0", partitions)
        expect(log.last_commit(APPLICATION, "0_0", partitions), successor.committed)
        log.delete_commits(APPLICATION)
        expect(log.last_commit(APPLICATION, "0_0", partitions), None)
        other.close()

    def test_whoever_was_replaced_is_fenced(self, log: Log) -> None:
        """A replaced process is fenced: it commits nothing, and its successor has read its last commit."""
        [partition] = created(log, "in")
        log.create_topic("out", 1)
        zombie = log.open_committer(APPLICATION, "0_0", [partition])
        zombie.commit(Commit({partition: 0}, "v0"), [])
        successor = log.open_committer(APPLICATION, "0_0", [partition])
        expect(successor.committed, Commit({partition: 0}, "v0"))
        check(not zombie.is_current() or not self.sees_successors)
        check(successor.is_current())
        for _ in range(2):
            with pytest.raises(FencedError, match="0_0"):
                zombie.commit(Commit({partition: 9}, "v9", b"zombie"), [output("out", 1)])
        expect(everything(log, "out"), [])
        expect(log.committed(APPLICATION, [partition]), {partition: 0})
        successor.commit(Commit({partition: 1}, "v1"), [output("out", 2)])
        expect(log.open_committer(APPLICATION, "0_0", [partition]).committed, Commit({partition: 1}, "v1"))
        expect(len(everything(log, "out")), 2)

    def test_what_is_sent_ahead_is_there_once(self, log: Log) -> None:
        """Records sent ahead are there once, in order, before the commit's; uncommitted hidden ones are dropped."""
        [partition] = created(log, "in")
        log.create_topic("out", 1)
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        if not committer.streams_outputs:
            pytest.skip("this log takes outputs with the commit")
        values = [b"one", b"two", b"three"]
        sent, more, last = [OutputBatch("out", [b"k"], [value], [1]) for value in values]
        committer.send([sent])
        committer.send([more])
        committer.commit(Commit({partition: 1}, "v1"), [last])
        expect([each.value for each in everything(log, "out")], values)
        committer.send([sent])
        committer.close()
        with pytest.raises(LogError):
            committer.send([sent])
        successor = log.open_committer(APPLICATION, "0_0", [partition])
        expect(successor.committed, Commit({partition: 1}, "v1"))
        successor.commit(Commit({partition: 2}, "v2"), [more])
        found = [each.value for each in everything(log, "out")]
        check(found[:3] == values and found[-1] == b"two")
        check(len(found) == 4 or not self.sent_is_hidden)

    def test_tasks_and_applications_do_not_fence_each_other(self, log: Log) -> None:
        """Tasks and applications do not fence each other, and applications have separate positions."""
        partitions = created(log, "in", 2)
        first = log.open_committer(APPLICATION, "0_0", partitions[:1])
        second = log.open_committer(APPLICATION, "0_1", partitions[1:])
        other = log.open_committer(f"{APPLICATION}-2", "0_0", partitions[:1])
        first.commit(Commit({partitions[0]: 1}, "a"), [])
        second.commit(Commit({partitions[1]: 2}, "b"), [])
        other.commit(Commit({partitions[0]: 3}, "c"), [])
        check(first.is_current() and second.is_current() and other.is_current())
        expect(log.committed(APPLICATION, partitions), {partitions[0]: 1, partitions[1]: 2})
        expect(log.committed(f"{APPLICATION}-2", partitions), {partitions[0]: 3, partitions[1]: None})

    def test_an_output_without_a_topic_changes_nothing(self, log: Log) -> None:
        """An output without a topic is a production error that names the topic, and changes nothing."""
        [partition] = created(log, "in")
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        with pytest.raises(ProductionError, match="nowhere"):
            committer.commit(Commit({partition: 1}, "v1"), [output("in", 1), output("nowhere", 1)])
        expect(everything(log, "in"), [])
        expect(log.committed(APPLICATION, [partition]), {partition: None})
        committer.commit(Commit({partition: 1}, "v1"), [])

    def test_a_closed_committer_commits_nothing(self, log: Log) -> None:
        """`close` is idempotent."""
        [partition] = created(log, "in")
        committer = log.open_committer(APPLICATION, "0_0", [partition])
        committer.close()
        committer.close()
        check(not committer.is_current())
        with pytest.raises(LogError):
            committer.commit(Commit({partition: 1}, "v1"), [])
        expect(log.committed(APPLICATION, [partition]), {partition: None})

    def test_forgetting_an_application(self, log: Log) -> None:
        """Takes its positions, versions and notes, fences its tasks, and leaves other applications alone."""
        [partition] = created(log, "in")
        mine = log.open_committer(APPLICATION, "0_0", [partition])
        other = log.open_committer(f"{APPLICATION}-2", "0_0", [partition])
        mine.commit(Commit({partition: 1}, "v1"), [])
        other.commit(Commit({partition: 2}, "v2"), [])
        log.put_meta(APPLICATION, "note", b"mine")
        log.put_meta(f"{APPLICATION}-2", "note", b"other")
        log.delete_commits(APPLICATION)
        check(not mine.is_current())
        with pytest.raises(FencedError):
            mine.commit(Commit({partition: 2}, "v2"), [])
        expect(log.committed(APPLICATION, [partition]), {partition: None})
        check(log.get_meta(APPLICATION, "note") is None)
        check(log.open_committer(APPLICATION, "0_0", [partition]).committed is None)
        check(not mine.is_current())
        check(other.is_current())
        expect(log.committed(f"{APPLICATION}-2", [partition]), {partition: 2})
        expect(log.get_meta(f"{APPLICATION}-2", "note"), b"other")

    def test_an_application_is_told_where_to_begin(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """Set positions replace an application's commits.

        Unnamed partitions have no position then, and other applications are unchanged.
        """
        partitions = created(log, "in", 2)
        log.append(output("in", 20))
        zombie = log.open_committer(APPLICATION, "0_0", partitions)
        zombie.commit(Commit(dict.fromkeys(partitions, 4), "v1", b"engine"), [])
        log.open_committer(f"{APPLICATION}-2", "0_0", partitions).commit(Commit(dict.fromkeys(partitions, 3), "v1"), [])
        log.put_meta(APPLICATION, "note", b"mine")
        log.set_positions(APPLICATION, {partitions[0]: 2})
        with pytest.raises(FencedError):
            zombie.commit(Commit(dict.fromkeys(partitions, 5), "v2"), [])
        log = self.reopen_log(log, tmp_path, clock)
        expect(log.committed(APPLICATION, partitions), {partitions[0]: 2, partitions[1]: None})
        expect(log.committed(f"{APPLICATION}-2", partitions), dict.fromkeys(partitions, 3))
        check(log.get_meta(APPLICATION, "note") is None)
        committer = log.open_committer(APPLICATION, "0_0", partitions)
        check(committer.committed is None)
        committer.commit(Commit({partitions[0]: 2, partitions[1]: 0}, "v0"), [])
        found = log.open_committer(APPLICATION, "0_0", partitions).committed
        expect(found, Commit({partitions[0]: 2, partitions[1]: 0}, "v0"))
        log.close()

    def test_positions_that_are_told_again_replace_the_first(self, log: Log) -> None:
        """Positions set again replace the first ones, also of an application that never ran."""
        partitions = created(log, "in", 2)
        log.set_positions(APPLICATION, dict.fromkeys(partitions, 7))
        log.set_positions(APPLICATION, {partitions[1]: 5})
        expect(log.committed(APPLICATION, partitions), {partitions[0]: None, partitions[1]: 5})
        with pytest.raises(UnknownTopicError):
            log.set_positions(APPLICATION, {partitions[0]: 1, TopicPartition("nowhere", 0): 1})
        expect(log.committed(APPLICATION, partitions), {partitions[0]: None, partitions[1]: 5})

    def test_what_a_tool_has_committed_is_kept(self, log: Log) -> None:
        """Positions to start from until the first commit of a task, and commits that last until the next one."""
        one, two = partitions = created(log, "in", 2)
        log.append(output("in", 20))
        log.set_positions(APPLICATION, {one: 2})
        self.delete_old_commits(log, APPLICATION)
        expect(log.committed(APPLICATION, partitions), {one: 2, two: None})
        zombie = log.open_committer(APPLICATION, "0_0", partitions)
        with closing(log.open_lasting_committer(APPLICATION, "0_0", partitions)) as committer:
            check(committer.committed is None)
            committer.commit(commit := Commit({one: 3, two: 1}, "v1", b"engine"), [])
        with pytest.raises(FencedError):
            zombie.commit(Commit(dict.fromkeys(partitions, 5), "v2"), [])
        self.delete_old_commits(log, APPLICATION)
        expect(log.committed(APPLICATION, partitions), commit.positions)
        expect(log.last_commit(APPLICATION, "0_0", partitions), commit)
        expect(log.visible_commit(APPLICATION, "0_0", partitions), commit)
        with closing(log.open_committer(APPLICATION, "0_0", partitions)) as committer:
            expect(committer.committed, commit)
            check(committer.is_current() and log.are_current([committer]) == [True])
            committer.commit(after := Commit({one: 4, two: 1}, "v2"), [])
        expect(log.last_commit(APPLICATION, "0_0", partitions), after)

    def test_positions_at_the_end_are_behind_every_commit(self, log: Log) -> None:
        """An application with positions set to the end reads no record that was committed before."""
        inputs, outputs = created(log, "in"), created(log, "out", 2)
        zombie = log.open_committer(APPLICATION, "0_0", inputs)
        zombie.commit(Commit({inputs[0]: 1}, "v1"), [OutputBatch("out", [b"k"], [b"v"], [1])])
        log.set_positions(APPLICATION, {inputs[0]: 1}, outputs)
        ends = log.end_offsets(outputs, stable=False)
        expect(
            log.committed(APPLICATION, [*inputs, *outputs]),
            {inputs[0]: 1, **ends},
            "an application that is told to begin at the end of a topic begins behind what was committed there",
        )
        with pytest.raises(UnknownTopicError):
            log.set_positions(APPLICATION, {}, [TopicPartition("nowhere", 0)])

    def test_notes_of_an_application(self, log: Log, tmp_path: Path, clock: ManualClock) -> None:
        """Notes of an application are stored, and replaced."""
        check(log.get_meta(APPLICATION, "a") is None)
        log.put_meta(APPLICATION, "a", b"1")
        log.put_meta(APPLICATION, "b", b"")
        log.put_meta(APPLICATION, "a", b"2")
        log = self.reopen_log(log, tmp_path, clock)
        expect(log.get_meta(APPLICATION, "a"), b"2")
        expect(log.get_meta(APPLICATION, "b"), b"")
        check(log.get_meta(f"{APPLICATION}-2", "a") is None)
        log.close()

    def test_no_change_of_a_note_is_lost(self, log: Log) -> None:
        """Two concurrent changes of a note: the second one sees the first one's result."""
        both = Barrier(2)

        def change(name: bytes) -> None:
            def add(before: bytes | None) -> bytes:
                with suppress(BrokenBarrierError):
                    both.wait(0.3)  # where the log lets both of them read before either has written
                return (before or b"") + name

            log.change_meta(APPLICATION, "changed", add)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(change, (b"a", b"b")))
        found = log.get_meta(APPLICATION, "changed") or b""
        expect(sorted(found), list(b"ab"))
        check(log.get_meta(f"{APPLICATION}-2", "changed") is None)
        with pytest.raises(ValueError, match="mine"):
            log.change_meta(APPLICATION, "changed", _fail)
        expect(log.get_meta(APPLICATION, "changed"), found, "what `change` raises changes nothing")
        log.delete_commits(APPLICATION)
        assert log.get_meta(APPLICATION, "changed") is None, "forgetting an application takes its notes"

    def test_threads_may_share_a_log(self, log: Log) -> None:
        """Threads may share a log, each with its own task: commits do not mix, and reads see whole commits."""
        tasks, commits, each = 4, 8, 50
        partitions = created(log, "in", tasks)
        log.create_topic("out", 1)

        def work(task: int) -> None:
            partition = partitions[task]
            committer = log.open_committer(APPLICATION, f"0_{task}", [partition])
            for number in range(1, commits + 1):
                output = OutputBatch("out", [b"%d" % task] * each, [b"%d" % number] * each, [0] * each)
                committer.commit(Commit({partition: number * each}, f"v{number}"), [output])
                _check_blocks(everything(log, "out"), each)

        with ThreadPoolExecutor(tasks) as threads:
            list(threads.map(work, range(tasks)))
        expect(len(everything(log, "out")), tasks * commits * each)


def _check_blocks(records: Sequence[Found], size: int) -> None:
    blocks = [(record.key, record.value) for record in records]
    expect(len(blocks) % size, 0)
    for at in range(0, len(blocks), size):
        assert len(set(blocks[at : at + size])) == 1, "half a commit"


def _fail(before: bytes | None) -> bytes:
    raise ValueError("mine")


class LeaseTests(LogTests):
    """Leases: one driver for each application."""

    def test_a_lease_keeps_a_second_driver_out(self, log: Log, clock: ManualClock) -> None:
        """Until it is released or has expired; the error names its holder."""
        lease = log.lease(APPLICATION, "driver one", 10_000)
        with pytest.raises(LeaseTakenError, match="driver one"):
            log.lease(APPLICATION, "driver two", 10_000)
        log.lease(f"{APPLICATION}-2", "driver two", 10_000).release()
        clock.advance("9s")
        lease.renew()
        clock.advance("9s")
        with pytest.raises(LeaseTakenError, match="driver one"):
            log.lease(APPLICATION, "driver two", 10_000)
        lease.release()
        lease.release()
        log.lease(APPLICATION, "driver two", 10_000).release()

    def test_an_expired_lease_is_lost_to_the_next(self, log: Log, clock: ManualClock) -> None:
        """Its old holder is refused when it renews, and cannot release the new holder's, also one of its own name.

        A lease expires after its last renewal, however many there were.
        """
        for name in ("driver two", "driver one"):
            lease = log.lease(APPLICATION, "driver one", 10_000)
            clock.advance("11s")
            for _ in range(3):
                lease.renew()  # no other driver has taken it
            clock.advance("11s")
            with expect_no_error(f"{name!r} may take a lease of 10 s that was last renewed 11 s ago"):
                successor = log.lease(APPLICATION, name, 10_000)
            with pytest.raises(FencedError, match="driver one"):
                lease.renew()
            lease.release()
            with expect_no_error(f"{name!r} renews its lease, which its predecessor 'driver one' cannot release"):
                successor.renew()
            with pytest.raises(LeaseTakenError, match=name):
                log.lease(APPLICATION, "driver three", 10_000)
            successor.release()

    def test_a_note_under_a_lost_lease_changes_nothing(self, log: Log, clock: ManualClock) -> None:
        """A process that was frozen cannot change a note under its lost lease, of any application."""
        lease = log.lease(APPLICATION, "driver one", 10_000)
        lease.put_meta("beside", "note", b"one")
        assert log.get_meta("beside", "note") == b"one", "a note is there when `put_meta` of the lease returns"
        clock.advance("11s")
        lease.put_meta("beside", "note", b"still one")  # no other driver has taken it
        clock.advance("11s")
        successor = log.lease(APPLICATION, "driver two", 10_000)
        with pytest.raises(FencedError, match="driver one"):
            lease.put_meta("beside", "note", b"late")
        check(log.get_meta("beside", "note") == b"still one")
        successor.put_meta("beside", "note", b"two")
        assert log.get_meta("beside", "note") == b"two", "a note under the lease that is held replaces the one before"
        successor.release()
        with pytest.raises(FencedError, match="driver two"):
            successor.put_meta("beside", "note", b"later")

    def test_a_lease_outlives_what_was_committed(self, log: Log) -> None:
        """A reset holds the lease until everything is deleted: no driver may start in between."""
        [partition] = created(log, "in")
        lease = log.lease(APPLICATION, "the reset", 10_000)
        log.put_meta(APPLICATION, "note", b"mine")
        log.open_committer(APPLICATION, "0_0", [partition]).commit(Commit({partition: 0}, "v0"), [])
        for positions in ({partition: 0}, None):
            if positions is not None:
                log.set_positions(APPLICATION, positions)
            else:
                log.delete_commits(APPLICATION)
            with pytest.raises(LeaseTakenError, match="the reset"):
                log.lease(APPLICATION, "driver", 10_000)
            lease.renew()
        lease.release()
        log.lease(APPLICATION, "driver", 10_000).release()
