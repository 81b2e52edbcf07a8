"""The driver and the contract find a processor that changes the value that it got."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock import Processor, Record, Topology, ValueTransformer
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.contracts.processor import ProcessorContract
from penstock.plugins.testing.strategies import streams


class Adds(Processor):
    """Sends a value of its own, and leaves the one that it got."""

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value([*(record.value or ()), 1]))


class Appends(Processor):
    def process(self, record: Record) -> None:
        if record.value is not None:
            record.value.append(1)
        self.context.forward(record.with_value(record.value or [1]))


class Transforms(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        if value is not None:
            value.append(1)
        return value or [1]


def program(kind: type[Any]) -> Topology:
    topology = Topology().add_source("in", "lists", value_serde="json").add_processor("adds", kind, "in")
    return topology.add_sink("out", "out", "adds", value_serde="json")


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize(("kind", "is_found"), [(Adds, False), (Appends, True), (Transforms, True)])
def test_the_driver_names_it(kind: type[Any], is_found: bool, reopen: bool) -> None:
    with TopologyTestDriver(program(kind), reopen_tasks=reopen) as driver:
        for time in range(2):
            driver.pipe("lists", "k", [0], time)
        assert driver.read_values("out") == [[0, 1]] * 2
        assert [hint[:12] for hint in driver.hints] == ["node 'adds' "] * is_found


def test_functions_of_verbs_may_change_what_they_get() -> None:
    builder = StreamsBuilder()
    lists = builder.stream("lists", value_serde="json")
    lists.map_values(lambda value: value.append(1) or value).to("out", value_serde="json")
    with TopologyTestDriver(builder) as driver:
        driver.pipe("lists", "k", [0], 0)
        assert driver.read_values("out") == [[0, 1]] and driver.hints == []


@dataclass
class NeverEqual:
    number: float = float("nan")

    def __eq__(self, other: object) -> bool:
        return False


class MakesNeverEqual(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(NeverEqual()))


class Ignores(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value([0]))


def test_what_cannot_be_compared_is_not_accused() -> None:
    topology = Topology().add_source("in", "lists", value_serde="json")
    topology.add_processor("makes", MakesNeverEqual, "in").add_processor("ignores", Ignores, "makes")
    topology.add_sink("out", "out", "ignores", value_serde="json")
    with TopologyTestDriver(topology) as driver:
        driver.pipe("lists", "k", [0], 0)
        assert driver.read_values("out") == [[0]] and driver.hints == []


def contract(kind: type[Any]) -> ProcessorContract:
    def reference(records: Iterable[Record]) -> list[tuple[Any, Any]]:
        return [(record.key, [*(record.value or ()), 1]) for record in records]

    options = {
        "program": staticmethod(lambda: program(kind)),
        "reference": staticmethod(reference),
        "records": streams(values=st.lists(st.integers(0, 1), max_size=2)),
        "examples": 10,
    }
    made: ProcessorContract = type("Contract", (ProcessorContract,), options)()
    return made


@pytest.mark.parametrize("kind", [Appends, Transforms])
def test_the_contract_finds_it(kind: type[Any]) -> None:
    contract(Adds).test_it_answers_as_the_reference()
    with pytest.raises(AssertionError, match="node 'adds' changes the value that it got in place"):
        contract(kind).test_it_answers_as_the_reference()
