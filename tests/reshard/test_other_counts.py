"""Sub-topologies whose topics have different numbers of partitions: keys are divided by that of their own topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    Processor,
    Record,
    Topology,
    key_value_store,
)
from penstock.plugins.logs.memory import MemoryLog

from .growing import grow
from .programs import Append
from .runs import new_log, outputs, produce, resharded, run, settings

KEYS = [f"k{number}" for number in range(40)]


class Plain(Processor):
    """Forwards a record as it is."""

    def process(self, record: Record) -> None:
        self.context.forward(record)


def merged(directory: Path, orders: str = "orders", notes: str = "notes") -> Application:
    """Return an application whose one sub-topology appends the orders of a key, and forwards notes."""
    topology = (
        Topology()
        .add_source("orders", orders)
        .add_source("notes", notes)
        .add_processor("keep", Append, "orders", stores=[key_value_store("kept")])
        .add_processor("plain", Plain, "notes")
        .add_sink("out", "out", ["keep", "plain"])
    )
    return Application("shop", topology, **settings(directory, "topic:"))


def rekeyed(directory: Path) -> Application:
    """Return `merged` with a repartition topic between the orders and their store."""
    topology = (
        Topology()
        .add_source("orders", "orders")
        .add_source("notes", "notes")
        .add_repartition("by-key", "orders")
        .add_processor("keep", Append, "by-key", stores=[key_value_store("kept")])
        .add_processor("plain", Plain, "notes")
        .add_sink("out", "out", ["keep", "plain"])
    )
    return Application("shop", topology, **settings(directory, "topic:"))


def produce_all(log: MemoryLog, topics: Mapping[str, list[str]], first: int, last: int) -> None:
    for topic, keys in topics.items():
        produce(log, topic, [(key, f"{number},", number) for number in range(first, last) for key in keys])


def orders_alone(log: MemoryLog) -> dict[Any, Any]:
    return {key: [value for value, _ in rows] for key, rows in outputs(log).items() if key and key.startswith(b"k")}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 4), (4, 4)),
        ((2, 4), (8, 4)),
        ((4, 2), (4, 7)),
        ((4, 4), (4, 9)),
        ((4, 9), (9, 9)),
        ((2, 3), (3, 3)),
        ((3, 8), (3, 5)),
    ],
)
def test_one_topic_gets_another_number(before: tuple[int, int], after: tuple[int, int], tmp_path: Path) -> None:
    log = new_log({"orders": before[0], "notes": before[1], "out": 1})
    others = [f"n{number}" for number in range(40)]
    names = {"orders": "orders", "notes": "notes"}
    produce_all(log, {"orders": KEYS, "notes": others}, 0, 3)
    run(merged(tmp_path), log)
    sources: dict[str, str] = {}
    partitions = next(new for old, new in zip(before, after, strict=True) if old != new)
    for topic, old, new in zip(("orders", "notes"), before, after, strict=True):
        if new > old:
            grow(log, topic, new)
        elif new < old:
            names[topic] = sources[topic] = f"{topic}-new"
            log.create_topic(f"{topic}-new", new)
    resharded(merged(tmp_path), log, partitions, sources=sources)
    produce_all(log, {names["orders"]: KEYS, names["notes"]: others}, 3, 5)
    run(merged(tmp_path, **names), log)
    assert orders_alone(log) == {
        key.encode(): [b"".join(b"%d," % each for each in range(last + 1)) for last in range(5)] for key in KEYS
    }


def test_a_repartition_topic_beside_a_source_with_more_partitions(tmp_path: Path) -> None:
    """The number of a repartition topic follows that of the topics above it, not that of its sub-topology."""
    log = new_log({"orders": 2, "notes": 5, "out": 1})
    notes = [f"n{number}" for number in range(40)]
    produce_all(log, {"orders": KEYS, "notes": notes}, 0, 3)
    run(rekeyed(tmp_path), log)
    grow(log, "orders", 4)
    resharded(rekeyed(tmp_path), log, 4)
    produce_all(log, {"orders": KEYS, "notes": notes}, 3, 5)
    run(rekeyed(tmp_path), log)
    assert {key: len(rows) for key, rows in outputs(log).items()} == {each.encode(): 5 for each in [*KEYS, *notes]}
    assert {key: rows[-1][0] for key, rows in outputs(log).items() if key in {each.encode() for each in KEYS}} == {
        key.encode(): b"0,1,2,3,4," for key in KEYS
    }
