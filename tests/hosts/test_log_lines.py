"""Workers' log lines by both ways, and reports through their text."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock import ProcessingError, Processor, Record, TopicPartition
from penstock.errors import PenstockError
from penstock.plugins.engine.host.log_lines import HostLogHandler, HostLogReader, forward, log_to_driver
from penstock.plugins.engine.host.reports import HostStatus, Loss, SlotMessage, TaskFailure, TaskResult
from penstock.plugins.engine.task.report import TaskReport

LINE = {
    "logger": "user.module", "level": logging.WARNING, "message": "late", "created": 0.0, "task": "", "node": "",
    "trace": "",
}  # fmt: skip


class Talks(Processor):
    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.context: Any = type("Context", (), {"node": "talks"})()

    def process(self, record: Record) -> None:
        self.helper()

    def helper(self) -> None:
        self.logger.warning("about %s", "something")


def logger_with(handler: HostLogHandler) -> logging.Logger:
    logger = logging.Logger("user.module")
    logger.addHandler(handler)
    return logger


def test_lines_go_through_the_drivers_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = HostLogReader(tmp_path)
    handler = HostLogHandler(tmp_path)
    handler.task = "0_1"
    Talks(logger_with(handler)).process(Record("k", "v", 0))
    with (tmp_path / "host-log").open("a") as file:
        file.write('{"logger": "half a li')
    reader.forward()
    assert caplog.messages == ["task 0_1, node 'talks': about something"]
    with (tmp_path / "host-log").open("a") as file:
        file.write("\n")
    handler.task = ""
    logger_with(handler).error("alone")
    reader.close()
    reader.close()
    assert caplog.messages[1:] == ["alone"]
    assert handler.take() == []


def test_elsewhere_lines_wait_for_the_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    handler = HostLogHandler(tmp_path / "of the driver")
    handler.task = "2_0"
    logger = logger_with(handler)
    try:
        raise ValueError("deep down")
    except ValueError:
        logger.exception("caught")
    handler.directory = tmp_path / "gone with its runner"
    logger.warning("later")
    message = SlotMessage.from_json(SlotMessage(1, "executor", lines=handler.take()).to_json())
    assert handler.take() == []
    for line in message.lines:
        forward(line)
    assert caplog.messages[0] == "task 2_0: caught"
    assert (caplog.records[0].exc_text or "").startswith("Traceback")
    assert (caplog.records[0].exc_text or "").endswith("ValueError: deep down")
    assert caplog.text.count("ValueError: deep down") == 1
    assert caplog.messages[1] == "task 2_0: later"


def test_the_file_is_bounded_and_no_line_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reader = HostLogReader(tmp_path, most_bytes=20_000)
    handler = HostLogHandler(tmp_path)
    logger = logger_with(handler)
    largest = 0
    late = (tmp_path / "host-log").open("ab", buffering=0)  # a host that is about to write
    for number in range(2_000):
        logger.warning("line %d", number)
        if number % 7 == 0:
            reader.forward()
        largest = max(largest, sum(path.stat().st_size for path in tmp_path.iterdir()))
        if number == 200:
            assert (tmp_path / "host-log.before").exists()
            assert late.write(json.dumps(LINE).encode() + b"\n")
            late.close()
    reader.close()
    assert largest < 45_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host-log", "host-log.before"]
    assert [each for each in caplog.messages if each != "late"] == [f"line {number}" for number in range(2_000)]
    assert caplog.messages.count("late") == 1


def test_a_file_that_something_cleans_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    reader, handler = HostLogReader(directory, most_bytes=200), HostLogHandler(directory)
    for number in range(3):
        handler.emit(logging.makeLogRecord({"name": "app", "msg": f"line {number}", "levelno": logging.WARNING}))
    shutil.rmtree(directory)
    handler.emit(logging.makeLogRecord({"name": "app", "msg": "cleaned", "levelno": logging.WARNING}))
    reader.forward()
    handler.emit(logging.makeLogRecord({"name": "app", "msg": "after", "levelno": logging.WARNING}))
    reader.close()
    assert [each["message"] for each in handler.take()] == ["cleaned"]
    assert caplog.messages == ["line 0", "line 1", "line 2", "after"]


def test_a_process_sends_its_lines_to_the_driver_that_it_works_for_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    level = logging.getLogger().level
    readers = []
    try:
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            readers.append(HostLogReader(tmp_path / name))
            handler = log_to_driver(tmp_path / name, logging.INFO)
            logging.getLogger("tests.hosts.here").info("for %s", name)
        assert logging.getLogger().handlers.count(handler) == 1
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger().setLevel(level)
    for name in ("one", "other"):
        text = (tmp_path / name / "host-log").read_text()
        assert [json.loads(line)["message"] for line in text.splitlines()] == [f"for {name}"]
    for reader in readers:
        reader.close()


def test_a_flood_is_cut_off(tmp_path: Path) -> None:
    handler = HostLogHandler(tmp_path / "of the driver")
    logger = logger_with(handler)
    for number in range(1_000):
        logger.warning("%d", number)
    assert len(handler.take()) == 200


def test_reports_survive_their_text() -> None:
    report = TaskReport(
        "0_1", "000000000003-ab", {TopicPartition("in", 1): 5}, 9, records_in=5, next_tick=77,
        phases={"read": 0.5}, nodes={"n": {"in": 1, "out": 2, "dropped": {"late": 1}}},
    )  # fmt: skip
    message = SlotMessage(
        3,
        "executor",
        results=[TaskResult("0_1", report), TaskResult("0_2")],
        host=HostStatus("token", 3, 7),
        losses=[Loss("x", 7)],
    )
    assert SlotMessage.from_json(message.to_json()) == message


def test_a_failure_keeps_its_kind_its_words_and_its_trace() -> None:
    class Special(ProcessingError):
        pass

    try:
        raise Special("application 'a', task 0_1, node 'n': no")
    except Special as error:
        failure = TaskFailure.of("a", "0_1", error)
    raised = SlotMessage.from_json(SlotMessage(1, "executor", failure=failure).to_json()).failure
    assert raised is not None
    again = raised.error()
    assert type(again) is ProcessingError
    assert str(again) == "application 'a', task 0_1, node 'n': no"
    assert "raise Special" in again.__notes__[0]


def test_an_error_that_is_none_of_ours_says_where_it_comes_from() -> None:
    failure = TaskFailure.of("a", "0_1", KeyError("x"))
    assert (failure.kind, failure.message) == (PenstockError.__name__, "application 'a', task 0_1: KeyError: 'x'")
