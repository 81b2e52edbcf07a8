"""A value that goes to two places is two values: what one place changes, no other sees."""

from __future__ import annotations

import threading
from collections import Counter, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock import Processor, Record, Topology, ValueTransformer, Windowed, key_value_store
from penstock.plugins.testing import TopologyTestDriver
from penstock.plugins.testing.mock_context import MockProcessorContext
from penstock.store.record_cache import Change
from penstock.support.own_copy import own_copy


class Add(Processor):
    """Changes the value, and the key if it is a dict, in place."""

    def process(self, record: Record) -> None:
        record.value["seen"].append(self.context.node)
        if isinstance(record.key, dict):
            record.key["changed"] = True
        self.context.forward(record)


class Same(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


class ByName(Processor):
    """Forwards the same record to one child after the other."""

    def process(self, record: Record) -> None:
        self.context.forward(record, to="one")
        self.context.forward(record, to="two")


class ForEach(Processor):
    """Forwards the same value under several keys."""

    def process(self, record: Record) -> None:
        for key in ("a", "b"):
            self.context.forward(record.with_key(key))


class KeepsWhatItSent(Processor):
    """Puts in its store what it has forwarded."""

    def process(self, record: Record) -> None:
        self.context.forward(record)
        self.context.get_store("kept").put("k", record.value)


class Live(ValueTransformer):
    """Returns the object that it goes on changing."""

    def __init__(self) -> None:
        self.value: dict[str, list[str]] = {"seen": []}

    def transform(self, key: Any, value: Any) -> Any:
        return self.value


def begun(key_serde: str = "str") -> Topology:
    return Topology().add_source("in", "orders", key_serde=key_serde, value_serde="json")


def seen(topology: Topology, *topics: str, key: Any = "k") -> list[list[list[str]]]:
    for topic in topics:
        topology.add_sink(f"to-{topic}", topic, topic, key_serde="json", value_serde="json")
    with TopologyTestDriver(topology) as driver:
        driver.pipe("orders", key, {"seen": []}, 1)
        return [[record.value["seen"] for record in driver.read_all(topic)] for topic in topics]


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")], ids=str)
@pytest.mark.parametrize("above", [None, Same, ByName], ids=["source", "processor", "by name"])
def test_each_child_has_its_own(above: Callable[[], Processor] | None, names: tuple[str, str]) -> None:
    topology, parent = begun(), "in"
    if above is not None:
        topology.add_processor("above", above, "in")
        parent = "above"
    for name in names:
        topology.add_processor(name, Add, parent)
    assert seen(topology, "one", "two") == [[["one"]], [["two"]]]


@pytest.mark.parametrize("first", [True, False])
def test_a_sink_beside_a_processor_writes_what_came(first: bool) -> None:
    topology = begun()
    if first:
        topology.add_sink("raw", "raw", "in", value_serde="json")
    topology.add_processor("one", Add, "in")
    if not first:
        topology.add_sink("raw", "raw", "in", value_serde="json")
    topology.add_sink("out", "out", "one", value_serde="json")
    with TopologyTestDriver(topology) as driver:
        driver.pipe("orders", "k", {"seen": []}, 1)
        assert driver.read_values("raw") == [{"seen": []}] and driver.read_values("out") == [{"seen": ["one"]}]


def test_a_key_that_can_be_changed_is_copied_too() -> None:
    topology = begun("json")
    for name in ("one", "two"):
        topology.add_processor(name, Add, "in")
        topology.add_sink(f"to-{name}", name, name, key_serde="json", value_serde="json")
    topology.add_sink("raw", "raw", "in", key_serde="json", value_serde="json")
    with TopologyTestDriver(topology) as driver:
        driver.pipe("orders", {"id": 1}, {"seen": []}, 1)
        assert [each.key for topic in ("one", "two", "raw") for each in driver.read_all(topic)] == [
            {"id": 1, "changed": True},
            {"id": 1, "changed": True},
            {"id": 1},
        ]


def test_a_processor_may_forward_one_value_several_times() -> None:
    topology = begun().add_processor("each", ForEach, "in").add_processor("one", Add, "each")
    assert seen(topology, "one") == [[["one"], ["one"]]]


def test_a_processor_may_use_what_it_has_forwarded() -> None:
    topology = begun().add_processor("keeps", KeepsWhatItSent, "in", stores=[key_value_store("kept")])
    topology.add_processor("one", Add, "keeps").add_sink("out", "out", "one", value_serde="json")
    with TopologyTestDriver(topology) as driver:
        driver.pipe("orders", "k", {"seen": []}, 1)
        assert driver.store("kept").get("k") == {"seen": []}


def test_a_transformer_may_return_what_it_keeps() -> None:
    topology = begun().add_processor("live", Live, "in").add_processor("one", Add, "live")
    topology.add_sink("out", "out", "one", value_serde="json")
    with TopologyTestDriver(topology) as driver:
        for time in (1, 2):
            driver.pipe("orders", "k", {}, time)
        assert driver.read_values("out") == [{"seen": ["one"]}] * 2


def test_a_mock_context_captures_what_was_forwarded() -> None:
    class Buffer(Processor):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def process(self, record: Record) -> None:
            self.seen.append(record.value)
            self.context.forward(record.with_value(self.seen))

    context = MockProcessorContext()
    buffer = context.start(Buffer())
    for number in (1, 2):
        buffer.process(Record("k", number, 0))
    assert context.values() == [[1], [1, 2]]


# ---------------------------------------------------------------------- copies


Pair = namedtuple("Pair", "left right")


@dataclass
class Order:
    lines: list[int]
    note: str = ""


@dataclass(frozen=True)
class Price:
    amount: int
    currency: str = "EUR"


class WithMore(Price):
    """Beside the fields of a frozen dataclass, one that can be changed."""

    def __init__(self, amount: int) -> None:
        super().__init__(amount)
        self.more = [amount]


@dataclass(eq=False)
class Node:
    """Is told apart by its identity."""

    nodes: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    parts: list[int] = field(default_factory=list)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, {"b": {2}}]},
        [[1], [2]],
        ([1], 2),
        Pair([1], 2),
        Change([1], [1]),
        Order([1]),
        Frozen([1]),
        Counter("ab"),
        bytearray(b"a"),
        {1, 2},
        Windowed({"a": 1}, 0, 1),
        {("a", 1): [1]},
        WithMore(1),
    ],
    ids=repr,
)
def test_a_copy_is_equal_and_of_the_same_type(value: Any) -> None:
    copied = own_copy(value)
    assert copied == value and type(copied) is type(value) and copied is not value


