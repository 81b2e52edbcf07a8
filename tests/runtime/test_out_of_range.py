"""A position whose records the log has deleted: `offset_out_of_range` says what happens, on every log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Application, OffsetOutOfRangeError, Topology
from penstock.errors import ConfigError
from penstock.log import Log
from penstock.nodes import TaskId
from penstock.plugins.logs.kafka import KafkaLog
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.runtime.host import Host
from penstock.plugins.runtime.worker import TaskReport, TaskWorker
from penstock.plugins.testing.contracts.log_history import read
from penstock.record import OutputBatch, TopicPartition

from ..kafka.names import fresh_name
from ..waiting import wait_until


@pytest.fixture(params=["memory", "local", pytest.param("kafka", marks=pytest.mark.broker)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    log: Log
    if request.param == "memory":
        log = MemoryLog()
    elif request.param == "local":
        log = LocalLog(str(tmp_path / "log"))
    else:
        log = KafkaLog(request.getfixturevalue("broker").bootstrap)
    yield log
    log.close()


class World:
    """A copy of one topic into another; four records were read, and three more were deleted unread."""

    def __init__(self, log: Log, directory: Path) -> None:
        self.log, self.directory = log, directory
        self.id, self.source, self.sink = fresh_name("app"), fresh_name("in"), fresh_name("out")
        self.partition = TopicPartition(self.source, 0)
        for topic in (self.source, self.sink):
            log.create_topic(topic, 1)
        self.produce(b"1", b"2", b"3", b"4")
        self.run("fail")
        self.produce(b"5", b"6", b"7", b"8", b"9")
        self.delete_before(7)

    def produce(self, *values: bytes) -> None:
        count = len(values)
        self.log.append(OutputBatch(self.source, [b"k"] * count, list(values), [1] * count))

    def delete_before(self, offset: int) -> None:
        self.log.purge(self.partition, offset)
        if isinstance(self.log, KafkaLog):
            self.log._topics.flush_purges()
            self.log._readers.forget(self.source)  # it may have read ahead
        self.log.maintain(0)
        assert self.log.start_offsets([self.partition]) == {self.partition: offset}

    def run(self, policy: str) -> TaskReport:
        topology = Topology().add_source("in", self.source).add_sink("out", self.sink, "in")
        application = Application(
            self.id, topology, log="memory:", data_dir=str(self.directory), offset_out_of_range=policy
        )
        host = Host()
        worker = TaskWorker(application, TaskId(0, 0), [self.partition], self.log, host=host)
        try:
            return worker.run_batch(self.log.end_offsets([self.partition]), 0)
        finally:
            worker.close()
            host.close()

    def position(self) -> int | None:
        return self.log.committed(self.id, [self.partition])[self.partition]

    def copied(self) -> list[bytes | None]:
        return [record.value for record in read(self.log, TopicPartition(self.sink, 0))]


def test_fail(log: Log, tmp_path: Path) -> None:
    world = World(log, tmp_path)
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            world.run("fail")
        message = str(caught.value)
        for part in (
            world.id,
            "task 0_0",
            f"offset 4 of topic '{world.source}'",
            "from 7 up to",
            "offset_out_of_range",
        ):
            assert part in message
        wait_until(lambda: world.position() == 4)
    wait_until(
        lambda: world.copied() == [b"1", b"2", b"3", b"4"]
    )  # a transaction is readable a moment after its commit


@pytest.mark.parametrize(("policy", "copied", "skipped"), [("earliest", [b"8", b"9"], 3), ("latest", [], 5)])
def test_go_on(
    log: Log, tmp_path: Path, policy: str, copied: list[bytes], skipped: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(log, tmp_path)
    with caplog.at_level(logging.WARNING, "penstock.worker"):
        report = world.run(policy)
    told = f"goes on from offset {4 + skipped} (offset_out_of_range={policy}), {skipped} offsets are skipped"
    assert told in caplog.text
    assert report.positions == {world.partition: 9}
    assert (report.dropped, report.nodes["in"]["dropped"]) == (skipped, {"offset_out_of_range": skipped})
    wait_until(
        lambda: world.copied() == [b"1", b"2", b"3", b"4", *copied]
    )  # a transaction is readable a moment after its commit
    world.produce(b"10")
    assert world.run("fail").dropped == 0
    wait_until(
        lambda: world.copied() == [b"1", b"2", b"3", b"4", *copied, b"10"]
    )  # a transaction is readable a moment after its commit


def test_another_policy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'offset_out_of_range': expected 'fail' or 'earliest' or 'latest'"):
        World(MemoryLog(), tmp_path).run("ignore")
