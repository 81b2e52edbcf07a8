"""A record that the log refuses is asked about at its sink, with the record that it came from; everything else is as if
it had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    DeadLetter,
    Handler,
    Processor,
    ProductionError,
    Record,
    Retry,
    Topology,
    key_value_store,
    skip,
)
from penstock.errors import RecordRefusedError
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, RecordMetadata, TopicPartition
from penstock.task.dead_letter import split_headers
from penstock.world import World

from .faults import produced, stores

INPUT = TopicPartition("in", 0)
LARGE, KEYLESS = b"x" * 200, b"keyless"


class Number(Processor):
    """Counts, and forwards values as they are; a keyless one without its key."""

    def process(self, record: Record) -> None:
        counts = self.context.get_store("counts")
        count = (counts.get("all") or 0) + 1
        counts.put("all", count)
        self.context.forward(record.with_key(None) if record.value == "keyless" else record)


def choose(record: Record, metadata: RecordMetadata | None) -> str:
    return "small"


def spread(topic: str, record: Record, count: int) -> int:
    return 0


SINKS: dict[str, Callable[[Topology], Topology]] = {
    "alone": lambda topology: topology.add_sink("out", "small", "number"),
    "among others": lambda topology: topology.add_sink("out", "small", "number").add_sink("side", "side", "number"),
    "chosen topic": lambda topology: topology.add_sink("out", choose, "number"),
    "own partitioner": lambda topology: topology.add_sink("out", "small", "number", partitioner=spread),
}


class Timed(MemoryLog):
    """Takes no timestamp after `latest` in a topic, as brokers with their clocks do."""

    latest = 3

    def _split(self, batch: OutputBatch) -> Any:
        if batch.topic == "small" and max(batch.timestamps) > self.latest:
            raise RecordRefusedError("topic 'small': too late", "small", latest=self.latest)
        return super()._split(batch)


def world(
    tmp_path: Path, sink: str, config: dict[str, str], handler: Handler | None, log: MemoryLog | None = None
) -> tuple[MemoryLog, TaskWorker]:
    log = log or MemoryLog()
    log.create_topic("small", 1, config)
    for topic in ("in", "side", "dead"):
        log.create_topic(topic, 1)
    topology = (
        Topology()
        .add_source("in", "in")
        .add_processor("number", Number, "in", stores=[key_value_store("counts", backend="memory")])
    )
    settings: dict[str, Any] = {} if handler is None else {"production_handler": handler}
    application = Application(
        "app", SINKS[sink](topology), log="memory:", data_dir=str(tmp_path), changelog=f"memory:{tmp_path}", **settings
    )
    worker = TaskWorker(
        application, TaskId(0, 0), [INPUT], log, resources=ProcessResources(World(sleep=lambda seconds: None))
    )
    values = [b"a", LARGE, b"b", KEYLESS, LARGE[:150], b"c"]
    headers = [((str(number), None),) for number in range(len(values))]
    log.append(OutputBatch("in", [b"k"] * len(values), list(values), list(range(len(values))), list(headers)))
    return log, worker


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("retrying", [False, True])
@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"max.message.bytes": "100"}, [1, 4]),
        ({"cleanup.policy": "compact"}, [3]),
        ({"max.message.bytes": "100", "cleanup.policy": "compact"}, [1, 3, 4]),
    ],
    ids=["too large", "no key", "both"],
)
def test_it_goes_to_the_dead_letters(
    tmp_path: Path, sink: str, retrying: bool, config: dict[str, str], refused: list[int]
) -> None:
    handler = Retry(2, "1s", DeadLetter("dead")) if retrying else DeadLetter("dead")
    log, worker = world(tmp_path, sink, config, handler)
    report = worker.run_batch({INPUT: 6}, 0)
    values = ["a", LARGE.decode(), "b", "keyless", LARGE[:150].decode(), "c"]
    assert [value for _, value, _ in produced(log, "small")] == [
        value for number, value in enumerate(values) if number not in refused
    ]
    if sink == "among others":
        assert [value for _, value, _ in produced(log, "side")] == values
    (letters,) = log.fetch(TopicPartition("dead", 0), 0, 10, 1000)
    assert list(letters.timestamps) == refused and list(letters.keys) == [b"k"] * len(refused)
    assert letters.headers is not None
    for number, headers in zip(refused, letters.headers, strict=True):
        original, note = split_headers(headers)
        assert original == ((str(number), None),)
        assert note is not None and note.offset == number
        assert note.message is not None and "'small'" in note.message
    assert (report.dropped, stores(worker)) == (len(refused), {"counts": {"all": 6}})
    assert log.committed("app", [INPUT]) == {INPUT: 6}
    worker.close()


def test_failing_names_the_record(tmp_path: Path) -> None:
    log, worker = world(tmp_path, "alone", {"max.message.bytes": "100"}, None)
    for _ in range(2):
        with pytest.raises(
            ProductionError, match=r"node 'out' while .* 'small', at topic 'in' partition 0 offset 1: .*201 bytes"
        ):
            worker.run_batch({INPUT: 6}, 0)
        assert produced(log, "small") == []
        assert log.committed("app", [INPUT]) == {INPUT: 0}
    worker.close()


def test_a_limit_that_became_lower_is_learned(tmp_path: Path) -> None:
    log, worker = world(tmp_path, "alone", {"max.message.bytes": "180"}, skip)
    assert worker.run_batch({INPUT: 6}, 0).dropped == 1
    log.delete_topic("small")
    log.create_topic("small", 1, {"max.message.bytes": "100"})
    log.append(OutputBatch("in", [b"k"] * 2, [LARGE[:150], b"d"], [6, 7]))
    worker.run_batch({INPUT: 8}, 0)
    assert [value for _, value, _ in produced(log, "small")] == ["d"]
    worker.close()


def test_a_limit_of_timestamps_moves_with_the_clock(tmp_path: Path) -> None:
    """What was too late is not later on."""
    log = Timed()
    _, worker = world(tmp_path, "alone", {}, skip, log)
    assert worker.run_batch({INPUT: 6}, 0).dropped == 2
    log.latest = 10
    log.append(OutputBatch("in", [b"k"] * 3, [b"d", b"e", b"f"], [6, 99, 7]))
    assert worker.run_batch({INPUT: 9}, 0).dropped == 1
    assert [at for _, _, at in produced(log, "small")] == [0, 1, 2, 3, 6, 7]
    worker.close()


def test_a_dead_letter_topic_that_refuses_it_stops_the_task(tmp_path: Path) -> None:
    log, worker = world(tmp_path, "alone", {"max.message.bytes": "100"}, DeadLetter("dead"))
    log.delete_topic("dead")
    log.create_topic("dead", 1, {"max.message.bytes": "100"})
    with pytest.raises(RecordRefusedError, match="'dead'"):
        worker.run_batch({INPUT: 6}, 0)
    assert produced(log, "small") == []
    worker.close()