@pytest.mark.parametrize(
    "value", [None, "a", 1, (1, "a"), Pair(1, 2), Price(1), Change(1, None), frozenset("a"), object()]
)
def test_what_cannot_be_changed_is_not_copied(value: Any) -> None:
    assert own_copy(value) is value


def test_what_contains_itself_is_copied() -> None:
    value: dict[str, Any] = {"a": 1}
    value["self"] = value
    copied = own_copy(value)
    assert copied is not value and copied["self"] is copied


def test_what_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()
    assert own_copy(lock) is lock
    copied = own_copy({"lock": lock, "seen": []})
    assert copied["lock"] is lock and copied["seen"] == []


@pytest.mark.parametrize("kind", [list, set, frozenset, tuple, dict.fromkeys])
def test_objects_in_a_value_refer_to_each_other_in_its_copy(kind: Callable[[list[Node]], Any]) -> None:
    child = Node()
    parent = Node([child])
    found = sorted(own_copy(kind([parent, child])), key=lambda node: -len(node.nodes))
    assert found[0].nodes == [found[1]] and found[0] is not parent and found[1] is not child


def test_what_is_copied_half_way_is_in_no_copy() -> None:
    class Refuses:
        def __init__(self, child: Node) -> None:
            self.child, self.lock = child, threading.Lock()

    child = Node()
    refuses = Refuses(child)
    child.nodes.append(refuses)  # type: ignore[arg-type]
    copied = own_copy([refuses, child])
    assert copied[0] is refuses and copied[1].nodes in ([refuses], child.nodes)


def test_a_frozen_dataclass_may_lack_a_field() -> None:
    @dataclass(frozen=True)
    class Lacks:
        given: int
        made: int = field(init=False)

    value = Lacks(1)
    assert own_copy([value])[0].given == 1
