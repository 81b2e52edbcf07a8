"""`penstock run`."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import psutil
import pytest
from click.exceptions import Exit

from penstock import PenstockError
from penstock.clock import ManualClock
from penstock.plugins.engine.host.log_lines import forward
from penstock.plugins.engine.run.progress import RunSummary
from penstock.plugins.operate.cli.log_lines import log_lines
from penstock.plugins.operate.cli.options import open_log
from penstock.plugins.operate.cli.output import ProgressMeter
from penstock.record import TopicPartition
from penstock.settings.settings import Settings

from ..rotation import by_turns
from ..spark.standalone import java_options, spark_home
from .console import Console

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"

SHOUT = """
import logging
from penstock import Application, Processor, Topology

class Shout(Processor):
    def init(self, context):
        self.context = context

    def process(self, record):
        limit = self.context.config["user"].get("limit", 100)
        if record.value.startswith("bad"):
            raise ValueError(record.value)
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
        (["--log-format", "xml"], "--log-format"),
        (["--conf", "spark.driver.memory"], "--conf 'spark.driver.memory': expected KEY=VALUE"),
        (["--conf", "commit_interval=5s"], "Spark's settings begin with 'spark.'"),
        (["--conf", "spark.master=local"], "--conf spark.master: it cannot be changed here: use --master"),
        (["--conf", "spark.sql.shuffle.partitions=7"], "the setting parallelism"),
        (["--conf", "spark.sql.streaming.stateStore.providerClass=x"], "needs the value that penstock sets"),
        (["--conf", "spark.sql.streaming.stateStore.encodingFormat=avro"], "has Spark's default"),
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


@by_turns(1, 4)
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
    said = rf"^{TIME} INFO shout: task 0_\d, node 'shout': asked to say something$"
    assert re.search(said, err, re.MULTILINE), err
    assert re.search(rf"^{TIME} INFO penstock.spark: workers run on Python 3\.\d+\.\d+ \(", err, re.MULTILINE), err
    assert sorted(shout("consume", "shouted", "-k", "-K", ":").stdout.split()) == ["a:AGAI", "a:SAY", "b:HELL"]
    assert "Traceback" not in err


@contextmanager
def running(console: Console, process: subprocess.Popen[str], records: int) -> Iterator[None]:
    """Wait until a started application has written so many records; at the end of the block none of it is left."""
    partitions = [TopicPartition("shouted", 0), TopicPartition("shouted", 1)]
    try:
        with open_log(Settings(data_dir=str(console.directory / ".penstock"))) as log:
            deadline = time.monotonic() + 300
            while sum(log.end_offsets(partitions).values()) < records:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "no records came out"
                time.sleep(0.05)
        yield
    finally:
        process.kill()


def is_silent_about_its_end(err: str) -> bool:
    """Whether there is nothing of Python's and the JVM's own complaints."""
    return not re.search(r"Traceback|Exception ignored|py4j|Py4J|^\s+at [\w.$]+\(|ERROR [A-Z]\w+:", err, re.MULTILINE)


def test_an_embedded_run_says_the_same(shout: Console) -> None:
    shout("produce", "lines", "-K", ":", stdin="a:say\nb:hello\na:again\n")
    out, err = shout.process("run", "shout:application", "--engine", "embedded", "--json", "--log-format", "json")
    summary = json.loads(out)
    assert (summary["records_in"], summary["records_out"], summary["lag"], summary["tasks"]) == (3, 3, 0, 2)
    lines = [json.loads(line) for line in err.splitlines()]
    (said,) = [each for each in lines if each["logger"] == "shout"]
    assert (said["message"], said["node"]) == ("asked to say something", "shout")
    assert re.fullmatch(r"0_\d", said["task"])


@pytest.mark.parametrize("trigger", ["200ms", "continuous"])
def test_an_application_runs_until_it_is_interrupted(shout: Console, trigger: str) -> None:
    shout("produce", "lines", "--quiet", stdin="one\ntwo\n")
    process = shout.start("run", "shout:application", "--engine", "embedded", "--trigger", trigger)
    with running(shout, process, 2):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert out == ""
    assert is_silent_about_its_end(err), err
    assert "shouting: 2 records in, 2 out" in err
    assert "stopped by SIGINT" in err


@by_turns(0, 4)
@pytest.mark.spark
def test_a_run_with_bad_records_says_little_in_json_and_sigterm_stops_it(shout: Console) -> None:
    shout("produce", "lines", "--quiet", stdin="".join(f"{'bad' if n % 2 else 'good'} {n}\n" for n in range(10_000)))
    python = shout.directory / "of-the-workers"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    process = shout.start(
        "run", "shout:application", "--master", "local[2]", "--trigger", "200ms", "--log-format", "json",
        "--set", "processing_handler=skip", "--conf", "spark.app.name=loud",
        environment={"PYSPARK_PYTHON": str(python)},
    )  # fmt: skip
    with running(shout, process, 5_000):
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert out == ""
    # Java says this when it starts Spark, before anybody can tell it how.
    lines = [json.loads(line) for line in err.splitlines() if not line.startswith("WARNING: Using incubator modules")]
    assert len(lines) < 20, err
    assert {line["application"] for line in lines} == {"shouting"}
    skipped = [line for line in lines if "skipped" in line["message"]]
    assert {task for line in skipped for task in re.findall(r"task (\d_\d)", line["message"])} == {"0_0", "0_1"}
    assert sum(int((re.findall(r"the last of (\d+) in", line["message"]) or [1])[0]) for line in skipped) == 5_000
    assert not re.search(r"bad \d", err)
    assert any(f"workers run on Python 3.{sys.version_info[1]}" in line["message"] for line in lines)
    assert any(str(python) in line["message"] for line in lines)
    assert "10,000 records in, 5,000 out" in lines[-1]["message"]
    assert "stopped by SIGTERM" in lines[-1]["message"]


