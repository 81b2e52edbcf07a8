"""`penstock produce` and `penstock consume`: what goes in comes out."""

from __future__ import annotations

import io
import json
import pickle
from contextlib import closing
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import OutputBatch, Serde, SerdeError, TopicPartition
from penstock.plugins.operate.cli import topics
from penstock.plugins.operate.cli.options import open_log
from penstock.plugins.operate.cli.text import TextSerde, headers_from_json, parse_timestamp
from penstock.plugins.serdes.json_text import dump_json, headers_to_json
from penstock.settings.settings import Settings

from .console import Console


class Part(Enum):
    ONE = 1


@pytest.fixture
def lines(console: Console) -> Console:
    console("topics", "create", "lines")
    return console


# -- lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\n\nb\n", ["a", "", "b"]),
        ("", []),
        ("\n", [""]),
        ("ä\u2028b\x0bc\n", ["ä\u2028b\x0bc"]),
        ("tab\tstays\n", ["tab\tstays"]),
    ],
)
def test_each_line_is_a_value(lines: Console, text: str, expected: list[str]) -> None:
    lines("produce", "lines", stdin=text)
    assert [each["value"] for each in lines.json_lines("consume", "lines", "--json")] == expected
    assert [each["key"] for each in lines.json_lines("consume", "lines", "--json")] == [None] * len(expected)


def test_a_file_is_read(lines: Console) -> None:
    lines.write("book.txt", "".join(f"line {number}\n" for number in range(100_000)))
    result = lines("produce", "lines", "--file", "book.txt")
    assert "produced 100,000 records to lines" in result.stderr
    assert result.stdout == ""
    assert lines("consume", "lines").stdout == (lines.directory / "book.txt").read_text()
    assert "'nosuch.txt'" in lines("produce", "lines", "--file", "nosuch.txt", code=2).stderr


def test_keys_are_separated(lines: Console) -> None:
    lines("produce", "lines", "-K", ": ", stdin="alice: 3: x\n: no key text\n")
    assert lines("consume", "lines", "--print-key").stdout == "alice\t3: x\n\tno key text\n"
    assert lines("consume", "lines", "-k", "-K", "|").stdout == "alice|3: x\n|no key text\n"
    assert lines("consume", "lines").stdout == "3: x\nno key text\n"
    lines("produce", "lines", "-K", r"\t", stdin="bob\t5\n")
    assert lines("consume", "lines", "-k", "-K", r"\t->").stdout.splitlines()[-1] == "bob\t->5"


def test_serdes(lines: Console) -> None:
    lines("produce", "lines", "-K", ":", "--key-serde", "int", "--value-serde", "json", stdin='7:{"a": [1, null]}\n')
    arguments = ["consume", "lines", "--key-serde", "int", "--value-serde", "json"]
    assert lines(*arguments, "-k").stdout == '7\t{"a":[1,null]}\n'
    record = lines.json_lines(*arguments, "--json")[0]
    assert (record["key"], record["value"]) == (7, {"a": [1, None]})
    assert (
        lines("consume", "lines", "--key-serde", "bytes", "-k").stdout_bytes == b'\0\0\0\0\0\0\0\x07\t{"a":[1,null]}\n'
    )


def test_one_serde_for_both(lines: Console) -> None:
    lines("produce", "lines", "-K", ":", "--serde", "msgpack", stdin='["a", 1]:2.5\n')
    assert lines("consume", "lines", "--serde", "msgpack", "-k").stdout == '["a",1]\t2.5\n'


