"""`penstock health`."""

from __future__ import annotations

from dataclasses import replace

from penstock.log import Log
from penstock.plugins.engine.program.run_status import StatusTopic

from .applications import TARGET
from .console import Console
from .test_status import log, status, words

__all__ = ["log", "words"]


def test_the_exit_code_says_whether_it_is_ready(words: Console, log: Log) -> None:
    topic = StatusTopic(log, "counting")
    restoring = status()
    ready = replace(restoring, tasks=restoring.tasks[:1], phase="running")
    for run, code, live, said in (
        (ready, 0, 0, "counting: ready\n"),
        (restoring, 1, 0, "counting: alive, not ready: the application is rebalancing: 1 of 2 tasks are not open\n"),
        (status(120_000), 1, 1, "counting: not alive: the run is lost\n"),
    ):
        topic.write(run)
        assert words("health", TARGET, code=code).stdout == said
        assert words("health", TARGET, "--live", code=live).stdout == said
    assert words.json("health", TARGET, "--json", code=1) == {
        "application_id": "counting", "live": False, "ready": False, "state": "", "reason": "the run is lost",
    }  # fmt: skip
    assert "has no status" in words("health", TARGET, "--application-id", "other", code=1).stderr
