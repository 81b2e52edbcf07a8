"""A position whose records the log has deleted: `offset_out_of_range` says what happens, on every log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, OffsetOutOfRangeError, Processor, Record, Topology, key_value_store
from penstock.errors import ConfigError
from penstock.log import Commit, Log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import TaskReport
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.logs.local import LocalLog
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition

from ..kafka.names import fresh_name
from ..processes import opened_workers
from ..waiting import wait_until

# The group of all tests that share the broker; tests/conftest.py does not see it asked for by the name of a parameter.
KAFKA = pytest.param("kafka", marks=[pytest.mark.broker, pytest.mark.xdist_group("broker")])


@pytest.fixture(params=["memory", "local", KAFKA])
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
            self.log._topics.purges.flush()
            self.log._readers.forget(self.source)  # it may have read ahead
        self.log.maintain(0)
        assert self.log.start_offsets([self.partition]) == {self.partition: offset}

    def run(self, policy: str) -> TaskReport:
        topology = Topology().add_source("in", self.source).add_sink("out", self.sink, "in")
        application = Application(
            self.id, topology, log="memory:", data_dir=str(self.directory), offset_out_of_range=policy
        )
        resources = ProcessResources()
        worker = TaskWorker(application, TaskId(0, 0), [self.partition], self.log, resources=resources)
        try:
            return worker.run_batch(self.log.end_offsets([self.partition]), 0)
        finally:
            worker.close()
            resources.close()

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


def set_position(world: World, offset: int) -> None:
    """Leave a commit that the log's records do not reach: what is left of one after the log lost its last records."""
    committer = world.log.open_committer(world.id, "0_0", [world.partition])
    before = committer.committed
    assert before is not None
    committer.commit(Commit({world.partition: offset}, before.version, before.engine_state), [])
    committer.close()


@pytest.mark.parametrize(("policy", "copied"), [("fail", None), ("earliest", [b"8", b"9", b"10"]), ("latest", [b"10"])])
def test_the_log_ends_before_the_position(log: Log, tmp_path: Path, policy: str, copied: list[bytes] | None) -> None:
    """As after an unclean leader election: what is written from there on would otherwise be skipped without a word."""
    world = World(log, tmp_path)
    set_position(world, 12)
    if copied is None:
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError, match=r"offset 12 .* ends before what was processed"):
                world.run(policy)
        return
    world.run(policy)
    world.produce(b"10")
    world.run("fail")
    wait_until(lambda: world.copied() == [b"1", b"2", b"3", b"4", *copied])


class Counting(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        self.counts.put("all", (self.counts.get("all") or 0) + 1)


@pytest.mark.parametrize(("policy", "what"), [("earliest", "deleted"), ("latest", "lost"), ("fail", "deleted")])
def test_nothing_is_skipped_in_an_internal_topic(log: Log, tmp_path: Path, policy: str, what: str) -> None:
    """Whatever the policy: what was there is missing in the state, which the skip would hide."""
    name = fresh_name("app")
    topology = (
        Topology()
        .add_source("in", f"{name}.in")
        .add_repartition("again", "in")
        .add_processor("count", Counting, "again", stores=[key_value_store("counts", backend="memory")])
    )
    application = Application(
        name,
        topology,
        log="memory:",
        changelog=f"directory:{tmp_path / 'changelog'}",
        data_dir=str(tmp_path),
        offset_out_of_range=policy,
    )
    source, between = TopicPartition(f"{name}.in", 0), TopicPartition(f"{name}-again-repartition", 0)
    log.create_topic(source.topic, 1)

    def run(directory: str = "one") -> None:
        there = application.with_settings(data_dir=str(tmp_path / directory))
        with opened_workers(there, log) as (first, second):
            first.run_batch(log.end_offsets([source]), 0)
            wait_until(lambda: log.end_offsets([between]) == log.end_offsets([between], stable=False))
            second.run_batch(log.end_offsets([between]), 0)

    def produce() -> None:
        log.append(OutputBatch(source.topic, [b"k"] * 3, [b"v"] * 3, [1] * 3))

    produce()
    run()
    committed = log.committed(name, [between])[between]
    assert committed is not None
    committer = log.open_committer(name, "1_0", [between])
    early = committer.committed
    assert early is not None
    if what == "lost":
        committer.commit(Commit({between: committed + 50}, early.version, early.engine_state), [])
        expected = f"offset {committed + 50} .* ends before what was processed"
    else:
        produce()
        run()
        end = log.committed(name, [between])[between]
        assert end is not None
        log.purge(between, end)
        if isinstance(log, KafkaLog):
            log._topics.purges.flush()
            log._readers.forget(between.topic)
        log.maintain(0)
        # The log has lost the last commit, and so has the state, whose version it names.
        committer = log.open_committer(name, "1_0", [between])
        committer.commit(early, [])
        expected = rf"offset {committed} .*lost a later commit than the one it has \(state version {early.version}\)"
    committer.close()
    produce()
    for directory in ("one", "two"):
        with pytest.raises(OffsetOutOfRangeError, match=expected) as caught:
            run(directory)
        for part in (name, "task 1_0", between.topic, "internal topic", "whatever `offset_out_of_range` says", "reset"):
            assert part in str(caught.value)


def test_another_policy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'offset_out_of_range': expected 'fail' or 'earliest' or 'latest'"):
        World(MemoryLog(), tmp_path).run("ignore")
