"""`python -m tests.crash.state`: opens every task as a worker on this host would, and prints what its stores hold as
JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from penstock import Application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker

from .programs import PROGRAMS, Program, application


def content(app: Application, program: Program) -> dict[str, dict[str, Any]]:
    """Return the entries of each store over all tasks."""
    log = open_log(app.settings)
    found: dict[str, dict[str, Any]] = {}
    try:
        assignment = app.program.resolve({name: info.partitions for name, info in log.topics().items()}, app.id)
        resources = ProcessResources()
        for task_id, inputs in assignment.tasks.items():
            worker = TaskWorker(app, task_id, inputs, log, resources=resources)
            worker.run_batch({}, 0)
            assert worker.task is not None
            for name, store in {**worker.task.stores, **worker.task.global_stores}.items():
                found.setdefault(name, {}).update(program.entries(name, store, str(task_id)))
            worker.close()
        resources.close()
    finally:
        log.close()
    return found


if __name__ == "__main__":
    print(json.dumps(content(application(), PROGRAMS[os.environ["CRASH_PROGRAM"]])))
