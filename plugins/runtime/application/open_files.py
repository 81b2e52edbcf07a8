"""The open files that an application's tasks need, against the limit of the processes that will run them."""

from __future__ import annotations

from penstock.errors import RuntimeUnavailableError
from penstock.hooks import registry
from penstock.log import Log
from penstock.settings.application import Application
from penstock.system_errors import open_files_advice, open_files_limit

from .preparation import Prepared

_BASE = 24
"""What a worker process has open without any task."""
_LOCK = 1
"""Each task's directory on this host has a lock."""


def check_open_files(prepared: Prepared, log: Log, cores: int | None) -> None:
    """Raise RuntimeUnavailableError when workers on this host cannot keep open what their tasks need, with the figures.

    `cores`: how many worker processes share the tasks; None where they run on other hosts, whose limits nobody knows
    here. It counts the least, for tasks that are spread evenly: what is only tight may start, and a task that meets the
    limit ends the run with the same advice.
    """
    limit, _ = open_files_limit()
    tasks = len(prepared.assignment.tasks)
    if cores is None or limit < 0 or not tasks:
        return
    processes = min(tasks, cores, prepared.application.settings.parallelism or cores)
    each = -(-tasks // processes)
    needed = open_files(prepared.application, log, each)
    if needed > limit:
        raise RuntimeUnavailableError(
            f"application {prepared.application.id!r}: {tasks} tasks in {processes} worker process(es), up to {each} "
            "in each, need at least "
            f"{needed} open files in each: {open_files_advice()}"
        )


def open_files(application: Application, log: Log, tasks: int) -> int:
    """Return how many descriptors a worker process needs at least that keeps `tasks` tasks open."""
    # Sub-topologies differ: the one with the fewest stores counts.
    stores = min(
        sum(
            _of_backend(name) for name in {store.backend or application.settings.store_backend for store in each.stores}
        )
        for each in application.program.subtopologies
    )
    return _BASE + log.open_files(tasks) + tasks * (_LOCK + stores)


def _of_backend(name: str) -> int:
    return int(getattr(registry().load("store backend", name), "open_files", 0))
