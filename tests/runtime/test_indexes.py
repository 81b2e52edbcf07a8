"""The index of a store: written with it, on this host only, and marked whenever rows come into the store otherwise."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    WALL_CLOCK_TIME,
    Application,
    Processor,
    Record,
    StateStore,
    StoreBuilder,
    StoreContext,
    StoreTraits,
    Topology,
    key_value_store,
)
from penstock.errors import IncompatibleStateError, TopologyError
from penstock.plugins.changelogs.topic import decode, encode
from penstock.plugins.engine.program.check import accept_stores, drop_stores
from penstock.plugins.engine.task.local_state import task_state
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import RecordBatch, TopicPartition
from penstock.store import BytesStore
from penstock.store.envelope import PLAIN, wrap
from penstock.store.kept_store import KeptStore
from penstock.stores.rows.time_index import IndexBuild, TimeIndex
from penstock.support.names import index_name, is_topic_name

from ..leases import brief_lease
from ..upgrades.test_changed_programs import World

LONG = "x" * 249


class Both(StateStore):
    """A store that keeps each key also in its index, and notes how many it took into the index when it was opened."""

    def __init__(self, below: BytesStore, context: StoreContext) -> None:
        self.name, self.below, self.index = below.name, below, TimeIndex(context.index)
        self.built = 0
        IndexBuild(context.index).step(below, self._add, 1_000_000)

    def _add(self, key: bytes, value: bytes) -> None:
        self.built += 1
        self.index.put(0, key)

    def put(self, key: str) -> None:
        self.below.put(key.encode(), PLAIN)
        self.index.put(0, key.encode())

    def keys(self) -> list[str]:
        keys = [key.decode() for key, _ in self.below.range()]
        assert [key.decode() for _, key in self.index.rows()] == keys
        return keys


@dataclass(frozen=True)
class Builder:
    """Declares such a store."""

    name: str = "s"
    backend: str | None = "memory"
    logged: bool = True
    is_indexed: bool = True

    @property
    def traits(self) -> StoreTraits:
        return StoreTraits(is_indexed=self.is_indexed)

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        return Both(bytes_store, context)


class Put(Processor):
    def __init__(self, names: list[str]) -> None:
        self.names = names

    def process(self, record: Record) -> None:
        for name in self.names:
            store = self.context.get_store(name)
            store.put(record.key)
            self.context.forward(record.with_value(f"{name} built {store.built}, has {' '.join(store.keys())}"))


class Indexes(World):
    def run_with(self, key: str, *stores: StoreBuilder, **settings: Any) -> list[str]:
        before = len(read(self.log, TopicPartition("out", 0)))
        self.run(*stores, records=1, key=key, **settings)
        return [(each.value or b"").decode() for each in read(self.log, TopicPartition("out", 0))[before:]]

    def application(self, *stores: Any, **settings: Any) -> Application:
        topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
        names = [store.name for store in stores]
        topology.add_processor("put", lambda: Put(names), "in", stores=list(stores))
        topology.add_sink("out", "out", "put", key_serde="str", value_serde="str")
        given = {"log": "memory:x", "changelog": self.changelog, "data_dir": str(self.directory)}
        return Application("app", topology, **{**given, **settings})


@pytest.fixture(params=["directory:changelog", "topic:"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Indexes]:
    made = Indexes(tmp_path, request.param)
    yield made
    made.log.close()


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
@pytest.mark.parametrize("name", ["s", LONG[:200]])
def test_an_index_is_kept_with_its_store_and_built_again_after_a_restore(
    world: Indexes, backend: str, name: str
) -> None:
    store = Builder(name, backend)
    assert world.run_with("a", store) == [f"{name} built 0, has a"]
    assert world.run_with("b", store) == [f"{name} built 0, has a b"], "its rows are still there"
    if backend == "lmdb":
        world.lose_host()
        assert world.run_with("c", store) == [f"{name} built 2, has a b c"]
        assert world.run_with("d", store) == [f"{name} built 0, has a b c d"]


def test_an_earlier_copy_that_catches_up_builds_its_index_again(world: Indexes, tmp_path: Path) -> None:
    store = Builder(backend="lmdb")
    world.run_with("a", store)
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    world.run_with("b", store)
    world.lose_host()
    shutil.copytree(tmp_path / "copy", tmp_path / "state")
    assert world.run_with("c", store) == ["s built 2, has a b c"]


def test_an_index_stays_when_the_program_does_not_ask_for_it_any_more() -> None:
    before, now = KeptStore.of(Builder(), "lmdb"), KeptStore.of(Builder(is_indexed=False), "lmdb")
    assert before.tables("s") == before.followed_by(now).tables("s") == now.followed_by(before).tables("s")
    assert len(before.tables("s")) == 2 > len(now.tables("s"))


def test_the_changelog_has_nothing_of_it(tmp_path: Path) -> None:
    world = Indexes(tmp_path, "topic:")
    world.run_with("a", Builder())
    assert [each.key for each in read(world.log, TopicPartition("app-s-changelog", 0))] == [b"a"]
    assert not [topic for topic in world.log.topics() if "index" in topic]


def test_a_store_that_changes_its_backend_has_a_new_index(world: Indexes) -> None:
    for logged in (True, False):
        store = f"logged{logged}"
        assert world.run_with("a", Builder(store, "memory", logged)) == [f"{store} built 0, has a"]
        assert world.run_with("b", Builder(store, "lmdb", logged)) == [f"{store} built 1, has a b"]
        assert world.run_with("c", Builder(store, "memory", logged)) == [f"{store} built 2, has a b c"]


def test_an_index_goes_with_its_store(world: Indexes) -> None:
    assert world.run_with("a", Builder(backend="lmdb")) == ["s built 0, has a"]
    drop_stores(world.application(Builder()), world.log, brief_lease(world.log), ["s"])
    assert world.run_with("b", Builder(backend="lmdb")) == ["s built 0, has b"]
    # A parked store keeps its index.
    assert world.run_with("c", Builder("t")) == ["t built 0, has c"]
    with pytest.raises(IncompatibleStateError, match=r"store 's.penstock-index': the index of store 's' is kept"):
        world.run(Builder("s.penstock-index"), records=0)
    accept_stores("app", world.log, brief_lease(world.log), ["s"])
    assert world.run_with("d", Builder("t"), Builder(backend="lmdb")) == ["t built 0, has c d", "s built 0, has b d"]


def test_no_store_takes_the_name_of_an_index() -> None:
    topology = Topology().add_source("in", "in")
    topology.add_processor("put", lambda: Put([]), "in", stores=[Builder(), Builder("s.penstock-index", None)])
    with pytest.raises(TopologyError, match=r"store 's.penstock-index': the index of store 's' is kept"):
        topology.build()
    names = [index_name(LONG), index_name(LONG[:-1] + "y"), index_name(LONG[:-1]), index_name(LONG[:235])]
    assert len(set(names)) == 4
    assert all(map(is_topic_name, names))


class Remember(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("seen").put(record.key, True)


def test_what_expires_is_a_reason_for_a_commit_once_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_state, "_MOST_FREED", 5)
    topology = Topology().add_source("in", "in", key_serde="str")
    seen = key_value_store("seen", ttl="10ms", ttl_clock=WALL_CLOCK_TIME)
    topology.add_processor("p", Remember, "in", stores=[seen])
    with TopologyTestDriver(topology) as driver:
        for key in "abcdefghij":
            driver.pipe("in", key, "")
        for _ in range(3):
            driver.advance_wall_clock("1s")
        assert driver.store("seen").approximate_count() == 0


@pytest.mark.parametrize("by_wall_clock", [False, True])
def test_an_expiry_keeps_its_clock_in_a_changelog_topic(by_wall_clock: bool) -> None:
    row = b"key", wrap(b"value", None, (), 5, by_wall_clock)
    made = encode([row], TopicPartition("topic", 0), False, 7, None)
    batch = RecordBatch("topic", 0, [0], made.keys, made.values, made.timestamps, made.headers, 1)
    assert list(decode(batch, False, None)) == [row]
