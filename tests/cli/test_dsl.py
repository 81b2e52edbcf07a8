"""DSL programs on the command line: MODULE:ATTR of a StreamsBuilder, of parts of one, and the keys of windows."""

from __future__ import annotations

import pytest

from penstock import ConfigError, TopologyError, Windowed
from penstock.plugins.dsl import StreamsBuilder
from penstock.program.serdes import resolve_serde

from .console import Console

CLICKS = """
from penstock.plugins.dsl import StreamsBuilder, tumbling

builder = StreamsBuilder()
clicks = builder.stream("clicks")
by_page = clicks.group_by_key()
table = by_page.windowed_by(tumbling("1m", grace="0s")).count("minutes")
table.to_stream().to("counts")


def make():
    return builder


def make_table():
    return table
"""


@pytest.fixture
def clicks(console: Console) -> Console:
    console.write("clicks.py", CLICKS)
    return console


def test_a_builder_is_described(clicks: Console) -> None:
    text = clicks("describe", "clicks:builder").stdout
    assert "Source: KSTREAM-SOURCE-0000000000 (topics: [clicks])" in text
    assert clicks("describe", "clicks:make").stdout == text
    assert clicks("describe", "clicks:builder", "--format", "svg").stdout.startswith("<svg ")


def test_what_is_a_part_of_a_program_is_named_and_so_is_the_builder(clicks: Console) -> None:
    for part, kind in (
        ("clicks", "KStream"),
        ("by_page", "KGroupedStream"),
        ("table", "KTable"),
        ("make_table", "KTable"),
    ):
        for verb in ("describe", "run"):
            found = " ".join(clicks(verb, f"clicks:{part}", code=2).stderr.split())
            assert f"of type {kind}; expected an Application, a Topology" in found
            assert f"A {kind} is a part of what a StreamsBuilder builds: name the builder." in found
    assert "In it: clicks:builder (StreamsBuilder)." in " ".join(clicks("run", "clicks:table", code=2).stderr.split())
    assert "clicks:builder is a StreamsBuilder, which has no id: add --application-id" in " ".join(
        clicks("run", "clicks:builder", code=2).stderr.split()
    )


def test_a_builder_runs_and_its_windows_are_shown(clicks: Console) -> None:
    clicks("topics", "create", "clicks", "counts", "--partitions", "1")
    lines = '{"key": "/", "value": "a", "timestamp": 5}\n{"key": "/", "value": "b", "timestamp": 60001}\n'
    clicks("produce", "clicks", "--json-lines", stdin=lines)
    clicks("run", "clicks:builder", "--application-id", "clicks", "--engine", "embedded")
    arguments = ["--key-serde", "windowed:str:60s", "--value-serde", "int"]
    printed = clicks("consume", "counts", "-k", *arguments).stdout.splitlines()
    assert printed == [
        '{"!windowed":{"key":"/","start":0,"end":60000}}\t1',
        '{"!windowed":{"key":"/","start":60000,"end":120000}}\t1',
    ]
    found = clicks.json_lines("consume", "counts", "--json", *arguments)
    assert [each["key"]["!windowed"] for each in found] == [
        {"key": "/", "start": 0, "end": 60_000},
        {"key": "/", "start": 60_000, "end": 120_000},
    ]


def test_keys_of_windows_and_sessions_go_in_and_come_out(console: Console) -> None:
    console("topics", "create", "windows", "--partitions", "1")
    for serde in ("windowed:int:10", "session:int"):
        line = '{"key": {"key": 7, "start": 20, "end": 30}, "value": "v"}\n'
        console("produce", "windows", "--json-lines", "--key-serde", serde, stdin=line)
        last = console.json_lines("consume", "windows", "--json", "--key-serde", "bytes")[-1]
        assert last["value"] == "v"
    assert resolve_serde("windowed:str:60s", None, "x").deserialize(b"k" + bytes(8)) == Windowed("k", 0, 60_000)
    assert resolve_serde("session", None, "x").serialize(Windowed("k", 1, 2))[1:] == bytes([*7 * [0], 2, *7 * [0], 1])


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        ("int16", "-5"),
        ("int32", "5"),
        ("float32", "0.5"),
        ("uuid", '{"!uuid":"123e4567-e89b-12d3-a456-426614174000"}'),
        ("list:int32", "[5,null]"),
        ("list:list:uuid", '[[{"!uuid":"123e4567-e89b-12d3-a456-426614174000"}],[],null]'),
    ],
)
def test_values_of_kafkas_serdes_go_in_and_come_out(console: Console, serde: str, value: str) -> None:
    console("topics", "create", "values", "--partitions", "1")
    console("produce", "values", "--value-serde", serde, stdin=value + "\n")
    assert console("consume", "values", "--value-serde", serde).stdout == value + "\n"


@pytest.mark.parametrize(
    ("serde", "message"),
    [
        ("str:5", "serde 'str:5': 'str' takes no argument after a colon"),
        ("windowed:str:soon", "serde 'windowed:str:soon': length of windows: expected a timedelta"),
        ("windowed:strr:5s", "serde 'windowed:strr:5s': no serde named 'strr' is installed"),
        ("list:", "serde 'list:': expected the serde of the entries after the colon, e.g. list:str"),
        ("list:int3", "serde 'list:int3': no serde named 'int3' is installed.*Did you mean 'int32'"),
        ("list:list:uid", "serde 'list:list:uid': .*no serde named 'uid' is installed.*Did you mean 'uuid'"),
        ("windw:str", "no serde named 'windw' is installed.*Did you mean 'windowed'"),
    ],
)
def test_arguments_of_serdes_that_cannot_be(clicks: Console, serde: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        builder = StreamsBuilder()
        builder.stream("in", key_serde=serde).to("out")
        builder.build()
    assert isinstance(caught.value, (TopologyError, ConfigError)) or "windw" in serde
    clicks("topics", "create", "in")
    assert message[:20] in " ".join(clicks("consume", "in", "--key-serde", serde, code=2).stderr.split())
