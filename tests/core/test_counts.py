"""The counts of nodes, where the engine does not count each record: they must be those of an observer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ProcessorContext, PunctuationType, Topology, ValueTransformer
from penstock.handlers import DeadLetter
from penstock.operator import Operator, Run
from penstock.testing import TopologyTestDriver

OUT, OTHER = "out", "other"


class Doubles(Operator):
    """Forwards each record; fails for one of five values, and for one of seven makes what the sink cannot write."""

    forwards_each = True

    def bind(self, context: ProcessorContext) -> Run:
        send = context.send

        def run(record: Any) -> None:
            key, value, timestamp, headers = record
            send((key, "no number" if value % 7 == 6 else 2 * value // (value % 5), timestamp, headers))

        return run


class Same(Operator):
    """Forwards each record."""

    forwards_each = True

    def bind(self, context: ProcessorContext) -> Run:
        return context.send


class Fails(ValueTransformer):
    """Fails for one of three values, and at each full second of stream time."""

    def init(self, context: Any) -> None:
        context.schedule("1s", self.fail, PunctuationType.STREAM_TIME)

    def fail(self, timestamp: int) -> None:
        raise ValueError(timestamp)

    def transform(self, key: Any, value: Any) -> Any:
        return value // (value % 3)


@pytest.mark.parametrize("letters", [OUT, "letters"])
@pytest.mark.parametrize("second", ["none", OUT, OTHER, "chosen", "below"])
@given(values=st.lists(st.integers(0, 40), max_size=30), commit=st.integers(1, 7))
def test_counts_are_those_of_an_observer(second: str, letters: str, values: list[int], commit: int) -> None:
    """With a second sink, of the same topic or another one, and dead letters in the topic of the sinks."""
    topology = Topology().add_source("in", "in", value_serde="int")
    topology.add_processor("doubles", Doubles, "in").add_processor("same", Same, "doubles")
    topology.add_sink("first", OUT, "same", value_serde="int")
    topology.add_processor("fails", Fails, "in")
    if second == "below":  # the sink has two parents
        topology.add_sink("second", OTHER, ["fails", "in"], value_serde="int")
    elif second != "none":
        topic: Any = (lambda record, metadata: OUT) if second == "chosen" else second
        topology.add_sink("second", topic, "fails", value_serde="int")
    handler = DeadLetter(letters)
    handlers: dict[str, Any] = {"processing_handler": handler, "production_handler": handler}
    with TopologyTestDriver(topology, commit_every=commit, **handlers) as driver:
        driver.pipe_many("in", [(None, value, 400 * number) for number, value in enumerate(values)])
        found = driver.metrics()
    zeros = sum(value % 5 == 0 and value % 7 != 6 for value in values)
    wrong = sum(value % 7 == 6 for value in values)
    thirds = sum(value % 3 == 0 for value in values)
    passed = len(values) - zeros
    assert (found["in"].records_in, found["in"].records_out) == (len(values), len(values))
    assert (found["doubles"].records_in, found["doubles"].records_out) == (len(values), passed)
    assert found["doubles"].dropped == Counter({"skipped": zeros} if zeros else {})
    assert (found["same"].records_in, found["same"].records_out) == (passed, passed)
    assert (found["first"].records_in, found["first"].records_out) == (passed, passed - wrong)
    assert found["fails"].records_in == len(values)
    if second != "none":
        direct = len(values) if second == "below" else 0
        assert found["fails"].records_out == len(values) - thirds
        assert found["second"].records_in == found["second"].records_out == len(values) - thirds + direct
