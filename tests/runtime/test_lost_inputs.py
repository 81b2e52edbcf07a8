"""Inputs that lose their records, or their topic, under an open task or between two starts: one rule in both modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from penstock import Application, PenstockError, Topology
from penstock.log import Commit, Log
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition

from ..kafka.names import fresh_name
from ..waiting import wait_until
from .test_out_of_range import log  # noqa: F401

TASK = "0_0"


class World:
    """A task that copies two topics, or one, into another."""

    def __init__(self, log: Log, directory: Path) -> None:  # noqa: F811
        self.log, self.directory = log, directory
        self.id = fresh_name("app")
        self.first, self.second, self.out = (TopicPartition(fresh_name(each), 0) for each in ("a", "b", "out"))
        self.inputs: tuple[TopicPartition, ...] = (self.first, self.second)
        for partition in (*self.inputs, self.out):
            log.create_topic(partition.topic, 1)

    def application(self, policy: str) -> Application:
        topology = Topology()
        for each in self.inputs:
            topology.add_source(each.topic, each.topic)
        topology.add_sink("out", self.out.topic, [each.topic for each in self.inputs])
        return Application(
            self.id, topology, log="memory:", changelog="memory:", data_dir=str(self.directory),
            offset_out_of_range=policy,
        )  # fmt: skip

    def produce(self, partition: TopicPartition, *values: str) -> None:
        texts: list[bytes | None] = [value.encode() for value in values]
        self.log.append(OutputBatch(partition.topic, [b"k"] * len(values), texts, [1] * len(values)))

    def delete_before(self, partition: TopicPartition, offset: int) -> None:
        self.log.purge(partition, offset)
        if isinstance(self.log, KafkaLog):
            self.log._topics.purges.flush()
            self.log._readers.forget(partition.topic)
        self.log.maintain(0)

    def make_again(self, partition: TopicPartition) -> None:
        self.log.delete_topic(partition.topic)
        self.log.create_topic(partition.topic, 1)

    @contextmanager
    def continuous(self, policy: str) -> Iterator[TaskLoop]:
        resources = ProcessResources()
        loop = TaskLoop(self.application(policy), {TASK: self.inputs}, self.log, resources, lambda: 0)
        loop.run([TASK], {})
        try:
            yield loop
        finally:
            loop.close(commit=False)
            resources.close()

    @contextmanager
    def batches(self, policy: str) -> Iterator[TaskWorker]:
        resources = ProcessResources()
        worker = TaskWorker(self.application(policy), TaskId(0, 0), self.inputs, self.log, resources=resources)
        try:
            yield worker
        finally:
            worker.close()
            resources.close()

    def batch(self, worker: TaskWorker) -> None:
        worker.run_batch(self.log.end_offsets(self.inputs), 0)

    def copied(self) -> list[str]:
        """Return what came out, sorted: of records with equal times the order is not said."""
        return sorted((record.value or b"").decode() for record in read(self.log, self.out))

    def turn_until(self, loop: TaskLoop, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            loop.turn(0.001)
            for failed in loop.take_failures():
                raise failed.error
            return condition()

        wait_until(holds, f"{self.copied()} is all")

    def committed(self) -> dict[TopicPartition, int | None]:
        return dict(self.log.committed(self.id, self.inputs))


@pytest.fixture
def world(log: Log, tmp_path: Path) -> World:  # noqa: F811
    return World(log, tmp_path)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are looked at every few seconds."""
    monkeypatch.setattr("penstock.plugins.engine.task.topic_ids.EVERY_SECONDS", 0.0)


@pytest.mark.parametrize(("policy", "left"), [("earliest", ["a8", "a9"]), ("latest", [])])
def test_a_position_whose_records_are_gone(world: World, policy: str, left: list[str]) -> None:
    """The task goes on from there, its other inputs as well, and commits that it did."""
    world.produce(world.first, *(f"a{number}" for number in range(1, 5)))
    with world.continuous("fail") as loop:
        world.turn_until(loop, lambda: len(world.copied()) == 4)
        loop.commit_all()
    world.produce(world.first, *(f"a{number}" for number in range(5, 10)))
    world.delete_before(world.first, 7)
    world.produce(world.second, "b1", "b2", "b3")
    expected = ["a1", "a2", "a3", "a4", *left, "b1", "b2", "b3"]
    with world.continuous(policy) as loop:
        world.turn_until(loop, lambda: world.copied() == expected)
        world.turn_until(loop, lambda: world.committed() == {world.first: 9, world.second: 3})
    world.produce(world.first, "a10")
    with world.continuous("fail") as loop:
        world.turn_until(loop, lambda: world.copied() == sorted([*expected, "a10"]))


def run_some(world: World) -> list[str]:
    """Process ten records of the first input and one of the second; return them."""
    some = [f"a{number}" for number in range(10)]
    world.produce(world.first, *some)
    world.produce(world.second, "b")
    return [*some, "b"]


NEW = [f"c{number:02d}" for number in range(30)]


