"""What only the local log has: a directory, a size, stored batches, several objects in a process."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import ConfigError, LogError, OffsetOutOfRangeError
from penstock.log import Commit
from penstock.plugins.logs.local import LocalLog, layout, maintenance
from penstock.plugins.logs.local import committer as committer_module
from penstock.record import OutputBatch, TopicPartition

from ..processes import fork, let_everybody_in
from ..waiting import wait_until

OUT = TopicPartition("out", 0)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "log")


@pytest.fixture
def log(directory: str) -> Iterator[LocalLog]:
    log = LocalLog(directory)
    log.create_topic("out", 1)
    yield log
    log.close()


def output(count: int, value: bytes = b"v") -> OutputBatch:
    return OutputBatch("out", [b"%d" % i for i in range(count)], [value] * count, list(range(count)))


def keys(log: LocalLog, partition: TopicPartition = OUT) -> list[bytes | None]:
    start, end = log.start_offsets([partition])[partition], log.end_offsets([partition])[partition]
    return [key for batch in log.fetch(partition, start, end, 1 << 40) for key in batch.keys]


def stored(log: LocalLog) -> list[int]:
    """Return the sizes of all stored batches."""
    with log._storage.read() as (transaction, _), transaction.cursor("batches") as cursor:
        return [len(data) for _, data in cursor]


# -- commits


def test_a_task_stays_current_while_its_commit_is_written(log: LocalLog) -> None:
    """Another thread asks, before it deletes what a snapshot has made needless."""
    with closing(log.open_committer("application", "0_0", [OUT])) as committer:
        with log._storage.write("hold the one writer up"):
            commit = threading.Thread(target=committer.commit, args=(Commit({OUT: 0}, "1"), []))
            commit.start()
            wait_until(lambda: committer._row is None, "a commit that waits")  # type: ignore[attr-defined]
            assert committer.is_current()
        commit.join()
        assert committer.is_current()
    assert not committer.is_current()


# -- several objects


def test_two_objects_of_one_directory_share_it(directory: str, log: LocalLog) -> None:
    """LMDB forbids opening it twice in a process; a path written differently is the same directory."""
    other = LocalLog(os.path.join(os.path.dirname(directory), ".", "log"))
    other.append(output(3))
    assert len(keys(log)) == 3
    other.close()
    other.close()
    with pytest.raises(LogError, match="closed"):
        other.topics()
    log.append(output(1))
    assert len(keys(log)) == 4


def test_a_committer_of_a_closed_log_says_so(directory: str, log: LocalLog) -> None:
    other = LocalLog(directory)
    committer = other.open_committer("app", "0_0", [OUT])
    other.close()
    with pytest.raises(LogError, match="closed"):
        committer.commit(Commit({OUT: 1}, "v1"), [])
    assert log.committed("app", [OUT]) == {OUT: None}


def test_a_topic_made_again_between_packing_and_committing(
    directory: str, log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records were partitioned for the old one: they are for the new one now."""
    done: list[bool] = []
    pack_outputs = committer_module.pack_outputs

    def replace_topic_after_packing(*arguments: Any) -> Any:
        packed = pack_outputs(*arguments)
        if not done:
            done.append(True)
            log.delete_topic("out")
            log.create_topic("out", 5)
        return packed

    monkeypatch.setattr(committer_module, "pack_outputs", replace_topic_after_packing)
    log.create_topic("in", 1)
    position = TopicPartition("in", 0)
    committer = log.open_committer("app", "0_0", [position])
    committer.commit(Commit({position: 1}, "v1"), [output(100)])
    counts = [len(keys(log, TopicPartition("out", each))) for each in range(5)]
    assert sum(counts) == 100 and min(counts) > 0
    assert committer.is_current()


# -- stored batches


def test_large_outputs_are_stored_in_batches_of_bounded_size(log: LocalLog) -> None:
    log.append(output(5000, b"v" * 1000))
    log.append(output(20_000, b""))
    log.append(output(3, b"v" * 900_000))
    with (
        log._storage.read() as (transaction, _),
        transaction.cursor("batches") as all_,
    ):
        sizes = [len(data) for _, data in all_]
    assert len(sizes) >= 10 + 3 + 3
    assert max(sizes) < layout.TARGET_BATCH_BYTES * 2
    assert keys(log) == [b"%d" % i for count in (5000, 20_000, 3) for i in range(count)]


