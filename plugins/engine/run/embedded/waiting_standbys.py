"""WaitingStandbys: the copies of all tasks that a run keeps while another driver runs the application."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING

from penstock import Application, Log, World
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.copies.settings import NUM_STANDBY_REPLICAS

if TYPE_CHECKING:
    from penstock.plugins.state.copies.standbys import Standbys

_log = logging.getLogger("penstock.embedded")


class WaitingStandbys:
    """Keeps copies from the first call of `keep` to `leave`, if the setting `num_standby_replicas` is 1 or more."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._log: Log | None = None
        self._standbys: Standbys | None = None
        self._leaving: Future[None] | None = None

    def keep(self) -> bool:
        """Begin, unless it has begun. Returns True."""
        if self._standbys is None and NUM_STANDBY_REPLICAS.of(self._application.settings):
            from penstock.plugins.state.copies.standbys import Standbys  # few runs need it

            self._log = open_log(self._application.settings)
            self._standbys = Standbys(stored_application(self._application, self._log), self._log)
            _log.info("application %r: keeping copies of its tasks' state while it waits", self._application.id)
        return True

    def leave(self) -> None:
        """Leave the copies to the tasks, which are opened now; do not wait.

        A copy may wait for the end of a transaction that only the opening of its task ends (`Standbys.close`).
        """
        standbys, self._standbys = self._standbys, None
        log, self._log = self._log, None
        if standbys is None or log is None:
            return
        for each in standbys.status():
            _log.info("standby of task %s: %s, at version %s", each.task, each.state, each.version)
        thread = World().threads(1, "penstock-leaving")
        self._leaving = thread.submit(_close, standbys, log)
        thread.shutdown(wait=False)

    def close(self) -> None:
        """End, and wait until the copies are left; idempotent."""
        self.leave()
        if self._leaving is not None:
            self._leaving.result()


def _close(standbys: Standbys, log: Log) -> None:
    try:
        standbys.close()
    finally:
        log.close()
