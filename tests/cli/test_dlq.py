"""`penstock dlq`."""

from __future__ import annotations

import json
import os

import pytest

from penstock import Failure, Stage
from penstock.plugins.operate.cli.options import open_log
from penstock.record import OutputBatch, TopicPartition
from penstock.settings.settings import Settings
from penstock.task.dead_letter import letter_headers

from ..waiting import wait_until
from .applications import TARGET, counting, run
from .console import Console

WORDS = b"good\nbad \xc3\xa4\nbad two\nworse\n"


@pytest.fixture
def letters(console: Console) -> Console:
    """Three records that failed, read from both partitions of `words`."""
    counting(console)
    text = (
        '{"value": "good"}\n{"value": "bad ä", "key": "k", "timestamp": 7, "headers": [["h", "1"], ["h", {"base64": '
        '"/w=="}]]}\n'
        '{"value": "worse", "timestamp": 9}\n'
    )
    console("produce", "words", "--json-lines", "--partition", "1", stdin=text)
    console("produce", "words", "--json-lines", "--partition", "0", stdin='{"value": "bad two", "timestamp": 8}\n')
    run()
    return console


def test_what_there_is(letters: Console) -> None:
    assert letters.json("dlq", "list", TARGET, "--json") == [
        {"topic": "dead", "source_topic": "words", "exception": "builtins.ValueError", "records": 2, "waiting": 2},
        {"topic": "dead", "source_topic": "words", "exception": "builtins.KeyError", "records": 1, "waiting": 1},
    ]
    letters("dlq", "replay", "dead", "--exception", "KeyError", "--app", TARGET)
    lines = [line.split() for line in letters("dlq", "list", TARGET).stdout.splitlines()]
    assert lines == [
        ["TOPIC", "SOURCE", "TOPIC", "EXCEPTION", "RECORDS", "WAITING"],
        ["dead", "words", "builtins.ValueError", "2", "2"],
        ["dead", "words", "builtins.KeyError", "1", "0"],
    ]


ONES = """
from penstock import Application, Topology
topology = Topology().add_source("in", "words", key_serde="str")
topology.add_sink("out", "ones", "in", partitioner=lambda topic, record, count: 1)
application = Application("ones", topology)
"""


def test_a_replay_elsewhere_goes_where_the_sink_of_the_application_sends_it(letters: Console) -> None:
    letters.write("ones.py", ONES)
    letters("topics", "create", "ones", "--partitions", "2")
    replay = ("dlq", "replay", "dead", "--to", "ones", "--exception", "ValueError")
    letters(*replay, "--app", "ones:application")
    shown = letters.json_lines("consume", "ones", "--json")
    assert [each["partition"] for each in shown if each["key"] is not None] == [1]
    letters(*replay, "--all", "--app", "ones:topology")
    back = letters("dlq", "replay", "dead", "--app", "ones:topology", code=2)
    assert "has no id" in back.stderr, "which topics it reads is not known, so no header may choose one"
    assert len(letters.json_lines("consume", "ones", "--json")) == 4


def test_topics_that_no_handler_names(letters: Console) -> None:
    plain = ("dlq", "list", TARGET, "--set", "processing_handler=skip")
    assert "no handler of 'counting' names a dead-letter topic" in letters(*plain, code=2).stderr
    assert len(letters.json(*plain, "--topic", "dead", "--json")) == 2
    assert "did you mean 'dead'?" in letters(*plain, "--topic", "daed", code=1).stderr
    letters("topics", "delete", "dead", "--yes")
    result = letters("dlq", "list", TARGET)
    assert (result.stdout, result.stderr.splitlines()[0]) == (
        "",
        "topic dead does not exist: penstock topics create dead",
    )


def test_a_letter_shows_its_record_and_its_failure(letters: Console) -> None:
    shown = {each["offset"]: each for each in letters.json_lines("dlq", "show", "dead", "--json")}
    assert len(shown) == 3
    (first,) = [each for each in shown.values() if each["timestamp"] == 7]
    trace = first.pop("stacktrace")
    assert trace.startswith("Traceback") and trace.endswith("ValueError: no bad ä\n")
    assert first == {
        "topic": "dead", "partition": 0, "offset": first["offset"], "timestamp": 7, "key": "k", "value": "bad ä",
        "headers": [["h", "1"], ["h", {"base64": "/w=="}]],
        "exception": "builtins.ValueError", "message": "no bad ä", "source": {"topic": "words", "partition": 1, "offset": 1},
    }  # fmt: skip
    text = letters("dlq", "show", "dead", "--since", "7", "--offsets", str(first["offset"])).stdout
    for line in (
        f"dead partition 0 offset {first['offset']}",
        "  read from  words partition 1 offset 1",
        "  exception  builtins.ValueError",
        "  message    no bad ä",
        "  time       1970-01-01T00:00:00.007Z",
        "  key        k",
        "  value      bad ä",
        "  header     h: 1",
        "  header     h: b'\\xff'",
        "  Traceback (most recent call last):",
    ):
        assert line in text.splitlines()


