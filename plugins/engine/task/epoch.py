"""The epoch of an application: a name in its log that changes when its tasks are opened in another way than before.

Hosts get it with the application, and compare it after they have taken a task's fence. So a change has three steps:
begin an epoch, take the fences of the tasks, make the change. A host that took its fence before is shut out by the
fence, and one that takes it later by the epoch.
"""

from __future__ import annotations

import secrets
import threading
from copy import copy

from penstock import Application, FencedError, Lease, Log

from . import notes


def begin_epoch(application_id: str, log: Log | Lease) -> str:
    """Begin a new epoch, and return it: hosts of earlier epochs open no task from now on.

    The caller holds the application's lease. `log`: the log, or the lease if it may have been lost.
    """
    epoch = secrets.token_hex(8)
    notes.EPOCH.write(application_id, log, epoch)
    return epoch


def current_epoch(application_id: str, log: Log) -> str:
    """Return the present epoch; "" if the application was not prepared since it was reset."""
    return notes.EPOCH.read(application_id, log)


def of_epoch(application: Application, epoch: str) -> Application:
    """Return the application, whose tasks are opened in this epoch alone."""
    made = copy(application)
    made.epoch = epoch
    return made


class EpochCheck:
    """Compares the epoch of one application with that in its log. Thread-safe.

    Threads that wait for an answer share one: each gets a read that began after its call did.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        """Numbers of reads."""
        self._found = ""

    def check(self, application: Application, log: Log, task_id: str) -> None:
        """Raise FencedError if a prepared application has another epoch now. The caller has the task's fence."""
        if not application.epoch:
            return
        wanted = self._begun + 1
        with self._lock:
            if self._ended < wanted:
                self._begun += 1
                self._found = current_epoch(application.id, log)
                self._ended = self._begun
            found = self._found
        if found != application.epoch:
            raise FencedError(
                f"application {application.id!r}, task {task_id}: this process is of an earlier epoch: since it got "
                "the application, that was reset, moved, resharded, or started with another program. Nothing was "
                "changed; end this process, and let the present start run the task"
            )
