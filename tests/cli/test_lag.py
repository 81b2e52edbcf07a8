"""`penstock lag`."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from penstock.plugins.operate.cli.options import open_log
from penstock.settings.settings import Settings

from .applications import TARGET, counting, run
from .console import Console


@pytest.fixture
def words(console: Console) -> Console:
    counting(console)
    console("produce", "words", "--partition", "0", stdin="to\nbe\nor\n")
    console("produce", "words", "--partition", "1", stdin="not\n")
    return console


def rows(console: Console, *options: str, **expected: Any) -> dict[str, tuple[Any, ...]]:
    found = console.json("lag", TARGET, "--json", *options, **expected)
    assert found["application_id"] == "counting"
    assert found["lag"] == sum(each["lag"] for each in found["partitions"])
    return {
        f"{each['task']} {each['topic']}-{each['partition']}": (each["position"], each["end"], each["lag"])
        for each in found["partitions"]
    }


def test_what_waits_before_and_after_a_run(words: Console) -> None:
    assert rows(words) == {
        "0_0 words-0": (None, 3, 3),
        "0_1 words-1": (None, 1, 1),
        "1_0 counting-by-word-repartition-0": (None, 0, 0),
        "1_1 counting-by-word-repartition-1": (None, 0, 0),
    }
    run(subtopologies=1)
    words("produce", "words", "--partition", "1", stdin="to\nbe\n")
    found = rows(words)
    assert (found["0_0 words-0"], found["0_1 words-1"]) == ((3, 3, 0), (1, 3, 2))
    assert sum(lag for _, _, lag in found.values()) == 2 + 4
    run()
    assert {lag for _, _, lag in rows(words).values()} == {0}


def test_a_table_with_the_sum(words: Console) -> None:
    lines = [line.split() for line in words("lag", TARGET).stdout.splitlines()]
    assert lines[0] == ["TASK", "TOPIC", "PARTITION", "POSITION", "END", "LAG"]
    assert ["0_0", "words", "0", "-", "3", "3"] in lines
    assert lines[-1] == ["total", "4"]


def test_what_was_there_before_is_no_lag_for_who_starts_at_the_end(words: Console) -> None:
    assert rows(words, "--set", "offset_reset=latest")["0_0 words-0"] == (None, 3, 0)


def test_scripts_get_an_exit_code(words: Console) -> None:
    assert words("lag", TARGET, "--fail-above", "4", "--quiet").output == ""
    result = words("lag", TARGET, "--fail-above", "3", "--quiet", code=1)
    assert (result.stdout, result.stderr) == ("", "counting: lag 4 is above 3\n")
    assert rows(words, "--fail-above", "3", code=1)


def test_while_the_application_runs(words: Console) -> None:
    with open_log(Settings(data_dir=str(words.directory / ".penstock"))) as log:
        lease = log.lease("counting", "a driver", 60_000)
        assert rows(words)["0_0 words-0"] == (None, 3, 3)
        lease.release()


def test_following_shows_it_again(words: Console) -> None:
    process = words.start("lag", TARGET, "--json", "--follow", "--interval", "50ms")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["lag"] == 4
    words("produce", "words", stdin="more\n")
    while json.loads(process.stdout.readline())["lag"] != 5:
        pass
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")


def test_a_missing_topic_and_a_wrong_interval_are_said(words: Console) -> None:
    assert "--interval" in words("lag", TARGET, "--interval", "often", code=2).stderr
    words("topics", "delete", "words", "--yes")
    assert "the log has no topic 'words'" in words("lag", TARGET, code=2).stderr
