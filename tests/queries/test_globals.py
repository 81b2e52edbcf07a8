"""Queries of global stores: of the copy that the tasks of a machine read, and of one that a server fills."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    IntSerde,
    LogError,
    OutputBatch,
    StoreUnavailableError,
    TopicPartition,
    Topology,
    World,
    key_value_store,
)
from penstock.client import Client
from penstock.plugins.engine.task.local_state.global_stores import GlobalStores
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.queries.copies import Bounds
from penstock.plugins.state.queries.local_copies import GlobalCopies
from penstock.queries import Queries

from ..reshard.growing import grow
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .served import served


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 2, "out": 2, "table": 2})
        yield made


def application(surroundings: Surroundings, **settings: Any) -> Any:
    return surroundings.application("app", apps.look_up(), engine="embedded", commit_interval="10ms", **settings)


def ends(surroundings: Surroundings) -> dict[TopicPartition, int]:
    return dict(surroundings.log.end_offsets(surroundings.partitions("table")))


@pytest.mark.parametrize("settings", [{}, {"store_backend": "memory"}, {"processes": 2}])
def test_a_global_store_answers(surroundings: Surroundings, settings: dict[str, Any]) -> None:
    surroundings.put("table", [(f"k{number}", f"v{number}", number) for number in range(20)])
    surroundings.put("in", [("k1", "x", 1)])
    with application(surroundings, **settings).start() as running:
        store = running.store("table", at_least=ends(surroundings), wait="60s")
        assert store.get_many(["k1", "k19", "x"]) == ["v1", "v19", None]
        assert len(list(store.all())) == 20
        found = running.queries.query_metadata_for_key("table", "k1")
        assert (found.task, found.partition, found.lag.behind) == ("global", -1, 0)
        surroundings.put("table", [("k1", "later", 30)])
        surroundings.put("in", [("k1", "x", 31)])
        assert running.store("table", at_least=ends(surroundings), wait="60s").get("k1") == "later"
        with pytest.raises(ConfigError, match="store 'table' is not in the changelog"):
            store.changes()
        ahead = running.store("table", at_least={TopicPartition("table", 0): 999}, wait="0ms")
        with pytest.raises(StoreUnavailableError, match="table-0:999"):
            ahead.get("k1")


def test_partitions_that_the_topic_got_later_count(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create_topic("table", 1)
    log.append(OutputBatch("table", [b"k"], [b"v"], [1], partitions=[(0,)]))
    made = Application("app", apps.look_up(), key_serde="str", value_serde="str", state_serde="str", log="memory:x",
                       data_dir=str(tmp_path))  # fmt: skip
    seconds = [0.0]
    world, [spec] = World(seconds=lambda: seconds[0]), made.program.global_stores
    stores, copies = GlobalStores(made, tmp_path / "copies"), GlobalCopies(made, log, spec, tmp_path / "copies", world)
    with closing(stores), closing(copies):
        stores.update(log, {}, 1)
        copies.snapshot(copies.task(spec.id, "global"), "table", Bounds(wait=0)).close()
        grow(log, "table", 2)
        log.append(OutputBatch("table", [b"new"], [b"v"], [2], partitions=[(1,)]))
        seconds[0] = 10.0
        for bounds in (Bounds(wait=0), Bounds(wait=0, stale_ok=True, at_least={TopicPartition("table", 1): 1})):
            with pytest.raises(StoreUnavailableError):
                copies.snapshot(copies.task(spec.id, "global"), "table", bounds)
        stores.update(log, {}, 2)
        seconds[0] = 20.0
        found = copies.snapshot(copies.task(spec.id, "global"), "table", Bounds(wait=0))
        assert found.backend.approximate_count("table") == 2
        found.close()


def global_program(directory: Path, value: str) -> Application:
    topology = Topology().add_global_store(
        key_value_store("table", key_serde="str", value_serde=value), "rows", "table", "fill", apps.Fill
    )
    topology.add_source("in", "in").add_sink("out", "out", "in")
    return Application("app", topology, value_serde=value, log="memory:x", data_dir=str(directory))


def test_a_copy_of_another_program_or_an_earlier_topic_does_not_answer(tmp_path: Path) -> None:
    """A number was read as another one, and a topic that was made again had what was in the one before."""
    log = MemoryLog()
    log.create_topic("table", 1)
    log.append(OutputBatch("table", [b"k"] * 2, [IntSerde().serialize(1000)] * 2, [1, 2]))
    made, other = global_program(tmp_path, "int"), global_program(tmp_path, "float")
    seconds = [0.0]
    world = World(seconds=lambda: seconds[0])
    with ExitStack() as stack:
        copies, elsewhere = (
            stack.enter_context(closing(GlobalCopies(each, log, each.program.global_stores[0], tmp_path, world)))
            for each in (made, other)
        )

        def found(of: GlobalCopies, **bounds: Any) -> None:
            of.snapshot(
                of.task(of.application.program.global_stores[0].id, "global"), "table", Bounds(wait=0, **bounds)
            ).close()

        with closing(GlobalStores(made, tmp_path)) as stores:
            stores.update(log, {}, 1)
            found(copies)
            for stale_ok in (False, True):
                with pytest.raises(StoreUnavailableError, match="the serdes penstock.serde.StrSerde, .*IntSerde, and"):
                    found(elsewhere, stale_ok=stale_ok)
            log.delete_topic("table")
            log.create_topic("table", 1)
            log.append(OutputBatch("table", [b"new"], [IntSerde().serialize(1)], [1]))
            seconds[0] = 10.0
            for stale_ok in (False, True):
                with pytest.raises(StoreUnavailableError, match="its topic was deleted and made again"):
                    found(copies, stale_ok=stale_ok)
            stores.update(log, {}, 1)
            seconds[0] = 20.0
            found(copies)


def test_a_server_fills_its_own_copy(surroundings: Surroundings, tmp_path: Path) -> None:
    surroundings.put("table", [(f"k{number}", f"v{number}", number) for number in range(20)])
    made = application(surroundings)
    for _ in range(2):  # the second time it continues
        with Queries.from_changelog(made, directory=tmp_path / "far") as far, served(far) as url, Client(url) as client:
            store = client.store("table", at_least=ends(surroundings), wait="30s")
            found = store.get("k7")
            assert found is not None and found.value == "v7"
            assert len(list(store.entries())) == len({f"k{number}" for number in range(20)})
            surroundings.put("table", [("k7", "v7", 40)])
            assert wait_until(lambda: far.lags("table")[0].behind == 0)
    assert "table" in Queries.followed_stores(made)


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_topic_that_is_made_again_with_other_partitions(surroundings: Surroundings, partitions: int) -> None:
    surroundings.put("table", [(f"k{number}", "v", number) for number in range(9)])
    made, log = application(surroundings), surroundings.log
    with made.start() as running, Queries.from_changelog(made, directory=surroundings.directory / "far") as far:
        readers = [each.store("table", wait="60s") for each in (running.queries, far)]
        assert [each.get("k1") for each in readers] == ["v", "v"]
        log.delete_topic("table")
        log.create_topic("table", partitions)
        rows = {f"n{number}": f"v{number}" for number in range(9)}
        surroundings.put("table", [(key, value, 20) for key, value in rows.items()])
        surroundings.put("in", [("n1", "x", 21)])
        wait_until(lambda: _known(readers, rows), "both copies have the new topic")
        at_least = ends(surroundings)  # also those of the new partitions
        for each in (running.queries, far):
            assert dict(each.store("table", at_least=at_least, wait="60s").all()) == rows


def _known(readers: list[Any], rows: dict[str, str]) -> bool:
    try:
        return all(dict(each.all()) == rows for each in readers)
    except (LogError, StoreUnavailableError):  # for a second after the topic was made again
        return False