class TestMadeAgain:
    """A topic that is deleted and made again, with more records than had been read of the first one."""

    def test_under_an_open_task(self, world: World) -> None:
        before = run_some(world)
        with world.continuous("fail") as loop:
            world.turn_until(loop, lambda: world.copied() == before)
            loop.commit_all()
            world.make_again(world.first)
            world.produce(world.first, *NEW)
            with pytest.raises(PenstockError, match="deleted and made again") as caught:
                world.turn_until(loop, lambda: False)
        for part in (world.id, f"task {TASK}", world.first.topic, "offset_out_of_range", "penstock reset"):
            assert part in str(caught.value)

    def test_under_an_open_task_that_goes_on(self, world: World) -> None:
        """From the start of the new one. What it read of it before it saw that comes again."""
        before = run_some(world)
        with world.continuous("earliest") as loop:
            world.turn_until(loop, lambda: world.copied() == before)
            loop.commit_all()
            world.make_again(world.first)
            world.produce(world.first, *NEW)
            world.turn_until(loop, lambda: set(NEW) <= set(world.copied()))
            world.turn_until(loop, lambda: world.committed()[world.first] == len(NEW))
            assert set(world.copied()) == {*before, *NEW}
        count = len(world.copied())
        world.produce(world.first, "d")
        with world.continuous("fail") as loop:
            world.turn_until(loop, lambda: len(world.copied()) == count + 1)

    @pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
    def test_under_an_open_task_that_has_no_other(self, world: World, policy: str) -> None:
        """Kafka deletes its commit with the topic. The task may read on until it sees that the topic is another one."""
        world.inputs = (world.first,)
        world.produce(world.first, "a1", "a2")
        expected = pytest.raises(PenstockError, match="deleted and made again") if policy == "fail" else nullcontext()
        with expected, world.continuous(policy) as loop:
            world.turn_until(loop, lambda: world.copied() == ["a1", "a2"])
            loop.commit_all()
            world.make_again(world.first)
            world.produce(world.first, *NEW)
            if policy != "latest":
                world.turn_until(loop, lambda: policy != "fail" and set(NEW) <= set(world.copied()))
            world.turn_until(loop, lambda: world.committed()[world.first] == len(NEW))

    @pytest.mark.parametrize("policy", ["fail", "earliest", "latest"])
    def test_between_batches_of_a_task_that_has_no_other(self, world: World, policy: str) -> None:
        world.inputs = (world.first,)
        world.produce(world.first, "a1", "a2")
        with world.batches(policy) as worker:
            world.batch(worker)
            world.make_again(world.first)
            world.produce(world.first, *NEW)
            with pytest.raises(PenstockError, match="deleted and made again") if policy == "fail" else nullcontext():
                world.batch(worker)
        copied = sorted(["a1", "a2", *(NEW if policy == "earliest" else [])])
        wait_until(lambda: world.copied() == copied)
        assert world.committed()[world.first] == (None if policy == "fail" else len(NEW))

    def test_between_batches(self, world: World) -> None:
        before = run_some(world)
        with world.batches("fail") as worker:
            world.batch(worker)
            world.make_again(world.first)
            world.produce(world.first, *NEW)
            for _ in range(2):
                with pytest.raises(PenstockError, match="deleted and made again"):
                    world.batch(worker)
        wait_until(lambda: world.copied() == before)
        with world.batches("earliest") as worker:
            world.batch(worker)
            wait_until(lambda: world.copied() == sorted([*before, *NEW]))
            world.batch(worker)
        wait_until(lambda: world.copied() == sorted([*before, *NEW]))

    @pytest.mark.parametrize(("policy", "more"), [("fail", None), ("earliest", NEW), ("latest", [])])
    def test_between_starts(self, world: World, policy: str, more: list[str] | None) -> None:
        before = run_some(world)
        with world.batches("fail") as worker:
            world.batch(worker)
        world.make_again(world.first)
        world.produce(world.first, *NEW)
        with world.continuous(policy) as loop:
            if more is None:
                with pytest.raises(PenstockError, match="deleted and made again"):
                    world.turn_until(loop, lambda: False)
                return
            world.turn_until(loop, lambda: world.committed()[world.first] == len(NEW))
        world.produce(world.first, "d")
        with world.continuous("fail") as loop:
            world.turn_until(loop, lambda: world.copied() == sorted([*before, *more, "d"]))

    def test_positions_without_an_id_are_accepted_once(self, world: World) -> None:
        """As of a broker without ids."""
        before = run_some(world)
        with world.batches("fail") as worker:
            world.batch(worker)
        committer = world.log.open_committer(world.id, TASK, world.inputs)
        last = committer.committed
        assert last is not None and b'"ids"' in last.engine_state
        committer.commit(Commit(last.positions, last.version), [])
        committer.close()
        with world.batches("fail") as worker:
            world.produce(world.first, "a_")
            world.batch(worker)
            wait_until(lambda: world.copied() == sorted([*before, "a_"]))
            world.make_again(world.first)
            with pytest.raises(PenstockError, match="deleted and made again"):
                world.batch(worker)
