"""Directories that are read-only or full: what the message says, and that everything is there once there is room
again."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from penstock import Processor, Record, Topology, key_value_store
from penstock.plugins.testing.contracts.child import answer, forked

from ..small_disk import small_disk
from .world import ORDERS, Contents, MakeWorld, World, says

# ---------------------------------------------------------------- read-only


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Take the right to write from a directory and everything in it, for a block."""
    paths = [directory, *directory.rglob("*")]
    before = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, before):
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in zip(paths, before):
            path.chmod(mode)


READ_ONLY: list[tuple[str, str, list[str]]] = [
    ("log", "LogError", ["local log ", "{place}: cannot ", "Permission denied: make it writable for user "]),
    ("state", "StoreError", ["{place}", "Permission denied", "make it writable", "state_dir"]),
    ("changelog", "ChangelogError", [
        "changelog at ", "{place}", "cannot write delta ", "Permission denied; make it writable for user ",
        "setting 'changelog'; what was committed before is safe",
    ]),
]  # fmt: skip


@pytest.mark.parametrize("started", [False, True], ids=["before the first start", "later"])
@pytest.mark.parametrize(("place", "kind", "parts"), READ_ONLY, ids=[case[0] for case in READ_ONLY])
def test_a_directory_that_is_read_only(
    world: World, undisturbed: Contents, place: str, kind: str, parts: list[str], started: bool
) -> None:
    directory: Path = getattr(world, place)
    if started:
        world.run()
        world.produce("orders", ("ann", "2"))
    directory.mkdir(exist_ok=True)
    with read_only(directory):
        message = world.run_as_nobody()
    says(message, f"{kind}: ", *(part.format(place=directory) for part in parts))
    world.run()
    if started:
        assert world.contents().stores["0_0", "totals"] == [("ann", 18), ("bob", 7)]
    else:
        assert world.contents() == undisturbed


