"""Heartbeats: one that cannot be sent is given back, whatever the reason, and the next one follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock import LogError, OutputBatch, Settings, World
from penstock.log import Log
from penstock.plugins.engine.host import continuous_engine
from penstock.plugins.engine.host.continuous_engine import HeartbeatReader, HeartbeatSender
from penstock.plugins.engine.host.reports import SlotMessage
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.own_topics import HEARTBEATS

from ..waiting import wait_until


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(open_log(Settings(data_dir=str(tmp_path), log="local:log"))) as made:
        made.create_topic(HEARTBEATS.of("app"), 1)
        yield made


@pytest.mark.parametrize("error", [LogError("away"), ValueError("of a library")])
def test_a_heartbeat_that_fails(log: Log, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(continuous_engine, "_INTERVAL_SECONDS", 0.01)
    given_back: list[SlotMessage] = []
    reader, fails = HeartbeatReader(log, "app", "run"), [error]
    append = log.append

    def failing(batch: OutputBatch) -> None:
        if fails:
            raise fails.pop()
        append(batch)

    monkeypatch.setattr(log, "append", failing)
    sender = HeartbeatSender(log, "app", lambda: SlotMessage(3, "executor", run="run"), given_back.append, World())
    with closing(sender):
        found = wait_until(reader.poll)
    assert [each.slot for each in given_back] == [3]
    assert found[0].slot == 3