@pytest.mark.parametrize(
    ("options", "timestamps"),
    [
        ([], [7, 8, 9]),
        (["--exception", "ValueError"], [7, 8]),
        (["--exception", "builtins.KeyError", "--exception", "Error"], [9]),
        (["--from-topic", "words", "--since", "1970-01-01T00:00:00.008Z"], [8, 9]),
        (["--from-topic", "other"], []),
        (["--since", "1h"], []),
        (["--partition", "0"], [7, 8, 9]),
    ],
)  # fmt: skip
def test_letters_are_selected(letters: Console, options: list[str], timestamps: list[int]) -> None:
    shown = letters.json_lines("dlq", "show", "dead", "--json", *options)
    assert sorted(each["timestamp"] for each in shown) == timestamps
    assert len(letters.json_lines("dlq", "show", "dead", "--json", "--limit", "1", *options)) == min(1, len(timestamps))
    for dry in (["--dry-run"], []):
        done = letters.json("dlq", "replay", "dead", "--json", *options, *dry)
        assert (done["records"], done["dry_run"]) == (len(timestamps), bool(dry))


def test_offsets_name_places(letters: Console) -> None:
    for text, offsets in (("1", [1]), ("1-", [1, 2]), ("0-1", [0, 1]), (" 0 - 1 ", [0, 1]), ("7-", [])):
        shown = letters.json_lines("dlq", "show", "dead", "--json", "--offsets", text)
        assert [each["offset"] for each in shown] == offsets
    assert "no dead letters that fit" in letters("dlq", "show", "dead", "--offsets", "7").stderr
    for text in ("x", "1 0", "2-1"):  # digits with a space between were one number
        error = letters("dlq", "show", "dead", "--offsets", text, code=2).stderr
        assert f"--offsets {text!r}: expected an offset, or FIRST-LAST" in error
    assert "no partition 3" in letters("dlq", "show", "dead", "--partition", "3", code=2).stderr


def test_a_replay_sends_each_letter_once_and_says_which(letters: Console) -> None:
    dry = letters("dlq", "replay", "dead", "--dry-run")
    assert [line.split() for line in dry.stdout.splitlines()] == [
        ["PARTITION", "OFFSETS", "TO", "RECORDS"],
        ["0", "0-2", "words", "3"],
    ]
    assert dry.stderr == "would replay 3 records of dead\n"
    result = letters("dlq", "replay", "dead")
    assert (result.stdout, result.stderr) == (dry.stdout, "replayed 3 records of dead\n")
    again = letters("dlq", "replay", "dead")
    assert (again.stdout, again.stderr) == ("", "replayed 0 records of dead\n")
    assert letters("dlq", "replay", "dead", "--all", "--limit", "1").stderr == "replayed 1 record of dead\n"
    records = letters.json_lines("consume", "words", "--json")
    found = [(each["partition"], each["value"], each["timestamp"], each["headers"]) for each in records]
    assert found.count((1, "bad ä", 7, [["h", "1"], ["h", {"base64": "/w=="}]])) >= 2
    assert len(records) == 4 + 3 + 1


def test_a_program_that_was_mended_gets_its_records(letters: Console) -> None:
    text = (letters.directory / "counting.py").read_text()
    letters("dlq", "replay", "dead")
    letters.write("mended.py", text.replace("raise ValueError", "record = record.with_value('mended') #"))
    run("mended:application")
    counted = letters("consume", "totals", "--print-key", "--key-separator", "=", "--value-serde", "int").stdout.split()
    assert sorted(counted) == ["good=1", "mended=1", "mended=2"]
    waiting = {each["exception"]: each["waiting"] for each in letters.json("dlq", "list", TARGET, "--json")}
    assert waiting == {"builtins.ValueError": 0, "builtins.KeyError": 1}


def test_a_missing_topic_is_said_with_what_to_do(letters: Console) -> None:
    assert "did you mean 'dead'?" in letters("dlq", "replay", "deed", code=1).stderr
    assert "no topic 'wrods' to replay to" in letters("dlq", "replay", "dead", "--to", "wrods", code=1).stderr
    letters("topics", "delete", "words", "--yes")
    said = letters("dlq", "replay", "dead", code=1).stderr
    assert "letters of 'dead' still wait" in said and "3 records from 'words' (it does not exist)" in said
    assert "--to TOPIC" in said


