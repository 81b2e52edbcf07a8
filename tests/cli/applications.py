"""An application for the verbs that look after one: two sub-topologies, a repartition topic between them, a store."""

from __future__ import annotations

from typing import Any

from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.program.visits import asked_visits
from penstock.plugins.engine.run.companion import OpenApplication
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.operate.cli.target import load
from penstock.settings.application import Application

from .console import Console

COUNTING = """
from penstock import Application, DeadLetter, Processor, Retry, Topology, key_value_store

class Check(Processor):
    def process(self, record):
        if record.value.startswith("bad"):
            raise ValueError(f"no {record.value}")
        if record.value.startswith("worse"):
            raise KeyError(record.value)
        self.context.forward(record.with_key(record.value))

class Count(Processor):
    def process(self, record):
        counts = self.context.get_store("counts")
        counts.put(record.key, (counts.get(record.key) or 0) + 1)
        self.context.forward(record.with_value(counts.get(record.key)))

topology = (
    Topology()
    .add_source("in", "words")
    .add_processor("check", Check, "in")
    .add_repartition("by-word", "check")
    .add_processor("count", Count, "by-word", stores=[key_value_store("counts")])
    .add_sink("out", "totals", "count", value_serde="int")
)
application = Application("counting", topology, processing_handler=Retry(1, "0s", DeadLetter("dead")))
"""
TARGET = "counting:application"


def counting(console: Console) -> None:
    """Write the module and make its topics."""
    console.write("counting.py", COUNTING)
    console("topics", "create", "words", "totals", "--partitions", "2")
    console("topics", "create", "dead")


def run(target: str = TARGET, *, subtopologies: int = 2, **settings: Any) -> None:
    """Run the application's tasks until nothing is left, in this process and without Spark; the first sub-topologies
    only if told."""
    application: Application = load(target).with_settings(**settings)
    log, resources = open_log(application.settings), ProcessResources()
    try:
        prepared = prepare(application, log)
        running = OpenApplication(prepared, log, None)  # type: ignore[arg-type]
        workers = [
            TaskWorker(prepared.application, task, partitions, log, resources=resources)
            for task, partitions in prepared.assignment.tasks.items()
            if task.subtopology < subtopologies
        ]
        for worker in workers:
            worker.ask(asked_visits(prepared.application.id, log))
            running.take([worker.run_batch(log.end_offsets(worker.partitions), 0)])
            worker.close()
    finally:
        resources.close()
        log.close()
