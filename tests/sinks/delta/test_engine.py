"""Delta tables on the embedded engine: each record once, whatever fails; what a start finds in the table."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from penstock import (
    Application,
    DeadLetter,
    FencedError,
    Running,
    SinkError,
    SinkMovedError,
    SinkPlace,
    SinkPosition,
    SinkRecord,
    SinkUnavailableError,
    run,
)
from penstock.contrib.delta import set_position
from penstock.contrib.delta.position import append
from penstock.dsl import StreamsBuilder
from penstock.plugins.engine.program.reset import plan_reset, reset, to_earliest
from tests.processes import opened_workers
from tests.reshard.runs import new_log, produce, resharded, settings
from tests.reshard.runs import run as run_to_end
from tests.small_disk import small_disk
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import Times, Wrapped, direct, expected, rows, through_outbox
from .programs import CHANGES, PROGRAMS, counted, rows_in, sink


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 3})
        yield made


def application(surroundings: Surroundings, topology: Any, **given: Any) -> Application:
    return surroundings.application("app", topology, **{"engine": "embedded", "commit_interval": "50ms", **given})


def _has(table: Path, count: int, running: Running) -> bool:
    return counted(table).total() >= count or running.state == "failed"


# ---------------------------------------------------------------------------------------- each record once


@pytest.mark.parametrize("trigger", ["available_now", "continuous", "0s"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_record_is_written_once(surroundings: Surroundings, table: Path, trigger: str, program: str) -> None:
    # The target fails before some writes, and after others, when nobody can say whether it has written.
    flaky = Wrapped(sink(table), Times(1, 4, 5), Times(2, 3, 6))
    given = application(surroundings, PROGRAMS[program](flaky), commit_bytes=2_000)
    for start in (0, 60):
        surroundings.put("in", rows(range(start, start + 60)))
        with given.start(trigger) as running:
            wait_until(partial(_has, table, start + 60, running), "all is written")
        running.wait()
        assert counted(table) == expected(range(start + 60), CHANGES[program])


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_tasks_in_processes_of_their_own(surroundings: Surroundings, table: Path, trigger: str) -> None:
    surroundings.put("in", rows(range(100)))
    made = through_outbox(sink(table, partition_by="name"))
    with application(surroundings, made, processes=2).start(trigger) as running:
        wait_until(partial(_has, table, 100, running), "all is written")
    running.wait()
    assert counted(table) == expected(range(100))


def test_eight_tasks_write_at_a_time(surroundings: Surroundings, table: Path) -> None:
    """Each commit follows on another task's one; none waits for ever."""
    surroundings.create(wide=8)
    builder = StreamsBuilder()
    builder.stream("wide").to_sink(sink(table), "target")
    given = application(surroundings, builder, processes=2, commit_interval="20ms")
    with given.start("continuous") as running:
        for start in range(0, 400, 40):
            surroundings.put("wide", rows(range(start, start + 40)))
            wait_until(partial(_has, table, start + 40, running), "all is written")
    running.wait()
    assert counted(table) == expected(range(400), str)


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
def test_refused_records_are_dead_letters_once(surroundings: Surroundings, table: Path, trigger: str) -> None:
    surroundings.create(dead=1)
    bad = {3, 4, 17, 18, 40, 59}
    refusing = sink(table, row=lambda record: {"value": record.value} if int(record.value[1:]) not in bad else 5)
    surroundings.put("in", rows(range(60)))
    given = application(
        surroundings, direct(Wrapped(refusing, Times(1, 3), Times(2))), production_handler=DeadLetter("dead")
    )
    with given.start(trigger) as running:
        wait_until(
            lambda: running.state == "failed" or (counted(table).total(), len(surroundings.read("dead")[0])) >= (54, 6)
        )
    running.wait()
    assert counted(table) == expected(set(range(60)) - bad, str)
    assert sorted(str(value) for _, value, _ in surroundings.read("dead")[0]) == sorted(f"v{each}" for each in bad)


def test_tasks_that_make_the_table_at_a_time_make_one(tmp_path: Path) -> None:
    for number in range(20):
        table = tmp_path / str(number)
        made = sink(table)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda partition: made.open(SinkPlace("app", "target", "in", partition)), range(4)))  # noqa: B023
        assert DeltaTable(table).version() == 0


# ---------------------------------------------------------------------------------------- zombies


