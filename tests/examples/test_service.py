"""The example of a service with an application inside, served by uvicorn: start, health, progress, end, next start."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from penstock import Application, Log
from penstock.plugins.engine.program.run_status import StatusTopic

from ..processes import Child
from ..waiting import wait_until
from .running import EXAMPLES, by_key, load, opened, read, serialized

COMMAND = ("-m", "uvicorn", "--app-dir", EXAMPLES, "08_service:service", "--port", "0")


@pytest.fixture
def application(tmp_path: Path) -> Application:
    application: Application = load("08_service").application
    return application.with_settings(data_dir=str(tmp_path / "data"))


@pytest.fixture
def log(application: Application) -> Iterator[Log]:
    with opened(application) as log:
        for topic in ("clicks", "totals"):
            log.create_topic(topic, 2)
        yield log


class Service:
    """A running service; `ended` has what it logged, once it has ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        self.log = ""
        for line in process.stderr:
            self.log += line
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.address = found[0]
                return
        pytest.fail(self.log)

    def ask(self, path: str) -> tuple[int, Any]:
        try:
            with urlopen(self.address + path, timeout=120) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.log + self.process.communicate(timeout=240)[1]


@contextmanager
def served(directory: Path) -> Iterator[Service]:
    outputs = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with Child(*COMMAND, cwd=directory, env={**os.environ, "PENSTOCK_DATA_DIR": "data"}, **outputs) as process:
        yield Service(process)


def has_processed(service: Service, clicks: int) -> bool:
    status, progress = service.ask("/progress")
    assert status == 200 and progress["written"] <= progress["read"] <= clicks
    return (progress["read"], progress["waiting"]) == (clicks, 0)


def test_it_answers_and_closes_cleanly_and_continues(application: Application, log: Log, tmp_path: Path) -> None:
    for clicks in (["anna", "ben", "anna"], ["anna"]):
        with served(tmp_path) as service:
            assert service.ask("/health")[0] == 200
            wait_until(lambda: service.ask("/health")[1] == {"state": "running", "error": None}, "all tasks are open")
            log.append(serialized(application, "clicks", [(user, "/home", 0) for user in clicks]))
            wait_until(partial(has_processed, service, len(clicks)), "the clicks are processed")
            assert "Application shutdown complete" in service.end()
        status = StatusTopic(log, application.id).read()
        assert status is not None and status.ended_by == "stop"
    assert by_key(read(application, log, "totals"))["anna"][-1] == 3


def test_it_is_not_healthy_when_the_application_has_failed(application: Application, log: Log, tmp_path: Path) -> None:
    with served(tmp_path) as service:
        batch = serialized(application, "clicks", [("anna", "/home", 0)])
        batch.keys[0] = b"\xff"
        log.append(batch)
        wait_until(lambda: service.ask("/health")[0] == 503, "the application has failed")
        assert service.ask("/health")[1]["state"] == "failed"
        assert "topic 'clicks' partition" in service.ask("/health")[1]["error"]
        assert "Application shutdown failed" in service.end()


def test_it_does_not_start_without_its_topics(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *COMMAND], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode != 0 and "(`penstock topics create`)" in done.stderr
