"""The copies that runs and task hosts keep beside their tasks, as the setting `num_standby_replicas` says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING

from penstock import Application, World
from penstock.plugins.engine.host.reports import SlotPlan
from penstock.plugins.engine.host.slot_engine import HostCompanion, HostInfo
from penstock.plugins.engine.program.stored_id import stored_application
from penstock.plugins.engine.run.companion import Companion, OpenApplication, RunView
from penstock.plugins.engine.task.locations import open_log

from .settings import NUM_STANDBY_REPLICAS

if TYPE_CHECKING:
    from .standbys import Standbys

_log = logging.getLogger("penstock.embedded")


class WaitingStandbys(Companion):
    """Keeps copies of all tasks while another driver runs the application, if the tasks are to run here then."""

    def __init__(self, run: RunView) -> None:
        super().__init__(run)
        self._standbys: Standbys | None = None
        self._open = ExitStack()
        self._leaving: Future[None] | None = None

    def wait(self) -> None:
        """Begin, unless it has begun."""
        application = self.run.application
        if self._standbys is None and self.run.has_tasks_here and NUM_STANDBY_REPLICAS.of(application.settings):
            from .standbys import Standbys  # few runs need it

            with ExitStack() as stack:
                log = stack.enter_context(closing(open_log(application.settings)))
                self._standbys = stack.enter_context(closing(Standbys(stored_application(application, log), log)))
                self._open = stack.pop_all()
            _log.info("application %r: keeping copies of its tasks' state while it waits", application.id)

    def beside(self, running: OpenApplication) -> AbstractContextManager[object]:
        self._leave()
        return nullcontext()

    @contextmanager
    def around(self) -> Iterator[None]:
        """End at the end of the block, and wait until the copies are left."""
        try:
            yield
        finally:
            self._leave()
            if self._leaving is not None:
                self._leaving.result()

    def _leave(self) -> None:
        """Leave the copies to the tasks; do not wait: a copy may need that its task is opened (`Standbys.close`)."""
        standbys, self._standbys = self._standbys, None
        if standbys is None:
            return
        for each in standbys.status():
            _log.info("standby of task %s: %s, at version %s", each.task, each.state, each.version)
        thread = World().threads(1, "penstock-leaving")
        self._leaving = thread.submit(self._open.close)
        thread.shutdown(wait=False)


class HostStandbys(HostCompanion):
    """Keeps warm copies of the tasks that the plans of its host name, in threads of their own."""

    def __init__(self, application: Application, host: HostInfo) -> None:
        self._application = application
        self._world = host.world
        self._standbys: Standbys | None = None
        self._open = ExitStack()

    def take(self, plan: SlotPlan) -> None:
        if self._standbys is not None:
            self._standbys.choose(plan.standbys)
        elif plan.standbys:
            from .standbys import Standbys  # few plans name any

            # Not the tasks' log: its readers are tuned for them.
            log = self._open.enter_context(closing(open_log(self._application.settings)))
            standbys = Standbys(self._application, log, plan.standbys, world=self._world)
            self._standbys = self._open.enter_context(closing(standbys))

    def close(self) -> None:
        self._open.close()