def test_small_batches_are_read_as_few(log: LocalLog) -> None:
    """With and without headers, and the offsets stay a range."""
    for number in range(60):
        batch = output(2)
        batch.headers = [(("n", b"%d" % number),), ()] if number % 3 == 0 else None
        log.append(batch)
    (found,) = log.fetch(OUT, 1, 119, 1 << 20)
    assert found.offsets == range(1, 119)
    assert list(found.keys) == [b"1", b"0"] * 59
    assert found.headers is not None
    assert found.headers[2] == ()
    assert found.headers[3 * 2 - 1] == (("n", b"3"),)


def test_purged_space_is_used_again(log: LocalLog, directory: str) -> None:
    """A repartition topic that is purged behind the commit does not make the file grow."""
    committer = log.open_committer("app", "0_0", [OUT])
    sizes = []
    for number in range(40):
        committer.commit(Commit({OUT: number}, f"v{number}"), [output(200, b"v" * 1000)])
        log.purge(OUT, log.end_offsets([OUT])[OUT])
        sizes.append(os.path.getsize(os.path.join(directory, "data.mdb")))
    assert sizes[-1] == sizes[20]


def test_a_purge_comes_with_the_next_commit_or_with_close(log: LocalLog, directory: str) -> None:
    log.append(output(10))
    log.purge(OUT, 4)
    committer = log.open_committer("app", "0_0", [OUT])
    assert log.start_offsets([OUT]) == {OUT: 4}
    with pytest.raises(OffsetOutOfRangeError, match="from 4 up to, not including, 10"):
        log.fetch(OUT, 3, 10, 1)
    log.purge(OUT, 5)
    log.purge(OUT, 3)
    committer.commit(Commit({OUT: 5}, "v1"), [])
    assert log.start_offsets([OUT]) == {OUT: 5}
    log.purge(OUT, 6)
    log.close()
    again = LocalLog(directory)
    assert again.start_offsets([OUT]) == {OUT: 6}
    assert keys(again) == [b"6", b"7", b"8", b"9"]
    assert len(stored(again)) == 1
    again.purge(OUT, 10)
    again.maintain(0)
    assert not stored(again)
    assert not keys(again)
    again.close()


# -- retention and compaction of much


