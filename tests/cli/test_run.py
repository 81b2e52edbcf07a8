"""`penstock run`."""

from __future__ import annotations

import json
import logging
import re
import signal
import time

import pytest

from penstock.clock import ManualClock
from penstock.plugins.cli.log_lines import log_lines
from penstock.plugins.cli.options import open_log
from penstock.plugins.cli.output import Meter
from penstock.record import TopicPartition
from penstock.settings.settings import Settings

from .console import Console

SHOUT = """
import logging
from penstock import Application, Processor, Topology

class Shout(Processor):
    def init(self, context):
        self.context = context

    def process(self, record):
        limit = self.context.config["user"].get("limit", 100)
        if record.value == "say":
            logging.getLogger("shout").info("asked to say something")
        self.context.forward(record.with_value(record.value.upper()[:limit]))

topology = (
    Topology()
    .add_source("in", "lines")
    .add_processor("shout", Shout, "in")
    .add_sink("out", "shouted", "shout")
)
application = Application("shouting", topology)
"""


@pytest.fixture
def shout(console: Console) -> Console:
    console.write("shout.py", SHOUT)
    console("topics", "create", "lines", "shouted", "--partitions", "2")
    return console


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trigger", "5"], "--trigger '5': expected available_now, continuous, or a time like 10s"),
        (["--set", "comit_interval=5s"], "did you mean 'commit_interval'"),
        (["--set", "commit_interval=5"], "a bare number does not say its unit"),
        (["--set", "store_backend"], "expected NAME=VALUE"),
        (["--log-level", "loud"], "--log-level"),
        (["--log", "local"], "expected NAME:LOCATION"),
    ],
)
def test_what_is_wrong_before_the_start_is_2(shout: Console, arguments: list[str], message: str) -> None:
    assert message in shout("run", "shout:application", *arguments, code=2).stderr


def test_an_application_that_is_not_there_is_2(shout: Console) -> None:
    assert "did you mean 'application'" in shout("run", "shout:aplication", code=2).stderr.lower()
    assert "add --application-id ID" in shout("run", "shout:topology", code=2).stderr


def test_a_missing_topic_is_said_before_spark_starts(shout: Console) -> None:
    shout("topics", "delete", "shouted")
    assert "the log has no topic 'shouted' (sink 'out'); create it" in shout("run", "shout:application", code=2).stderr


def test_a_missing_java_is_said_with_what_to_install(shout: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(shout.directory))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    error = shout("run", "shout:application", code=1).stderr
    assert "Spark needs Java" in error
    assert "install" in error


@pytest.mark.spark
def test_an_application_runs_to_the_end_of_its_topics(shout: Console) -> None:
    shout("produce", "lines", "-K", ":", stdin="a:say\nb:hello\na:again\n")
    out, err = shout.process(
        "run", "shout.py:topology", "--application-id", "from-here", "--master", "local[2]", "--json",
        "--set", "user.limit=4", "--set", "commit_interval=5s", timeout=300,
    )  # fmt: skip
    summary = json.loads(out)
    assert (summary["application_id"], summary["records_in"], summary["records_out"]) == ("from-here", 3, 3)
    assert (summary["lag"], summary["stopped_by"]) == (0, None)
    assert summary["nodes"]["shout"]["in"] == 3
    assert re.search(r"^shout: .*task 0_\d.*node 'shout'.*asked to say something$", err, re.MULTILINE), err
    assert sorted(shout("consume", "shouted", "-k", "-K", ":").stdout.split()) == ["a:AGAI", "a:SAY", "b:HELL"]
    assert "Traceback" not in err


@pytest.mark.spark
def test_an_application_runs_until_it_is_interrupted(shout: Console) -> None:
    shout("produce", "lines", "--quiet", stdin="one\ntwo\n")
    process = shout.start("run", "shout:application", "--master", "local[2]", "--trigger", "200ms")
    partitions = [TopicPartition("shouted", 0), TopicPartition("shouted", 1)]
    try:
        with open_log(Settings(data_dir=str(shout.directory / ".penstock"))) as log:
            deadline = time.monotonic() + 300
            while sum(log.end_offsets(partitions).values()) < 2:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "no records came out"
                time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert "shouting: 2 records in, 2 out" in err
    assert "stopped by SIGINT" in err


# -- what it shows


def test_progress_is_a_plain_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(1_000)
    with Meter("running x", clock=clock) as meter:
        meter.update(10, done=10, total=40, lag=30)
        assert capsys.readouterr().err == ""
        clock.advance("5s")
        meter.update(20, done=20, total=40, lag=20, rate=1234.5, text="batch 2")
        assert capsys.readouterr().err == "running x 50% · batch 2 · 20 records · 1,234 records/s · lag 20\n"
        clock.advance("1s")
        meter.update(30)
        assert capsys.readouterr().err == ""
        clock.advance("30s")
        meter.update(20, done=20, total=40, lag=20, rate=1234.5, text="batch 2")
        assert capsys.readouterr().err == "", "nothing new"
        clock.advance("30s")
        meter.update(20, done=20, total=40, lag=20, rate=1234.5, text="batch 2")
        assert "batch 2" in capsys.readouterr().err, "a sign of life"
    assert (meter.seconds, meter.records) == (66.0, 20)


def test_no_progress_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with Meter("running x", quiet=True, clock=clock) as meter:
        clock.advance("1h")
        meter.update(40)
    assert capsys.readouterr().err == ""


def test_log_lines_from_their_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    with log_lines("info"):
        logging.getLogger("mine").info("in passing")
        logging.getLogger("mine").warning("watch out")
        logging.getLogger("mine").debug("too much")
        logging.getLogger("py4j.clientserver").info("noise")
    logging.getLogger("mine").info("afterwards")
    assert capsys.readouterr().err == "mine: in passing\nwarning: mine: watch out\n"