class Fill(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("prices").put(record.key, record.value)


class Price(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(self.context.get_store("prices").get(record.key)))


def prices() -> Topology:
    topology = Topology().add_global_store(key_value_store("prices"), "prices-in", "prices", "fill", Fill)
    topology.add_source("orders", "orders").add_processor("price", Price, "orders")
    return topology.add_sink("out", "totals-by-customer", "price")


@pytest.mark.parametrize("started", [False, True], ids=["before the first start", "later"])
def test_a_state_directory_that_is_read_only_for_a_global_store(make_world: MakeWorld, started: bool) -> None:
    world = make_world(prices())
    world.produce("prices", ("ann", "10"), ("bob", "20"), ("dan", "30"))
    world.produce("orders", *ORDERS)
    if started:
        world.run()
        world.produce("prices", ("ann", "11"))
        world.produce("orders", ("ann", "1"))
    world.state.mkdir(exist_ok=True)
    with read_only(world.state):
        message = world.run_as_nobody()
    says(message, "StoreError: ", str(world.state), "Permission denied", "make it writable", "state_dir")
    world.run()
    values = [row[1] for row in world.contents().topics["totals-by-customer", 0]]
    assert values == [b"10", b"20", b"10", b"20", b"10"] + ([b"11"] if started else [])


# ---------------------------------------------------------------- full


class Pad(Processor):
    """Makes a record's value as large as its number says, in the store or in the output."""

    def __init__(self, where: str) -> None:
        self.where = where

    def init(self, context: Any) -> None:
        super().init(context)
        self.padded = context.get_store("padded")

    def process(self, record: Record) -> None:
        # Nothing that the file system could compress.
        text = os.urandom(int(record.value) // 2 + 1).hex()
        large, small = (text, f"{len(text)}") if self.where == "store" else (f"{len(text)}", text)
        self.padded.put(f"{record.key}{record.timestamp}", large)
        self.context.forward(record.with_value(small))
        self.context.commit()


def padding(where: str) -> Topology:
    topology = Topology().add_source("orders", "orders")
    topology.add_processor("pad", Pad, "orders", stores=[key_value_store("padded")], where=where)
    return topology.add_sink("out", "totals-by-customer", "pad")


def sizes(contents: Contents) -> Any:
    """How many characters everything has; what they are is drawn."""
    return (
        {place: [(key, len(value)) for key, value in rows] for place, rows in contents.stores.items()},
        {place: [(row[0], len(row[1] or b"")) for row in rows] for place, rows in contents.topics.items()},
        contents.positions,
    )


def in_a_full_place(world: World, limit: int) -> Iterator[Any]:
    """Run in a child whose files may not grow beyond `limit` bytes, twice, and then without a limit."""

    def child(connection: Connection) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with world.workers() as (log, workers):
            worker = workers[0]
            ends = log.end_offsets(worker.partitions)
            for _ in range(2):
                connection.send(failure(lambda: worker.run_batch(ends, 0)))
                connection.send(log.committed("shop", worker.partitions))
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            connection.send(failure(lambda: worker.run_batch(ends, 0)))

    with forked(child) as connection:
        for _ in range(5):
            yield answer(connection)


def failure(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


MEGABYTE = 1 << 20

FULL: list[tuple[str, str, str, int, list[str]]] = [
    ("log", "output", "LogError", 0, [
        "local log ", "{world.log}: cannot commit task 0_0 of 'shop'", "make room there, or give the log another " "directory", " bytes are free)", "there completely or not at all",
    ]),
    ("changelog", "store", "ChangelogError", 0, [
        "changelog at {world.changelog}/shop/0_0: cannot write delta ", "File too large; the disk is full, or a quota " "or file size limit is reached: make room there",
    ]),
    ("state", "store", "StoreError", 1, [
        "store directory {world.state}/shop/0_0/lmdb/0: ", "the disk is full, or a quota or file size limit is " "reached: make room there, or set state_dir to another directory",
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("place", "where", "kind", "committed", "parts"), FULL, ids=[case[0] for case in FULL])
def test_a_directory_that_is_full(
    make_world: MakeWorld, place: str, where: str, kind: str, committed: int, parts: list[str]
) -> None:
    """The log fails at the commit, the changelog before it. The local copy fails after it, and catches up."""
    small, large = [("ann", "10"), ("bob", "20")], [("ann", "600000"), ("bob", "30")]
    world, twin = make_world(padding(where), partitions=1), make_world(padding(where), partitions=1)
    if place == "state":
        # The copy must be the largest file, or the limit would stop others as well.
        small = [(f"first{number}", "300000") for number in range(6)]
        large = [("ann", "300000"), ("bob", "300000"), ("ann", "300000")]
    for each in (world, twin):
        each.produce("orders", *small)
        each.run()
        each.produce("orders", *large)
    limit = 500_000
    if place == "state":
        limit = (world.state / "shop" / "0_0" / "lmdb" / "0" / "data.mdb").stat().st_size

    steps = in_a_full_place(world, limit)
    first, position, again, position_again, afterwards = steps
    says(first, f"{kind}: ", *(part.format(world=world) for part in parts))
    says(again, f"{kind}: ")
    assert list(position.values()) == list(position_again.values()) == [len(small) + committed]
    assert afterwards == ""
    twin.run()
    found = world.contents()
    assert sizes(found) == sizes(twin.contents())


def test_a_full_place_at_the_first_start(world: World, undisturbed: Contents) -> None:
    def child(connection: Connection) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        connection.send(failure(world.run))

    with forked(child) as connection:
        says(
            answer(connection),
            "LogError: local log ",
            str(world.log),
            "make room there, or give the log another directory",
        )
    world.run()
    assert world.contents() == undisturbed


@pytest.mark.parametrize(
    ("place", "where"),
    [("log", "output"), ("changelog", "store"), ("state", "store")],
    ids=["log", "changelog", "state"],
)
def test_a_full_disk(make_world: MakeWorld, tmp_path: Path, place: str, where: str) -> None:
    """LMDB says "Input/output error" of a write that the disk cuts short; what counts is that the disk is full."""
    with small_disk(tmp_path / "small", 1024) as disk:
        setting = {
            "log": {"log": f"local:{disk}"},
            "changelog": {"changelog": f"directory:{disk}"},
            "state": {"state_dir": str(disk)},
        }[place]
        world = make_world(padding(where), partitions=1, **setting)
        world.produce("orders", *[(f"key{number}", "300000") for number in range(8)])
        message = failure(world.run)
        says(message, str(disk), "the disk is full", "make room there")
        assert "the disk failed" not in message


# ---------------------------------------------------------------- too many open files


def test_too_many_open_files(make_world: MakeWorld, undisturbed: Contents) -> None:
    """Whatever is being opened when the limit is met: what is said is the limit, and what was not done is done with a
    higher one."""
    world = make_world()
    world.produce("orders", *ORDERS)

    def child(connection: Connection) -> None:
        used = set(map(int, os.listdir("/dev/fd")))
        free = [number for number in range(max(used) + 30) if number not in used]
        for spare in range(24, 0, -1):
            # Down only, and both limits: the soft one is raised to the hard one where that is allowed.
            limit = free[spare]
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            connection.send((limit, failure(world.run)))

    met = set()
    with forked(child) as connection:
        for _ in range(24):
            limit, message = answer(connection)
            if message:
                says(
                    message,
                    "too many open files: the limit of this process is ",
                    f"{limit} (hard limit {limit}); raise it",
                    "ulimit -n",
                )
                assert "writable" not in message
                met.add(message.partition(":")[0])
    assert {"LogError", "StoreError"} <= met
    world.run()
    assert world.contents() == undisturbed