@by_turns(2, 4)
@pytest.mark.spark
def test_the_end_of_sparks_jvm_is_said_in_one_line(shout: Console) -> None:
    shout("produce", "lines", "--quiet", stdin="one\ntwo\n")
    process = shout.start("run", "shout:application", "--master", "local[2]", "--trigger", "200ms", "--quiet")
    with running(shout, process, 2):
        jvm = next(each for each in psutil.Process(process.pid).children() if each.name().startswith("java"))
        jvm.kill()
        _, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    assert is_silent_about_its_end(err), err
    error = err.splitlines()[-1]
    assert error.startswith(
        f"Error: application 'shouting': Spark's JVM (process {jvm.pid}) has ended by signal 9, SIGKILL"
    )
    assert "nothing is lost: start it again" in error


SUBMITTED = """
from shout import application
from penstock.plugins.spark import run

summary = run(application, "200ms")
print(summary.records_in, summary.stopped_by)
"""


@by_turns(3, 4)
@pytest.mark.spark
def test_sigterm_stops_a_run_under_spark_submit(shout: Console) -> None:
    shout("produce", "lines", "--quiet", stdin="one\ntwo\n")
    script = shout.write("submitted.py", SUBMITTED)
    options, home = java_options(), spark_home()
    process = subprocess.Popen(
        [home / "bin" / "spark-submit", "--master", "local[2]", "--driver-java-options", options, script],
        cwd=shout.directory,
        env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with running(shout, process, 2):
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert out == "2 SIGTERM\n"
    assert is_silent_about_its_end(err), err
    assert "wait" not in shout("lag", "shout:application").stderr


# -- what it shows


def test_progress_is_a_plain_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(1_000)
    with ProgressMeter("running x", clock=clock) as meter:
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


def test_a_long_run_shows_its_progress_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(1_000)
    with ProgressMeter("running x", clock=clock) as meter:
        for second in range(600):
            clock.advance("1s")
            meter.update(second)
    assert len(capsys.readouterr().err.splitlines()) == 6 + 9


def test_no_progress_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    with ProgressMeter("running x", quiet=True, clock=clock) as meter:
        clock.advance("1h")
        meter.update(40)
    assert capsys.readouterr().err == ""


def test_log_lines_from_their_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    with log_lines("info"):
        logging.getLogger("mine").info("in passing")
        logging.getLogger("mine").warning("watch out\x1b[2J\n\x9b1m")
        logging.getLogger("mine").debug("too much")
        logging.getLogger("py4j.clientserver").info("noise")
    logging.getLogger("mine").info("afterwards")
    said = capsys.readouterr().err
    assert re.sub(rf"^{TIME} ", "", said, flags=re.MULTILINE) == (
        "INFO mine: in passing\nWARNING mine: watch out\\u001b[2J\n\\u009b1m\n"
    )


def test_log_lines_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    host = {
        "logger": "mine", "level": logging.WARNING, "message": "far away", "created": 1_700_000_000.25, "task": "0_1",
        "node": "count", "trace": "Traceback\nKeyError: 'x'\n",
    }  # fmt: skip
    with pytest.raises(Exit) as ended, log_lines("info", "json", "shop"):
        logging.getLogger("mine").info("in %s", "passing")
        forward(host)
        try:
            raise ValueError("deep down")
        except ValueError:
            logging.getLogger("mine").exception("caught\nin two lines")
        raise PenstockError("it failed")
    assert ended.value.exit_code == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert all(re.fullmatch(TIME, line.pop("time")) and line.pop("application") == "shop" for line in lines)
    trace = lines[2].pop("exception")
    assert trace.startswith("Traceback") and trace.endswith("ValueError: deep down")
    place = re.search(r" \(test_run.py, line \d+\)$", lines[3]["message"])
    assert place is not None, "an error that ends the application names the user's own line"
    lines[3]["message"] = lines[3]["message"].removesuffix(place[0])
    assert lines == [
        {"level": "INFO", "logger": "mine", "message": "in passing"},
        {
            "level": "WARNING", "logger": "mine", "message": "far away", "task": "0_1", "node": "count",
            "exception": "Traceback\nKeyError: 'x'",
        },
        {"level": "ERROR", "logger": "mine", "message": "caught\nin two lines"},
        {"level": "ERROR", "logger": "penstock.cli", "message": "it failed"},
    ]  # fmt: skip


def test_a_hosts_line_keeps_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with log_lines("info"):
        forward({"logger": "mine", "level": 20, "message": "x", "created": 0.5, "task": "0_1", "node": "", "trace": ""})
    time_of_it, _, rest = capsys.readouterr().err.partition(" ")
    assert datetime.fromisoformat(time_of_it).timestamp() == 0.5
    assert rest == "INFO mine: task 0_1: x\n"


def test_quiet_shows_warnings_unless_a_level_is_given(shout: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.plugins.spark.engine import SparkEngine

    def run(self: SparkEngine, application: object, order: object) -> RunSummary:
        for level in (logging.INFO, logging.WARNING):
            logging.getLogger("penstock.spark").log(level, "at %s", logging.getLevelName(level))
        return RunSummary("shouting")

    monkeypatch.setattr(SparkEngine, "run", run)
    assert "at INFO" in shout("run", "shout:application").stderr
    quiet = shout("run", "shout:application", "--quiet").stderr
    assert "at INFO" not in quiet and "at WARNING" in quiet
    assert "at INFO" in shout("run", "shout:application", "--quiet", "--log-level", "info").stderr
