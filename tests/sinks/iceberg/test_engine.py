"""The sink in applications: drivers, task hosts, take-overs, topics made again, other numbers of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, FencedError, SinkError, run
from penstock.dsl import StreamsBuilder
from penstock.plugins.state.transfer.reshard.plan import with_topics
from penstock.testing import TopologyTestDriver
from tests.processes import opened_workers
from tests.reshard.runs import new_log, produce, resharded, settings
from tests.reshard.runs import run as run_on
from tests.spark.surroundings import Surroundings
from tests.waiting import wait_until

from ..programs import direct, expected, rows, through_outbox
from .tables import counted, open_catalog, options, sink


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 3})
        yield made


def application(surroundings: Surroundings, topology: Any, **given: Any) -> Application:
    return surroundings.application("app", topology, **{"engine": "embedded", "commit_interval": "50ms", **given})


def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def by_all(numbers: range) -> Counter[tuple[str, str]]:
    """Return what both programs write."""
    return expected(numbers, str)


def test_the_test_driver_writes(tmp_path: Path) -> None:
    builder = StreamsBuilder()
    given: dict[str, Any] = {"table": "shop.orders", "catalog": "tests", "key": "name"}
    given["columns"] = {"name": "string", "n": "int64"}
    open_catalog(lake(tmp_path)).close()

    counts = builder.stream("in").group_by_key().count().to_stream()
    counts.to_sink("contrib.iceberg", "target", catalog_options=options(lake(tmp_path)), **given)
    with TopologyTestDriver(builder) as driver:
        driver.pipe_all("in", [("a", ""), ("b", ""), ("a", "")])
    assert counted(lake(tmp_path)) == {("a", 1): 1, ("b", 1): 1, ("a", 2): 1}


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
@pytest.mark.parametrize("processes", [0, 2])
def test_each_record_is_written_once(tmp_path: Path, surroundings: Surroundings, trigger: str, processes: int) -> None:
    given = application(surroundings, through_outbox(sink(lake(tmp_path))), **({"processes": 2} if processes else {}))
    for total in (40, 80):
        surroundings.put("in", rows(range(total - 40, total)))
        if trigger == "available_now":
            run(given)
        else:
            with given.start(trigger) as running:
                wait_until(lambda: running.state == "failed" or counted(lake(tmp_path)).total() >= total, "all", 60)  # noqa: B023
            running.wait()
        assert counted(lake(tmp_path)) == expected(range(total))


def test_a_zombie_writes_nothing_twice(tmp_path: Path, surroundings: Surroundings) -> None:
    given = application(surroundings, direct(sink(lake(tmp_path))))
    surroundings.put("in", rows(range(6)), partition=0)
    log = surroundings.log
    with opened_workers(given, log) as (zombie, *_), opened_workers(given, log) as (successor, *_):
        ends = log.end_offsets(zombie.partitions)
        zombie.run_batch(ends, 0)
        surroundings.put("in", rows(range(6, 9)), partition=0)
        ends = log.end_offsets(zombie.partitions)
        successor.run_batch({}, 0)  # it takes the fence, and reads the position
        # The zombie did not ask whether it is current: it was frozen in front of its write.
        with pytest.raises(FencedError):
            zombie.try_batch(ends, 0, is_current=True)
        with pytest.raises(FencedError, match="another process has run the task meanwhile"):
            successor.try_batch(ends, 0, is_current=True)
        successor.run_batch(ends, 0)
    assert counted(lake(tmp_path)) == by_all(range(9))


def test_a_table_that_is_behind_the_commits_is_refused(tmp_path: Path, surroundings: Surroundings) -> None:
    given = application(surroundings, direct(sink(lake(tmp_path))))
    surroundings.put("in", rows(range(6)), partition=0)
    run(given)
    catalog = open_catalog(lake(tmp_path))
    catalog.drop_table("shop.orders")
    with pytest.raises(SinkError, match="is not there, and a commit has passed 6"):
        run(given)


def test_a_topic_that_was_made_again_is_refused(tmp_path: Path, surroundings: Surroundings) -> None:
    surroundings.put("in", rows(range(6)), partition=0)
    run(application(surroundings, direct(sink(lake(tmp_path)))))
    surroundings.log.delete_topic("in")
    surroundings.create(**{"in": 3})
    surroundings.put("in", rows(range(6, 9)), partition=0)
    again = application(surroundings, direct(sink(lake(tmp_path))), offset_out_of_range="earliest")
    with pytest.raises(SinkError, match="external sink 'target'.*the topic was deleted and made again"):
        run(again)
    # As the message says, delete what came from the earlier topic, and its position.
    with open_catalog(lake(tmp_path)).load_table("shop.orders").transaction() as transaction:
        transaction.delete("true")
        transaction.remove_properties("penstock.position/app/target/in/0")
    run(again)
    assert counted(lake(tmp_path)) == by_all(range(6, 9))


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_resharded_application_writes_each_record_once(tmp_path: Path, is_direct: bool) -> None:
    log = new_log({"in": 2, "in-3": 3})

    def program(topic: str) -> Application:
        make = direct if is_direct else through_outbox
        return with_topics(
            Application("shop", make(sink(lake(tmp_path))), **settings(tmp_path, "topic:")), {"in": topic}
        )

    def put(topic: str, numbers: range) -> None:
        produce(log, topic, [(str(key), str(value), at) for key, value, at in rows(numbers)])

    put("in", range(30))
    run_on(program("in"), log)
    resharded(program("in-3"), log, 3, sources={"in": "in-3"})
    put("in-3", range(30, 60))
    run_on(program("in-3"), log)
    change = str if is_direct else str.upper
    assert counted(lake(tmp_path)) == expected(range(60), change)
