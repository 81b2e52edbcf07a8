"""Runs a case on an engine, with the local log or Kafka: a step for each op, at the time that the case says it is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

from penstock import Application, Record
from penstock.log import Log
from penstock.plugins.engine.run.embedded import stepping_embedded
from penstock.plugins.engine.run.query import SteppingDriver
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.spark.runner import stepping_on_spark
from penstock.plugins.spark.sessions import make_session
from penstock.plugins.testing.kafka_broker import KafkaBroker, KafkaCluster
from penstock.program.nodes import SinkNode, TaskId
from penstock.program.serdes import resolve_serde
from penstock.record import OutputBatch, TopicPartition
from penstock.store import StateStore

from ..kafka.clients import create_topics, delete_own
from ..waiting import readable_end
from .runner import Case, application_of, changed, headers_of, output_of

Stepping = Callable[[Application], AbstractContextManager[SteppingDriver]]
"""Opens an application on an engine."""


@contextmanager
def case_drivers(
    *, engine: str = "spark", on_kafka: bool = False, is_continuous: bool = False, brokers: int = 1
) -> Iterator[Callable[[Case], CaseDriver]]:
    """Start Spark, if it is the engine, and brokers if asked, and yield a function from a case to its driver."""
    with ExitStack() as stack:
        kafka: KafkaBroker | KafkaCluster | None = None
        if on_kafka:
            kafka = KafkaBroker() if brokers == 1 else KafkaCluster(brokers)
            stack.enter_context(kafka)
        if engine == "embedded":
            step: Stepping = partial(stepping_embedded, is_continuous=is_continuous)
        else:
            session = make_session("local[2]")
            stack.callback(session.stop)
            step = partial(stepping_on_spark, session=session, is_continuous=is_continuous)
        yield lambda case: CaseDriver(case, step, kafka)


def for_kafka(case: Case) -> Case:
    """Return a case with 1 in place of each timestamp of 0, which Kafka's client does not send."""
    if not any(op.get("ts") == 0 for op in case["inputs"]):
        return case
    return changed(case, [{**op, "ts": op["ts"] or 1} if "ts" in op else op for op in case["inputs"]], "1 for time 0")


class CaseDriver:
    """Runs one case on the engine that `step` opens, in a data directory of its own, from and to a log.

    On several brokers, each topic has another leader than the one before.
    """

    notes_side_effects = False

    def __init__(
        self,
        case: Case,
        step: Stepping,
        kafka: KafkaBroker | KafkaCluster | None = None,
    ) -> None:
        self._stack = ExitStack()
        try:
            directory = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-conformance-"))
            application = application_of(case).with_settings(data_dir=directory, parallelism=1)
            if kafka is not None:
                application = application.with_settings(log=f"kafka:{kafka.bootstrap}")
            self._application: Application = application
            self._log: Log = open_log(application.settings)
            self._stack.callback(self._log.close)
            program = self._application.program
            written = {output["topic"] for output in case["expected"]["outputs"]}
            self._sinks = sorted((set(program.sink_topics()) | written) - set(program.internal_topics))
            made = dict.fromkeys((*program.topics(), *self._sinks), 1)
            if kafka is not None:
                self._stack.callback(delete_own, self._log, [application.id], made.keys())
            create_topics(self._log, made, kafka)
            self._clock_ms: int = case.get("config", {}).get("initial_wall_clock_ms", 0)
            self._dropped = 0
            self._read = dict.fromkeys(self._sinks, 0)
            self._workers: list[TaskWorker] = []
            settings = self._application.settings
            self._key_serde = resolve_serde(None, settings.key_serde, "keys")
            self._sink_key_serdes = {
                node.topic: resolve_serde(node.key_serde, settings.key_serde, "keys")
                for node in program.nodes.values()
                if isinstance(node, SinkNode) and isinstance(node.topic, str)
            }
            self._value_serde = resolve_serde(None, settings.value_serde, "values")
            self._open = step
            self._running = self._stack.enter_context(ExitStack())
            self._starts = 0
            self._driver = self._start()
            self._step()
        except BaseException:
            self._stack.close()
            raise

    def _start(self) -> SteppingDriver:
        # Steps are counted from each start on, and a checkpoint has those of the one before.
        self._starts += 1
        application = self._application.with_settings(checkpoint_dir=f"checkpoint-{self._starts}")
        return self._running.enter_context(self._open(application))

    def _step(self) -> None:
        for report in self._driver.step(self._clock_ms):
            self._dropped += report.dropped

    def pipe(self, op: dict[str, Any]) -> None:
        self._append(op)
        self._step()

    def backlog(self, records: list[dict[str, Any]]) -> None:
        self._running.close()
        for op in records:
            self._append(op)
        self._driver = self._start()
        self._step()

    def _append(self, op: dict[str, Any]) -> None:
        self._log.append(
            OutputBatch(
                op["topic"],
                [None if op["key"] is None else self._key_serde.serialize(op["key"])],
                [None if op["value"] is None else self._value_serde.serialize(op["value"])],
                [op["ts"]],
                [headers_of(op)] if op.get("headers") else None,
            )
        )

    def advance_wall_clock(self, ms: int) -> None:
        self._clock_ms += ms
        self._step()

    def outputs(self) -> Iterator[dict[str, Any]]:
        for topic in self._sinks:
            key_serde = self._sink_key_serdes.get(topic, self._key_serde)
            partition = TopicPartition(topic, 0)
            end = readable_end(self._log, partition)
            while self._read[topic] < end:
                for batch in self._log.fetch(partition, self._read[topic], end, 1 << 20):
                    self._read[topic] = batch.next_offset
                    for number, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True)):
                        record = Record(
                            None if key is None else key_serde.deserialize(key),
                            None if value is None else self._value_serde.deserialize(value),
                            batch.timestamps[number],
                            batch.headers[number] if batch.headers is not None else (),
                        )
                        yield output_of(topic, record)

    def store(self, name: str) -> StateStore:
        resources = ProcessResources()
        self._stack.callback(resources.close)
        for task_id, inputs in self._driver.prepared.assignment.tasks.items():
            worker = TaskWorker(self._application, TaskId(*task_id), inputs, self._log, resources=resources)
            self._stack.callback(worker.close)
            worker.run_batch({}, 0)
            assert worker.task is not None
            found = worker.task.stores.get(name) or resources.globals_of(self._application).stores.get(name)
            if found is not None:
                return found
        raise KeyError(name)

    def dropped_records(self) -> int:
        return self._dropped

    def close(self) -> None:
        self._stack.close()
