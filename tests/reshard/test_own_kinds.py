"""Stores of kinds that are not penstock's, which say where the keys of their rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import (
    Application,
    BytesStore,
    IncompatibleStateError,
    Processor,
    Record,
    Serde,
    StateStore,
    StoreContext,
    StoreSpec,
    Topology,
)
from penstock.store import RowKeys

from .runs import new_log, outputs, produce, resharded, run, settings

KEYS = [f"key {number}" for number in range(20)]
_COUNT = b"#"


class Bag(StateStore):
    """What was added under each key, a row for each, and how often anything was added."""

    def __init__(self, below: BytesStore, serde: Serde[Any]) -> None:
        self.name = below.name
        self._below = below
        self._serde = serde

    def add(self, item: Any, value: str) -> str:
        key = b"i" + self._serde.serialize(item)
        text = (self._below.get(key) or b"").decode() + value
        self._below.put(key, text.encode())
        self._below.put(_COUNT, b"%d" % (self.count() + 1))
        return text

    def count(self) -> int:
        return int(self._below.get(_COUNT) or 0)


def key_of(row: bytes) -> bytes | None:
    return None if row == _COUNT else row[1:]


def added(one: bytes, other: bytes) -> bytes:
    return b"%d" % (int(one) + int(other))


@dataclass(frozen=True)
class BagSpec(StoreSpec):
    """Declares a bag; `item_serde`: of its keys."""

    row_keys: ClassVar[RowKeys | None] = RowKeys(key_of, attrgetter("item_serde"), added)

    item_serde: str = "json"

    def build(self, bytes_store: BytesStore, context: StoreContext) -> Bag:
        return Bag(bytes_store, context.serde(self.item_serde, self.name))


@dataclass(frozen=True)
class SilentSpec(BagSpec):
    row_keys = None


@dataclass(frozen=True)
class UnmergedSpec(BagSpec):
    row_keys = RowKeys(key_of, attrgetter("item_serde"))


@dataclass(frozen=True)
class WrongSpec(BagSpec):
    row_keys = RowKeys(lambda row: row[1:][::-1], attrgetter("item_serde"), added)


class Keep(Processor):
    """Adds each record to the bag, and forwards what that has for its key."""

    def process(self, record: Record) -> None:
        bag = self.context.get_store("bag")
        self.context.forward(record.with_value(bag.add(record.key, record.value)))


def application(directory: Path, topic: str, spec: Callable[..., BagSpec], changelog: str) -> Application:
    topology = Topology().add_source("in", topic).add_processor("keep", Keep, "in", stores=[spec("bag")])
    return Application("shop", topology.add_sink("out", "out", "keep"), **settings(directory, changelog))


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:"])
def test_a_kind_that_says_where_its_keys_are_is_divided(tmp_path: Path, changelog: str) -> None:
    log = new_log({"in": 4, "new": 7, "out": 1})
    produce(log, "in", [(key, "1", 1) for key in KEYS])
    run(application(tmp_path, "in", BagSpec, changelog), log)
    app = application(tmp_path, "new", BagSpec, changelog)
    done = resharded(app, log, 7, sources={"in": "new"})
    assert sum(done.rows.values()) == len(KEYS) + 7  # each new task has the count of all
    produce(log, "new", [(key, "2", 2) for key in KEYS])
    run(app, log)
    assert {key: [value for value, _ in sent] for key, sent in outputs(log).items()} == {
        key.encode(): [b"1", b"12"] for key in KEYS
    }


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (SilentSpec, "store 'bag' is of kind 'own', which does not say where its rows have their keys"),
        (UnmergedSpec, "store 'bag': its row b'#' is of the whole store, and two tasks have different ones"),
        (WrongSpec, "store 'bag' is not divided by key: "),
    ],
)
def test_a_kind_that_does_not_say_it_rightly_is_refused(
    tmp_path: Path, spec: Callable[..., BagSpec], reason: str
) -> None:
    log = new_log({"in": 2, "new": 3, "out": 1})
    produce(log, "in", [(key, "1", 1) for key in KEYS[:7]])
    before = application(tmp_path, "in", spec, "directory:changes")
    run(before, log)
    with pytest.raises(IncompatibleStateError, match=reason):
        resharded(application(tmp_path, "new", spec, "directory:changes"), log, 3, sources={"in": "new"})
    produce(log, "in", [(key, "2", 2) for key in KEYS[:7]])
    run(before, log)
    assert {sent[-1][0] for sent in outputs(log).values()} == {b"12"}
    done = resharded(
        application(tmp_path, "new", spec, "directory:changes"), log, 3, sources={"in": "new"}, dropped=["bag"]
    )
    assert sum(done.rows.values()) == 0
