"""The local log between processes: concurrent, stopped, killed, forked."""

from __future__ import annotations

import os
import random
import signal
import socket
from itertools import groupby
from pathlib import Path

import msgpack
import pytest

from penstock import ManualClock
from penstock.errors import LeaseHeldError, LogError
from penstock.log import Commit
from penstock.plugins.logs.local import LocalLog
from penstock.record import OutputBatch, TopicPartition

from ..processes import succeeds_in_a_fork
from .processes import RECORDS, start

TASKS = 2
PARTITIONS = 3


def make(directory: Path) -> str:
    log = LocalLog(str(directory / "log"))
    log.create_topic("in", TASKS)
    log.create_topic("out", PARTITIONS)
    log.close()
    return str(directory / "log")


def check_whole(directory: str) -> int:
    """Check that each task's commits are there completely and in order, as far as its position says; return how
    many."""
    log = LocalLog(directory)
    inputs = [TopicPartition("in", task) for task in range(TASKS)]
    positions = {each.partition: position or 0 for each, position in log.committed("app", inputs).items()}
    for partition in range(PARTITIONS):
        name = TopicPartition("out", partition)
        end = log.end_offsets([name])[name]
        batches = log.fetch(name, 0, end, 1 << 40)
        offsets = [offset for batch in batches for offset in batch.offsets]
        assert offsets == list(range(end))
        records = [(key, value) for batch in batches for key, value in zip(batch.keys, batch.values, strict=True)]
        for task, committed in positions.items():
            mine = [value for key, value in records if key == b"%d" % task]
            blocks = [(value, len(list(block))) for value, block in groupby(mine)]
            assert blocks == [(b"%d" % count * 200, RECORDS) for count in range(1, committed + 1)]
        assert len(records) == sum(positions.values()) * RECORDS
    for each in inputs:
        commit = log.open_committer("app", f"0_{each.partition}", [each]).committed
        count = positions[each.partition]
        assert commit is None if not count else commit == Commit({each: count}, f"{count:012d}-x", b"%d" % count)
    log.close()
    return sum(positions.values())


def test_two_processes_commit_at_once(tmp_path: Path) -> None:
    directory = make(tmp_path)
    with (
        start("commit_for_ever", directory, 0, PARTITIONS) as one,
        start("commit_for_ever", directory, 1, PARTITIONS) as two,
    ):
        for _ in range(15):
            assert one.line().isdigit()
            assert two.line().isdigit()
    assert check_whole(directory) >= 30


def test_kill_9_at_any_moment_loses_and_halves_nothing(tmp_path: Path) -> None:
    """One of two committing processes is killed, again and again; the other goes on at once, and so does a
    successor."""
    directory = make(tmp_path)
    chance = random.Random(7)
    acknowledged = 0
    with start("commit_for_ever", directory, 1, PARTITIONS) as other:
        for _ in range(4):
            with start("commit_for_ever", directory, 0, PARTITIONS) as victim:
                for _ in range(chance.randrange(1, 12)):
                    acknowledged = int(victim.line())
                victim.send_signal(signal.SIGKILL)
                victim.wait()
            assert int(other.line()) > 0
            log = LocalLog(directory)
            position = log.committed("app", [TopicPartition("in", 0)])[TopicPartition("in", 0)]
            assert position is not None and position >= acknowledged, "a commit that was acknowledged is gone"
            log.close()
    assert check_whole(directory) > acknowledged


def test_a_process_stopped_while_writing_is_named_and_hangs_nobody(tmp_path: Path) -> None:
    directory = make(tmp_path)
    log = LocalLog(directory, {"lock_timeout": "100ms"})
    log.put_meta("app", "before", b"1")
    with start("stop_while_writing", directory) as stopped:
        assert stopped.line() == "writing"
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        for _ in range(2):
            with pytest.raises(LogError, match=rf"process {stopped.pid} has been writing(.|\n)*kill -CONT"):
                log.put_meta("app", "a", b"1")
        assert log.get_meta("app", "before") == b"1", "readers wait for nobody"
        assert log.get_meta("app", "written") is None
        stopped.send_signal(signal.SIGCONT)
        assert stopped.line() == "written"
        log.put_meta("app", "a", b"2")
        assert log.get_meta("app", "written") == b"yes"
    log.close()


def test_a_process_killed_while_writing_leaves_nothing(tmp_path: Path) -> None:
    """Neither half a transaction nor a lock."""
    directory = make(tmp_path)
    log = LocalLog(directory, {"lock_timeout": "5s"})
    for _ in range(2):
        with start("stop_while_writing", directory) as stopped:
            assert stopped.line() == "writing"
            stopped.kill()
            stopped.wait()
            log.put_meta("app", "a", b"1")
            assert log.get_meta("app", "written") is None
    log.close()


def test_a_frozen_process_that_wakes_is_fenced(tmp_path: Path) -> None:
    directory = make(tmp_path)
    log = LocalLog(directory)
    partition = TopicPartition("in", 0)
    with start("commit_when_told", directory) as zombie:
        assert zombie.line() == "open"
        zombie.send_signal(signal.SIGSTOP)
        committer = log.open_committer("app", "0_0", [partition])
        committer.commit(Commit({partition: 5}, "v1"), [])
        zombie.send_signal(signal.SIGCONT)
        zombie.tell("go\n")
        assert zombie.line().startswith("fenced: task 0_0 of application 'app' was taken over")
    assert committer.is_current()
    assert log.committed("app", [partition]) == {partition: 5}
    assert set(log.end_offsets([TopicPartition("out", each) for each in range(PARTITIONS)]).values()) == {0}
    log.close()


