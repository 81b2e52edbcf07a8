"""What a store drops is counted for the node that uses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock import BytesStore, Processor, Record, StateStore, StoreContext, StoreTraits, Topology
from penstock.plugins.testing import TopologyTestDriver


class Picky(StateStore):
    def __init__(self, name: str, context: StoreContext) -> None:
        self.name = name
        self.context = context

    def put(self, value: str) -> None:
        if value == "late":
            self.context.dropped("late")


@dataclass(frozen=True)
class PickySpec:
    name: str
    backend: str | None = None
    logged: bool = True
    traits: StoreTraits = field(default_factory=StoreTraits)

    def build(self, bytes_store: BytesStore, context: StoreContext) -> StateStore:
        return Picky(self.name, context)


class Put(Processor):
    def process(self, record: Record) -> None:
        store: Any = self.context.get_store("picky")
        store.put(record.value)


def test_drops_of_a_store_count_for_its_node() -> None:
    topology = Topology().add_source("in", "in").add_processor("put", Put, "in", stores=[PickySpec("picky")])
    with TopologyTestDriver(topology) as driver:
        for value in ("late", "in time", "late"):
            driver.pipe("in", "k", value, 0)
        assert driver.metrics()["put"].dropped == {"late": 2}
        assert driver.dropped_records() == 2
