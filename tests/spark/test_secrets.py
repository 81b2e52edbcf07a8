"""A log's passwords are where they are needed, and nowhere that somebody may look."""

from __future__ import annotations

import logging
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from penstock import (
    Application,
    OutputBatch,
    PenstockError,
    ProcessingError,
    Processor,
    Record,
    Secret,
    Settings,
    Topology,
)
from penstock.plugins.engine.run.planning.control import LogFile, PlannedApplication
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.spark import planning, run
from penstock.plugins.spark.query import ApplicationQuery
from penstock.plugins.spark.source import PenstockStreamReader
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.settings.sources import layers

from .surroundings import Surroundings

CANARY = "canary-b41d7"
SECRETS = {"sasl.password": CANARY, "my.thing": Secret(CANARY), "ssl.key.pem": f"-----BEGIN KEY-----{CANARY}"}


def test_the_file_for_the_planner_is_nobody_elses_and_read_once(tmp_path: Path) -> None:
    settings = Settings(clients=SECRETS, log="local:here", data_dir="there", task_timeout="3s", replication_factor=2)
    file = LogFile(tmp_path)
    for _ in range(2):
        file.write(settings)
        (path,) = tmp_path.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        found = file.take()
        assert found == settings
        assert CANARY not in repr(found)
        assert not list(tmp_path.iterdir())


def test_the_planner_opens_the_log_with_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Settings] = []

    def pretend(settings: Settings) -> MemoryLog:
        opened.append(settings)
        return MemoryLog()

    monkeypatch.setattr(planning, "open_log", pretend)
    LogFile(tmp_path).write(Settings(clients=SECRETS, processing_guarantee="at_least_once"))
    plan = PlannedApplication("app", {}, [], {}, [], 1, None, 1000, str(tmp_path))
    plan.write()
    reader = PenstockStreamReader(str(tmp_path))
    reader.initialOffset()
    reader.stop()
    assert [dict(each.clients)["sasl.password"] for each in opened] == [CANARY]
    assert opened[0].processing_guarantee == "at_least_once"
    assert CANARY not in (tmp_path / "plan").read_text()


class Chatty(Processor):
    """Shows everything it knows: in its log, and when it fails."""

    def process(self, record: Record) -> None:
        assert self.context.config["clients"]["sasl.password"] == CANARY  # it is there, for who asks for it by name
        logging.getLogger("tests.apps").warning("config: %s", self.context.config)
        if record.value == "poison":
            raise ValueError(f"with {self.context.config!r}")
        self.context.forward(record)


TOPOLOGY = Topology().add_source("in", "in").add_processor("chatty", Chatty, "in").add_sink("out", "out", "chatty")


class Looker:
    """Collects what Spark shows of its queries: options, plans, progress, errors."""

    def __init__(self, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark = spark
        self.shown: list[str] = []
        shown, close = self.shown, ApplicationQuery.close

        def look_and_close(self: ApplicationQuery) -> None:
            query = self._query
            if query is not None:
                shown.extend(each.json() for each in query._jsq.recentProgress())
                shown.append(query._jsq.explainInternal(True))
                shown.append(str(query.exception()))
            close(self)

        monkeypatch.setattr(ApplicationQuery, "close", look_and_close)
        for kind in (DataStreamReader, DataStreamWriter):

            def option(self: Any, name: str, value: Any, option: Any = kind.option) -> Any:
                shown.append(f"option {name}={value}")
                return option(self, name, value)

            monkeypatch.setattr(kind, "option", option)

    def everything(self, *more: str) -> str:
        """Return all of it, with what Spark's UI shows and `more`."""
        executions = self.spark._jsparkSession.sharedState().statusStore().executionsList()
        plans = [executions.apply(index).physicalPlanDescription() for index in range(executions.size())]
        text = "\n".join([*self.shown, *plans, *more])
        assert "FlatMapGroupsInPandasWithState" in text, "the plan was looked at"
        assert "option control=" in text, "the options were looked at"
        return text


@pytest.fixture
def looker(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Looker:
    return Looker(spark, monkeypatch)


def files_with_the_canary(directory: Path) -> list[Path]:
    return [each for each in directory.rglob("*") if each.is_file() and CANARY.encode() in each.read_bytes()]


@pytest.mark.spark
def test_a_secret_is_in_no_plan_no_progress_no_file_no_line_and_no_error(
    surroundings: Surroundings,
    spark: Any,
    looker: Looker,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    application = surroundings.application("app", TOPOLOGY, clients=SECRETS)
    surroundings.put("in", [("a", "fine", 0)])
    with caplog.at_level(logging.DEBUG, "penstock"), caplog.at_level(logging.WARNING, "tests.apps"):
        assert run(application, session=spark).records_out == 1
        surroundings.put("in", [("a", "poison", 0)])
        with pytest.raises(ProcessingError, match="with") as caught:
            run(application, session=spark)
    everything = looker.everything(str(caught.value), caplog.text, *capfd.readouterr())
    assert "config: " in caplog.text, "the processor's line was looked at"
    assert everything.count("********") >= 2
    assert CANARY not in everything
    assert any("checkpoint" in each.parts for each in surroundings.directory.rglob("*"))
    assert not files_with_the_canary(surroundings.directory)


@pytest.mark.spark
def test_a_password_reaches_everybody_who_opens_the_log_and_is_shown_by_nobody(
    tmp_path: Path,
    spark: Any,
    looker: Looker,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The driver, the planner and the workers of an application on a broker that asks for a password."""
    (tmp_path / "password").write_text(f"{CANARY}\n")
    (tmp_path / "shop.toml").write_text(
        'sasl.username = "shop"\nsasl.mechanism = "PLAIN"\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        'sasl.password = {file = "password"}\ntask.timeout.ms = 20000\n'
    )
    data = tmp_path / "data"
    with caplog.at_level(logging.DEBUG, "penstock"), KafkaBroker(credentials=("shop", CANARY)) as broker:
        application = Application("app", TOPOLOGY, data_dir=str(data)).under(
            layers(tmp_path / "shop.toml", {"PENSTOCK_BOOTSTRAP_SERVERS": broker.sasl_bootstrap})
        )
        with closing(open_log(application.settings)) as log:
            log.create_topic("in", 1)
            log.create_topic("out", 1)
            log.append(OutputBatch("in", [b"a"], [b"fine"], [0]))
        assert run(application, session=spark).records_out == 1
        wrong = {**application.settings.clients, "sasl.password": f"{CANARY}-but-wrong"}
        with pytest.raises(PenstockError) as caught:
            run(application.with_settings(clients=wrong, task_timeout="3s"), session=spark)
    everything = looker.everything("".join(traceback.format_exception(caught.value)), caplog.text, *capfd.readouterr())
    assert "Kafka at" in str(caught.value)
    assert CANARY not in everything
    assert not files_with_the_canary(data)
