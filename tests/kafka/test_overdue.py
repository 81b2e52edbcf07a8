"""What is due by the wall clock on a real broker, in the continuous mode: it waits for records that wait, and for no
others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import WALL_CLOCK_TIME, Application, OutputBatch, Processor, Record, TopicPartition, Topology
from penstock import key_value_store as store
from penstock.log import Log
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..waiting import wait_until
from .names import fresh_name
from .shop import contents

pytestmark = pytest.mark.broker

DAY_MS = 86_400_000


class Says(Processor):
    """Counts records, and says each minute how many there were."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")
        context.schedule("1m", self.say, WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.counts.put("all", (self.counts.get("all") or 0) + 1)

    def say(self, now: int) -> None:
        self.context.forward(Record("all", str(self.counts.get("all") or 0), 1))


class Stage:
    """An application on a broker with a wall clock of its own, which is stopped and started again."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.id = fresh_name("overdue")
        self.input, self.output = TopicPartition(f"{self.id}.in", 0), TopicPartition(f"{self.id}.out", 0)
        program = (
            Topology()
            .add_source("in", self.input.topic)
            .add_processor("says", Says, "in", stores=[store("counts", value_serde="int")])
        )
        self.application = Application(
            self.id, program.add_sink("out", self.output.topic, "says"), log=f"kafka:{bootstrap}",
            changelog=f"memory:{self.id}", data_dir=str(directory), key_serde="str", value_serde="str",
        )  # fmt: skip
        self.wall = 1_000_000

    @contextmanager
    def started(self, log: Log) -> Iterator[Callable[[Callable[[], bool]], None]]:
        """Start the application; return a function that lets it work until a condition is true."""
        resources = ProcessResources()
        loop = TaskLoop(self.application, {"0_0": (self.input,)}, log, resources, lambda: self.wall)

        def turn_until(condition: Callable[[], bool]) -> None:
            def is_true() -> bool:
                loop.turn(0.01)
                assert loop.take_failures() == []
                return condition()

            wait_until(is_true)

        try:
            loop.run(["0_0"], {})
            yield turn_until
        finally:
            loop.close()
            resources.close()


def test_an_overdue_punctuator_waits_for_the_records_that_wait_and_is_called_in_silence(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    stage = Stage(broker.bootstrap, tmp_path)
    log = open_log(stage.application.settings)
    assert isinstance(log, KafkaLog)

    def put(count: int) -> None:
        log.append(OutputBatch(stage.input.topic, [b"k"] * count, [b"x"] * count, [1_000] * count))

    def has_read_all() -> bool:
        return log.committed(stage.id, [stage.input]) == log.end_offsets([stage.input])

    def said() -> list[bytes]:
        return [value for _, value in contents(log, stage.output.topic, waits=False)]

    try:
        for partition in stage.input, stage.output:
            log.create_topic(partition.topic, 1)
        put(1)
        with stage.started(log) as turn_until:
            turn_until(has_read_all)
        put(500)
        stage.wall += DAY_MS
        with stage.started(log) as turn_until:
            turn_until(lambda: len(said()) == 1)
            stage.wall += 60_000
            turn_until(lambda: len(said()) == 2)
        assert said() == [b"501", b"501"]
    finally:
        log.close()
