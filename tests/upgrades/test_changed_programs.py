"""A program that changes between two starts: what it finds of its state, on the host that had it and on another one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import (
    Application,
    FencedError,
    IntSerde,
    Processor,
    Record,
    TimestampedKeyValueStore,
    Topology,
    ValueAndTimestamp,
    key_value_store,
)
from penstock.errors import IncompatibleStateError
from penstock.log import Log
from penstock.plugins.engine.program.check import accept_stores, drop_stores, saved_stores
from penstock.plugins.engine.program.preparation import check_program
from penstock.plugins.engine.program.saved_program import is_same_program, read_note
from penstock.plugins.engine.task.epoch import current_epoch
from penstock.plugins.engine.task.local_state import backends
from penstock.plugins.engine.task.local_state.backends import Backends
from penstock.plugins.engine.task.local_state.task_state import TaskState
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.transfer.changelog_move import Moved, move_changelog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition

from ..leases import Freezing, brief_lease
from ..processes import opened_workers
from ..rotation import examples


class Count(Processor):
    """Counts each key in every store that it has, and sends on the counts as `store=count`."""

    def __init__(self, stores: tuple[str, ...] = ("counts",)) -> None:
        self.names = stores

    def process(self, record: Record) -> None:
        said = []
        for name in self.names:
            store = self.context.get_store(name)
            counted = (store.get(record.key) or 0) + 1
            store.put(record.key, counted)
            said.append(f"{name}={counted}")
        self.context.forward(record.with_value(" ".join(said)))


class World:
    """A log, the shared changelog and a host's disk; `run` is one start of a program that processes what there is."""

    def __init__(self, directory: Path, changelog: str, partitions: int = 1) -> None:
        self.log: Log = MemoryLog()
        self.directory = directory
        self.changelog = changelog
        self._read = 0
        self.partitions = partitions
        for topic in ("in", "out"):
            self.log.create_topic(topic, partitions if topic == "in" else 1)

    def application(self, *stores: Any, topology: Topology | None = None, **settings: Any) -> Application:
        if topology is None:
            topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
            names = tuple(store.name for store in stores)
            topology.add_processor("count", lambda: Count(names), "in", stores=list(stores))
            topology.add_sink("out", "out", "count", key_serde="str", value_serde="str")
        given = {"log": "memory:x", "changelog": self.changelog, "data_dir": str(self.directory)}
        return Application("app", topology, **{**given, **settings})

    def feed(self, number: int, key: str = "k", partition: int = 0) -> None:
        keys: list[bytes | None] = [key.encode()] * number
        self.log.append(OutputBatch("in", keys, list(keys), [1] * number, None, [[partition]] * number))

    def run(self, *stores: Any, records: int = 5, key: str = "k", **settings: Any) -> str:
        """Process `records` more of one key; return the last thing said."""
        if records:
            self.feed(records, key)
        with opened_workers(self.application(*stores, **settings), self.log) as workers:
            for worker in workers:
                worker.run_batch(self.log.end_offsets(worker.partitions), 0)
        said = [(each.value or b"").decode() for each in read(self.log, TopicPartition("out", 0))]
        return said[-1] if said else ""

    def lose_host(self) -> None:
        shutil.rmtree(self.directory / "state")


