"""The driver and the contract find processors that change values in silence, or forward in another thread."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock import Processor, Record, Topology, TopologyError, ValueTransformer, key_value_store
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


class Lists(Processor):
    """Adds each value to the list of its key."""

    def process(self, record: Record) -> None:
        store = self.context.get_store("lists")
        values = store.get(record.key)
        if values is None:
            store.put(record.key, values := [])
        values = self.appended(values, record.value)
        self.context.forward(record.with_value(values))

    def appended(self, values: list[int], value: int) -> list[int]:
        self.context.get_store("lists").put("count", 1)
        return [*values, value]


class NotPut(Lists):
    def appended(self, values: list[int], value: int) -> list[int]:
        values.append(value)
        return values


class Put(Lists):
    def process(self, record: Record) -> None:
        store = self.context.get_store("lists")
        values = store.get(record.key) or []
        values.append(record.value)
        store.put(record.key, values)


class TransformsNotPut(ValueTransformer):
    def transform(self, key: Any, value: Any) -> Any:
        store = self.context.get_store("lists")
        store.put("other", [])
        store.get("other").append(value)
        return value


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize(("kind", "is_found"), [(Lists, False), (Put, False), (NotPut, True), (TransformsNotPut, True)])
def test_the_driver_names_a_stored_value_that_is_changed_and_not_put(
    kind: type[Any], is_found: bool, reopen: bool
) -> None:
    topology = Topology().add_source("in", "numbers", value_serde="int")
    topology.add_processor("lists", kind, "in", stores=[key_value_store("lists", value_serde="json")])
    with TopologyTestDriver(topology, reopen_tasks=reopen) as driver:
        for time in range(2):
            driver.pipe("numbers", "k", 1, time)
        said = "node 'lists' changes a value that store 'lists' returned, and does not put it"
        assert [hint[: len(said)] for hint in driver.hints] == [said] * is_found


class ForwardsElsewhere(Processor):
    def process(self, record: Record) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.context.forward, record)


def test_the_driver_refuses_to_forward_in_another_thread() -> None:
    """Also where nobody looks at what came of it there."""
    with TopologyTestDriver(program(ForwardsElsewhere)) as driver:
        with pytest.raises(TopologyError, match="node 'adds' forwards a record in another thread"):
            driver.pipe("lists", "k", [0], 0)
        assert driver.read_values("out") == []


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