def test_the_lease_of_a_killed_driver_is_free_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the next one starts under another host name, as a container does. A driver that runs is named at once,
    without a wait."""
    directory = make(tmp_path)
    log = LocalLog(directory)
    monkeypatch.setattr(socket, "gethostname", lambda: "another-container")
    with start("take_lease", directory) as driver:
        assert driver.line() == "leased"
        with pytest.raises(LogError, match=rf"the first driver \(process {driver.pid} on .*ends in 3[56]") as raised:
            log.lease("app", "the second driver", 1000)
        assert not isinstance(raised.value, LeaseHeldError)
        log.lease("another", "another driver", 3_600_000)
        driver.kill()
        driver.wait()
        lease = log.lease("app", "the second driver", 1000)
    assert len(list(Path(directory).glob("lease-*"))) == 2, "the lock file of the killed driver is gone"
    lease.release()
    assert len(list(Path(directory).glob("lease-*"))) == 1
    log.close()


def put_lease(log: LocalLog, row: dict[str, object]) -> None:
    with log._storage.write("test") as (transaction, _):
        transaction.put("leases", b"app", msgpack.packb(row))


def test_a_lease_without_a_lock_file_is_waited_for(tmp_path: Path) -> None:
    """Whether its process runs is unknown until the lease ends."""
    clock = ManualClock(1_000)
    log = LocalLog(make(tmp_path), clock=clock)
    put_lease(log, {"owner": "driver", "host": "h", "process": 1, "token": "t", "expires_ms": 16_000})
    with pytest.raises(LeaseHeldError, match=r"run by driver \(process 1 on h\).*ends in 15.0 s"):
        log.lease("app", "the next", 1_000)
    clock.advance("15s")
    log.lease("app", "the next", 1_000).release()
    log.close()


def test_a_lease_and_a_topic_of_an_older_version_are_refused(tmp_path: Path) -> None:
    log = LocalLog(make(tmp_path), clock=ManualClock(1_000))
    put_lease(log, {"owner": "driver", "host": "h", "process": 1, "started": "7", "token": "t", "expires_ms": 16_000})
    with pytest.raises(LogError, match="a lease in it was saved by an older version.*start with an empty directory"):
        log.lease("app", "the next", 1_000)
    with log._storage.write("test") as (transaction, topics):
        transaction.delete("system", f"topic-token-{topics['out'].id}".encode())
    log.close()
    log = LocalLog(str(tmp_path / "log"))
    with pytest.raises(LogError, match="a topic in it was saved by an older version.*start with an empty directory"):
        log.topics()
    log.close()


def test_a_forked_child_opens_the_log_anew(tmp_path: Path) -> None:
    """What it inherited belongs to its parent; both go on."""
    log = LocalLog(make(tmp_path))
    log.append(OutputBatch("out", [b"k"], [b"parent"], [0], None, [[0]]))

    def both_are_there() -> bool:
        log.append(OutputBatch("out", [b"k"], [b"child"], [0], None, [[0]]))
        return len(log.fetch(TopicPartition("out", 0), 0, 9, 1 << 20)[0]) == 2

    assert succeeds_in_a_fork(both_are_there)
    log.append(OutputBatch("out", [b"k"], [b"parent again"], [0], None, [[0]]))
    (batch,) = log.fetch(TopicPartition("out", 0), 0, 9, 1 << 20)
    assert list(batch.values) == [b"parent", b"child", b"parent again"]
    log.close()


def test_a_child_forked_in_the_middle_of_a_read_says_so(tmp_path: Path) -> None:
    """Closing LMDB's handles there would give away the reader slot that the parent's thread is using."""
    log = LocalLog(make(tmp_path))

    def is_refused() -> None:
        with pytest.raises(LogError, match="forked while another thread"):
            log.topics()

    with log._storage.read():
        assert succeeds_in_a_fork(is_refused)
    assert log.topics()
    log.close()


def test_another_process_may_have_a_larger_map(tmp_path: Path) -> None:
    """What it wrote beyond this one's is read, and written after."""
    directory = make(tmp_path)
    log = LocalLog(directory, {"map_size": "1000000"})
    log.append(OutputBatch("out", [b"k"], [b"mine"], [0], None, [[1]]))
    with start("grow", directory, 3_000_000) as other:
        assert other.line() == "grown"
    last = log.end_offsets([TopicPartition("out", 0)])[TopicPartition("out", 0)]
    (batch,) = log.fetch(TopicPartition("out", 0), last - 1, last, 1)
    assert list(batch.values) == [b"v" * 100_000]
    log.append(OutputBatch("out", [b"k"], [b"mine"], [0], None, [[1]]))
    log.close()


def test_a_file_size_limit_or_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    directory = make(tmp_path)
    with start("fill_up", directory, 1_000_000) as process:
        count, why = int(process.line()), process.line()
        process.wait()
    assert count > 10
    assert why.startswith(f"LogError: local log {directory}: cannot append to topic 'out'")
    assert "make room there, or give the log another directory" in why
    log = LocalLog(directory)
    names = [TopicPartition("out", each) for each in range(PARTITIONS)]
    assert sum(log.end_offsets(names).values()) == count * 10
    log.append(OutputBatch("out", [b"k"] * 10, [b"v" * 2000] * 10, [count] * 10))
    found = [batch for name in names for batch in log.fetch(name, 0, 1 << 40, 1 << 40)]
    assert [stamp for batch in found for stamp in batch.timestamps] == [n for n in range(count + 1) for _ in range(10)]
    log.close()


def test_python_is_not_needed_to_see_who_writes(tmp_path: Path) -> None:
    """The lock file holds the writer's process id as text."""
    log = LocalLog(make(tmp_path))
    log.put_meta("app", "a", b"1")
    log.close()
    assert (tmp_path / "log" / "write.lock").read_text().strip() == str(os.getpid())
