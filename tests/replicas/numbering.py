"""A task whose commits each write one number under every key of two stores: `python -m ... LOG CHANGELOG DIRECTORY ID`.

It prints a line after its first commit, commits until its standard input ends, or until it is killed, and prints the
last version.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition

COMMIT_INTERVAL = 0.1
KEYS = [f"key {number}" for number in range(20)]


class Number(Processor):
    """Counts its records; every key has the last count."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.kept = [context.get_store("first"), context.get_store("second")]

    def process(self, record: Record) -> None:
        number = (self.kept[0].get(KEYS[0]) or 0) + 1
        for store in self.kept:
            for key in KEYS:
                store.put(key, number)


def numbering(log: str, changelog: str, directory: str, application_id: str) -> Application:
    stores = [key_value_store(name, key_serde="str", value_serde="int") for name in ("first", "second")]
    topology = (
        Topology()
        .add_source("in", f"{application_id}-in", key_serde="str", value_serde="str")
        .add_processor("number", Number, "in", stores=stores)
    )
    return Application(application_id, topology, log=log, changelog=changelog, data_dir=directory)


def main(log_name: str, changelog: str, directory: str, application_id: str) -> None:
    application = numbering(log_name, changelog, directory, application_id)
    log, partition = open_log(application.settings), TopicPartition(f"{application_id}-in", 0)
    if partition.topic not in log.topics():
        log.create_topic(partition.topic, 1)
    application = prepare(application, log).application
    task = TaskWorker(application, TaskId(0, 0), [partition], log, resources=ProcessResources())
    has_begun, version = False, ""
    while not select.select([sys.stdin], [], [], COMMIT_INTERVAL)[0]:
        log.append(OutputBatch(partition.topic, [b"k"], [b"v"], [1]))
        version = task.run_batch(log.end_offsets([partition]), 0).version
        if not has_begun:
            has_begun = True
            print("committed", flush=True)
    print(version, flush=True)
    task.close()
    log.close()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
