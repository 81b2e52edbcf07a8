"""`penstock profile`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .applications import TARGET, counting
from .console import Console
from .test_reset import append, logs

SLOW = """
from time import perf_counter
from penstock import Application, Processor, Topology

class Slow(Processor):
    def process(self, record):
        until = perf_counter() + 200e-6
        while perf_counter() < until:
            pass
        self.context.forward(record)

class Quick(Processor):
    def process(self, record):
        print("quick", record.value)
        self.context.forward(record)

topology = (
    Topology().add_source("in", "words").add_processor("quick", Quick, "in")
    .add_processor("slow", Slow, "quick").add_sink("out", "totals", "slow")
)
application = Application("slow", topology)
"""


@pytest.fixture
def waiting(console: Console) -> Console:
    """An application with records that wait: 60 in partition 0, and 40 in partition 1."""
    counting(console)
    console.write("slow.py", SLOW)
    with logs(console) as log:
        append(log, 0, "abcdef" * 10, 1)
        append(log, 1, "abcd" * 10, 1)
    return console


def node(found: Any, name: str) -> Any:
    return next(each for each in found["nodes"] if each["name"] == name)


def test_what_it_shows(waiting: Console) -> None:
    shown = waiting("profile", "slow:application")
    assert re.match(r"slow: 100 records in [\d.]+ s, [\d,]+ records/s in one thread, with 2 commits\n", shown.stdout)
    assert re.search(r"With hooks it took [\d.]+ s of CPU, without [\d.]+ s \([+-]\d+%\)", shown.stdout)
    rows = [line.split() for line in shown.stdout.splitlines()]
    nodes = rows[rows.index(["NODE", "KIND", "IN", "OUT", "OWN", "US", "SERDE", "US", "STORES", "US", "SHARE"]) + 1 :]
    assert nodes[0][:4] == ["slow", "Slow", "100", "100"], "the slow one is the top"
    assert float(nodes[0][4]) >= 180 and float(nodes[0][-1].rstrip("%")) > 40
    assert any(row[:1] == ["Slow.process"] and row[1].startswith("slow.py:") for row in rows)
    assert "quick" not in shown.stdout.splitlines()[0] and "quick a" in shown.stderr, "what it prints is elsewhere"
    phases = [row[0] for row in rows if row][-12:]
    assert "commit" in [row[0] for row in rows if row] and phases


def test_as_json(waiting: Console) -> None:
    found = waiting.json("profile", TARGET, "--json")
    assert (found["application_id"], found["records"], found["error"]) == ("counting", 100, None)
    assert (node(found, "count")["records_in"], node(found, "count")["records_out"]) == (100, 100)
    assert node(found, "count")["stores"][0]["calls"] == {"get": 200, "put": 100}
    assert [each["name"] for each in found["stores"]] == ["counts"]
    assert found["hooks"]["overhead"] is not None and found["records_per_second"] > 0
    shares = [each["share"] for each in found["nodes"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(each["share"] for each in found["phases"]) == pytest.approx(1.0, abs=0.02)


def test_nothing_of_the_log_and_of_the_application_changes(waiting: Console) -> None:
    def files() -> dict[str, bytes]:
        found = (waiting.directory / ".penstock").rglob("*")
        return {str(each): each.read_bytes() for each in found if each.is_file() and "lock" not in each.name}

    before = files()
    waiting("profile", TARGET)
    assert files() == before
    assert waiting.json("lag", TARGET, "--json")["lag"] == 100, "it has not joined the group, nor committed"


def test_fewer_records_and_where_they_begin(waiting: Console) -> None:
    assert waiting.json("profile", TARGET, "--json", "--records", "10")["records"] == 10
    few = ("--json", "--once", "-n", "4")
    assert waiting.json("profile", TARGET, *few, "--from-beginning")["records"] == 4
    assert waiting.json("profile", TARGET, *few, "--since", "1970-01-01T00:00:00Z")["records"] == 4
    failed = waiting("profile", TARGET, "--since", "2090-01-01T00:00:00Z", code=2)
    assert "nothing to profile: no records in its source topics ('words')" in failed.stderr


def test_once_and_commits(waiting: Console) -> None:
    shown = waiting("profile", "slow:application", "--once", "--commit-every", "20")
    assert "with 5 commits" in shown.stdout and "What the hooks cost is not known" in shown.stdout
    assert shown.stderr.count("quick a\n") == 20
    found = waiting.json("profile", "slow:application", "--once", "--json")
    assert found["once"] and found["hooks"]["overhead"] is None


def test_the_number_of_functions(waiting: Console) -> None:
    assert "FUNCTION" not in waiting("profile", "slow:application", "--top", "0").stdout
    assert len(waiting.json("profile", "slow:application", "--json", "--top", "1")["functions"]) == 1


@pytest.mark.parametrize("name", ["flame.json", "flame.folded", "flame.txt"])
def test_a_flame_graph(waiting: Console, name: str) -> None:
    shown = waiting("profile", "slow:application", "--flame", name)
    assert f"written to {name}: " in shown.stderr
    text = (waiting.directory / name).read_text()
    assert "node slow" in text and "Slow.process (slow.py:6)" in text
    if name.endswith(".json"):
        assert json.loads(text)["profiles"][0]["type"] == "sampled"


def test_records_of_a_file(waiting: Console) -> None:
    lines = waiting("consume", "words", "--json").stdout
    path = waiting.write("words.jsonl", lines)
    found = waiting.json("profile", TARGET, "--json", "--file", str(path), "--log", "local:nowhere")
    assert found["records"] == 100 and node(found, "in")["records_in"] == 100
    assert not (waiting.directory / ".penstock" / "nowhere").exists(), "the log is not opened"
    assert waiting.json("profile", TARGET, "--json", "-f", str(path), "-n", "7", "-p", "3")["records"] == 7
    plain = "".join(f'{{"value": "w{each}"}}\n\n' for each in range(5))
    assert waiting.json("profile", TARGET, "--json", "--file", "-", stdin=plain)["records"] == 5


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            '{"topic": "words", "value": "a"}\n{"topic": "word", "value": "b"}\n',
            "line 2: no source reads topic 'word'; the sources read: words",
        ),
        ('{"value": "a"}\n\n{"value": \n', "line 3: "),
        ('{"key": "a"}\n', 'line 1: expected a JSON object with "value"'),
        ("", "nothing to profile: no records in its source topics"),
    ],
)
def test_a_file_that_does_not_fit(waiting: Console, lines: str, message: str) -> None:
    path = waiting.write("words.jsonl", lines)
    failed = waiting("profile", TARGET, "--file", str(path), code=2 if "nothing" in message else 1)
    assert message in failed.stderr


def test_lines_without_a_topic_where_there_are_several(waiting: Console) -> None:
    waiting.write("two.py", SLOW.replace('"words")', '"words", "others")'))
    failed = waiting("profile", "two:application", "--file", "-", stdin='{"value": "a"}\n', code=1)
    assert (
        'line 1: it has no "topic", and the program reads words, others: name one of them in each line' in failed.stderr
    )


def test_a_program_that_fails(waiting: Console) -> None:
    """It is profiled up to there, and ends with the error as `penstock run` does."""
    waiting.write("failing.py", SLOW.replace('print("quick", record.value)', 'assert record.value != "f", "no f"'))
    failed = waiting("profile", "failing:application", code=1)
    assert "node 'quick'" in failed.stderr and "no f" in failed.stderr
    assert "The program failed after 6 records; the profile is of these." in failed.stderr
    assert re.search(r"\nslow +Slow +5 +5 ", failed.stdout)
    found = json.loads(waiting("profile", "failing:application", "--json", code=1).stdout)
    assert "no f" in found["error"] and node(found, "quick")["records_in"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--master", "local[4]"), "--master says how `penstock run` runs an application on an engine"),
        (("--engine", "spark"), "--engine says how `penstock run` runs an application on an engine"),
        (("--checkpoint", "c"), "works on an application's log, and a query of `transform` has none"),
        (("--file", "-", "--from-beginning"), "--from-beginning and --since choose records of the log"),
        (("--file", "-", "--since", "1h"), "--from-beginning and --since choose records of the log"),
        (("--partitions", "2"), "--partitions is for --file"),
        (("--from-beginning", "--since", "1h"), "say one of --from-beginning and --since"),
        (("--since", "soon"), "--since 'soon'"),
        (("--flame", "flame.svg"), "--flame flame.svg: expected a name that ends with .json"),
        (("--flame", "no/flame.json"), "there is no directory 'no'"),
        (("--records", "0"), "--records"),
        (("--commit-every", "0"), "--commit-every"),
        (("--log", "local:other"), "reads topic 'words', which the log 'local:other' does not have"),
    ],
)  # fmt: skip
def test_what_is_refused(waiting: Console, arguments: tuple[str, ...], message: str) -> None:
    code = 1 if arguments[0] == "--log" else 2
    failed = waiting("profile", TARGET, *arguments, code=code)
    assert message in failed.stderr.replace("\n", " ")


def test_in_a_process_of_its_own(waiting: Console) -> None:
    """Nothing is left in the temporary directory."""
    temporary = waiting.directory / "tmp"
    temporary.mkdir()
    out, _ = waiting.process("profile", "slow:application", environment={"TMPDIR": str(temporary)})
    assert out.startswith("slow: 100 records in ")
    assert not list(Path(temporary).iterdir())