@pytest.fixture(params=["directory:changelog", "topic:"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, request.param)
    yield made
    made.log.close()


def counts(**options: Any) -> Any:
    return key_value_store("counts", **options)


def more(**options: Any) -> Any:
    return key_value_store("more", **options)


# ---------------------------------------------------------------- serdes


@pytest.mark.parametrize(
    ("before", "after", "settings", "field"),
    [
        ({}, {"key_serde": "str"}, {}, "key_serde"),
        ({}, {"value_serde": IntSerde()}, {}, "value_serde"),
        ({}, {}, {"state_serde": "json"}, "key_serde"),
        ({"value_serde": "int"}, {"value_serde": "float"}, {}, "value_serde"),
    ],
)
def test_another_serde_is_refused_before_it_hides_entries(
    world: World, before: Any, after: Any, settings: Any, field: str
) -> None:
    assert world.run(counts(**before)) == "counts=5"
    with pytest.raises(
        IncompatibleStateError, match=rf"store 'counts' was written with {field} .*penstock stores drop"
    ):
        world.run(counts(**after), records=0, **settings)
    assert world.run(counts(**before), records=1) == "counts=6"  # what was refused has changed nothing


def test_notes_of_one_program_are_told_from_those_of_another(world: World) -> None:
    """A second start writes more fields: a backup beside it was given up, as if the application had another program."""
    notes = []
    for stores in ((counts(), more()), (counts(), more()), (counts(),), (counts(),)):
        world.run(*stores)
        notes.append(read_note("app", world.log))
    assert notes[0] != notes[1]
    assert is_same_program(notes[0], notes[1]) and is_same_program(notes[2], notes[3])
    assert not is_same_program(notes[1], notes[2]) and not is_same_program({}, notes[1])


def test_a_default_that_is_named_is_the_same(world: World) -> None:
    assert world.run(counts()) == "counts=5"
    named = counts(key_serde="msgpack", value_serde="msgpack")
    assert world.run(named) == "counts=10"
    assert world.run(named, state_serde="json") == "counts=15"


class Scaled(IntSerde):
    """An int serde with a parameter that changes what it writes."""

    def __init__(self, scale: int) -> None:
        self.scale = scale


def test_a_serde_with_another_parameter_is_refused(world: World) -> None:
    world.run(counts(value_serde=Scaled(2)))
    assert world.run(counts(value_serde=Scaled(2))) == "counts=10"
    with pytest.raises(IncompatibleStateError, match=r"value_serde .*Scaled\(\w+\) and now has .*Scaled\(\w+\)"):
        world.run(counts(value_serde=Scaled(3)), records=0)


# ---------------------------------------------------------------- in the changelog or not


def test_a_store_that_was_not_logged_in_between_has_its_history_from_then_on(world: World) -> None:
    world.run(counts(), more())
    world.run(counts(logged=False), more())
    assert world.run(counts(), more(), key="other") == "counts=5 more=5"
    world.lose_host()
    assert world.run(counts(), more(), records=1) == "counts=11 more=11"


def test_a_store_that_was_never_logged_has_its_history_from_then_on(world: World) -> None:
    world.run(counts(logged=False))
    assert world.run(counts()) == "counts=10"
    world.lose_host()
    assert world.run(counts(), records=1) == "counts=11"


def test_an_idle_task_gets_its_history_too(tmp_path: Path) -> None:
    world = World(tmp_path, "directory:changelog")
    world.run(counts())
    world.run(counts(logged=False))
    world.run(counts(), records=0)
    world.lose_host()
    assert world.run(counts(), records=1) == "counts=11"


def test_a_store_that_is_not_logged_any_more_starts_empty_elsewhere(world: World) -> None:
    world.run(counts(), more())
    assert world.run(counts(logged=False), more(), records=1) == "counts=6 more=6"
    world.lose_host()
    assert world.run(counts(logged=False), more(), records=1) == "counts=1 more=7"
    world.lose_host()
    # What is on the host now is the history from here on, not what was logged long ago.
    assert world.run(counts(), more(), records=2, key="other") == "counts=2 more=2"
    world.lose_host()
    assert world.run(counts(), more(), records=1) == "counts=1 more=8"
    world.lose_host()
    assert world.run(counts(logged=False), more(), records=1) == "counts=1 more=9"


# ---------------------------------------------------------------- timestamps, TTL


class Look(Processor):
    """Puts `key` where the value is "put", and sends on what the store has for it."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("seen")
        if record.value == "put":
            now = record.timestamp
            store.put(record.key, ValueAndTimestamp("x", now) if isinstance(store, TimestampedKeyValueStore) else "x")
        entries = sorted(f"{key}:{value}" for key, value in store.all())
        self.context.forward(record.with_value(f"{store.get(record.key)} {entries}"))


def look(world: World, timestamp: int, key: str, value: str, **options: Any) -> str:
    """Have one record processed by a program whose store has `options`, on a new host; return what it says."""
    world.log.append(OutputBatch("in", [key.encode()], [value.encode()], [timestamp]))
    topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
    topology.add_processor("look", Look, "in", stores=[key_value_store("seen", **options)])
    topology.add_sink("out", "out", "look", key_serde="str", value_serde="str")
    given: dict[str, Any] = {"log": "memory:x", "changelog": world.changelog, "data_dir": str(world.directory)}
    shutil.rmtree(world.directory / "state", ignore_errors=True)
    with opened_workers(Application("app", topology, **given), world.log) as workers:
        workers[0].run_batch(world.log.end_offsets(workers[0].partitions), 0)
    return [(each.value or b"").decode() for each in read(world.log, TopicPartition("out", 0))][-1]


def test_timestamps_come_and_go(world: World) -> None:
    """An entry from before has none, as in Kafka Streams, and not the time of some commit."""
    look(world, 5, "a", "put")
    assert "a:ValueAndTimestamp(value='x', timestamp=-1)" in look(world, 6, "b", "put", timestamped=True)
    found = look(world, 7, "b", "get", timestamped=True)
    assert "a:ValueAndTimestamp(value='x', timestamp=-1)" in found
    assert "b:ValueAndTimestamp(value='x', timestamp=6)" in found
    assert look(world, 8, "c", "put") == "x ['a:x', 'b:x', 'c:x']"
    assert look(world, 9, "b", "get", timestamped=True).startswith("ValueAndTimestamp(value='x', timestamp=6)")


def test_what_had_a_ttl_expires_without_one_too(world: World) -> None:
    look(world, 10, "a", "put", ttl="100ms")
    assert look(world, 50, "b", "put") == "x ['a:x', 'b:x']"
    assert look(world, 200, "a", "get") == "None ['b:x']"
    assert look(world, 201, "c", "put", ttl="100ms") == "x ['b:x', 'c:x']"
    assert look(world, 400, "c", "get", ttl="100ms") == "None ['b:x']"


# ---------------------------------------------------------------- backends


@pytest.mark.parametrize("logged", [True, False])
def test_a_backend_that_changes_there_and_back(world: World, logged: bool) -> None:
    """The other store keeps the first backend at the newest version, and what that has of this one is old."""
    here, there = {"backend": "lmdb", "logged": logged}, {"backend": "memory", "logged": logged}
    world.run(counts(**here), more(backend="lmdb"))
    assert world.run(counts(**there), more(backend="lmdb")) == "counts=10 more=10"
    assert world.run(counts(**here), more(backend="lmdb")) == "counts=15 more=15"
    assert world.run(counts(**there), more(backend="lmdb")) == "counts=20 more=20"
    world.lose_host()
    assert world.run(counts(**here), more(backend="lmdb"), records=1) == f"counts={21 if logged else 1} more=21"


# ---------------------------------------------------------------- new stores, and stores that go


def test_a_first_store_in_a_program_without(world: World) -> None:
    world.run()
    assert world.run(counts()) == "counts=5"
    world.lose_host()
    assert world.run(counts()) == "counts=10"


def test_a_store_comes_back_when_nothing_was_processed_meanwhile(world: World) -> None:
    world.run(counts(), more())
    world.run(counts(), records=0)
    assert world.run(counts(), more()) == "counts=10 more=10"


def test_a_store_that_missed_something_does_not_come_back_by_itself(world: World) -> None:
    world.run(counts(), more())
    assert world.run(counts()) == "counts=10"
    with pytest.raises(
        IncompatibleStateError, match=r"'more' was parked.*missed.*in-0 from 5 to 10.*stores accept.*stores drop"
    ):
        world.run(counts(), more(), records=0)
    assert world.run(counts()) == "counts=15"


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("records", [0, 1])
def test_a_read_only_store_that_comes_back_is_filled_again(world: World, writes: bool, records: int) -> None:
    """Its topic has what it missed while the program did not name it. `writes`: it was an ordinary store before."""
    rates = more(key_serde="str", value_serde="str")
    world.log.create_topic("rates", 1)

    def run(records: int = 1) -> str:
        topology = Topology().add_source("in", "in", key_serde="str", value_serde="str")
        topology.add_read_only_store(rates, "rates", "rates", "fill", Fill, key_serde="str", value_serde="str")
        topology.add_processor("count", LookUp, "in", stores=["more"])
        topology.add_sink("out", "out", "count", key_serde="str", value_serde="str")
        return world.run(topology=topology, records=records)

    def set_rate(value: bytes) -> None:
        world.log.append(OutputBatch("rates", [b"k"], [value], [0]))

    set_rate(b"1")
    if writes:
        world.run(more())
    else:
        assert run() == "1"
    world.run(records=records)
    set_rate(b"2")
    run(0)  # reads up to here
    assert run() == "2"
    world.lose_host()
    assert run() == "2"


class Fill(Processor):
    """Fills the store `more`."""

    def process(self, record: Record) -> None:
        self.context.get_store("more").put(record.key, record.value)


class LookUp(Processor):
    """Sends on what the store `more` has of each key."""

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(self.context.get_store("more").get(record.key)))


def test_a_store_that_is_accepted_comes_back_as_it_was(world: World) -> None:
    world.run(counts(), more())
    world.run(counts())
    world.lose_host()  # also what is parked survives it
    world.run(counts())
    accept_stores("app", world.log, brief_lease(world.log), ["more"])
    world.lose_host()
    assert world.run(counts(), more()) == "counts=20 more=10"


@pytest.mark.parametrize("accepts", [True, False])
def test_a_command_that_was_frozen_changes_no_store_after_its_lease(world: World, accepts: bool) -> None:
    world.run(counts(), more())
    world.run(counts())
    before = read_note("app", world.log), current_epoch("app", world.log)
    frozen = Freezing(
        brief_lease(world.log), "epoch", lambda: world.log.lease("app", "another start", 10_000).release()
    )
    with pytest.raises(FencedError, match="a test"):
        if accepts:
            accept_stores("app", world.log, frozen, ["more"])
        else:
            drop_stores(world.application(), world.log, frozen, ["more"])
    assert (read_note("app", world.log), current_epoch("app", world.log)) == before


def test_what_is_parked_is_part_of_a_snapshot(world: World) -> None:
    world.run(counts(), more())
    world.run(counts(logged=False))  # a new history begins
    accept_stores("app", world.log, brief_lease(world.log), ["more"])
    world.lose_host()
    assert world.run(counts(logged=False), more(), records=1) == "counts=1 more=6"


@pytest.mark.parametrize("logged", [True, False])
def test_a_store_that_is_dropped_starts_empty_everywhere(world: World, logged: bool) -> None:
    world.run(counts(), more(logged=logged))
    elsewhere = world.directory / "elsewhere"
    shutil.copytree(world.directory / "state", elsewhere)
    world.run(counts())
    drop_stores(world.application(), world.log, brief_lease(world.log), ["more"])
    assert world.run(counts(), more(logged=logged)) == "counts=15 more=5"
    # Another host has a copy from before, with the content that was dropped.
    world.lose_host()
    elsewhere.rename(world.directory / "state")
    assert world.run(counts(), more(logged=logged)) == f"counts=20 more={10 if logged else 5}"
    world.lose_host()
    assert world.run(counts(), more(logged=logged), records=1) == f"counts=21 more={11 if logged else 1}"


def test_what_is_dropped_may_come_back_as_something_else(world: World) -> None:
    """Also a store in use: another serde, as many tasks as one likes."""
    world.run(counts())
    assert [each.name for each in saved_stores("app", world.log)] == ["counts"]
    drop_stores(world.application(), world.log, brief_lease(world.log), ["counts"])
    assert saved_stores("app", world.log) == []
    assert world.run(counts(key_serde="str", timestamped=False)) == "counts=5"


@pytest.mark.parametrize("parked", [True, False])
def test_a_store_whose_changelog_topic_was_deleted_can_be_dropped(tmp_path: Path, parked: bool) -> None:
    world = World(tmp_path, "topic:")
    stores = [counts(), more()]
    world.run(*stores)
    if parked:
        stores.pop()
        world.run(*stores)
    world.log.delete_topic("app-more-changelog")
    with pytest.raises(
        IncompatibleStateError, match="'app-more-changelog' is gone.*`penstock stores drop MODULE:ATTR more`"
    ):
        world.run(*stores, records=0)
    drop_stores(world.application(), world.log, brief_lease(world.log), ["more"])
    world.run(*stores, records=0)
    world.lose_host()
    assert world.run(counts(), more(), records=1) == f"counts={11 if parked else 6} more=1"


def test_a_first_store_that_is_rolled_back(world: World) -> None:
    """The program before it has none at all."""
    world.run()
    world.run(counts())
    world.run()
    assert [(each.parked, each.missed) for each in saved_stores("app", world.log)] == [(True, ("in-0 from 10 to 15",))]
    drop_stores(world.application(), world.log, brief_lease(world.log), ["counts"])
    world.run()
    assert world.run(counts()) == "counts=5"
    world.lose_host()
    assert world.run(counts()) == "counts=10"


def move(world: World, application: Application) -> Moved:
    return move_changelog(check_program(application, world.log), world.log, "directory:old", lambda: None)


def test_a_parked_store_moves_with_the_changelog(tmp_path: Path) -> None:
    """Also where the program that moves it has no store at all."""
    world = World(tmp_path, "directory:old")
    world.run(counts())
    world.run(records=0)
    world.changelog = "directory:new"
    with pytest.raises(IncompatibleStateError, match="penstock changelog move"):
        world.run(records=0)
    moved = move(world, world.application())
    assert moved.copied == ("0_0",)
    world.run(records=0)
    world.lose_host()
    shutil.rmtree(tmp_path / "old")
    assert world.run(counts()) == "counts=10"


def test_a_first_store_and_another_place_for_the_changelog(tmp_path: Path) -> None:
    """There is nothing to move."""
    world = World(tmp_path, "directory:old")
    world.run()
    world.changelog = "directory:new"
    assert world.run(counts()) == "counts=5"


def test_a_killed_switch_is_done_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after its commit: what is on this host is all that there is of the content."""
    world.run(counts(), more())
    world.run(counts(logged=False), more(logged=False))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for owner, method in ((TaskState, "rows"), (TaskState, "apply"), (Backends, "end_transition")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, method, killed)
            try:
                world.run(counts(), more(logged=False), records=0)
            except KeyboardInterrupt:
                pass
    assert world.run(counts(), more(logged=False), records=1) == "counts=11 more=11"
    world.lose_host()
    assert world.run(counts(), more(logged=False), records=1) == "counts=12 more=1"


def test_a_host_that_is_killed_while_it_gets_a_store_of_a_newer_program_gets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy is of before that store. It must not have the name of a version that has the store."""
    world = World(tmp_path, "directory:changelog")
    here, there = (str(tmp_path / name) for name in ("here", "there"))
    world.run(counts(), state_dir=here)
    world.run(counts(), more(), state_dir=there)
    empty = backends.Backends._empty

    def killed(*given: Any) -> None:
        empty(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(backends.Backends, "_empty", killed)
        world.run(counts(), more(), records=0, state_dir=here)
    assert world.run(counts(), more(), records=1, state_dir=here) == "counts=11 more=6"


@pytest.mark.parametrize("other", [{"logged": False}, {"backend": "memory"}])
def test_a_copy_that_lacks_a_store_is_not_used_by_the_program_that_has_it(
    world: World, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does not restore it was killed before its first commit: the copy has a version that has it."""
    world.run(counts(), more())
    world.lose_host()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(TaskState, "append_layout", killed)
            world.run(counts(**other), more(), records=0)
    assert world.run(counts(), more(), records=1) == "counts=6 more=6"
    assert world.run(counts(**other), more(), records=1) == "counts=7 more=7"
    assert world.run(counts(), more(), records=1) == "counts=8 more=8"


# ---------------------------------------------------------------- sub-topologies and internal topics


def with_totals(world: World, **serdes: Any) -> Application:
    """Each record goes on through a repartition topic to a second sub-topology, which counts it, too."""
    application = world.application(counts())
    assert isinstance(application.topology, Topology)
    topology = application.topology.add_repartition("again", "count", **serdes)
    topology.add_processor("total", lambda: Count(("totals",)), "again", stores=[key_value_store("totals")])
    return Application(
        "app",
        topology.add_sink("totals", "out", "total"),
        {str(name): value for name, value in application.given.values.items()},
    )


def start(world: World, application: Application, *, subtopologies: int = 2, records: int = 5) -> list[str]:
    """Process `records` more; return what was said since the start."""
    if records:
        world.feed(records)
    before = world.log.end_offsets([TopicPartition("out", 0)])[TopicPartition("out", 0)]
    with opened_workers(application, world.log) as workers:
        for worker in workers:
            if worker.id.subtopology < subtopologies:
                worker.run_batch(world.log.end_offsets(worker.partitions), 0)
    return [(each.value or b"").decode() for each in read(world.log, TopicPartition("out", 0)) if each.offset >= before]


def test_a_sub_topology_that_is_rolled_back_and_comes_again(world: World) -> None:
    assert start(world, with_totals(world))[-1] == "totals=5"
    assert start(world, world.application(counts()))[-1] == "counts=10"
    # What came through the repartition topic was all processed; what the first sub-topology did not send there is
    # missed.
    with pytest.raises(IncompatibleStateError, match=r"'totals' was parked.*in-0 from 5 to 10"):
        start(world, with_totals(world), records=0)
    accept_stores("app", world.log, brief_lease(world.log), ["totals"])
    world.lose_host()
    assert start(world, with_totals(world))[-1] == "totals=10"


def test_a_topic_that_is_read_since_counts_as_missed(world: World) -> None:
    def application(*names: str) -> Application:
        topology = Topology().add_source("in", pattern="in.*", key_serde="str", value_serde="str")
        topology.add_processor("count", lambda: Count(names), "in", stores=[key_value_store(name) for name in names])
        topology.add_sink("out", "out", "count", key_serde="str", value_serde="str")
        return Application("app", topology, log="memory:x", changelog=world.changelog, data_dir=str(world.directory))

    start(world, application("counts", "more"))
    start(world, application("counts"), records=0)
    world.log.create_topic("in-more", 1)
    world.log.append(OutputBatch("in-more", [b"k"], [b"k"], [1], None, None))
    assert start(world, application("counts"), records=0) == ["counts=6"]
    missed = ("in-more-0 from 0 to 1",)
    assert [each.missed for each in saved_stores("app", world.log) if each.parked] == [missed]
    with pytest.raises(IncompatibleStateError, match=r"'more' was parked.*in-more-0 from 0 to 1"):
        start(world, application("counts", "more"), records=0)


def test_records_that_wait_keep_their_topic_and_its_serdes(world: World) -> None:
    start(world, with_totals(world), subtopologies=1)
    with pytest.raises(
        IncompatibleStateError, match="'again-repartition' is no longer in the program, and records that wait"
    ):
        start(world, world.application(counts()), records=0)
    with pytest.raises(IncompatibleStateError, match="'again-repartition' was written for value_serde .*JsonSerde"):
        start(world, with_totals(world, value_serde="json"), records=0)
    assert start(world, with_totals(world), records=0)[-1] == "totals=5"
    assert start(world, with_totals(world, value_serde="json"))[-1] == "totals=10"


def test_what_is_parked_of_a_sub_topology_that_is_gone_keeps_the_changelog_where_it_is(tmp_path: Path) -> None:
    world = World(tmp_path, "directory:old")
    start(world, with_totals(world))
    start(world, world.application(counts()))
    world.changelog = "directory:new"
    with pytest.raises(IncompatibleStateError, match="parked.*: totals.*stores drop"):
        move(world, world.application(counts()))
    accept_stores("app", world.log, brief_lease(world.log), ["totals"])
    assert move(world, with_totals(world)).copied == ("0_0", "1_0")
    drop_stores(world.application(), world.log, brief_lease(world.log), ["totals"])
    assert move(world, world.application(counts())).there == ("0_0",)
    assert start(world, world.application(counts()))[-1] == "counts=15"


# ---------------------------------------------------------------- any changes


_kept = st.none() | st.tuples(st.sampled_from(["lmdb", "memory"]), st.booleans())
_starts = st.tuples(
    st.fixed_dictionaries({"counts": _kept, "more": _kept}),
    st.sampled_from(["here", "here", "elsewhere", "lost"]),
    st.integers(1, 3),
    st.sampled_from("ab"),
    st.sampled_from(["accept", "drop"]),
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(changelog=st.sampled_from(["directory:changelog", "topic:"]), starts=st.lists(_starts, max_size=8))
def test_any_changes_of_stores_lose_nothing_and_bring_nothing_back(
    tmp_path_factory: pytest.TempPathFactory, changelog: str, starts: list[Any]
) -> None:
    """Against a count of its own; what is not logged is only sure on the host that had it last."""
    world = World(tmp_path_factory.mktemp("changes"), changelog)
    empty = {"a": 0, "b": 0}
    known: dict[str, dict[str, int]] = {"counts": dict(empty), "more": dict(empty)}
    is_logged: dict[str, bool] = {}
    host = 0
    for kept, where, records, key, choice in starts:
        if where == "elsewhere":
            host ^= 1
        if where == "lost":
            shutil.rmtree(world.directory / f"host{host}", ignore_errors=True)
        stores = [key_value_store(name, backend=how[0], logged=how[1]) for name, how in kept.items() if how is not None]
        back = [each.name for each in saved_stores("app", world.log) if each.parked and each.missed and kept[each.name]]
        if choice == "accept":
            accept_stores("app", world.log, brief_lease(world.log), back)
        else:
            drop_stores(world.application(), world.log, brief_lease(world.log), back)
            known.update({name: dict(empty) for name in back})
            for name in back:
                del is_logged[name]
        if where != "here":
            for name, was_logged in is_logged.items():
                if not was_logged or (kept[name] is not None and not kept[name][1]):
                    known[name] = {}
        said = world.run(*stores, records=records, key=key, state_dir=f"host{host}")
        found = {name: int(count) for name, _, count in (each.partition("=") for each in said.split())}
        for store in stores:
            before = known[store.name].get(key)
            assert before is None or found[store.name] == before + records, (store, where)
            known[store.name][key] = found[store.name]
            is_logged[store.name] = store.logged