def test_the_serdes_of_an_application_are_used(lines: Console) -> None:
    lines.write(
        "app.py",
        "from penstock import Application, Topology\n"
        "topology = Topology().add_source('in', 'lines', value_serde='int').add_sink('out', 'copies', 'in', "
        "key_serde='json')\napplication = Application('app', topology, key_serde='float')\n",
    )
    lines("topics", "create", "copies")
    for topic, text in (("lines", "1.5=2\n"), ("copies", '{"a":1}=text\n')):
        lines("produce", topic, "--app", "app:application", "-K", "=", stdin=text)
        assert lines("consume", topic, "--app", "app:application", "-k", "-K", "=").stdout == text
    assert lines("consume", "lines", "--serde", "bytes").stdout_bytes == b"\0\0\0\0\0\0\0\x02\n"


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (["--value-serde", "int"], "1\n2\nthree\n4\n", "line 3: value 'three' is not JSON"),
        (["--value-serde", "int"], "1\n2\n2.5\n4\n", "line 3: serde 'int': expected int, found float 2.5"),
        (["-K", "="], "a=1\nb=2\nc\n", "line 3: no key separator '=' in 'c'"),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"valeu": "c"}\n', 'line 3: expected a JSON object with ' '"value"'),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "kye": 1}\n', "line 3: unknown name 'kye'"),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c"\n', "line 3: "),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "partition": ' '1}\n', "line 3: partition 1: topic 'lines' has 1"),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "timestamp": ' '1.5}\n', 'line 3: "timestamp": expected ms'),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "headers": ' '5}\n', 'line 3: "headers": expected'),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "headers": {"h": {"base64": 5}}}\n', 'line 3: "headers": expected'),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "partition": true}\n', "line 3: partition True: topic"),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "timestamp": 9223372036854775808}\n', 'line 3: "timestamp": expected ms'),
        pytest.param(["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": ' + "[" * 100_000 + "}\n", "line 3: maximum recursion depth", id="deep"),
        (["--json-lines"], '{"value": "a"}\n{"value": "b"}\n{"value": "c", "timestamp": "\u00b2"}\n', "line 3: timestamp '\u00b2': expected ms"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_fit_ends_after_those_before_it(
    lines: Console, arguments: list[str], text: str, message: str
) -> None:
    result = lines("produce", "lines", *arguments, stdin=text, code=1)
    assert message in result.stderr
    assert "2 records before it were written" in result.stderr
    assert len(lines.json_lines("consume", "lines", "--json", "--serde", "bytes")) == 2


def test_what_the_log_refuses_is_said_with_its_lines(lines: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    lines("topics", "create", "small", "--config", "max.message.bytes=3")
    lines.write("in.txt", "a\nb\nlong\nc\n")
    monkeypatch.setattr(topics, "BATCH_BYTES", 4)
    result = lines("produce", "small", "--file", "in.txt", code=1)
    assert "lines 3 to 4: " in result.stderr and "max.message.bytes" in result.stderr
    assert "2 records before them were written, and some of these may be" in result.stderr
    assert lines("consume", "small").stdout == "a\nb\n"


def test_bytes_that_are_no_text(lines: Console) -> None:
    assert "is not UTF-8" in lines("produce", "lines", stdin=b"\xff\xfe\n", code=1).stderr
    lines("produce", "lines", "--serde", "bytes", stdin=b"fine\n\xff\xfe\n")
    assert lines("consume", "lines", "--value-serde", "bytes").stdout_bytes == b"fine\n\xff\xfe\n"
    result = lines("consume", "lines", code=1)
    assert result.stdout == "fine\n"
    assert "topic 'lines', partition 0, offset 1: " in result.stderr
    assert "--value-serde" in result.stderr


def test_null_is_a_tombstone(lines: Console) -> None:
    lines("produce", "lines", "-K", ":", "--null", "NULL", stdin="a:NULL\nNULL:b\nc:null\n")
    records = lines.json_lines("consume", "lines", "--json")
    assert [(each["key"], each["value"]) for each in records] == [("a", None), (None, "b"), ("c", "null")]
    assert lines("consume", "lines", "-k", "--null", "-").stdout == "a\t-\n-\tb\nc\tnull\n"


def test_timestamps_headers_and_partitions_for_all(console: Console) -> None:
    console("topics", "create", "wide", "--partitions", "4")
    console(
        "produce", "wide", "-t", "1970-01-01T00:00:05Z", "-H", "a=1", "-H", "a=2=3", "--partition", "3", stdin="x\n"
    )
    assert console.json_lines("consume", "wide", "--json") == [
        {"topic": "wide", "partition": 3, "offset": 0, "timestamp": 5000, "key": None, "value": "x", "headers": [["a", "1"], ["a", "2=3"]]}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "yesterday"], "timestamp 'yesterday': expected ms since the epoch or a time like"),
        (["-t", "\u00b2"], "timestamp '\u00b2': expected ms since the epoch or a time like"),
        (["-t", "9223372036854775808"], "timestamp '9223372036854775808': expected ms since the epoch"),
        (["-t", "9" * 5_000], "expected ms since the epoch or a time like"),
        (["-H", "x"], "--header 'x': expected NAME=VALUE"),
        (["--partition", "1"], "partition 1: topic 'lines' has 1, numbered from 0"),
        (["-K", ""], "--key-separator"),
        (["-K", ":", "--json-lines"], "--key-separator is for lines"),
        (["--null", "-", "--json-lines"], "--null is for lines"),
        (["--serde", "strr"], "no serde named 'strr' is installed"),
    ],
)
def test_wrong_options_are_2_and_write_nothing(lines: Console, arguments: list[str], message: str) -> None:
    assert message in lines("produce", "lines", *arguments, stdin="x\n", code=2).stderr
    assert lines("consume", "lines").stdout == ""


def test_a_summary_for_a_program_and_none_when_quiet(lines: Console) -> None:
    summary = lines.json("produce", "lines", "--json", stdin="a\nb\n")
    assert (summary["topic"], summary["records"]) == ("lines", 2)
    assert lines("produce", "lines", "--quiet", stdin="a\nb\n").output == ""


# -- JSON lines


def test_json_lines_carry_whole_records(console: Console) -> None:
    console("topics", "create", "records", "--partitions", "2")
    given = [
        {"key": "a", "value": {"n": 1}, "timestamp": 5, "headers": [["h", "ä"], ["h", None], ["b", {"base64": "/w=="}]], "partition": 1},
        {"key": "a", "value": None, "timestamp": "1970-01-01T00:00:06Z", "headers": {"h": "x"}, "partition": 1},
        {"value": [1, 2.5, "three"], "timestamp": 7, "partition": 1},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, given)) + "\n\n"
    console("produce", "records", "--json-lines", "--value-serde", "json", stdin=text)
    found = console.json_lines("consume", "records", "--json", "--value-serde", "json")
    assert [each["offset"] for each in found] == [0, 1, 2]
    assert [(each["key"], each["value"], each["timestamp"], each["headers"]) for each in found] == [
        ("a", {"n": 1}, 5, [["h", "ä"], ["h", None], ["b", {"base64": "/w=="}]]),
        ("a", None, 6000, [["h", "x"]]),
        (None, [1, 2.5, "three"], 7, []),
    ]


