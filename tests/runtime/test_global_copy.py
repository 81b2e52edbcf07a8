"""Global stores whose topic was replaced or lost records, that are killed while they read, or that another process has
locked."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import ManualClock, OffsetOutOfRangeError, StaleStoreError, StoreError, StoreLockedError, World
from penstock.log import TopicInfo
from penstock.plugins.engine.task.local_state import global_copy, global_stores
from penstock.plugins.engine.task.local_state.global_copy import Position
from penstock.plugins.engine.task.local_state.global_stores import GlobalStores
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.expectations import expect_no_descriptors
from penstock.record import OutputBatch, RecordBatch, TopicPartition
from tests.processes import Child
from tests.waiting import wait_until

from .test_global_stores import application, contents, fill

TABLE = [TopicPartition("table", number) for number in range(3)]


class CountingLog(MemoryLog):
    """Counts what it is asked, and fails when `fetches_left` are used up."""

    asked: list[str]
    fetches_left: int = 1 << 30
    has_ids: bool = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked = []
        self.read: list[tuple[int, int]] = []

    def topics(self) -> Mapping[str, TopicInfo]:
        self.asked.append("topics")
        return super().topics()

    def topic(self, name: str) -> TopicInfo:
        self.asked.append("topic")
        found = super().topic(name)
        return found if self.has_ids else TopicInfo(found.name, found.partitions, found.config)

    def start_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.asked.append("start_offsets")
        return super().start_offsets(partitions)

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        self.asked.append("end_offsets")
        return super().end_offsets(partitions)

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        if not self.fetches_left:
            raise ConnectionError("cut off")
        self.fetches_left -= 1
        self.read.append((partition.partition, offset))
        return super().fetch(partition, offset, end, max_bytes)


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have about so many bytes in a write."""
    monkeypatch.setattr(global_stores, "_PORTION_BYTES", 1 << 20)
    return 1 << 20


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def log(clock: ManualClock) -> Iterator[CountingLog]:
    log = CountingLog(world=World(clock=clock))
    log.create_topic("table", 3)
    yield log
    log.close()


