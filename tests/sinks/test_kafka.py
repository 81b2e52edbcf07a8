"""External sinks over a real broker: the topic between has only what transactions committed, and each record once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, OutputBatch, Running, Settings
from penstock.dsl import StreamsBuilder
from penstock.plugins.engine.task.locations import open_log
from penstock.testing import MemorySink

from ..kafka.names import fresh_name
from ..waiting import wait_until
from .programs import Times, Wrapped, expected, rows, written

pytestmark = pytest.mark.broker


@pytest.fixture
def target() -> Iterator[MemorySink]:
    sink = MemorySink(fresh_name("target"))
    yield sink
    sink.forget()


def has_written(running: Running, target: MemorySink, count: int) -> bool:
    return len(target.records) >= count or running.state == "failed"


@pytest.mark.parametrize("trigger", ["continuous", "0s"])
def test_each_record_is_written_once(tmp_path: Path, broker: Any, target: MemorySink, trigger: str) -> None:
    topic, name = fresh_name("in"), fresh_name("app")
    builder = StreamsBuilder()
    flaky = Wrapped(target, Times(2, 3), Times(1, 4, 6))
    builder.stream(topic).map_values(str.upper).to_sink(flaky, "target", value_serde="str")
    settings: dict[str, Any] = {"log": f"kafka:{broker.bootstrap}", "data_dir": str(tmp_path)}
    log = open_log(Settings(**settings))
    try:
        log.create_topic(topic, 2)
        given = Application(name, builder, engine="embedded", commit_interval="50ms", **settings)
        for total in (40, 80):
            some = rows(range(total - 40, total))
            keys: list[bytes | None] = [str(key).encode() for key, _, _ in some]
            values: list[bytes | None] = [str(value).encode() for _, value, _ in some]
            log.append(OutputBatch(topic, keys, values, [timestamp for _, _, timestamp in some]))
            with given.start(trigger) as running:
                wait_until(partial(has_written, running, target, total), "all is written", 120)
            running.wait()
            assert written(target) == expected(range(total))
    finally:
        log.close()
