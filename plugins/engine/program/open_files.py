"""The open files that an application's tasks need, against the limit of the processes that will run them."""

from __future__ import annotations

from penstock import Application, CountsFiles, Log, RuntimeUnavailableError
from penstock.hooks import registry
from penstock.support.system_errors import open_files_advice, open_files_limit

from .preparation import Prepared

_BASE = 24
"""Open files of a task host without a task."""
_LOCK = 1
"""Each task's directory on this host has a lock."""


def check_open_files(prepared: Prepared, log: Log, hosts: int | None) -> None:
    """Raise RuntimeUnavailableError when the tasks need more open files than the task hosts on this machine may have.

    `hosts`: number of task hosts that share the tasks; None if they run on other machines, whose limits are
    unknown. It counts the least that evenly spread tasks need. A run may still meet the limit, and then ends with the
    same advice.
    """
    limit, _ = open_files_limit()
    tasks = len(prepared.assignment.tasks)
    if hosts is None or limit < 0 or not tasks:
        return
    processes = min(tasks, hosts)
    each = -(-tasks // processes)
    needed = open_files(prepared.application, log, each)
    if needed > limit:
        raise RuntimeUnavailableError(
            f"application {prepared.application.id!r}: {tasks} tasks in {processes} task host(s), up to {each} in "
            f"each, need at least {needed} open files in each: {open_files_advice()}"
        )


def check_open_files_of_process(application: Application, log: Log, tasks: int) -> None:
    """Raise RuntimeUnavailableError when this process may not have as many open files as `tasks` tasks need."""
    limit, _ = open_files_limit()
    needed = open_files(application, log, tasks) if limit >= 0 else 0
    if needed > limit >= 0:
        raise RuntimeUnavailableError(
            f"application {application.id!r}: {tasks} tasks in one task host need at least {needed} open files, and "
            f"none was opened: {open_files_advice()}"
        )


def open_files(application: Application, log: Log, tasks: int) -> int:
    """Return the least number of open files of a task host with `tasks` tasks."""
    # Count for the sub-topology with the fewest stores.
    stores = min(
        sum(
            _of_backend(name) for name in {store.backend or application.settings.store_backend for store in each.stores}
        )
        for each in application.program.subtopologies
    )
    return _BASE + log.open_files(tasks) + tasks * (_LOCK + stores)


def _of_backend(name: str) -> int:
    factory = registry().load("store backend", name)
    return factory.open_files if isinstance(factory, CountsFiles) else 0