def test_no_record_controls_the_terminal(console: Console) -> None:
    """Colours, the title, the cursor, and the direction of text."""
    console("topics", "create", "words", "dead")
    hostile = "\x1b[2J\x1b]0;title\x07\x9b31m\x7f\u202e\u200f\ufeff"
    note = Failure(Stage.PROCESSING, ValueError(f"a{hostile}\n\tb"), "check", "0_0", "words", 0, 0)
    headers = ((f"name{hostile}", hostile.encode()), *letter_headers(note))
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        log.append(OutputBatch("dead", [hostile.encode()], [hostile.encode()], [0], [headers]))
    escaped = "\\u001b[2J\\u001b]0;title\\u0007\\u009b31m\\u007f\\u202e\\u200f\\ufeff"
    text = console("dlq", "show", "dead").stdout
    assert f"header     name{escaped}: " in text and f"ValueError: a{escaped}\n" in text
    as_json = console("dlq", "show", "dead", "--json").stdout
    for shown in (text, as_json, console("topics", "create", f"a{hostile}", code=1).stderr):
        assert all(each.isprintable() or each in "\n\t" for each in shown), shown
    assert json.loads(as_json)["headers"][0][0] == f"name{hostile}"


def test_no_name_in_a_header_passes_for_another_row(letters: Console) -> None:
    """Other clients write headers, too."""
    forged = [("exception", b"E\n  message    all is well\xe2\x80\xa8x"), ("topic", b"words\ndead   other  E  9  9")]
    headers = tuple((f"__streams.errors.{name}", value) for name, value in forged)
    with open_log(Settings(data_dir=str(letters.directory / ".penstock"))) as log:
        log.append(OutputBatch("dead", [b"k"], [b"v"], [99], [headers]))
    listed = letters("dlq", "list", TARGET).stdout.splitlines()
    assert len(listed) == 4 and sum("words\\ndead   other  E  9  9" in each for each in listed) == 1
    text = letters("dlq", "show", "dead", "--since", "99").stdout.splitlines()
    assert "  exception  E\\n  message    all is well\\u2028x" in text
    assert "  read from  words\\ndead   other  E  9  9 partition None offset None" in text
    assert text.count("  message    ") == 1


HOSTILE_FAILURE = """
from penstock import Application, Processor, Topology

class Fail(Processor):
    def process(self, record):
        raise ValueError("half \\ud800, turned \\u202e\\u200f, ended \\u2028")

application = Application("failing", Topology().add_source("in", "words").add_processor("fail", Fail, "in"))
"""


def test_no_failure_breaks_what_shows_it(letters: Console) -> None:
    """Half a surrogate pair, as JSON may have it, is not in UTF-8."""
    letters.write("failing.py", HOSTILE_FAILURE)
    letters("run", "failing:application", "--engine", "embedded", "--until", "ends", code=1)
    for verb in ("status", "status --json", "health", "top --once"):
        name, *options = verb.split()
        answer = letters(name, "failing:application", *options, code=1 if name == "health" else 0)
        if name != "top":  # which has one line for it, as wide as the terminal
            assert "half \\ud800, turned \\u202e\\u200f, ended \\u2028" in answer.stdout + answer.stderr, verb


def test_a_killed_replay_is_taken_up_where_it_was(console: Console) -> None:
    """Three times; each letter is sent once."""
    console("topics", "create", "words", "dead")
    count = 3_000
    note = Failure(Stage.PROCESSING, ValueError("x" * 5_000), "check", "0_0", "words", 0, 0)
    headers = letter_headers(note)
    keys: list[bytes | None] = [b"%d" % number for number in range(count)]
    place = TopicPartition("words", 0)
    with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
        for start in range(0, count, 100):
            part = keys[start : start + 100]
            log.append(OutputBatch("dead", part, part, [0] * 100, [headers] * 100))
        for _ in range(3):
            end = log.end_offsets([place])[place]
            process = console.start("dlq", "replay", "dead")
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)  # the test sees the commit before the next ones are made
            wait_until(lambda: log.end_offsets([place])[place] > end or process.poll() is not None, "a commit")  # noqa: B023
            process.kill()
            process.communicate()
        killed_at = log.end_offsets([place])[place]
        console("dlq", "replay", "dead")
        sent = [key for batch in log.fetch(place, 0, count + 1, 1 << 30) for key in batch.keys]
    assert sent == keys
    assert 0 < killed_at < count
