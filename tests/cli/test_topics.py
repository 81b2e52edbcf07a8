"""`penstock topics`."""

from __future__ import annotations

import re

import pytest

from .console import Console


def test_topics_are_created_listed_described_and_deleted(console: Console) -> None:
    console("topics", "create", "lines", "words", "--partitions", "3")
    console("topics", "create", "table", "-c", "cleanup.policy=compact")
    assert console("topics", "list", "--names").stdout == "lines\ntable\nwords\n"
    listed = {each["name"]: each for each in console.json("topics", "list", "--json")}
    assert listed["lines"]["partitions"] == 3
    assert listed["table"]["config"]["cleanup.policy"] == "compact"
    assert listed["words"]["offsets"] == [{"partition": number, "start": 0, "end": 0} for number in range(3)]
    assert listed["words"]["records"] == 0
    assert listed["words"]["internal"] is False
    console("topics", "delete", "lines", "table")
    assert console("topics", "list", "--names").stdout == "words\n"


def test_tables_count_records(console: Console) -> None:
    console("topics", "create", "lines", "--partitions", "2")
    console("produce", "lines", "--partition", "1", stdin="a\nb\n")
    text = console("topics", "list").stdout
    assert re.fullmatch(r"TOPIC +PARTITIONS +RECORDS +SETTINGS\nlines +2 +2\b.*\n", text), text
    text = console("topics", "describe", "lines").stdout
    assert re.search(r"^ +0 +0 +0 +0$", text, re.MULTILINE), text
    assert re.search(r"^ +1 +0 +2 +2$", text, re.MULTILINE), text
    described = console.json("topics", "describe", "lines", "--json")
    assert described[0]["offsets"][1] == {"partition": 1, "start": 0, "end": 2}
    assert described == console.json("topics", "list", "--json")


def test_no_topics_is_no_error(console: Console) -> None:
    result = console("topics", "list")
    assert result.stdout == ""
    assert "no topics" in result.stderr
    assert console.json("topics", "list", "--json") == []


def test_topics_that_exist_are_left_alone_if_asked(console: Console) -> None:
    console("topics", "create", "lines", "--partitions", "3")
    assert "lines" in console("topics", "create", "lines", code=1).stderr
    assert "topic lines exists" in console("topics", "create", "lines", "new", "--if-not-exists").stderr
    assert [each["partitions"] for each in console.json("topics", "list", "--json")] == [3, 1]


def test_nothing_is_deleted_when_one_is_missing(console: Console) -> None:
    console("topics", "create", "lines")
    assert (
        "topic 'linse' does not exist in this log; did you mean 'lines'?"
        in console("topics", "delete", "lines", "linse", code=1).stderr
    )
    assert console("topics", "list", "--names").stdout == "lines\n"


@pytest.mark.parametrize("verb", [["topics", "describe"], ["topics", "delete"], ["consume"], ["produce"]])
def test_a_missing_topic_is_said_with_what_to_do(console: Console, verb: list[str]) -> None:
    assert "there are none; penstock topics create zzz makes it" in console(*verb, "zzz", code=1).stderr
    console("topics", "create", "lines")
    assert "topic 'zzz' does not exist in this log; there are: lines" in console(*verb, "zzz", code=1).stderr


def test_wrong_settings_of_a_topic(console: Console) -> None:
    assert "expected NAME=VALUE" in console("topics", "create", "lines", "-c", "compact", code=2).stderr
    assert "cleanup.polizy" in console("topics", "create", "lines", "-c", "cleanup.polizy=compact", code=1).stderr


# -- which log


def test_the_log_comes_from_options_environment_application_or_default(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.write(
        "app.py",
        "from penstock import Application, Topology\n"
        "topology = Topology().add_source('in', 'lines').add_sink('out', 'copies', 'in')\n"
        "application = Application('app', topology, log='local:ofapp', data_dir='data')\n",
    )
    console("topics", "create", "default")
    console("topics", "create", "app", "--app", "app:application")
    console("topics", "create", "bare", "--app", "app:topology")
    monkeypatch.setenv("PENSTOCK_LOG", "local:env")
    console("topics", "create", "env")
    console("topics", "create", "option", "--log", "local:option", "--data-dir", "elsewhere")
    names = {
        directory: console("topics", "list", "--names", "--log", f"local:{console.directory / directory}").stdout
        for directory in (".penstock/log", "data/ofapp", ".penstock/env", "elsewhere/option")
    }
    assert names == {
        ".penstock/log": "bare\ndefault\n",
        "data/ofapp": "app\n",
        ".penstock/env": "env\n",
        "elsewhere/option": "option\n",
    }


def test_a_log_that_is_not_installed_is_said(console: Console) -> None:
    result = console("topics", "list", "--log", "lokal:there", code=2)
    assert "no log named 'lokal' is installed; installed: kafka, local, memory. Did you mean 'local'?" in result.stderr
    assert "expected NAME:LOCATION" in console("topics", "list", "--log", "local", code=2).stderr
