"""What an application keeps on a machine can be read by its own user only, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.plugins.engine.host.log_lines import HostLogReader
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.run.planning.control import Control, ControlFile, LogFile, PlannedApplication
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.engine.task.temporary import TemporaryDirectory
from penstock.plugins.spark.query import QueryCheckpoint
from penstock.record import OutputBatch


class Keep(Processor):
    def process(self, record: Record) -> None:
        for name in ("lmdb", "contrib.sqlite"):
            self.context.get_store(name).put(record.key, record.value)


class Fill(Processor):
    def process(self, record: Record) -> None:
        self.context.get_store("all").put(record.key, record.value)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def of_others(top: Path) -> dict[str, str]:
    """The modes of files and directories that other users may use, by name."""
    found = {}
    for path in [top, *top.rglob("*")]:
        mode = path.lstat().st_mode & 0o777
        if mode & ~(0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(top))] = oct(mode)
    return found


@pytest.mark.usefixtures("umask")
def test_what_a_task_keeps_is_its_users_alone(tmp_path: Path) -> None:
    stores = [key_value_store(name, backend=name) for name in ("lmdb", "contrib.sqlite")]
    topology = (
        Topology()
        .add_source("in", "in")
        .add_processor("keep", Keep, "in", stores=stores)
        .add_global_store(key_value_store("all"), "table", "table", "fill", Fill)
    )
    data = tmp_path / "data" / "deep"
    application = Application("private", topology, data_dir=str(data))
    log, resources = open_log(application.settings), ProcessResources()
    for topic in ("in", "table"):
        log.create_topic(topic, 1)
        log.append(OutputBatch(topic, [b"k"], [b"v"], [1]))
    lease = log.lease("private", "this test", 60_000)
    prepared = prepare(application, log)
    for task, partitions in prepared.assignment.tasks.items():
        worker = TaskWorker(prepared.application, task, partitions, log, resources=resources)
        worker.run_batch(log.end_offsets(partitions), 0)
        assert of_others(tmp_path / "data") == {}
        worker.close()
    made = {path.name for path in data.rglob("*")}
    assert {"log", "state", "changelog", "0_0", "0_0.lock", "data.mdb"} <= made, made
    QueryCheckpoint(application.settings, "private", "identity", 1, "4.3", lambda directory: None)
    with TemporaryDirectory("query") as directory:
        ControlFile(directory).write(Control())
        LogFile(directory).write(application.settings)
        PlannedApplication.of(prepared, 1, str(directory)).write()
        HostLogReader(directory).close()
        assert len(list(directory.iterdir())) == 4
        assert of_others(directory) == {}
    lease.release()
    resources.close()
    log.close()
    assert of_others(tmp_path / "data") == {}