def test_compaction_of_many_batches(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several transactions and several passes, with a producer beside it; what is current stays readable
    throughout."""
    for module, name, value in (
        (layout, "TARGET_BATCH_BYTES", 2000),
        (maintenance, "TARGET_BATCH_BYTES", 2000),
        (maintenance, "_WRITE_AT_ONCE_BYTES", 5000),
        (maintenance, "_READ_AT_ONCE_BYTES", 3000),
        (maintenance, "_MOST_KEYS", 150),
    ):
        monkeypatch.setattr(module, name, value)
    clock = ManualClock(0)
    log = LocalLog(directory, clock=clock)
    log.create_topic("out", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    chance = random.Random(3)
    newest: dict[bytes, int] = {}
    for _ in range(4):
        for _ in range(10):
            size = chance.randrange(1, 200)
            names = [b"%d" % chance.randrange(400) for _ in range(size)]
            first = log.end_offsets([OUT])[OUT]
            log.append(OutputBatch("out", list(names), [b"v%d" % i for i in range(size)], [0] * size))
            newest.update({name: first + place for place, name in enumerate(names)})
        stop = threading.Event()
        failures: list[object] = []

        def read(stop: threading.Event = stop, failures: list[object] = failures) -> None:
            expected = dict(newest)
            while not stop.is_set():
                found: dict[bytes | None, int] = {}
                for batch in log.fetch(OUT, 0, 1 << 40, 1 << 40):
                    found.update(zip(batch.keys, batch.offsets, strict=True))
                if found != expected:
                    failures.append(found)

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(10):
            log.maintain(clock.now_ms())
        stop.set()
        reader.join()
        assert not failures
        offsets = [offset for batch in log.fetch(OUT, 0, 1 << 40, 1 << 40) for offset in batch.offsets]
        assert offsets == sorted(newest.values())
    assert len(stored(log)) < 40, "small batches were not put together"
    log.close()


def test_compaction_waits_until_enough_is_dirty(directory: str) -> None:
    """`min.cleanable.dirty.ratio`: re-reading a large topic for each record that is added would cost more than it
    gives."""
    log = LocalLog(directory)
    log.create_topic("out", 1, {"cleanup.policy": "compact"})
    log.append(output(100, b"v" * 100))
    log.append(output(100, b"v" * 100))
    log.maintain(0)
    assert len(keys(log)) == 100
    log.append(output(10, b"v" * 100))
    log.maintain(0)
    assert len(keys(log)) == 110
    log.append(output(100, b"v" * 100))
    log.maintain(0)
    assert len(keys(log)) == 100
    log.close()


def test_young_records_are_not_compacted(directory: str) -> None:
    """`min.compaction.lag.ms`."""
    log = LocalLog(directory)
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "min.compaction.lag.ms": "1000"}
    log.create_topic("out", 1, config)
    for at in (0, 100, 5000, 5100):
        log.append(OutputBatch("out", [b"k"], [b"%d" % at], [at]))
    log.maintain(5500)
    assert len(keys(log)) == 3
    log.maintain(10_000)
    assert len(keys(log)) == 1
    log.close()


def test_log_append_time(directory: str) -> None:
    log = LocalLog(directory, clock=ManualClock(77))
    log.create_topic("out", 1, {"message.timestamp.type": "LogAppendTime"})
    log.append(output(3))
    assert list(log.fetch(OUT, 0, 3, 100)[0].timestamps) == [77] * 3
    log.close()


# -- what can go wrong with a directory


def test_a_full_map_loses_nothing_and_can_be_raised(directory: str) -> None:
    log = LocalLog(directory, {"map_size": "1000000"})
    log.create_topic("out", 1)
    committer = log.open_committer("app", "0_0", [OUT])
    count = 0
    with pytest.raises(
        LogError, match=rf"{directory}: cannot commit task 0_0(.|\n)*'map_size' of 1000000 bytes(.|\n)*retention"
    ):
        while True:
            committer.commit(Commit({OUT: count}, f"v{count}"), [output(10, b"v" * 1000)])
            count += 1
    assert count > 10
    assert not committer.is_current(), "after an error the commit must be read again"
    assert log.committed("app", [OUT]) == {OUT: count - 1}
    assert log.end_offsets([OUT]) == {OUT: count * 10}
    log.close()
    larger = LocalLog(directory, {"map_size": "2000000"})
    assert larger.open_committer("app", "0_0", [OUT]).committed == Commit({OUT: count - 1}, f"v{count - 1}")
    larger.append(output(10))
    assert len(keys(larger)) == (count + 1) * 10
    larger.close()


@pytest.mark.parametrize("settings", [{"map_size": "1GB"}, {"map_size": "5"}, {"lock_timeout": "3"}], ids=str)
def test_a_bad_setting_is_named(directory: str, settings: dict[str, str]) -> None:
    with pytest.raises((LogError, ConfigError), match=next(iter(settings))):
        LocalLog(directory, settings)
    assert not os.path.exists(directory)


def test_an_unknown_option_of_the_location_is_named(directory: str) -> None:
    with pytest.raises(LogError, match="mapsize"):
        LocalLog(f"{directory}?mapsize=1")
    assert not os.path.exists(directory)


def test_settings_of_other_logs_are_left_alone(directory: str) -> None:
    LocalLog(directory, {"sasl.password": "abc", "processing.guarantee": "at_least_once", "mapsize": "1"}).close()


def test_settings_may_be_in_the_location(tmp_path: Path) -> None:
    """That is where users write them: `local:DIRECTORY?NAME=VALUE`."""
    for name in ("log", "log?", "what?/log", "a=b", "new\nline"):
        LocalLog(str(tmp_path / name)).close()
        assert (tmp_path / name / "data.mdb").exists()
    log = LocalLog(f"{tmp_path / 'set'}?map_size=1000000&lock_timeout=1s")
    assert log._storage.environment.map_size == 1_000_000
    assert (tmp_path / "set" / "data.mdb").exists()
    log.close()
    with pytest.raises(LogError, match="unknown setting 'mapsize'"):
        LocalLog(f"{tmp_path / 'set'}?mapsize=1")


def test_no_directory_is_said() -> None:
    with pytest.raises(LogError, match="local:DIRECTORY"):
        LocalLog("")


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for location in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(LogError, match=f"{location}(.|\n)*local disk"):
            LocalLog(str(location))


def test_a_directory_that_may_not_be_written() -> None:
    """Neither a new log in it nor one that is there; nothing is changed."""
    with tempfile.TemporaryDirectory() as top:
        let_everybody_in(Path(top))
        ours = os.path.join(top, "log")
        log = LocalLog(ours)
        log.create_topic("out", 1)
        log.close()
        for path in (*(os.path.join(ours, name) for name in os.listdir(ours)), ours):
            os.chmod(path, 0o555 if path == ours else 0o444)
        for directory in (ours, os.path.join(top, "new")):
            os.chmod(top, 0o555)
            assert _error_as_nobody(directory).startswith(f"local log {directory}: cannot open: ")
            assert "make it writable for user" in _error_as_nobody(directory)
        os.chmod(top, 0o755)
        os.chmod(ours, 0o755)


def _error_as_nobody(directory: str) -> str:
    """Open a log as a user who is not root, whom permissions do not bind."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            LocalLog(directory)
        except LogError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as said:
        return said.read()


def test_a_damaged_batch_is_named_and_others_are_read(directory: str, log: LocalLog) -> None:
    log.create_topic("good", 1)
    log.append(OutputBatch("good", [b"k"], [b"fine"], [0]))
    log.append(output(10, b"intact" * 20))
    log.append(output(10, b"damage" * 20))
    log.close()
    data = Path(directory, "data.mdb")
    content = data.read_bytes()
    assert content.count(b"damagedamage") >= 10
    data.write_bytes(content.replace(b"damagedamage", b"damagedamagE"))
    again = LocalLog(directory)
    assert len(again.fetch(OUT, 0, 10, 1 << 20)[0]) == 10
    with pytest.raises(LogError, match=rf"{directory}: topic 'out' partition 0 is damaged(.|\n)*offset 10"):
        again.fetch(OUT, 10, 20, 1 << 20)
    with pytest.raises(LogError, match="damaged"):
        again.fetch(OUT, 0, 20, 1 << 20)
    assert keys(again, TopicPartition("good", 0)) == [b"k"]
    again.purge(OUT, 20)
    again.append(output(1))
    assert keys(again) == [b"0"]
    again.close()


def test_a_file_cut_short_is_refused(directory: str, log: LocalLog) -> None:
    """Reading past the end of a mapped file would kill the process (SIGBUS)."""
    log.append(output(1000, b"v" * 1000))
    log.close()
    data = Path(directory, "data.mdb")
    os.truncate(data, data.stat().st_size // 2)
    with pytest.raises(LogError, match=f"{directory}(.|\n)*damaged(.|\n)*copy"):
        LocalLog(directory)


@pytest.mark.parametrize("lost", [1, 1000, 3 * 4096 + 2048])
def test_a_part_of_a_page_cut_off_is_refused(directory: str, log: LocalLog, lost: int) -> None:
    """LMDB would read the page without some of its rows: a task without its last commit."""
    log.append(output(10, b"v" * 5000))
    log.close()
    data = Path(directory, "data.mdb")
    os.truncate(data, data.stat().st_size - lost)
    with pytest.raises(LogError, match=f"{directory}(.|\n)*damaged(.|\n)*copy"):
        LocalLog(directory)


def test_something_else_in_the_file_is_refused(directory: str) -> None:
    os.makedirs(directory)
    Path(directory, "data.mdb").write_bytes(random.Random(1).randbytes(100_000))
    with pytest.raises(LogError, match=f"{directory}(.|\n)*damaged(.|\n)*copy"):
        LocalLog(directory)


def test_a_newer_format_is_refused(directory: str, log: LocalLog) -> None:
    with log._storage.write("test") as (transaction, _):
        transaction.put("system", b"format", b"2")
    log.close()
    with pytest.raises(LogError, match="format"):
        LocalLog(directory)


def test_a_few_pages_cut_off_are_an_error_when_they_are_read(directory: str, log: LocalLog) -> None:
    """They are too few to tell from pages that were never written; the process lives, and says where."""
    log.append(output(10, b"v" * 5000))
    log.append(output(10, b"v" * 5000))
    log.close()
    data = Path(directory, "data.mdb")
    os.truncate(data, data.stat().st_size - 6 * 4096)
    with pytest.raises(LogError, match="damaged"), closing(LocalLog(directory)) as again:
        again.fetch(OUT, 0, 20, 1 << 20)
