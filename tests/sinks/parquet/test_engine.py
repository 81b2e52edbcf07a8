"""Parquet files on the embedded engine: each record once, whatever fails; what a start finds in the location."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, DeadLetter, FencedError, SinkError, run
from penstock.contrib.parquet import read_files, read_manifests
from penstock.dsl import StreamsBuilder
from penstock.plugins.engine.program.reset import plan_reset, reset, to_earliest
from penstock.plugins.testing.profiling import profile
from tests.processes import opened_workers
from tests.small_disk import small_disk
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import Times, rows
from .programs import CHANGES, COLUMNS, PROGRAMS, Flaky, direct, expected, sink, through_outbox
from .reading import content, counted, rows_in


@pytest.fixture
def location(tmp_path: Path) -> Path:
    made = tmp_path / "location"
    made.mkdir()
    return made


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 3})
        yield made


def application(surroundings: Surroundings, topology: Any, **settings: Any) -> Application:
    return surroundings.application("app", topology, **{"engine": "embedded", "commit_interval": "10ms", **settings})


# ---------------------------------------------------------------------------------------- each record once


@pytest.mark.parametrize("changelog", ["directory:changelog", "topic:"])
@pytest.mark.parametrize("trigger", ["available_now", "continuous", "0s"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_record_is_written_once(
    surroundings: Surroundings, location: Path, trigger: str, program: str, changelog: str
) -> None:
    # Writes fail before some files, and after others, when nobody can say whether they are there.
    flaky = Flaky(sink(location, max_rows=7), Times(1, 4, 5), Times(2, 3, 6))
    given = application(surroundings, PROGRAMS[program](flaky), changelog=changelog)
    for start in (0, 60):
        surroundings.put("in", rows(range(start, start + 60)))
        with given.start(trigger) as running:
            wait_until(lambda: counted(location).total() >= start + 60 or running.state == "failed", "all is written")  # noqa: B023
        running.wait()
        assert counted(location) == expected(range(start + 60), CHANGES[program])
    assert flaky.before.calls > 8
    for key in range(5):
        numbers = [int(row["value"][1:]) for row in rows_in(location) if row["name"] == f"k{key}"]
        assert numbers == sorted(numbers)


def test_rows_wait_in_the_state_for_an_old_enough_file(surroundings: Surroundings, location: Path) -> None:
    given = application(surroundings, through_outbox(sink(location, max_age="1h")))
    surroundings.put("in", rows(range(60)))
    run(given)
    shutil.rmtree(surroundings.directory / "state", ignore_errors=True)  # another host has it from the changelog
    surroundings.put("in", rows(range(60, 80)))
    run(given)
    assert read_files(str(location)) == []
    # An age of nothing writes what waits: so a sink is drained.
    run(application(surroundings, through_outbox(sink(location))))
    assert counted(location) == expected(range(80))
    before = content(location)
    run(application(surroundings, through_outbox(sink(location))))
    assert content(location) == before


def test_a_file_becomes_old_without_a_record(surroundings: Surroundings, location: Path) -> None:
    for trigger in ("0s", "continuous"):
        done = counted(location).total()
        surroundings.put("in", rows(range(done, done + 20)))
        with application(surroundings, direct(sink(location, max_age="300ms"))).start(trigger) as running:
            wait_until(lambda: counted(location).total() == done + 20 or running.state == "failed", "all is written")  # noqa: B023
        running.wait()
    assert counted(location) == expected(range(40), str)


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_tasks_in_processes_of_their_own(surroundings: Surroundings, location: Path, trigger: str) -> None:
    surroundings.put("in", rows(range(100)))
    with application(surroundings, through_outbox(sink(location)), processes=2).start(trigger) as running:
        wait_until(lambda: counted(location).total() >= 100 or running.state == "failed", "all is written")
    running.wait()
    assert counted(location) == expected(range(100))


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
def test_refused_records_are_dead_letters_once(surroundings: Surroundings, location: Path, trigger: str) -> None:
    surroundings.create(dead=1)
    records = [(key, value, number) for key, value, number in rows(range(60))]
    bad = {3, 4, 17, 18, 40, 59}
    flaky = Flaky(
        sink(location, row=lambda record: {"value": record.value} if int(record.value[1:]) not in bad else 5),
        Times(1, 3), Times(2),
    )  # fmt: skip
    surroundings.put("in", records)
    given = application(surroundings, direct(flaky), production_handler=DeadLetter("dead"))
    with given.start(trigger) as running:
        wait_until(
            lambda: (
                running.state == "failed" or (counted(location).total(), len(surroundings.read("dead")[0])) >= (54, 6)
            )
        )
    running.wait()
    assert counted(location) == expected(set(range(60)) - bad, str)
    assert sorted(str(value) for _, value, _ in surroundings.read("dead")[0]) == sorted(f"v{each}" for each in bad)


# ---------------------------------------------------------------------------------------- zombies, places that refuse


def test_a_zombie_writes_the_same_again(surroundings: Surroundings, location: Path) -> None:
    given = application(surroundings, direct(sink(location)))
    surroundings.put("in", rows(range(6)), partition=0)
    log = surroundings.log
    with opened_workers(given, log) as (zombie, *_), opened_workers(given, log) as (successor, *_):
        zombie.run_batch(log.end_offsets(zombie.partitions), 0)
        first = content(location)
        surroundings.put("in", rows(range(6, 9)), partition=0)
        ends = log.end_offsets(zombie.partitions)
        successor.run_batch({}, 0)  # it takes the fence
        # The zombie did not ask whether it is current: it was frozen before.
        with pytest.raises(FencedError):
            zombie.try_batch(ends, 0, is_current=True)
        assert content(location) == first  # what it decided counts for nothing
        surroundings.put("in", rows(range(9, 12)), partition=0)
        successor.run_batch(log.end_offsets(zombie.partitions), 0)
    assert counted(location) == expected(range(12), str)
    assert [each.rows for each in read_manifests(str(location))] == [6, 6]


def test_a_zombie_in_front_of_its_write(surroundings: Surroundings, location: Path) -> None:
    # The first process is frozen when a commit has decided a file, and the second one goes on.
    def freeze(records: Any) -> None:
        raise KeyboardInterrupt

    frozen = Flaky(sink(location))
    frozen.before = freeze  # type: ignore[assignment]
    surroundings.put("in", rows(range(6)), partition=0)
    log = surroundings.log
    with opened_workers(application(surroundings, direct(frozen)), log) as (zombie, *_):
        with pytest.raises(KeyboardInterrupt):
            zombie.run_batch(log.end_offsets(zombie.partitions), 0)
        assert content(location) == {}
        with opened_workers(application(surroundings, direct(sink(location))), log) as (successor, *_):
            surroundings.put("in", rows(range(6, 9)), partition=0)
            successor.run_batch(log.end_offsets(successor.partitions), 0)
    assert counted(location) == expected(range(9), str)
    assert [each.rows for each in read_manifests(str(location))] == [6, 3]


@pytest.mark.parametrize("trigger", ["continuous", "0s"])
def test_a_full_disk_delays_its_own_task_only(
    surroundings: Surroundings, tmp_path: Path, trigger: str, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "small", 256) as disk:
        builder = StreamsBuilder()
        stream = builder.stream("in")
        stream.to_sink(sink(disk, max_rows=20), "files")
        stream.map_values(str.upper).to("out")
        surroundings.create(out=1)
        given = application(surroundings, builder)
        surroundings.put("in", rows(range(20)))
        run(given)
        done = counted(disk).total()
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
        surroundings.put("in", rows(range(20, 60)))
        with given.start(trigger) as running:
            wait_until(lambda: sum(map(len, surroundings.read("out").values())) == 60, "the other sink has all")
            wait_until(lambda: "No space left on device" in caplog.text or running.state == "failed", "it is refused")
            assert running.state != "failed" and counted(disk).total() == done == 20
            (disk / "ballast").unlink()
            wait_until(lambda: counted(disk).total() >= 60 or running.state == "failed", "all is written")
        running.wait()
        assert counted(disk) == expected(range(60), str)
        assert [each.name for each in (disk / "_temporary").rglob("*") if each.is_file()] == []


def test_a_location_that_goes_away_is_waited_for(
    surroundings: Surroundings, location: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = application(surroundings, direct(sink(location)))
    surroundings.put("in", rows(range(20)))
    run(given)
    with given.start("continuous") as running:
        location.rename(location.with_name("elsewhere"))
        surroundings.put("in", rows(range(20, 40)))
        wait_until(lambda: "attempt" in caplog.text or running.state == "failed", "it waits")
        assert not location.exists()  # it makes no directory under the name of a file system that is not mounted
        location.with_name("elsewhere").rename(location)
        wait_until(lambda: counted(location).total() >= 40 or running.state == "failed", "all is written")
    running.wait()
    assert counted(location) == expected(range(40), str)


# ---------------------------------------------------------------------------------------- what a start finds


def test_a_reset_application_skips_what_is_in_files(surroundings: Surroundings, location: Path) -> None:
    given = application(surroundings, direct(sink(location, max_rows=7, max_age="1h")))
    surroundings.put("in", rows(range(60)))
    run(given)
    written = counted(location).total()
    assert 0 < written < 60
    _reset(surroundings, given)
    again = application(surroundings, direct(sink(location)))
    run(again)
    assert counted(location) == expected(range(60), str)


def test_a_reset_outbox_is_refused_until_its_files_are_deleted(surroundings: Surroundings, location: Path) -> None:
    given = application(surroundings, through_outbox(sink(location)))
    surroundings.put("in", rows(range(20)))
    run(given)
    _reset(surroundings, given)
    with pytest.raises(SinkError, match="external sink 'files'.*the topic was deleted and made again"):
        run(given)
    for each in [*location.glob("part~app~files~*"), *location.glob("_manifest/app~files~*")]:
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    run(given)
    assert counted(location) == expected(range(20))


def _reset(surroundings: Surroundings, given: Application) -> None:
    log = surroundings.log
    reset(given, log, plan_reset(given, log, to_earliest), lambda: None)


def test_a_topic_that_was_made_again_is_refused(surroundings: Surroundings, location: Path) -> None:
    surroundings.put("in", rows(range(6)), partition=0)
    run(application(surroundings, direct(sink(location))))
    surroundings.log.delete_topic("in")
    surroundings.create(**{"in": 3})
    surroundings.put("in", rows(range(6, 9)), partition=0)
    with pytest.raises(SinkError, match="external sink 'files'.*the topic was deleted and made again.*another name"):
        run(application(surroundings, direct(sink(location)), offset_out_of_range="earliest"))


def test_a_location_behind_or_ahead_of_the_application_is_refused(surroundings: Surroundings, location: Path) -> None:
    given = application(surroundings, direct(sink(location)))
    surroundings.put("in", rows(range(6)), partition=0)
    run(given)
    earlier = location.with_name("earlier")
    shutil.copytree(surroundings.directory, earlier / "data")
    shutil.copytree(location, earlier / "location")
    surroundings.put("in", rows(range(6, 9)), partition=0)
    run(given)
    later = content(location)
    shutil.copytree(location, earlier / "later")
    shutil.rmtree(location)
    shutil.copytree(earlier / "location", location)
    surroundings.put("in", rows(range(9, 12)), partition=0)
    with pytest.raises(SinkError, match=r"it lacks _manifest/app~files~00000/000000001\.json, which an earlier commit"):
        run(given)
    shutil.rmtree(location)
    shutil.copytree(earlier / "later", location)
    assert content(location) == later
    with Surroundings(earlier / "data") as restored:
        restored.put("in", rows(range(6, 7)), partition=0)
        with pytest.raises(SinkError, match=r"it has _manifest/app~files~00000/000000001\.json, and the application's"):
            run(application(restored, direct(sink(location))))
    run(given)
    assert counted(location) == expected(range(12), str)


# ---------------------------------------------------------------------------------------- other programs


def test_added_columns_begin_a_file_and_other_changes_are_refused(surroundings: Surroundings, location: Path) -> None:
    def start(**options: Any) -> None:
        run(application(surroundings, direct(sink(location, **options))))

    surroundings.put("in", rows(range(6)), partition=0)
    start(max_age="1h")
    added = {**COLUMNS, "more": "int64"}
    row = {"row": lambda record: {"value": record.value}}
    surroundings.put("in", rows(range(6, 9)), partition=0)
    start(max_age="1h", columns=added, **row)
    assert [each.columns for each in read_manifests(str(location))] == [COLUMNS]
    for columns, said in (
        (COLUMNS, "column 'more' was int64, and is not there: only columns that may be null can be added"),
        ({**added, "more": "string"}, "column 'more' was int64, and is string"),
        ({**added, "name": "string not null"}, "column 'name' was string, and is string not null"),
        ({**added, "last": "string not null"}, "column 'last' .string not null. is new, and earlier files"),
    ):
        with pytest.raises(SinkError, match=said):
            start(columns=columns, **row)
    with pytest.raises(SinkError, match="partition_by was empty, and is {'day': '%Y'}: give the sink another name"):
        start(columns=added, partition_by={"day": "%Y"}, **row)
    start(columns={"more": "int64", **COLUMNS}, **row)
    assert [each.rows for each in read_manifests(str(location))] == [6, 3]
    assert sorted(row["value"] for row in rows_in(location)) == sorted(f"v{number}" for number in range(9))


def test_a_profile_writes_nothing(location: Path) -> None:
    found = profile(through_outbox(sink(location)), {"in": [(f"k{number}", "v") for number in range(50)]}, once=True)
    assert found.error is None
    assert content(location) == {}
