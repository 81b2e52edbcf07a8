"""`penstock describe`."""

from __future__ import annotations

import json

import pytest

from .console import Console

APPLICATION = """
from penstock import Application, Processor, Topology, key_value_store

class Count(Processor):
    def process(self, record):
        pass

topology = (
    Topology()
    .add_source("lines", "text")
    .add_processor("count", Count, "lines")
    .add_store(key_value_store("counts"), "count")
    .add_sink("out", "counted", "count")
)
application = Application("counts", topology, log="local:never-opened")
"""


@pytest.fixture
def counts(console: Console) -> Console:
    console.write("counts.py", APPLICATION)
    return console


def test_text_is_that_of_kafka_streams(counts: Console) -> None:
    text = counts("describe", "counts:application").stdout
    assert text == (
        "Topologies:\n   Sub-topology: 0\n"
        "    Source: lines (topics: [text])\n      --> count\n"
        "    Processor: count (stores: [counts])\n      --> out\n      <-- lines\n"
        "    Sink: out (topic: counted)\n      <-- count\n\n"
    )
    assert counts("describe", "counts.py:topology").stdout == text
    assert counts("describe", "counts:topology", "--format", "text").stdout == text


def test_drawings(counts: Console) -> None:
    assert counts("describe", "counts:application", "--format", "dot").stdout.startswith("digraph")
    mermaid = counts("describe", "counts:application", "--format", "mermaid").stdout
    assert mermaid.startswith(("flowchart", "graph"))
    assert "count" in mermaid


def test_json(counts: Console) -> None:
    text = counts("describe", "counts:application", "--json").stdout
    assert text == counts("describe", "counts:application", "--format", "json").stdout
    assert "counted" in json.dumps(json.loads(text))


def test_nothing_is_opened(counts: Console) -> None:
    counts("describe", "counts:application")
    assert not (counts.directory / ".penstock").exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [("counts:nothing", "module 'counts' has no attribute 'nothing'"), ("count:application", "Did you mean 'counts'?")],
)
def test_what_is_not_there_is_said(counts: Console, target: str, message: str) -> None:
    assert message in counts("describe", target, code=2).stderr


def test_a_format_that_is_not_there(counts: Console) -> None:
    assert (
        "no renderer named 'png' is installed; installed: dot, json, mermaid, svg, text"
        in counts("describe", "counts:application", "--format", "png", code=2).stderr
    )


def test_a_topology_that_is_not_valid_is_2(console: Console) -> None:
    console.write(
        "wrong.py", "from penstock import Topology\ntopology = Topology().add_sink('out', 'text', 'nowhere')\n"
    )
    assert "'nowhere'" in console("describe", "wrong:topology", code=2).stderr
