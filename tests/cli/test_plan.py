"""`penstock plan`."""

from __future__ import annotations

import json

import pytest

from .applications import COUNTING, TARGET, counting, run
from .console import Console
from .test_reset import append, logs
from .test_stores import MORE, SECOND

OTHER_SERDE = COUNTING.replace('key_value_store("counts")', 'key_value_store("counts", value_serde="float")')


def test_a_first_start(console: Console) -> None:
    counting(console)
    found = console.json("plan", TARGET, "--json")
    assert (found["refusal"], found["is_first"], found["tasks"]) == (None, True, 4)
    assert found["stores"] == [{"name": "counts", "subtopology": 1, "fate": "new", "changes": [], "topic": None}]
    assert [(each["name"], each["fate"], each["where"]) for each in found["inputs"]] == [
        ("words", "begins", "earliest")
    ]
    assert [(each["name"], each["fate"]) for each in found["internal_topics"]] == [
        ("counting-by-word-repartition", "created")
    ]
    text = console("plan", TARGET).stdout
    assert text.startswith("counting starts afresh, with 4 tasks.\n") and "come back" not in text
    with logs(console) as log:
        assert "counting-by-word-repartition" not in log.topics(), "a plan creates nothing"
        assert log.get_meta("counting", "program") is None


@pytest.fixture
def ran(console: Console) -> Console:
    counting(console)
    with logs(console) as log:
        append(log, 0, "aab", 1)
    run()
    console.write("counting2.py", MORE)
    console.write("counting3.py", OTHER_SERDE)
    return console


def test_another_store_and_back(ran: Console) -> None:
    found = ran.json("plan", SECOND, "--json")
    assert {each["name"]: each["fate"] for each in found["stores"]} == {"counts": "kept", "more": "new"}
    assert [each["fate"] for each in found["inputs"]] == ["continues"] and not found["is_first"]
    assert ran("plan", SECOND, "--strict").stdout.endswith("The program that ran last can come back.\n")
    with logs(ran) as log:
        append(log, 0, "a", 1)
    run(SECOND)
    found = ran.json("plan", TARGET, "--json")
    assert {each["name"]: each["fate"] for each in found["stores"]} == {"counts": "kept", "more": "parked"}
    text = ran("plan", TARGET, "--strict", code=1).stdout
    assert text.endswith("The program that ran last can come back, and more with it until a record is processed.\n")


def test_topics_that_nobody_uses_any_more(ran: Console) -> None:
    """Those of this application; another one's may begin with the same text."""
    with logs(ran) as log:
        log.create_topic("counting-again-by-word-repartition", 1, internal=True)
    ran.write("counting2.py", COUNTING.replace('"by-word"', '"other"'))
    found = ran.json("plan", SECOND, "--json")["internal_topics"]
    assert [(each["name"], each["fate"]) for each in found] == [
        ("counting-other-repartition", "created"),
        ("counting-by-word-repartition", "unused"),
    ]


def test_a_start_that_would_be_refused(ran: Console) -> None:
    result = ran("plan", "counting3:application", code=1)
    assert result.stdout.startswith("A start would be refused: application 'counting' does not fit what it saved:")
    assert ran("run", "counting3:application", code=2).stderr.strip()[7:] in result.stdout


def test_schedules_that_nobody_takes_over(console: Console) -> None:
    rings = "from penstock import STREAM_TIME\n" + COUNTING.replace(
        "class Count(Processor):",
        "class Count(Processor):\n"
        "    def init(self, context):\n"
        "        super().init(context)\n"
        "        context.schedule('1h', self.ring, STREAM_TIME)\n"
        "    def ring(self, now):\n"
        "        pass\n",
    )
    console.write("counting.py", rings)
    console("topics", "create", "words", "totals", "dead", "--partitions", "2")
    with logs(console) as log:
        append(log, 0, "aab", 1)
    run()
    console.write("counting2.py", rings.replace('"count"', '"renamed"'))
    assert console.json("plan", TARGET, "--json")["left_schedules"] == []
    assert console.json("plan", SECOND, "--json")["left_schedules"] == ["count"]
    assert "Schedules of processor 'count' do not fire" in console("plan", SECOND).stdout


RETRYING = """
from penstock import Application, Topology
topology = Topology().add_source("in", "words", "retries").add_sink("again", "retries", "in")
application = Application("retrying", topology)
"""


def test_a_topic_that_may_be_one_for_retries_is_named(console: Console) -> None:
    console.write("retrying.py", RETRYING)
    console("topics", "create", "words", "retries")
    target, named = "retrying:application", ("--set", "intermediate_topics=retries")
    assert "Topic 'retries' is written by what reads it: a reset, " in console("plan", target).stdout
    assert "is written by what reads it" not in console("plan", target, *named).stdout
    dry = ("reset", target, "--dry-run")
    assert "topic retries is written by what reads it: what retrying wrote there" in console(*dry).stderr
    assert console.json(*dry, "--json")["circular_topics"] == ["retries"]
    done = console(*dry, *named)
    assert "what topic retries has is passed over" in done.stdout and "written by what" not in done.stderr


def test_without_the_log(console: Console) -> None:
    console.write("counting.py", COUNTING)
    console.write("counting2.py", MORE)
    console.write("counting3.py", OTHER_SERDE)
    away = ("--log", "kafka:127.0.0.1:1")
    console("plan", TARGET, "--partitions", "3", "--save", "saved", *away)
    found = json.loads(console("plan", SECOND, "--against", "saved", "--json", *away).stdout)
    assert {each["name"]: each["fate"] for each in found["stores"]} == {"counts": "kept", "more": "new"}
    assert (found["tasks"], [each["fate"] for each in found["inputs"]]) == (6, ["continues"])
    assert "value_serde" in console("plan", "counting3:application", "--against", "saved", *away, code=1).stdout


def test_files_of_something_else(console: Console) -> None:
    console.write("counting.py", COUNTING)
    for text in ("", "[]", "{}", '{"format": "penstock plan 0"}'):
        console.write("saved", text)
        assert (
            "expected a file that `penstock plan --save`"
            in console("plan", TARGET, "--against", "saved", code=2).stderr
        )
    console("plan", TARGET, "--partitions", "3", "--save", "saved")
    result = console("plan", TARGET, "--against", "saved", "--application-id", "other", code=2)
    assert "it is of application 'counting', and this is 'other'" in result.stderr
