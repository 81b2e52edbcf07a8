"""`penstock simulate`."""

from __future__ import annotations

import pytest

from .console import Console

CONTRACTS = """
from penstock import Processor, Record, Topology, key_value_store
from penstock.testing.simulation import SimulationContract

class Count(Processor):
    def init(self, context):
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record):
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count))

class CountInItself(Processor):
    def init(self, context):
        super().init(context)
        self.count = 0

    def process(self, record):
        self.count += 1
        self.context.forward(record.with_value(self.count))

def program(processor, stores):
    topology = Topology().add_source("in", "in").add_processor("count", processor, "in", stores=stores)
    return topology.add_sink("out", "out", "count")

class TestCount(SimulationContract):
    program = staticmethod(lambda: program(Count, [key_value_store("counts")]))
    options = {"key_serde": "str", "value_serde": "int"}

class TestCountInItself(SimulationContract):
    program = staticmethod(lambda: program(CountInItself, []))
    records = staticmethod(lambda random: [Record("ann", None, 1_000 * number) for number in range(6)])
    options = {"key_serde": "str", "value_serde": "int"}
"""


@pytest.fixture
def contracts(console: Console) -> Console:
    console.write("contracts.py", CONTRACTS)
    return console


def test_it_says_how_many_histories_ran_and_what_struck(contracts: Console) -> None:
    text = contracts("simulate", "contracts:TestCount", "--seeds", "6", "--start", "3").stdout
    assert text.startswith("6 histories, ") and "none failed" in text
    assert " before it commits\n" in text or " after it commits\n" in text or " it takes\n" in text


def test_a_failure_is_told_with_the_command_that_repeats_it(contracts: Console) -> None:
    failed = contracts("simulate", "contracts:TestCountInItself", "--seeds", "50", code=1)
    again = failed.stderr.rpartition("The same history again: penstock ")[2].split()
    assert again[:3] == ["simulate", "contracts:TestCountInItself", "--start"] and again[4:6] == ["--seeds", "1"]
    assert "topic 'out', key " in failed.stderr and "host 1 starts on machine 1" in failed.stderr
    assert contracts(*again[:6], code=1).stderr == failed.stderr


def test_what_is_no_contract_is_refused(contracts: Console) -> None:
    failed = contracts("simulate", "contracts:Count", code=2)
    assert "contracts:Count is no subclass of penstock.testing.simulation.SimulationContract" in failed.stderr
