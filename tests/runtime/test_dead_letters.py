"""A dead letter is in the same commit as everything else, at whichever of the three places its record failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, DeadLetter, Processor, Record, Retry, Topology, key_value_store
from penstock.log import Commit, TaskCommitter
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.program.nodes import TaskId
from penstock.record import Headers, OutputBatch, TopicPartition
from penstock.task.dead_letter import split_headers
from penstock.world import World

from .faults import FAULTS, Crash, FaultyLog, produced

INPUT = TopicPartition("in", 0)
HEADERS: Headers = (("trace", b"\x00\xff"), ("trace", None))
POISON = {"deserialization": b"\xff\xfe", "processing": b"raise", "production": b"unwritable"}


class Fragile(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("seen").put(record.value, True)
        if record.value == "raise":
            raise ValueError("as asked")
        self.context.forward(record.with_value(7) if record.value == "unwritable" else record)


class Counting(FaultyLog):
    """Notes what each commit holds."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[dict[str, int], int]] = []

    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        inner = super().open_committer(application_id, task_id, partitions)
        make = inner.commit

        def counted(commit: Commit, outputs: Sequence[OutputBatch]) -> None:
            make(commit, outputs)
            self.commits.append(({each.topic: len(each) for each in outputs}, commit.positions[INPUT]))

        inner.commit = counted  # type: ignore[method-assign]
        return inner


@pytest.mark.parametrize("stage", POISON)
@pytest.mark.parametrize("retrying", [False, True])
def test_dead_letters_outputs_and_position_are_one_commit(tmp_path: Path, stage: str, retrying: bool) -> None:
    log: MemoryLog = Counting()
    for topic in ("in", "out", "dead"):
        log.create_topic(topic, 1)
    topology = (
        Topology()
        .add_source("in", "in")
        .add_processor("fragile", Fragile, "in", stores=[key_value_store("seen", backend="memory")])
        .add_sink("out", "out", "fragile")
    )
    handler = Retry(2, "1s", DeadLetter("dead")) if retrying else DeadLetter("dead")
    settings: dict[str, Any] = {f"{stage}_handler": handler, "changelog": f"memory:{tmp_path}"}
    application = Application("app", topology, log="memory:", data_dir=str(tmp_path), **settings)
    worker = TaskWorker(
        application, TaskId(0, 0), [INPUT], log, resources=ProcessResources(World(sleep=lambda seconds: None))
    )
    values = [b"a", POISON[stage], b"b"]
    log.append(OutputBatch("in", [None, b"\x00key", b"k"], list(values), [1, 2, 3], [(), HEADERS, ()]))
    worker.run_batch({}, 0)
    assert isinstance(log, Counting)
    log.commits.clear()
    FAULTS.plan("before commit")
    with pytest.raises(Crash):
        worker.run_batch({INPUT: 3}, 0)
    assert not produced(log, "out")
    assert not log.fetch(TopicPartition("dead", 0), 0, 1, 1)
    assert not log.commits

    worker.run_batch({INPUT: 3}, 0)
    assert log.commits == [({"out": 2, "dead": 1}, 3)]
    assert [value for _, value, _ in produced(log, "out")] == ["a", "b"]
    (letters,) = log.fetch(TopicPartition("dead", 0), 0, 10, 1000)
    assert letters.headers is not None
    assert (letters.keys[0], letters.values[0], letters.timestamps[0]) == (b"\x00key", POISON[stage], 2)
    original, note = split_headers(letters.headers[0])
    assert original == HEADERS
    assert note is not None
    assert (note.topic, note.partition, note.offset) == ("in", 0, 1)
    worker.close()
