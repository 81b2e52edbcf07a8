"""Errors that end an application name the line of the user's own code, without a traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import STREAM_TIME, Processor, Record, Topology
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver

from .world import Total, says, totals


def line_of(function: Callable[..., Any], number: int) -> str:
    """How a message names a line of this file: `number` lines below the `def` of a function."""
    return f"(test_own_lines.py, line {function.__code__.co_firstlineno + number})"


class FailsBelow(Total):
    def process(self, record: Record) -> None:
        self.add(int(record.value))

    def add(self, amount: int) -> None:
        raise KeyError("no such price")


class FailsInInit(Total):
    def init(self, context: Any) -> None:
        raise KeyError("no such price")


class FailsInTime(Total):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("1ms", self.tick, STREAM_TIME)

    def tick(self, now: int) -> None:
        raise KeyError("no such price")


class PutsNone(Total):
    def process(self, record: Record) -> None:
        self.totals.put(None, 1)


def price(value: str) -> str:
    return {"apple": "1"}[value]


def no_time(*_: Any) -> int:
    raise KeyError("no such price")


def mapped() -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream("orders").map_values(price).to("out")
    return builder


WHERE: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "a method that process calls": (lambda: totals(FailsBelow), FailsBelow.add),
    "init": (lambda: totals(FailsInInit), FailsInInit.init),
    "a punctuator": (lambda: totals(FailsInTime), FailsInTime.tick),
    "what a store refuses": (lambda: totals(PutsNone), PutsNone.process),
    "a function of a verb": (mapped, price),
    "a timestamp extractor": (lambda: totals(timestamp_extractor=no_time), no_time),
}


@pytest.mark.parametrize("case", WHERE)
def test_a_failure_in_a_task_names_the_line(case: str) -> None:
    make, function = WHERE[case]
    with pytest.raises(Exception) as caught, TopologyTestDriver(make(), key_serde="str", value_serde="str") as driver:
        driver.pipe("orders", "ann", "3", timestamp=1)
        driver.pipe("orders", "ann", "4", timestamp=20)
    says(caught.value, line_of(function, 1))


def fails_when_made() -> Processor:
    return Total() if made.pop() else 1 / 0  # type: ignore[return-value]


made = [False, True, True]


def test_a_factory_that_fails_later_names_its_line() -> None:
    topology = Topology().add_source("orders", "orders").add_processor("total", fails_when_made, "orders")
    with pytest.raises(Exception) as caught:
        TopologyTestDriver(topology)
    says(caught.value, "node 'total'", "ZeroDivisionError", line_of(fails_when_made, 1))
