"""The counts of nodes, where the engine does not count each record: they must be those of an observer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import DeadLetter, ProcessorContext, PunctuationType, Topology, ValueTransformer, skip
from penstock.dsl import StreamsBuilder
from penstock.operator import Operator, Run
from penstock.testing import TopologyTestDriver

OUT, OTHER = "out", "other"


class Doubles(Operator):
    """Forwards each record; fails for one of five values, and for one of seven makes what the sink cannot write."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        send = context.send

        def run(record: Any) -> None:
            key, value, timestamp, headers = record
            send((key, "no number" if value % 7 == 6 else 2 * value // (value % 5), timestamp, headers))

        return run


class Same(Operator):
    """Forwards each record."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        return context.send


class Drops(Operator):
    """Forwards each record but one of four values, which it drops; fails for one of six."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        send, drop = context.send, context.metrics.drop

        def run(record: Any) -> None:
            if record[1] % 4 == 3:
                drop("odd")
                return
            _ = 1 // (record[1] % 6)
            send(record)

        return run


class Divides(Operator):
    """Forwards each record, and fails for one of seven values."""

    forwards_each = forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        send = context.send

        def run(record: Any) -> None:
            send((record[0], record[1] + 0 // (record[1] % 7), record[2], record[3]))

        return run


class Odd(Operator):
    """Forwards some records: nothing says how many but a count."""

    forwards_last = True

    def bind(self, context: ProcessorContext) -> Run:
        send = context.send

        def run(record: Any) -> None:
            if record[1] % 2:
                send(record)

        return run


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


@pytest.mark.parametrize(
    "chain", ["ds", "dsd", "ods", "sod", "dod", "oddo", "o", "dxs", "xo", "sxd", "vdv", "dvs", "svdsv", "ovdo"]
)
@given(values=st.lists(st.integers(0, 40), max_size=30), commit=st.integers(1, 7))
def test_counts_of_a_chain_are_those_of_an_observer(chain: str, values: list[int], commit: int) -> None:
    """A child that forwards each record says how many its parent sent, but not where it has two parents (x).

    Each failure counts at the node that failed, also where nodes call each other without an edge.
    """
    kinds: dict[str, Any] = {"d": Drops, "v": Divides, "o": Odd, "s": Same, "x": Same}
    topology = Topology().add_source("in", "in", value_serde="int")
    parent, here = "in", values
    expected: dict[str, tuple[int, int, int]] = {}
    for number, letter in enumerate(chain):
        name, parents = f"{letter}{number}", [parent]
        if letter == "x":
            topology.add_processor(f"beside{number}", Same, "in")
            expected[f"beside{number}"] = (len(values), len(values), 0)
            parents.append(f"beside{number}")
            here = [*here, *values]
        topology.add_processor(name, kinds[letter], parents)
        got, lost = len(here), 0
        if letter == "d":
            lost = sum(value % 4 == 3 or value % 6 == 0 for value in here)
            here = [value for value in here if value % 4 != 3 and value % 6]
        elif letter == "v":
            lost = sum(value % 7 == 0 for value in here)
            here = [value for value in here if value % 7]
        elif letter == "o":
            here = [value for value in here if value % 2]
        expected[name] = (got, len(here), lost)
        parent = name
    topology.add_sink("out", OUT, parent, value_serde="int")
    with TopologyTestDriver(topology, commit_every=commit, processing_handler=skip) as driver:
        driver.pipe_many("in", [(None, value, number) for number, value in enumerate(values)])
        found = driver.metrics()
    counts = {
        name: (each.records_in, each.records_out, sum(each.dropped.values()))
        for name, each in found.items()
        if name in expected
    }
    assert counts == expected
    assert found["out"].records_in == found["out"].records_out == len(here)


@given(
    records=st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, 1])), max_size=20),
    commit=st.integers(1, 7),
    cached=st.booleans(),
)
def test_counts_of_an_aggregation(records: list[tuple[str | None, int | None]], commit: int, cached: bool) -> None:
    """Without a record cache it forwards each record that it does not drop: so the sink says what all nodes got."""
    builder = StreamsBuilder()
    wanted = builder.stream("in", value_serde="int").filter(lambda value: True).map_values(lambda value: value)
    wanted.group_by_key().count("counts", cached=cached).to_stream().to(OUT, value_serde="int")
    with TopologyTestDriver(builder, commit_every=commit) as driver:
        driver.pipe_many("in", [(key, value, number) for number, (key, value) in enumerate(records)])
        found = {name.split("-")[1]: each for name, each in driver.metrics().items()}
        outputs = len(driver.read_all(OUT))
    counted = sum(key is not None and value is not None for key, value in records)
    assert cached or outputs == counted
    for name in ("SOURCE", "FILTER", "MAPVALUES"):
        assert (found[name].records_in, found[name].records_out) == (len(records), len(records))
    assert (found["AGGREGATE"].records_in, found["AGGREGATE"].records_out) == (len(records), outputs)
    assert sum(found["AGGREGATE"].dropped.values()) == len(records) - counted
    assert (found["TOSTREAM"].records_in, found["TOSTREAM"].records_out) == (outputs, outputs)
    assert (found["SINK"].records_in, found["SINK"].records_out) == (outputs, outputs)
