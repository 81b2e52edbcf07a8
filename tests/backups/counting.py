"""An application of two sub-topologies, run by hand: its tasks process portions in any order, between backups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock import Application, Log, Processor, Record, Topology, key_value_store
from penstock.plugins.engine.program.preparation import Prepared, prepare
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.copies import Replica
from penstock.plugins.testing.contracts.log_tests import settled_ends
from penstock.record import OutputBatch

PARTITIONS = 2
TEXT: dict[str, Any] = {"key_serde": "str", "value_serde": "str"}


class Pass(Processor):
    """Counts the records of each sender, and passes each on to the task of its word."""

    def process(self, record: Record) -> None:
        sent = self.context.get_store("sent")
        sent.put(record.key, (sent.get(record.key) or 0) + 1)
        self.context.forward(record.with_key(record.value))


class Count(Processor):
    """Counts each word."""

    def process(self, record: Record) -> None:
        counts = self.context.get_store("counts")
        counts.put(record.key, (counts.get(record.key) or 0) + 1)
        self.context.forward(record.with_value(str(counts.get(record.key))))


def counting(
    directory: Path,
    application_id: str = "app",
    log: str = "memory:x",
    words: str = "words",
    through: str | None = None,
    **settings: Any,
) -> Application:
    """Return the application, which reads the topic `words`; `directory` is where it keeps everything.

    `through`: the ordinary topic between its sub-topologies; None: a repartition topic.
    """
    numbers: dict[str, Any] = {"key_serde": "str", "value_serde": "int"}
    topology = (
        Topology()
        .add_source("in", words, **TEXT)
        .add_processor("pass", Pass, "in", stores=[key_value_store("sent", **numbers)])
    )
    if through is None:
        topology.add_repartition("by-word", "pass", **TEXT)
    else:
        topology.add_sink("to-words", through, "pass", **TEXT).add_source("by-word", through, **TEXT)
    topology.add_processor("count", Count, "by-word", stores=[key_value_store("counts", **numbers)])
    topology.add_sink("out", f"{words}-totals", "count", **TEXT)
    given = {"log": log, "data_dir": str(directory), "store_backend": "memory", "commit_interval": "1h", **settings}
    return Application(application_id, topology, **given)


class Tasks:
    """The tasks of the application, which process what they are told."""

    def __init__(self, application: Application, log: Log) -> None:
        self.log = log
        program = application.program
        for topic in (*program.topics(), *program.sink_topics()):
            if topic not in log.topics():
                log.create_topic(topic, PARTITIONS)
        self.prepared: Prepared = prepare(application, log)
        self.application = self.prepared.application
        self._resources = ProcessResources()
        self.workers = {
            str(task): TaskWorker(self.application, task, partitions, log, resources=self._resources)
            for task, partitions in self.prepared.assignment.tasks.items()
        }

    def process(self, task: str, most: int = 1_000_000) -> None:
        """Process at most so many records of each partition of a task, and commit."""
        worker = self.workers[task]
        ends = settled_ends(self.log, worker.partitions)
        positions = self.log.committed(self.application.id, worker.partitions)
        worker.run_batch({each: min(end, (positions[each] or 0) + most) for each, end in ends.items()}, 0)

    def process_later(self, task: str) -> Callable[[], None]:
        """Return a function that processes all that a task has then."""
        return lambda: self.process(task)

    def finish(self) -> None:
        """Process everything."""
        for task in self.workers:
            self.process(task)

    def close(self) -> None:
        """Close all tasks."""
        for worker in self.workers.values():
            worker.close()
        self._resources.close()

    def content(self, directory: Path) -> dict[str, Counter[str]]:
        """Return what the stores have after the last commits, restored from the changelog."""
        found: dict[str, Counter[str]] = {"sent": Counter(), "counts": Counter()}
        for task in self.workers:
            with closing(Replica(self.application, task, self.log, directory / task)) as replica:
                assert replica.catch_up()
                for store in replica.layout:
                    for key, value in replica.backend(store).range(store):
                        found[store][key.decode()] += int.from_bytes(value[-8:], "big")
        return found


def send(log: Log, words: list[tuple[str, str]], topic: str = "words") -> None:
    """Append records: the sender and the word of each."""
    log.append(OutputBatch(topic, [a.encode() for a, _ in words], [b.encode() for _, b in words], [1] * len(words)))


def expected(words: list[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Return what the stores have once each record has been processed once."""
    return {"sent": Counter(sender for sender, _ in words), "counts": Counter(word for _, word in words)}
