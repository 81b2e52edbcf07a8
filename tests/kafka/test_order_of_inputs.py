"""Inputs of a task that have records at its start are read in the order of their timestamps, however brokers answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from penstock import Application
from penstock.clock import SystemClock
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.engine.task.loop.task_loop import TaskLoop
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.contracts.log_tests import read, settled_ends
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.record import OutputBatch, TopicPartition

from .names import fresh_name

KEYS = 50
STARTS = 6


def append(log: KafkaLog, topic: str, value: str, time: int, count: int) -> None:
    """Append `count` records of each key."""
    keys: list[bytes | None] = [b"%d" % (number % KEYS) for number in range(KEYS * count)]
    log.append(OutputBatch(topic, keys, [value.encode()] * len(keys), [time] * len(keys)))


@contextmanager
def running(application: Application, log: KafkaLog, topics: tuple[str, ...]) -> Iterator[TaskLoop]:
    tasks = {"0_0": tuple(TopicPartition(topic, 0) for topic in topics)}
    resources = ProcessResources()
    loop = TaskLoop(application, tasks, log, resources, SystemClock().now_ms)
    loop.run(tasks, {})
    try:
        yield loop
        loop.commit_all()
    finally:
        loop.close(commit=False)
        resources.close()


def test_no_record_of_a_stream_is_joined_before_the_table_rows_that_are_older(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    """At every start both inputs have a backlog, and the table's rows are older than the stream's records."""
    name = fresh_name("order")
    stream, table, out = (f"{name}-{each}" for each in ("stream", "table", "out"))
    builder = StreamsBuilder()
    rows = builder.table(table, "rows")
    builder.stream(stream).left_join(rows, lambda one, two: f"{one}|{two}", name="j").to(out)
    application = Application(
        name, builder, log=f"kafka:{broker.bootstrap}", changelog="memory:", data_dir=str(tmp_path),
        key_serde="str", value_serde="str",
    )  # fmt: skip
    results = TopicPartition(out, 0)
    position = 0
    with closing(KafkaLog(broker.bootstrap)) as log:
        for topic in (stream, table, out):
            log.create_topic(topic, 1)
        for start in range(STARTS):
            append(log, table, f"{start}" + "-" * 200, start * 1000, 60)
            append(log, stream, f"{start}", start * 1000 + 500, 4)
            joined: list[bytes | None] = []
            with running(application, log, (stream, table)) as loop:
                if start % 2:
                    loop.process_to({"0_0": settled_ends(log, [TopicPartition(stream, 0)])})
                while len(joined) < 4 * KEYS:
                    loop.turn()
                    assert not loop.take_failures()
                    found = read(log, results, position)
                    joined += [each.value for each in found]
                    position = max([position, *(each.offset + 1 for each in found)])
            wrong = [each for each in joined if each is None or not each.startswith(b"%d|%d-" % (start, start))]
            assert not wrong, f"start {start}: {len(wrong)} of {len(joined)} joined with an older row: {wrong[0]!r}"
