"""Which changes of a program the saved state survives, and the reasons given for the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from penstock import StrSerde, Topology, check_compatible, key_value_store, window_store

from .programs import Pass, law, topologies


def saved(topology: Topology, **partitions: int) -> dict[str, Any]:
    """Return a fingerprint as it comes back from where it was saved."""
    program = topology.build()
    counts = dict.fromkeys(program.topics(), 4) | partitions
    found: dict[str, Any] = json.loads(json.dumps(program.fingerprint(program.resolve(counts, "app"))))
    return found


def base() -> Topology:
    """Sub-topology 0 reads `in`; 1 counts what comes through `r-repartition`."""
    topology = Topology().add_source("src", "in").add_processor("p", Pass, "src").add_repartition("r", "p")
    return topology.add_processor("count", Pass, "r", stores=[key_value_store("counts")]).add_sink(
        "out", "out", "count"
    )


def rewritten() -> Topology:
    """Other processors and edges, another source node, the same topics and stores."""
    topology = (
        Topology().add_source("read", "in").add_processor("first", Pass, "read").add_processor("p", Pass, "first")
    )
    topology.add_repartition("r", ["p", "first"])
    return topology.add_processor("total", Pass, "r", stores=[key_value_store("counts")])


def front() -> Topology:
    topology = Topology().add_source("new", "new").add_sink("new-out", "x", "new")
    topology.add_source("src", "in").add_processor("p", Pass, "src").add_repartition("r", "p")
    return topology.add_processor("count", Pass, "r", stores=[key_value_store("counts")])


def with_store(**options: Any) -> Topology:
    topology = Topology().add_source("src", "in").add_processor("p", Pass, "src").add_repartition("r", "p")
    return topology.add_processor("count", Pass, "r", stores=[key_value_store("counts", **options)])


def stateless(*topics: str) -> Topology:
    return Topology().add_source("src", *topics).add_sink("out", "out", "src")


FITS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]]]] = {
    "the same": (lambda: saved(base()), lambda: saved(base())),
    "other processors": (lambda: saved(base()), lambda: saved(rewritten())),
    "a sub-topology behind": (lambda: saved(base()), lambda: saved(base().add_source("new", "new").add_sink("o", "x", "new"))),
    "a new store": (lambda: saved(base()), lambda: saved(base().add_store(key_value_store("more"), "count"))),
    "more partitions without a store": (lambda: saved(stateless("a"), a=2), lambda: saved(stateless("a"), a=5)),
    "a topic more": (lambda: saved(stateless("a")), lambda: saved(stateless("a", "b"))),
    "a topic fewer": (lambda: saved(stateless("a", "b")), lambda: saved(stateless("a"))),
    "a default that is named now": (lambda: saved(with_store()), lambda: saved(with_store(value_serde="msgpack"))),
    "a serde by its class": (lambda: saved(with_store(value_serde="str")), lambda: saved(with_store(value_serde=StrSerde()))),
    "another backend, not logged": (lambda: saved(with_store()), lambda: saved(with_store(backend="memory", logged=False))),
    "timestamps, and a TTL": (lambda: saved(with_store()), lambda: saved(with_store(timestamped=True, ttl="1h"))),
    "another retention": (
        lambda: saved(with_windows(retention="1h")),
        lambda: saved(with_windows(retention="2h", window_size="5m", cached=True)),
    ),
    "a global store less": (
        lambda: saved(stateless("a").add_global_store(key_value_store("gs"), "s", "g", "p", Pass)),
        lambda: saved(stateless("a")),
    ),
    "without an assignment": (lambda: base().build().fingerprint(), lambda: saved(base())),
}  # fmt: skip


def with_windows(retention: str = "1h", window_size: str = "1m", **options: Any) -> Topology:
    store = window_store("counts", retention=retention, window_size=window_size, **options)
    topology = Topology().add_source("src", "in").add_processor("p", Pass, "src").add_repartition("r", "p")
    return topology.add_processor("count", Pass, "r", stores=[store]).add_sink("out", "out", "count")


def moved_into_one() -> Topology:
    topology = Topology().add_source("src", "in").add_processor("p", Pass, "src")
    return topology.add_processor("count", Pass, "p", stores=[key_value_store("counts")])


UNFIT: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[], dict[str, Any]], list[str]]] = {
    "a sub-topology in front": (
        lambda: saved(base()),
        lambda: saved(front()),
        [
            "store 'counts' was in sub-topology 1 and is now in 2: sub-topologies are numbered in the order of their "
            "first nodes, add new ones behind the old",
            "topic 'in' was in sub-topology 0 and is now in 1",
            "topic 'r-repartition' was in sub-topology 1 and is now in 2",
            "sub-topology 0 read 'in' and now reads 'new'",
            "sub-topology 1 read 'r-repartition' and now reads 'in'",
        ],
    ),
    "a repartition less": (
        lambda: saved(base()),
        lambda: saved(moved_into_one()),
        [
            "store 'counts' was in sub-topology 1 and is now in 0",
            "internal topic 'r-repartition' is no longer in the program, and records that wait in it would be lost",
        ],
    ),
    "a store less": (
        lambda: saved(with_store()),
        lambda: saved(Topology().add_source("src", "in").add_repartition("r", "src").add_sink("out", "out", "r")),
        ["store 'counts' of sub-topology 1 is no longer in the program, and its content would be lost: put it back"],
    ),
    "another serde": (
        lambda: saved(with_store(value_serde=StrSerde())),
        lambda: saved(with_store(value_serde=NewSerde())),
        ["store 'counts' was written with value_serde penstock.serde.StrSerde and now has " "tests.core.test_fingerprint.NewSerde"],
    ),
    "another kind": (
        lambda: saved(with_store()),
        lambda: saved(with_windows()),
        ["store 'counts' was written with kind KeyValueStoreSpec and now has WindowStoreSpec: its content cannot"],
    ),
    "windows with duplicates": (
        lambda: saved(with_windows()),
        lambda: saved(with_windows(retain_duplicates=True)),
        ["store 'counts' was written with kind WindowStoreSpec and now has WindowStoreSpec with duplicates"],
    ),
    "another topic": (
        lambda: saved(stateless("a")),
        lambda: saved(stateless("b")),
        ["sub-topology 0 read 'a' and now reads 'b': it is another one, and would take over the old one's positions"],
    ),
    "more partitions": (
        lambda: saved(moved_into_one(), **{"in": 4}),
        lambda: saved(moved_into_one(), **{"in": 8}),
        [
            "sub-topology 0 had 4 tasks and now has 8 ('in' had 4 partitions and has 8): the content of 'counts' is "
            "divided by the old number"
        ],
    ),
    "a pattern that moved": (
        lambda: saved(Topology().add_source("p", pattern="x").add_source("q", pattern="y")),
        lambda: saved(Topology().add_source("q", pattern="y").add_source("p", pattern="x")),
        [
            "pattern 'x' was in sub-topology 0 and is now in 1",
            "pattern 'y' was in sub-topology 1 and is now in 0",
            "sub-topology 0 read 'x' and now reads 'y'",
            "sub-topology 1 read 'y' and now reads 'x'",
        ],
    ),
    "another topic of a global store": (
        lambda: saved(stateless("a").add_global_store(key_value_store("gs"), "s", "g", "p", Pass)),
        lambda: saved(stateless("a").add_global_store(key_value_store("gs"), "s", "h", "p", Pass)),
        ["global store 'gs' was filled from topic 'g' and now is from 'h': give it another name"],
    ),
    "a default and another serde": (
        lambda: saved(with_store()),
        lambda: saved(with_store(value_serde=StrSerde())),
        ["store 'counts' was written with value_serde penstock.plugins.serdes.msgpack.MsgpackSerde and now has " "penstock.serde.StrSerde"],
    ),
    "another version": (
        lambda: {"format": 99},
        lambda: saved(base()),
        ["it was saved by another version of penstock, in format 99, and this version reads the formats 2 and 3"],
    ),
    "an older version": (
        lambda: {"format": 1},
        lambda: saved(base()),
        ["it was saved by an older version of penstock, in format 1, and this version reads the formats 2 and 3"],
    ),
}  # fmt: skip


class NewSerde(StrSerde):
    pass


@pytest.mark.parametrize("name", FITS)
def test_a_change_that_fits(name: str) -> None:
    old, new = FITS[name]
    assert check_compatible(old(), new()) == []


@pytest.mark.parametrize("name", UNFIT)
def test_a_change_that_does_not_fit(name: str) -> None:
    old, new, reasons = UNFIT[name]
    found = check_compatible(old(), new())
    assert len(found) == len(reasons), found
    for one, start in zip(found, reasons, strict=True):
        assert one.startswith(start)


@law
@given(topologies())
def test_a_program_fits_what_it_saved_itself(topology: Topology) -> None:
    fingerprint = topology.build().fingerprint()
    assert check_compatible(json.loads(json.dumps(fingerprint)), topology.build().fingerprint()) == []
