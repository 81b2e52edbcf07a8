"""Visitors: which methods they may be, what they are called with, and that each key is visited once."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from penstock import (
    ConfigError,
    ProcessingError,
    Processor,
    Record,
    Topology,
    TopologyError,
    ValueTransformer,
    Windowed,
    WrappingProcessor,
    key_value_store,
    list_store,
    session_store,
    skip,
    versioned_store,
    visitor,
    window_store,
)
from penstock.testing import TopologyTestDriver


class Keeps(Processor):
    """Puts each record; a visit answers each entry."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_store("kept")

    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value)

    @visitor("kept")
    def show(self, key: Any, value: Any) -> None:
        self.context.forward(Record(key, value, 0))

    @visitor()
    def scale(self, key: Any, value: int, argument: int) -> None:
        self.store.put(key, value * argument if argument else None)


def topology(processor: Any = Keeps, *stores: Any, **options: Any) -> Topology:
    made = Topology().add_source("in", "in")
    made.add_processor("keep", processor, "in", stores=stores or [key_value_store("kept")], **options)
    return made.add_sink("out", "out", "keep")


SERDES: dict[str, Any] = {"key_serde": "str", "value_serde": "int", "state_serde": "json"}


def shown(driver: TopologyTestDriver) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in driver.read_all("out")]


@pytest.mark.parametrize("reopen_tasks", [False, True])
@pytest.mark.parametrize("options", [{}, {"cached": True}, {"ttl": "1h"}, {"timestamped": False}])
def test_a_visit_of_a_key_value_store(reopen_tasks: bool, options: dict[str, Any]) -> None:
    store = key_value_store("kept", **options)
    with TopologyTestDriver(topology(Keeps, store), partitions=3, reopen_tasks=reopen_tasks, **SERDES) as driver:
        driver.pipe_many("in", [(f"k{number}", number, number) for number in range(12)])
        driver.visit("scale", 10)
        driver.visit("keep.show")
        assert sorted(shown(driver)) == sorted((f"k{number}", number * 10) for number in range(12))
        driver.visit("scale", 0)
        driver.visit("show")
        assert shown(driver) == []


class OfWindows(Keeps):
    def process(self, record: Record) -> None:
        self.store.put(record.key, record.value, record.timestamp // 10 * 10)

    @visitor()
    def clear(self, key: Windowed, value: int) -> None:
        self.context.forward(Record(f"{key.key} {key.start} {key.end}", value, 0))
        self.store.put(key.key, None, key.start)


class OfSessions(Keeps):
    def process(self, record: Record) -> None:
        self.store.put(Windowed(record.key, record.timestamp, record.timestamp + 10), record.value)

    @visitor()
    def clear(self, key: Windowed, value: int) -> None:
        self.context.forward(Record(f"{key.key} {key.start} {key.end}", value, 0))
        self.store.remove(key)


@pytest.mark.parametrize(
    ("processor", "store"),
    [
        (OfWindows, window_store("kept", retention="1s", window_size="10ms")),
        (OfSessions, session_store("kept", retention="1s")),
    ],
)
def test_a_visit_of_windows_and_sessions_that_have_not_expired(processor: Any, store: Any) -> None:
    with TopologyTestDriver(topology(processor, store), **SERDES) as driver:
        driver.pipe_many("in", [("old", 0, 0), *((f"k{number % 3}", number, number * 400) for number in range(9))])
        driver.visit("clear")
        found = shown(driver)
        assert found == [(f"k{each % 3} {each * 400} {each * 400 + 10}", each) for each in (6, 7, 8)]
        driver.visit("clear")
        assert shown(driver) == []


def test_what_no_visitor_may_be() -> None:
    with pytest.raises(TopologyError, match=r"visitor .*few: it is called with \(key, value\)"):

        class _Few(Processor):
            @visitor("kept")
            def few(self, key: str) -> None: ...

    with pytest.raises(TopologyError, match="write @visitor"):
        visitor(len)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"visitor 'show': it visits store 'kept', .* connected to other"):
        topology(Keeps, key_value_store("other")).build()
    with pytest.raises(TopologyError, match=r"visitor 'scale': its node is connected to 2 stores: name one"):
        topology(Keeps, key_value_store("kept"), key_value_store("other")).build()

    class Transforms(ValueTransformer):
        def transform(self, key: str, value: str) -> str:
            return value

        @visitor()
        def visit(self, key: str, value: str) -> None: ...

    with pytest.raises(TopologyError, match="Transforms is a ValueTransformer: derive it from Processor"):
        topology(Transforms).build()

    class Plain(Processor):
        def process(self, record: Record) -> None: ...

        @visitor()
        def visit(self, key: str, value: str) -> None: ...

    for store in (list_store("kept"), versioned_store("kept", history_retention="1h")):
        with pytest.raises(TopologyError, match="key-value, window and session stores can be visited"):
            TopologyTestDriver(topology(Plain, store))


def test_what_cannot_be_asked_for() -> None:
    with TopologyTestDriver(topology(), **SERDES) as driver:
        with pytest.raises(
            ConfigError, match=r"application 'test' has no visitor 'shwo'; it has: keep.scale, keep.show"
        ):
            driver.visit("shwo")
        with pytest.raises(ConfigError, match=r"visitor 'keep.show' takes no argument"):
            driver.visit("show", 1)
        with pytest.raises(ConfigError, match=r"'keep.scale' takes an argument, .* has none: .* --argument JSON"):
            driver.visit("scale")
    twice = topology().add_processor("too", Keeps, "in", stores=["kept"])
    several = "several nodes have a visitor 'show': name one of keep.show, too.show"
    with TopologyTestDriver(twice, **SERDES) as driver, pytest.raises(ConfigError, match=several):
        driver.visit("show")


class HasADefault(Keeps):
    @visitor("kept")
    def add(self, key: Any, value: int, argument: int = 5) -> None:
        self.store.put(key, value + argument)


def test_a_visit_without_an_argument_has_the_default_of_the_method() -> None:
    with TopologyTestDriver(topology(HasADefault), **SERDES) as driver:
        driver.pipe("in", "k", 1)
        driver.visit("add")
        driver.visit("add", 100)
        assert driver.store("kept").get("k") == 106


class Fails(Keeps):
    @visitor()
    def fail(self, key: str, value: int) -> None:
        if value == 3:
            raise ValueError(key)
        self.context.forward(Record(key, value, 0))


def test_an_error_meets_the_processing_handler() -> None:
    records = [(f"k{number}", number, number) for number in range(6)]
    with TopologyTestDriver(topology(Fails), **SERDES) as driver:
        driver.pipe_many("in", records)
        with pytest.raises(ProcessingError, match="k3"):
            driver.visit("fail")
    with TopologyTestDriver(topology(Fails), processing_handler=skip, **SERDES) as driver:
        driver.pipe_many("in", records)
        driver.visit("fail")
        assert [value for _, value in shown(driver)] == [0, 1, 2, 4, 5]
        assert driver.dropped_records() == 1


class Wrapped(WrappingProcessor):
    made: ClassVar[int] = 0


def test_a_wrapped_processor_and_a_function_that_makes_one_have_their_visitors() -> None:
    wraps: dict[str, Any] = {"processor_wrapper": lambda node, made: Wrapped(made)}
    with TopologyTestDriver(topology(lambda: Keeps()), **SERDES, **wraps) as driver:
        driver.pipe("in", "k", 1)
        driver.visit("show")
        assert shown(driver) == [("k", 1)]
