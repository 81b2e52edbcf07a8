"""Numbers that an operator saves are there when its task is opened again: they belong to a store, or to the node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import ProcessorContext, Topology, key_value_store
from penstock.operator import Operator
from penstock.store.kept_store import KeptStore
from penstock.task.saved_values import adopt_values
from penstock.testing import TopologyTestDriver


class Numbering(Operator):
    """Numbers the records."""

    def bind(self, context: ProcessorContext) -> Callable[[Any], None]:
        numbers = context.saved_numbers

        def run(record: Any) -> None:
            key, _, timestamp, headers = record
            numbers["last"] = numbers.get("last", 0) + 1
            context.send((key, numbers["last"], timestamp, headers))

        return run


@pytest.mark.parametrize("has_store", [False, True])
def test_numbers_without_a_store_belong_to_the_node(has_store: bool) -> None:
    topology = Topology().add_source("in", "in")
    topology.add_processor("numbering", Numbering, "in", stores=[key_value_store("other")] if has_store else [])
    topology.add_sink("out", "out", "numbering", value_serde="int")
    with TopologyTestDriver(topology, reopen_tasks=True) as driver:
        for _ in range(3):
            driver.pipe("in", "k", "v")
        assert driver.read_values("out") == [1, 2, 3]


def test_numbers_of_a_store_go_with_it() -> None:
    saved = {"counts": {"n": 1}, "counts/1": {"n": 2}, "gone": {"n": 3}, "node": {"n": 4}}
    state = json.dumps({"stores": saved}).encode()
    one, other = KeptStore("memory"), KeptStore("memory", generation=1)

    def kept(before: dict[str, KeptStore] | None, now: dict[str, KeptStore]) -> set[str]:
        return set(json.loads(adopt_values(state, before, now)).get("stores", {}))

    assert kept({"counts": one, "gone": one}, {"counts": one, "gone": one}) == {*saved}
    assert kept({"counts": one, "gone": one}, {"counts": one}) == {"counts", "counts/1", "node"}
    assert kept({"counts": one, "gone": one}, {"counts": other, "gone": one}) == {"gone", "node"}
    assert kept({"gone": one}, {"gone": one, "node": one}) == {"counts", "counts/1", "gone"}
    assert kept(None, {"counts": one}) == {*saved}
