"""A log's passwords are where they are needed, and nowhere that somebody may look."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from penstock import ProcessingError, Processor, Record, Secret, Settings, Topology
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.spark import run, source
from penstock.plugins.spark.control import LogFile
from penstock.plugins.spark.planner import Plan
from penstock.plugins.spark.query import ApplicationQuery
from penstock.plugins.spark.source import PenstockStreamReader

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

    def open_log(settings: Settings) -> MemoryLog:
        opened.append(settings)
        return MemoryLog()

    monkeypatch.setattr(source, "open_log", open_log)
    LogFile(tmp_path).write(Settings(clients=SECRETS, processing_guarantee="at_least_once"))
    plan = Plan("app", {}, [], [], [], 1, None, 1000, str(tmp_path))
    reader = PenstockStreamReader(Plan.from_json(plan.to_json()))
    reader.initialOffset()
    reader.stop()
    assert [dict(each.clients)["sasl.password"] for each in opened] == [CANARY]
    assert opened[0].processing_guarantee == "at_least_once"
    assert CANARY not in plan.to_json()


class Chatty(Processor):
    """Shows everything it knows: in its log, and when it fails."""

    def process(self, record: Record) -> None:
        assert self.context.config["clients"]["sasl.password"] == CANARY  # it is there, for who asks for it by name
        logging.getLogger("tests.apps").warning("config: %s", self.context.config)
        if record.value == "poison":
            raise ValueError(f"with {self.context.config!r}")
        self.context.forward(record)


@pytest.mark.spark
def test_a_secret_is_in_no_plan_no_progress_no_file_no_line_and_no_error(
    surroundings: Surroundings,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shown: list[str] = []
    close = ApplicationQuery.close

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
    surroundings.create(**{"in": 1, "out": 1})
    topology = Topology().add_source("in", "in").add_processor("chatty", Chatty, "in").add_sink("out", "out", "chatty")
    application = surroundings.application("app", topology, clients=SECRETS)
    surroundings.put("in", [("a", "fine", 0)])
    with caplog.at_level(logging.DEBUG, "penstock"), caplog.at_level(logging.WARNING, "tests.apps"):
        assert run(application, session=spark).records_out == 1
        surroundings.put("in", [("a", "poison", 0)])
        with pytest.raises(ProcessingError, match="with") as caught:
            run(application, session=spark)
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    shown += [executions.apply(index).physicalPlanDescription() for index in range(executions.size())]
    shown += [str(caught.value), caplog.text, *capfd.readouterr()]
    everything = "\n".join(shown)
    assert "FlatMapGroupsInPandasWithState" in everything, "the plan was looked at"
    assert 'option plan={"application_id": "app"' in everything, "the options were looked at"
    assert "config: " in caplog.text, "the processor's line was looked at"
    assert everything.count("********") >= 2
    assert CANARY not in everything
    files = [each for each in surroundings.directory.rglob("*") if each.is_file()]
    assert any("checkpoint" in each.parts for each in files)
    assert not [each for each in files if CANARY.encode() in each.read_bytes()]