def test_a_zombie_writes_nothing_twice(surroundings: Surroundings, table: Path) -> None:
    given = application(surroundings, direct(sink(table)))
    surroundings.put("in", rows(range(6)), partition=0)
    log = surroundings.log
    with opened_workers(given, log) as (zombie, *_), opened_workers(given, log) as (successor, *_):
        zombie.run_batch(log.end_offsets(zombie.partitions), 0)
        surroundings.put("in", rows(range(6, 9)), partition=0)
        ends = log.end_offsets(zombie.partitions)
        successor.run_batch({}, 0)  # it takes the fence, and reads the position
        # The zombie did not ask whether it is current: it was frozen in front of its write.
        with pytest.raises(FencedError):
            zombie.try_batch(ends, 0, is_current=True)
        assert counted(table) == expected(range(9), str)  # the same records as the successor's
        with pytest.raises(FencedError, match="another process has run the task meanwhile"):
            successor.try_batch(ends, 0, is_current=True)
        successor.run_batch(ends, 0)
    assert counted(table) == expected(range(9), str)


def test_a_zombie_that_has_read_its_position(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was frozen between that and its commit: the table refuses the commit."""
    place = SinkPlace("app", "target", "in", 0)
    zombie, successor = sink(table).open(place), sink(table).open(place)
    records = [SinkRecord("k0", "v0", 0, (), 0), SinkRecord("k1", "v1", 1, (), 1)]
    begin, one, two = SinkPosition("id", 1), SinkPosition("id", 2), SinkPosition("id", 3)
    zombie.write([records[0]], None, begin)
    successor = sink(table).open(place)

    def freeze(*given: Any) -> None:
        monkeypatch.undo()
        successor.write([records[1]], begin, one)
        append(*given)

    monkeypatch.setattr("penstock.contrib.delta.writer.append", freeze)
    with pytest.raises(SinkMovedError, match="its position is not .* any more"):
        zombie.write([records[1]], begin, two)
    assert counted(table) == {("k0", "v0"): 1, ("k1", "v1"): 1}
    assert sink(table).open(place).position == one


def test_a_zombie_of_an_earlier_topic_at_the_same_offset(table: Path) -> None:
    place, record = SinkPlace("app", "target", "in", 0), SinkRecord("k", "v", 0, (), 0)
    zombie = sink(table).open(place)
    zombie.write([record], None, SinkPosition("first", 1))
    set_position(str(table), place, SinkPosition("second", 1))
    with pytest.raises(SinkMovedError):
        zombie.write([record], SinkPosition("first", 1), SinkPosition("first", 2))
    assert counted(table) == {("k", "v"): 1}


# ---------------------------------------------------------------------------------------- a table that is away


def test_a_table_that_goes_away_is_waited_for(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "mounted" / "table"
    table.parent.mkdir()
    given = application(surroundings, direct(sink(table)))
    surroundings.put("in", rows(range(20)))
    run(given)
    builder = direct(sink(table))
    with application(surroundings, builder).start("continuous") as running:
        table.parent.rename(tmp_path / "elsewhere")
        surroundings.put("in", rows(range(20, 40)))
        wait_until(lambda: "attempt" in caplog.text or running.state == "failed", "it waits")
        assert not table.parent.exists()  # it makes no directory under the name of a file system that is not mounted
        (tmp_path / "elsewhere").rename(table.parent)
        wait_until(partial(_has, table, 40, running), "all is written")
    running.wait()
    assert counted(table) == expected(range(40), str)


def test_a_commit_to_another_directory_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system was unmounted between the update and the commit, and mounted again."""
    table, place = tmp_path / "table", SinkPlace("app", "target", "in", 0)
    record, begin, end = SinkRecord("k", "v", 0, (), 0), SinkPosition("id", 1), SinkPosition("id", 2)
    writer = sink(table).open(place)
    writer.write([record], None, begin)

    def unmount(*given: Any) -> None:
        table.rename(tmp_path / "disk")
        shutil.copytree(tmp_path / "disk", table)
        append(*given)

    monkeypatch.setattr("penstock.contrib.delta.writer.append", unmount)
    with pytest.raises(SinkUnavailableError, match="the directory was moved or unmounted during a commit"):
        writer.write([record], begin, end)
    monkeypatch.undo()
    shutil.rmtree(table)
    (tmp_path / "disk").rename(table)
    again = sink(table).open(place)
    again.write([record], begin, end)
    assert counted(table) == {("k", "v"): 2}


def test_a_full_disk_delays_its_own_task_only(
    surroundings: Surroundings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "small", 512) as disk:
        table = disk / "table"
        builder = StreamsBuilder()
        stream = builder.stream("in")
        stream.to_sink(sink(table), "target")
        stream.map_values(str.upper).to("out")
        surroundings.create(out=1)
        given = application(surroundings, builder)
        surroundings.put("in", rows(range(20)))
        run(given)
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
        surroundings.put("in", rows(range(20, 60)))
        with caplog.at_level(logging.WARNING), given.start("continuous") as running:
            wait_until(lambda: sum(map(len, surroundings.read("out").values())) == 60, "the other sink has all")
            wait_until(lambda: "No space left on device" in caplog.text or running.state == "failed", "it is refused")
            assert running.state != "failed" and counted(table).total() == 20
            (disk / "ballast").unlink()
            wait_until(partial(_has, table, 60, running), "all is written")
        running.wait()
        assert counted(table) == expected(range(60), str)


def test_a_directory_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 512) as disk:
        place = SinkPlace("app", "target", "in", 0)
        sink(disk / "table").open(place)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for table in ("table", "new"):
            with pytest.raises(SinkError, match="(?i)permission denied|read-only") as raised:
                sink(disk / table).open(place)
            assert not isinstance(raised.value, SinkUnavailableError)