def test_what_consume_writes_produce_reads(console: Console) -> None:
    console("topics", "create", "one", "two", "--partitions", "2")
    lines = "".join(f"{number}:{'x' * number}\n" for number in range(50))
    console("produce", "one", "-K", ":", "-H", "h=1", stdin=lines)
    for options in ([], ["--serde", "bytes"]):
        copied = console("consume", "one", "--json", *options).stdout
        console("produce", "two", "--json-lines", *options, stdin=copied)
    one = [{**each, "topic": "two"} for each in console.json_lines("consume", "one", "--json")]
    two = console.json_lines("consume", "two", "--json")
    for partition in (0, 1):
        wanted = [each for each in one if each["partition"] == partition]
        twice = [each for each in two if each["partition"] == partition]
        assert [{**each, "offset": 0} for each in twice] == [{**each, "offset": 0} for each in wanted * 2]


# Hypothesis tries texts of the source, too, and an object whose one name is a tag is no plain JSON.
NAMES = st.text(st.characters(codec="utf-8")).filter(lambda name: not name.startswith("!"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(JSON)
def test_json_values_survive(value: Any) -> None:
    assert json.loads(dump_json(value)) == value


@given(JSON.filter(lambda value: value is not None))
def test_values_of_a_serde_survive_as_lines(value: Any) -> None:
    serde = TextSerde("msgpack", "t", is_key=False)
    data = serde.from_json(value)
    assert serde.from_line(serde.to_line(data)) == data


@given(st.binary())
def test_bytes_survive(data: bytes) -> None:
    serde = TextSerde("bytes", "t", is_key=False)
    assert serde.from_json(json.loads(dump_json(serde.to_json(data)))) == data
    assert serde.from_line(serde.to_line(data)) == data


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8")), st.none() | st.binary())))
def test_headers_survive(headers: list[tuple[str, bytes | None]]) -> None:
    assert headers_from_json(json.loads(json.dumps(headers_to_json(tuple(headers))))) == tuple(headers)


def test_null_of_a_serde_is_no_tombstone(lines: Console) -> None:
    lines("produce", "lines", "--value-serde", "json", stdin="null\n")
    found = lines("consume", "lines", "--value-serde", "json", "--json").stdout
    assert json.loads(found)["value"] == {"!null": True}
    lines("topics", "create", "copy")
    lines("produce", "copy", "--value-serde", "json", "--json-lines", stdin=found)
    assert lines("consume", "copy", "--null", "tombstone").stdout == "null\n"


def test_a_value_without_a_text_form_is_refused(lines: Console) -> None:
    lines("produce", "lines", "--serde", "bytes", stdin=pickle.dumps(Part.ONE) + b"\n")
    said = lines("consume", "lines", "--value-serde", "pickle", "--json", code=1).stderr
    assert "test_produce_consume.Part has no text form: give the store or topic a serde" in said


class Careless(Serde[str]):
    """Raises what Python raises for a text form that it does not take."""

    def serialize(self, value: str) -> bytes:
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()

    def from_json(self, data: Any) -> str:
        return str(data["name"])


def test_a_serde_of_another_package_may_raise_anything() -> None:
    serde = TextSerde(Careless(), "t", is_key=False)
    assert serde.from_json({"name": "a"}) == b"a"
    refused: list[Any] = [{}, 5]
    for wrong in refused:
        with pytest.raises(SerdeError, match=f"the value {wrong}: (KeyError|TypeError)"):
            serde.from_json(wrong)


def test_a_serde_of_another_package_is_not_known_by_its_name() -> None:
    class StrSerde(Careless):
        def serialize(self, value: str) -> bytes:
            return value.encode("utf-16")

        def deserialize(self, data: bytes) -> str:
            return data.decode("utf-16")

        def from_json(self, data: Any) -> str:
            return str(data)

    serde = TextSerde(StrSerde(), "t", is_key=False)
    assert serde.from_line(b'"a"') == "a".encode("utf-16")
    assert serde.to_line("a".encode("utf-16")) == b'"a"'


@pytest.mark.parametrize("form", [float("nan"), [float("-inf")], {1, 2}, b"a"])
def test_a_serde_of_another_package_shows_json(form: Any) -> None:
    """A nan became null, which is a tombstone where the line is produced."""

    class Shown(Careless):
        def to_json(self, value: str) -> Any:
            return form

    with pytest.raises(SerdeError, match=r"Shown is wrong: its to_json returned .*, expected JSON data"):
        TextSerde(Shown(), "t", is_key=False).to_json(b"a")


@pytest.mark.parametrize("name", ["windowed:str:1s", "session:str"])
@pytest.mark.parametrize("start", ["0", None, 1.5, 2**64])
def test_times_of_a_window_are_integers(name: str, start: Any) -> None:
    with pytest.raises(SerdeError, match="WindowedSerde: expected start and end in ms as integers"):
        TextSerde(name, "t", is_key=True).from_json({"key": "a", "start": start, "end": start})


def test_times() -> None:
    assert parse_timestamp("1700000000000") == 1700000000000
    assert parse_timestamp("-1") == -1
    assert parse_timestamp("1970-01-01T01:00:00.250+01:00") == 250


# -- which records


def test_limits_and_partitions(console: Console) -> None:
    console("topics", "create", "wide", "--partitions", "3")
    for partition in range(3):
        text = "".join(f"{partition}{letter}\n" for letter in "abc")
        console("produce", "wide", "--partition", str(partition), stdin=text)
    assert console("consume", "wide", "--from-beginning").stdout.split() == [
        "0a",
        "0b",
        "0c",
        "1a",
        "1b",
        "1c",
        "2a",
        "2b",
        "2c",
    ]
    assert console("consume", "wide", "-n", "4").stdout.split() == ["0a", "0b", "0c", "1a"]
    assert console("consume", "wide", "--partition", "1").stdout.split() == ["1a", "1b", "1c"]
    assert (
        "--partition 3: topic 'wide' has 3, numbered from 0"
        in console("consume", "wide", "--partition", "3", code=2).stderr
    )


def test_following_from_the_beginning_ends_at_the_limit(lines: Console) -> None:
    lines("produce", "lines", stdin="a\nb\nc\n")
    assert lines("consume", "lines", "--follow", "--from-beginning", "-n", "2").stdout == "a\nb\n"


@pytest.mark.parametrize("number", [2, 5])
def test_a_topic_that_is_made_again_is_followed_from_its_start(lines: Console, number: int) -> None:
    """Its first records were passed over without a word, up to the offset that the former one had."""
    lines("produce", "lines", stdin="a\nb\nc\n")
    with (
        open_log(Settings(data_dir=str(lines.directory / ".penstock"))) as log,
        closing(topics._followed(log, "lines", None, {TopicPartition("lines", 0): 0}, io.BytesIO())) as found,
    ):
        assert list(next(found).values) == [b"a", b"b", b"c"]
        log.delete_topic("lines")
        log.create_topic("lines", 2)
        values: list[bytes | None] = [b"%d" % each for each in range(number)]
        log.append(OutputBatch("lines", [None] * number, values, [0] * number, None, [(0,)] * number))
        assert list(next(found).values) == values
        log.append(OutputBatch("lines", [None], [b"other"], [0], None, [(1,)]))
        assert list(next(found).values) == [b"other"]


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_serde_that_does_not_fit_says_key_or_value(console: Console, part: str) -> None:
    console("topics", "create", "words")
    console("produce", "words", "--key-separator", ":", stdin="ann:three\n")
    err = console("consume", "words", "--print-key", f"--{part}-serde", "int", code=1).stderr
    assert f"topic 'words', partition 0, offset 0: the {part}: serde 'int': expected 8 bytes" in err


def test_windowed_keys_go_where_their_key_goes(console: Console) -> None:
    for topic, serde in (("plain", "str"), ("windows", "windowed:str:1s")):
        console("topics", "create", topic, "--partitions", "20")
        names = [f"k{number}" for number in range(10)]
        keys = names if serde == "str" else [{"key": name, "start": 5, "end": 1005} for name in names]
        lines = "".join(json.dumps({"key": key, "value": "v"}) + "\n" for key in keys)
        console("produce", topic, "--json-lines", "--key-serde", serde, stdin=lines)
    plain = console.json_lines("consume", "plain", "--json")
    windows = console.json_lines("consume", "windows", "--key-serde", "windowed:str:1s", "--json")
    found = {each["key"]["!windowed"]["key"]: each["partition"] for each in windows}
    assert found == {each["key"]: each["partition"] for each in plain}
