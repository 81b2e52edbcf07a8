"""Re-opened tasks of the test driver: the program is shipped, hosts change, and a log or changelog is the caller's."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import Application, ChangelogError, ConfigError, Processor, Record, Topology, key_value_store
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.serdes.of import of
from penstock.plugins.testing import TopologyTestDriver

from .planted_programs import InTheClass, InTheModule, Sum, counting

STEPS: dict[str, tuple[dict[str, Any], Callable[[TopologyTestDriver], None]]] = {
    "after each step": ({"reopen_tasks": True}, lambda driver: None),
    "reopen": ({}, lambda driver: driver.reopen()),
    "move": ({}, lambda driver: driver.move()),
}
HOWS = pytest.mark.parametrize("how", STEPS)
ONE_BY_ONE = [(key, number) for number in (1, 2, 3) for key in ("a", "b")]


def answers(program: Any, how: str, **options: Any) -> tuple[list[tuple[Any, Any]], list[str]]:
    """Return the outputs of `a` and `b`, three times each, and the hints."""
    given, between = STEPS[how]
    with TopologyTestDriver(program, **given, **options) as driver:
        for timestamp in range(3):
            for key in ("a", "b"):
                between(driver)
                driver.pipe("words", key, 1, timestamp)
        driver.reopen()
        return [record[:2] for record in driver.read_all("counts")], driver.hints


class InAClosure:
    """Makes processors that count in a list of the function that made them."""

    @staticmethod
    def program() -> Topology:
        seen: list[int] = []

        class Count(Processor):
            def process(self, record: Record) -> None:
                seen.append(1)
                self.context.forward(record.with_value(len(seen)))

        return counting(Count)


class InADefault(Processor):
    def process(self, record: Record, seen: list[int] = []) -> None:  # noqa: B006 - what this test is about
        seen.append(1)
        self.context.forward(record.with_value(len(seen)))


class _Tally:
    count = 0


TALLY = _Tally()


class InAnObject(Processor):
    def process(self, record: Record) -> None:
        TALLY.count += 1
        self.context.forward(record.with_value(TALLY.count))


OUTSIDE: dict[str, tuple[Callable[[], Topology], str]] = {
    "closure": (InAClosure.program, "'seen'"),
    "class": (lambda: counting(InTheClass), "class InTheClass: 'sums'"),
    "module": (lambda: counting(InTheModule), "'SEEN_BY_MODULE'"),
    "default": (lambda: counting(InADefault), "InADefault.process"),
    "object": (lambda: counting(InAnObject), "'TALLY'"),
}


@HOWS
@pytest.mark.parametrize("place", OUTSIDE)
def test_state_outside_stores_restarts_with_each_process_and_is_named(
    place: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, named = OUTSIDE[place]
    with caplog.at_level(logging.WARNING):
        found, hints = answers(make(), how)
    assert [value for _, value in found] == [found[0][1]] * 6
    assert any(named in hint for hint in hints), hints
    assert sum(named in line for line in caplog.messages) == 1
    assert all("Keep state in stores" in line for line in caplog.messages)


@HOWS
def test_a_right_program_answers_the_same_and_gets_no_hint(how: str) -> None:
    assert answers(counting(Sum), how) == (ONE_BY_ONE, [])
    assert answers(counting(Sum), how, partitions=3)[1] == []


def test_the_classes_and_globals_of_the_test_stay_as_they_are() -> None:
    process = InTheClass.process
    InTheClass.sums.clear()
    answers(counting(InTheClass), "move")
    assert InTheClass.process is process and not InTheClass.sums


def test_without_re_opening_a_test_may_collect_in_a_list() -> None:
    seen: list[Record] = []
    builder = StreamsBuilder()
    builder.stream("words", value_serde="int").foreach(lambda record: seen.append(record))
    with TopologyTestDriver(builder) as driver:
        driver.pipe("words", "a", 1, 0)
        assert len(seen) == 1 and driver.hints == []
        driver.reopen()
        driver.pipe("words", "a", 1, 0)
        driver.reopen()
        assert len(seen) == 1
        [hint] = driver.hints
        assert "'seen' was changed while tasks ran" in hint and "test_driver_reopening.py" in hint


class Size(enum.Enum):
    SMALL = 1


@dataclass
class Order:
    size: Size


class KeepsOrders(Processor):
    def process(self, record: Record) -> None:
        if record.value.size is Size.SMALL:
            self.context.get_store("orders").put(record.key, record.value)
            self.context.forward(record)


def orders() -> Topology:
    serde = of(Order)
    topology = Topology().add_source("in", "orders", value_serde=serde)
    topology.add_processor("keep", KeepsOrders, "in", stores=[key_value_store("orders", value_serde=serde)])
    return topology.add_sink("out", "kept", "keep", value_serde=serde)


@HOWS
def test_values_are_of_the_tests_own_classes(how: str) -> None:
    given, between = STEPS[how]
    with TopologyTestDriver(orders(), **given) as driver:
        for _ in range(2):
            between(driver)
            driver.pipe("orders", "k", Order(Size.SMALL), 0)
            assert driver.store("orders").get("k") == Order(Size.SMALL)
            assert driver.read_all("kept") == [Record("k", Order(Size.SMALL), 0)]


class Breaks:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return (int, ("no number",))


class TakesAnything(Processor):
    def __init__(self, given: Any) -> None:
        self.given = given

    def process(self, record: Record) -> None:
        self.context.forward(record)


@HOWS
def test_what_cannot_be_made_again_is_named(how: str) -> None:
    topology = Topology().add_source("in", "words", value_serde="int")
    topology.add_processor("odd", TakesAnything, "in", given=Breaks())
    with pytest.raises(
        ConfigError, match=r"cannot be read by its task hosts \(processor 'odd' > options > 'given'\): ValueError"
    ):
        answers(topology, how)


@HOWS
def test_a_store_that_is_not_logged_is_empty_on_another_host(how: str) -> None:
    counts = key_value_store("counts", value_serde="int", logged=False)
    topology = Topology().add_source("in", "words", value_serde="int").add_processor("sum", Sum, "in", stores=[counts])
    found, _ = answers(topology.add_sink("out", "counts", "sum", value_serde="int"), how)
    assert [value for _, value in found] == ([1] * 6 if how == "move" else [1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize("changelog", ["directory:changes", "topic:", None])
@pytest.mark.parametrize("log", ["local:log", None])
def test_a_log_and_a_changelog_of_the_caller_are_used(log: str | None, changelog: str | None) -> None:
    with TopologyTestDriver(counting(Sum), log=log, changelog=changelog, partitions=2) as driver:
        for timestamp in range(3):
            driver.move()
            driver.pipe("words", "a", 1, timestamp)
        assert [record.value for record in driver.read_all("counts")] == [1, 2, 3]
        assert ("test-counts-changelog" in driver.log.topics()) == (changelog == "topic:")
        assert isinstance(driver.log, MemoryLog) == (log is None)


def test_a_move_restores_from_the_changelog(tmp_path: Path) -> None:
    with TopologyTestDriver(counting(Sum), changelog=f"directory:{tmp_path}") as driver:
        driver.pipe("words", "a", 1, 0)
        [written] = [each for each in tmp_path.rglob("*") if each.is_file() and each.stat().st_size]
        written.unlink()
        driver.move()
        with pytest.raises(ChangelogError, match="missing"):
            driver.pipe("words", "a", 1, 0)


def test_a_log_that_was_used_before_is_continued() -> None:
    log = MemoryLog()
    for expected in (1, 2):
        with TopologyTestDriver(counting(Sum), log=log, changelog="topic:") as driver:
            driver.pipe("words", "a", 1, 0)
            assert driver.read_all("counts")[-1].value == expected
    assert log.topics()


def test_an_applications_own_log_is_replaced(tmp_path: Path) -> None:
    application = Application("app", counting(Sum), log=f"local:{tmp_path / 'log'}")
    with TopologyTestDriver(application) as driver:
        driver.pipe("words", "a", 1, 0)
    assert not (tmp_path / "log").exists()


class Filled(Processor):
    filled: ClassVar[int] = 0

    def process(self, record: Record) -> None:
        Filled.filled += 1
        self.context.get_store("rates").put(record.key, Filled.filled)


@HOWS
def test_global_stores_are_filled_by_shipped_processors_and_again_on_another_host(how: str) -> None:
    topology = Topology().add_source("in", "words", value_serde="int").add_sink("out", "counts", "in")
    rates = key_value_store("rates", value_serde="int")
    topology.add_global_store(rates, "rates-in", "rates", "fill", Filled, value_serde="int")
    given, between = STEPS[how]
    with TopologyTestDriver(topology, **given) as driver:
        for timestamp, key in enumerate("ab"):
            between(driver)
            driver.pipe("rates", key, 1, timestamp)
        assert dict(driver.store("rates").all()) == ({"a": 1, "b": 2} if how == "move" else {"a": 1, "b": 1})
        assert driver.metrics()["fill"].records_in == (3 if how == "move" else 2)
    assert Filled.filled == 0
