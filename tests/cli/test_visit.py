"""`penstock visit`: asks for visits, shows how far they are, and stops them."""

from __future__ import annotations

import json

from .applications import run
from .console import Console

_PRICES = """
from penstock import Application, Processor, Topology, key_value_store, visitor

class Keep(Processor):
    def process(self, record):
        self.context.get_store("prices").put(record.key, record.value)

    @visitor()
    def scale(self, key, value, factor):
        self.context.get_store("prices").put(key, value * factor)

    @visitor()
    def check(self, key, value):
        pass

topology = Topology().add_source("in", "prices")
topology.add_processor("keep", Keep, "in", stores=[key_value_store("prices", value_serde="int")])
application = Application("pricing", topology, value_serde="int")
"""
TARGET = "pricing:application"


def test_a_visit_from_its_request_to_its_end(console: Console) -> None:
    console.write("pricing.py", _PRICES)
    console("topics", "create", "prices", "--partitions", "2")
    assert json.loads(console("visit", TARGET, "--json").stdout) == {"application_id": "pricing", "visits": []}
    console("produce", "prices", "--value-serde", "int", "--key-separator", ":", stdin="a:1\nb:2\nc:3\n")
    [asked] = json.loads(console("visit", TARGET, "scale", "--argument", "10", "--json").stdout)["visits"]
    assert (asked["visitor"], asked["argument"], asked["state"]) == ("keep.scale", 10, "not over")
    run(TARGET, subtopologies=1)
    [over] = json.loads(console("visit", TARGET, "--json").stdout)["visits"]
    assert (over["state"], over["tasks"], over["done"], over["visited"]) == ("over", 2, 2, 3)
    assert "keep.scale" in console("visit", TARGET).stdout
    found = console("state", "get", TARGET, "prices", "b", "--json").stdout
    assert json.loads(found)["value"] == 20
    assert "keep.scale" not in console("visit", TARGET, "check").stdout  # it is over
    assert console("visit", TARGET, "check", "--stop").stdout == "pricing: 1 visit stopped\n"
    assert "stopped" in console("visit", TARGET).stdout
    assert console.json("visit", TARGET, "check", "--stop", "--json")["application_id"] == "pricing"


def test_what_is_refused(console: Console) -> None:
    console.write("pricing.py", _PRICES)
    console("topics", "create", "prices")
    for options, message in (
        (["scal"], "has no visitor 'scal'"),
        (["check", "--argument", "1"], "visitor 'keep.check' takes no argument"),
        (["scale", "--argument", "{"], "--argument: expected JSON"),
        (["scale", "--argument", "NaN"], "--argument: expected JSON, found 'NaN': JSON has no NaN"),
        (["scale", "--argument", "[-Infinity]"], "JSON has no -Infinity"),
        (["scale", "--argument", '{"a": 1e999}'], "visitor 'keep.scale': its argument is no JSON data: Out of range"),
        (["--stop"], "name it"),
        (["scale", "--stop", "--argument", "1"], "say one of --stop and --argument"),
    ):
        assert message in console("visit", TARGET, *options, code=2).stderr


_FIXED = """
from penstock import Application, Processor, Record, key_value_store, visitor
from penstock.dsl import StreamsBuilder

class Keep(Processor):
    def process(self, record):
        self.context.get_store("prices").put(record.key, record.value)

    @visitor()
    def send(self, key, value, factor):
        self.context.forward(Record(key, value * factor, 0))

builder = StreamsBuilder()
builder.add_state_store(key_value_store("prices", value_serde="int"))
builder.stream("prices").process_values(Keep, stores=["prices"], name="keep").to("sent")
application = Application("fixed", builder.build(), value_serde="int")
"""


def test_a_visitor_in_process_values_is_found_and_forwards_its_keys(console: Console) -> None:
    console.write("fixed.py", _FIXED)
    console("topics", "create", "prices", "sent")
    console("produce", "prices", "--value-serde", "int", "--key-separator", ":", stdin="a:1\nb:2\nc:3\n")
    run("fixed:application", subtopologies=1)
    console("visit", "fixed:application", "send", "--argument", "10")
    run("fixed:application", subtopologies=1)
    [over] = json.loads(console("visit", "fixed:application", "--json").stdout)["visits"]
    assert (over["visitor"], over["state"], over["visited"]) == ("keep.send", "over", 3)
    sent = console("consume", "sent", "--print-key", "--key-separator", ":", "--value-serde", "int").stdout
    assert sorted(sent.split()) == ["a:10", "b:20", "c:30"]