def make_again(log: CountingLog, **config: str) -> None:
    log.delete_topic("table")
    log.create_topic("table", 3, config)


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_a_topic_made_again_is_read_from_its_start(
    tmp_path: Path, log: CountingLog, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when it has as many records as the one before; under the same store object, for tasks keep that."""
    stores = GlobalStores(application(tmp_path, backend), tmp_path)
    kept = stores.stores["table"]
    fill(log, ("a", "1"), ("b", "1"))
    stores.update(log, {}, 0)
    assert kept.get("a") == "1"  # type: ignore[attr-defined]
    for value in ("2", "3"):
        make_again(log)
        fill(log, ("a", value), ("c", value))
        planned = log.end_offsets(TABLE)
        stores.update(log, planned, 0, {"table": log.topic("table").id})
        assert contents(stores) == {"a": value, "c": value}
        assert kept.get("a") == value and kept.get("b") is None  # type: ignore[attr-defined]
    assert "application app, global store 'table': its topic was deleted and made again" in caplog.text
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2
    assert [each.name for each in (tmp_path / "table").iterdir() if each.is_dir()] == [f"{backend}.2"]
    stores.close()
    again = GlobalStores(application(tmp_path, backend), tmp_path)
    assert contents(again) == {"a": "3", "c": "3"}
    again.close()


@pytest.mark.parametrize("partitions", [3, 2])
def test_a_log_without_ids_shows_it_by_where_the_topic_ends(tmp_path: Path, log: CountingLog, partitions: int) -> None:
    log.has_ids = False
    stores = GlobalStores(application(tmp_path), tmp_path)
    log.append(OutputBatch("table", [b"a"] * 3, [b"1"] * 3, [0] * 3, None, [[0], [1], [2]]))
    stores.update(log, {}, 0)
    log.delete_topic("table")
    log.create_topic("table", partitions)
    log.append(OutputBatch("table", [b"b"] * 2, [b"2"] * 2, [0] * 2, None, [[0], [1]]))
    stores.update(log, {}, 0)
    assert contents(stores) == {"b": "2"}
    stores.close()


def test_a_plan_that_is_older_than_the_copy_replaces_nothing(tmp_path: Path, log: CountingLog) -> None:
    """A batch that is run a second time comes with its old ends, and with the id of a topic that is gone since."""
    stores = GlobalStores(application(tmp_path), tmp_path)
    fill(log, ("a", "1"))
    old, old_id = log.end_offsets(TABLE), log.topic("table").id
    make_again(log)
    fill(log, ("a", "2"), ("b", "2"), ("c", "2"), ("d", "2"))
    stores.update(log, {}, 0)
    read = list(log.read)
    stores.update(log, old, 0, {"table": old_id})
    assert log.read == read
    stores.close()


def test_records_deleted_unread_make_it_anew(tmp_path: Path, log: CountingLog) -> None:
    app = application(tmp_path)
    fill(log, ("a", "1"))
    stores = GlobalStores(app, tmp_path)
    stores.update(log, {}, 0)
    fill(log, ("a", None), ("b", "1"))
    for each, end in log.end_offsets(TABLE).items():
        log.purge(each, end)
    fill(log, ("c", "1"))
    stores.update(log, {}, 0)
    assert contents(stores) == {"c": "1"}
    stores.close()


@pytest.mark.parametrize("noted_at_h", [23, 0], ids=["noted as up to date since", "away"])
def test_a_store_that_was_away_for_too_long_may_have_missed_deletions(
    tmp_path: Path, log: CountingLog, clock: ManualClock, noted_at_h: int
) -> None:
    """The log forgets a deletion after delete.retention.ms, and no offset shows that."""
    make_again(log, **{"cleanup.policy": "compact"})
    stores = GlobalStores(application(tmp_path), tmp_path)
    fill(log, ("a", "1"), ("b", "1"))
    stores.update(log, {}, clock.now_ms())
    clock.advance(f"{noted_at_h}h")
    stores.update(log, {}, clock.now_ms())
    fill(log, ("a", None))
    clock.advance(f"{25 - noted_at_h}h")
    log.maintain(clock.now_ms())
    at = next(each for each, end in log.end_offsets(TABLE).items() if end)
    log.append(OutputBatch("table", [b"c"], [b"1"], [0], None, [[at.partition]]))
    log.read.clear()
    stores.update(log, {}, clock.now_ms())
    assert contents(stores) == {"b": "1", "c": "1"}
    assert any(offset == 0 for _, offset in log.read) == (noted_at_h == 0), "read from the start only if need be"
    stores.close()


def many(log: MemoryLog | LocalLog, count: int) -> None:
    for start in range(0, count, 10_000):
        keys: list[bytes | None] = [b"%d" % number for number in range(start, min(start + 10_000, count))]
        log.append(OutputBatch("table", keys, keys, [0] * len(keys)))


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_a_backlog_is_written_in_portions_and_gone_on_with(
    tmp_path: Path, log: CountingLog, backend: str, small_portions: int
) -> None:
    """No write is larger than a portion, and after a failure nothing that was written is read again."""
    app = application(tmp_path, backend, fetch_bytes=50_000)
    many(log, 30_000)
    stores = GlobalStores(app, tmp_path)
    sizes: list[int] = []
    copy = stores._parts[0].copies.current
    write = copy.backend.write

    def watched(changes: Any, previous: str | None, version: str) -> None:
        sizes.extend(map(len, changes.values()))
        write(changes, previous, version)

    copy.backend.write = watched  # type: ignore[method-assign]
    log.fetches_left = 9
    with pytest.raises(ConnectionError):
        stores.update(log, {}, 0)
    saved = copy.position().positions
    assert saved and 0 < sum(saved.values()) < 30_000
    stores.close()
    log.fetches_left, log.read = 1 << 30, []
    again = GlobalStores(app, tmp_path)
    again.update(log, {}, 0)
    assert len(contents(again)) == 30_000
    assert all(offset >= saved.get(str(partition), 0) for partition, offset in log.read)
    assert max(sizes) < 2 * small_portions // 120, "each pending change is counted with 120 bytes beside its own"
    again.close()


@pytest.mark.usefixtures("small_portions")
def test_a_new_copy_is_gone_on_with_and_the_old_one_is_read_meanwhile(tmp_path: Path, log: CountingLog) -> None:
    app = application(tmp_path, fetch_bytes=50_000)
    fill(log, ("a", "1"))
    stores = GlobalStores(app, tmp_path)
    stores.update(log, {}, 0)
    make_again(log)
    many(log, 30_000)
    log.fetches_left = 9
    with pytest.raises(ConnectionError):
        stores.update(log, {}, 0)
    assert contents(stores) == {"a": "1"}
    stores.close()
    log.fetches_left, log.read = 1 << 30, []
    again = GlobalStores(app, tmp_path)
    # Nothing of the old topic contradicts this plan: that a new copy was begun is reason enough.
    again.update(log, {}, 0, {})
    assert len(contents(again)) == 30_000
    assert any(offset for _, offset in log.read[:1]), "it goes on where it was"
    again.close()


def test_a_process_that_waited_for_the_one_that_built_a_new_copy_turns_to_it(tmp_path: Path, log: CountingLog) -> None:
    app = application(tmp_path, "memory")
    first, second = (GlobalStores(app, tmp_path) for _ in range(2))
    fill(log, ("a", "1"))
    for each in (first, second):
        each.update(log, {}, 0)
    make_again(log)
    fill(log, ("b", "2"))
    lock = second._parts[0].copies._lock
    acquire = lock.acquire

    def acquire_after_the_other(timeout: float) -> bool:
        lock.acquire = acquire  # type: ignore[method-assign]
        first.update(log, {}, 0)
        log.read.clear()
        return acquire(timeout)

    lock.acquire = acquire_after_the_other  # type: ignore[method-assign]
    second.update(log, {}, 0)
    assert contents(second) == contents(first) == {"b": "2"}
    assert not log.read, "it has nothing to read any more"
    first.close()
    second.close()


def test_a_topic_that_loses_records_faster_than_they_are_read_is_an_error(tmp_path: Path, log: CountingLog) -> None:
    class Losing(CountingLog):
        def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
            self.purge(partition, offset + 1)
            return super().fetch(partition, offset, end, max_bytes)

    losing = Losing()
    losing.create_topic("table", 3)
    fill(losing, *((str(number), "1") for number in range(60)))
    stores = GlobalStores(application(tmp_path), tmp_path)
    with pytest.raises(OffsetOutOfRangeError):
        stores.update(losing, {}, 0)
    stores.close()


def test_tasks_of_a_batch_ask_the_log_for_nothing_once_one_has_read(tmp_path: Path, log: CountingLog) -> None:
    stores = GlobalStores(application(tmp_path), tmp_path)
    fill(log, ("a", "1"))
    planned, ids = dict(log.end_offsets(TABLE)), {"table": log.topic("table").id}
    stores.update(log, planned, 1_000, ids)
    log.asked.clear()
    for now_ms in range(1_000, 30_000, 1_000):
        stores.update(log, planned, now_ms, ids)
    assert log.asked == []
    stores.close()


def test_a_copy_of_an_older_version_is_built_again(
    tmp_path: Path, log: CountingLog, caplog: pytest.LogCaptureFixture
) -> None:
    """It said nothing of the form of its entries."""
    fill(log, ("a", "1"))
    stores = GlobalStores(application(tmp_path), tmp_path)
    stores.update(log, {}, 0)
    copy = stores._parts[0].copies.current
    old = {"positions": copy.position().positions, "engine": ""}
    copy.backend.write({}, copy.backend.version(), json.dumps(old))
    log.read.clear()
    stores.update(log, {}, 5)
    assert contents(stores) == {"a": "1"}
    assert [offset for _, offset in log.read] == [0]
    assert "'table': its entries were written with" in caplog.text
    stores.close()


# ---------------------------------------------------------------------- other processes


def start(role: str, directory: Path) -> Child:
    return Child("-m", "tests.runtime.test_global_copy", role, directory)


def hold_lock(directory: Path) -> None:
    with GlobalStores(application(directory), directory)._parts[0].copies.writing():
        print("held", flush=True)
        signal.pause()


def read_slowly(directory: Path) -> None:
    """Read a local log's table until killed, a small fetch after the other."""

    class Slow(LocalLog):
        def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
            if (directory / "stop").exists():
                signal.pause()
            return super().fetch(partition, offset, end, max_bytes)

    global_stores._PORTION_FETCHES = 1
    stores = GlobalStores(application(directory, fetch_bytes=10_000), directory)
    stores.update(Slow(str(directory / "log")), {}, 0)
    print("done", flush=True)


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_two_that_write_at_once_are_found_out(tmp_path: Path, log: CountingLog, backend: str) -> None:
    """As with a lock that a cleaner of files has removed. The one that comes second has written nothing."""
    first, second = (GlobalStores(application(tmp_path, backend), tmp_path) for _ in range(2))
    fill(log, ("a", "1"), ("b", "1"))
    fetch = log.fetch

    def fetch_late(partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        log.fetch = fetch  # type: ignore[method-assign]
        second.update(log, {}, 0)
        return fetch(partition, offset, end, max_bytes)

    log.fetch = fetch_late  # type: ignore[method-assign]
    with pytest.raises(StaleStoreError):
        first.update(log, {}, 0)
    first.update(log, {}, 0)
    assert contents(first) == contents(second) == {"a": "1", "b": "1"}
    first.close()
    second.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors where Linux lists them")
def test_a_store_that_cannot_be_opened_keeps_no_descriptor(tmp_path: Path, log: CountingLog) -> None:
    """A worker tries again in each batch."""
    (tmp_path / "table").mkdir()
    wrong = tmp_path / "table" / "lmdb"
    wrong.write_text("")

    def fail() -> None:
        with pytest.raises(StoreError, match="File exists"):
            GlobalStores(application(tmp_path), tmp_path)

    expect_no_descriptors(fail, "an opening that fails")
    wrong.unlink()
    stores = GlobalStores(application(tmp_path), tmp_path)
    fill(log, ("a", "1"))
    stores.update(log, {}, 0)
    assert contents(stores) == {"a": "1"}
    stores.close()


def test_the_wait_for_a_process_that_does_not_move_ends(
    tmp_path: Path, log: CountingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(global_copy, "_LOOK_SECONDS", 0.1)
    with start("hold_lock", tmp_path) as holder:
        assert holder.line() == "held"
        os.kill(holder.pid, signal.SIGSTOP)
        with pytest.raises(
            StoreLockedError,
            match=rf"global store 'table': process {holder.pid} holds the lock .*0\.3 s \(task_timeout\)",
        ):
            GlobalStores(application(tmp_path, task_timeout="300ms"), tmp_path)
    stores = GlobalStores(application(tmp_path, task_timeout="300ms"), tmp_path)
    stores.update(log, {}, 0)
    stores.close()


def test_a_process_killed_in_the_backlog_is_gone_on_from(tmp_path: Path) -> None:
    log = LocalLog(str(tmp_path / "log"))
    log.create_topic("table", 1)
    many(log, 30_000)
    part = TopicPartition("table", 0)
    with start("read_slowly", tmp_path):
        wait_until(lambda: _position(tmp_path) > 0)
        (tmp_path / "stop").touch()
    saved = _position(tmp_path)
    assert 0 < saved < 30_000
    stores = GlobalStores(application(tmp_path), tmp_path)
    log.purge(part, saved)
    log.maintain(0)
    stores.update(log, {}, 0)
    assert len(contents(stores)) == 30_000, "none of the records that are gone from the log was read again"
    stores.close()
    log.close()


def _position(directory: Path) -> int:
    from penstock.errors import StoreError
    from penstock.stores.lmdb import LmdbBackend

    try:
        backend = LmdbBackend(directory / "table" / "lmdb", ["table"], read_only=True)
    except StoreError:
        return 0
    try:
        return Position.from_version(backend.version()).positions.get("0", 0)
    finally:
        backend.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))


def test_another_serde_builds_the_copy_again(tmp_path: Path) -> None:
    log = CountingLog()
    log.create_topic("table", 3)
    fill(log, ("a", "1"), ("b", "2"))
    for number, serde in enumerate(["msgpack", "json", "json", "msgpack"]):
        log.read.clear()
        stores = GlobalStores(application(tmp_path, state_serde=serde), tmp_path / "global")
        stores.update(log, {}, number)
        assert contents(stores) == {"a": "1", "b": "2"}
        assert bool(log.read) == (number != 2)
        stores.close()
