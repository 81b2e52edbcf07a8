"""What a task's report says may be purged of internal topics: not what it needs again when the log loses its last
commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Application, Processor, Record, TopicPartition, Topology, key_value_store
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.run.companion import OpenApplication
from penstock.plugins.engine.task import commit as runtime
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.logs.memory import MemoryLog
from penstock.record import OutputBatch

from ..processes import opened_workers

PARTITION = TopicPartition("shop-by-key-repartition", 0)


class Keep(Processor):
    def process(self, record: Record) -> None:
        if record.value != "same":
            self.context.get_store("kept").put(record.key, record.value)


class Pass(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record)


def shop(directory: Path, stores: bool = True, **settings: Any) -> Application:
    topology = Topology().add_source("in", "in").add_repartition("by-key", "in")
    stateful = [key_value_store("kept")] if stores else []
    topology.add_processor("keep", Keep if stores else Pass, "by-key", stores=stateful)
    return Application("shop", topology, data_dir=str(directory), **settings)


def purgeable(log: MemoryLog, application: Application, *values: str) -> list[int | None]:
    """Run the tasks once for each value; return what the second one's report says after each."""
    found: list[int | None] = []
    with opened_workers(application, log) as workers:
        for value in values:
            log.append(OutputBatch("in", [b"k"], [value.encode()], [1]))
            for each in workers:
                report = each.run_batch(log.end_offsets(each.partitions), 0)
            found.append(report.purgeable.get(PARTITION))
    return found


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create_topic("in", 1)
    return log


def test_what_the_newest_commit_read_stays(log: MemoryLog, tmp_path: Path) -> None:
    assert purgeable(log, shop(tmp_path), "1", "2", "3") == [0, 1, 2]
    assert purgeable(log, shop(tmp_path), "4", "same", "5") == [3, 3, 5]


@pytest.mark.parametrize("settings", [{"stores": False}, {"changelog": "topic:"}])
def test_all_may_go_where_no_changelog_keeps_commits(log: MemoryLog, tmp_path: Path, settings: Any) -> None:
    assert purgeable(log, shop(tmp_path, **settings), "1", "2") == [1, 2]


def test_a_task_that_never_changes_its_state_does_not_keep_everything(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_MOST_UNPROVEN", 2)
    application = shop(tmp_path)
    assert purgeable(log, application, "1") == [0]
    assert purgeable(log, application, *["same"] * 5) == [0, 2, 2, 4, 4]
    log.purge(PARTITION, 5)
    assert purgeable(log, application, *["same"] * 3) == [5, 7, 7]


def test_a_driver_that_was_frozen_over_a_reset_purges_nothing_of_the_new_topic(log: MemoryLog, tmp_path: Path) -> None:
    frozen = OpenApplication(prepare(shop(tmp_path), log), log, None)  # type: ignore[arg-type]
    log.delete_topic(PARTITION.topic)
    running = OpenApplication(prepare(shop(tmp_path), log), log, None)  # type: ignore[arg-type]
    log.append(OutputBatch(PARTITION.topic, [b"k"] * 3, [b"v"] * 3, [1] * 3))
    report = TaskReport("1_0", "", {}, -1, purgeable={PARTITION: 2})
    frozen.take([report])
    assert log.start_offsets([PARTITION])[PARTITION] == 0
    running.take([report])
    assert log.start_offsets([PARTITION])[PARTITION] == 2