# ---------------------------------------------------------------------------------------- what a start finds


def test_a_reset_application_skips_what_is_in_the_table(surroundings: Surroundings, table: Path) -> None:
    given = application(surroundings, direct(sink(table)))
    surroundings.put("in", rows(range(20)))
    run(given)
    _reset(surroundings, given)
    surroundings.put("in", rows(range(20, 25)))
    run(given)
    assert counted(table) == expected(range(25), str)


def test_a_reset_outbox_is_refused_until_its_positions_are_deleted(surroundings: Surroundings, table: Path) -> None:
    given = application(surroundings, through_outbox(sink(table)))
    surroundings.put("in", rows(range(20)))
    run(given)
    _reset(surroundings, given)
    with pytest.raises(SinkError, match=r"external sink 'target'.*the topic was deleted and made again"):
        run(given)
    DeltaTable(table).delete()
    for partition in range(3):
        place = SinkPlace("app", "target", "app-target-repartition", partition)
        before = set_position(str(table), place, None)
        assert before is not None and before.topic_id
        assert set_position(str(table), place, None) is None
    run(given)
    assert counted(table) == expected(range(20))


def _reset(surroundings: Surroundings, given: Application) -> None:
    log = surroundings.log
    reset(given, log, plan_reset(given, log, to_earliest), lambda: None)


def test_a_topic_that_was_made_again_is_refused(surroundings: Surroundings, table: Path) -> None:
    surroundings.put("in", rows(range(6)), partition=0)
    run(application(surroundings, direct(sink(table))))
    surroundings.log.delete_topic("in")
    surroundings.create(**{"in": 3})
    surroundings.put("in", rows(range(6, 9)), partition=0)
    again = application(surroundings, direct(sink(table)), offset_out_of_range="earliest")
    with pytest.raises(SinkError, match="external sink 'target'.*the topic was deleted and made again"):
        run(again)
    set_position(str(table), SinkPlace("app", "target", "in", 0), None)  # as the message says
    run(again)
    assert counted(table) == expected(range(9), str)


def test_a_table_behind_or_ahead_of_the_application_is_refused(surroundings: Surroundings, table: Path) -> None:
    given = application(surroundings, direct(sink(table)))
    surroundings.put("in", rows(range(6)), partition=0)
    run(given)
    shutil.copytree(table, table.with_name("backup"))
    surroundings.put("in", rows(range(6, 9)), partition=0)
    run(given)
    table.rename(table.with_name("later"))
    table.with_name("backup").rename(table)
    with pytest.raises(SinkError, match="its position in topic 'in', partition 0, is 6, and a commit has passed 9"):
        run(given)
    place = SinkPlace("app", "target", "in", 0)
    position = set_position(str(table), place, None)
    assert position is not None and position.next_offset == 6
    set_position(str(table), place, SinkPosition(position.topic_id, 12))
    with pytest.raises(SinkError, match="its position is 12|its position in in-0 is 12, and the log ends at 9"):
        run(given)
    set_position(str(table), place, SinkPosition(position.topic_id, 9))
    surroundings.put("in", rows(range(9, 12)), partition=0)
    run(given)
    assert counted(table) == expected([*range(6), *range(9, 12)], str)


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_resharded_application_writes_each_record_once(tmp_path: Path, table: Path, is_direct: bool) -> None:
    log = new_log({"in": 2, "new": 5})

    def made(topic: str) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream(topic)
        (stream if is_direct else stream.map_values(str.upper)).to_sink(sink(table), "target", value_serde=None)
        return Application("shop", builder, **settings(tmp_path, "topic:"))

    for number, topic in enumerate(("in", "new")):
        if topic == "new":
            resharded(made("new"), log, 5, sources={"in": "new"})
        produce(log, topic, [(f"k{each % 5}", f"V{each}", each) for each in range(number * 30, number * 30 + 30)])
        run_to_end(made(topic), log)
    assert counted(table) == expected(range(60))


# ---------------------------------------------------------------------------------------- other programs on the table


@pytest.mark.parametrize("work", ["compact", "z_order", "delete", "vacuum", "restore", "clean up", "more columns"])
def test_other_programs_change_the_table_beside_it(table: Path, work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two writes, and just before a commit."""
    place = SinkPlace("app", "target", "in", 0)
    writer = sink(table).open(place)
    position: SinkPosition | None = None
    count = 0

    def write() -> None:
        nonlocal position, count
        ends = SinkPosition("id", count + 1)
        writer.write([SinkRecord("k", f"v{count}", 0, (), count)], position, ends)
        position, count = ends, count + 1

    for _ in range(3):
        write()
    _change(table, work)
    write()
    real = DeltaTable.update_incremental

    def update_and_change(handle: DeltaTable) -> None:
        monkeypatch.undo()
        real(handle)
        _change(table, work)

    monkeypatch.setattr(DeltaTable, "update_incremental", update_and_change)
    write()
    for _ in range(2):
        write()
    assert sink(table).open(place).position == SinkPosition("id", 7)
    left = {"delete": (4, 5, 6), "restore": (0, 1, 4, 5, 6)}.get(work, range(7))
    assert sorted(row["value"] for row in rows_in(table)) == [f"v{number}" for number in left]


def _change(table: Path, work: str) -> None:
    handle = DeltaTable(table)
    if work == "compact":
        handle.optimize.compact()
    elif work == "z_order":
        handle.optimize.z_order(["name"])
    elif work == "delete":
        handle.delete()
    elif work == "vacuum":
        handle.optimize.compact()
        DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    elif work == "restore":
        handle.restore(handle.version() - 1)
    elif work == "clean up":
        handle.create_checkpoint()
        for file in sorted((table / "_delta_log").glob("*.json"))[:-1]:
            file.unlink()
    else:
        handle.alter.add_columns([Field(f"c{handle.version()}", PrimitiveType("string"))])


@pytest.mark.parametrize("is_local", [True, False])
def test_a_table_that_was_replaced_or_deleted_is_an_error_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    if not is_local:  # as in an object store, where no directory says that it is another one
        monkeypatch.setattr("penstock.contrib.delta.table.local_path", lambda uri: None)
    place = SinkPlace("app", "target", "in", 0)
    records = [SinkRecord("k", "v", 0, (), 0)]
    away = "is not there any more: bring it back" if is_local else "was deleted while the application ran"
    replaced = "was replaced by another one while the application ran"
    changes: list[tuple[Callable[[Path], object], str]] = [
        (_replaced, replaced), (_made_again, replaced), (_made_again_longer, replaced), (shutil.rmtree, away),
    ]  # fmt: skip
    for number, (change, said) in enumerate(changes):
        table, other = tmp_path / str(number), tmp_path / f"idle{number}"
        writer, idle = sink(table).open(place), sink(other).open(place)
        writer.write(records, None, SinkPosition("id", 1))
        change(table)
        change(other)
        with pytest.raises(SinkError, match=said) as raised:
            idle.write(records, None, SinkPosition("id", 1))
        assert isinstance(raised.value, SinkUnavailableError) == (is_local and said == away)
        if change is _made_again_longer and not is_local:
            said = "its position is not .* any more"  # the opening finds none then, and the engine refuses that
            assert sink(table).open(place).position is None
        with pytest.raises(SinkError, match=said):
            writer.write(records, SinkPosition("id", 1), SinkPosition("id", 2))
        assert rows_in(table) == []
        assert rows_in(other) == []
    assert not is_local or not (tmp_path / "3").exists()


def _replaced(table: Path) -> None:
    DeltaTable.create(table, DeltaTable(table).schema(), mode="overwrite")


def _made_again(table: Path) -> None:
    schema = DeltaTable(table).schema()
    shutil.rmtree(table)
    DeltaTable.create(table, schema)


def _made_again_longer(table: Path) -> None:
    _made_again(table)
    for number in range(4):
        set_position(str(table), SinkPlace("other", "target", "in", 0), SinkPosition("id", number))
