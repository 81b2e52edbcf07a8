"""Companion: a part of a run beside its tasks. OpenApplication: a prepared application with its log and lease."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import Application, Log, PenstockError, PluginError, SystemClock
from penstock.hooks import registry
from penstock.plugins.engine.program.from_state import prepare_and_continue
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.preparation import Prepared
from penstock.plugins.engine.program.run_status import RunStatus
from penstock.plugins.engine.program.stored_id import check_sources, stored_application
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.report import TaskReport
from penstock.support.packages import other_distribution
from penstock.support.repeats import Repeats
from penstock.support.system_errors import raise_open_files_limit

_log = logging.getLogger("penstock.runs")


class OpenApplication:
    """A prepared application, its log, and its lease."""

    machine: str = ""
    """The name of this machine for others, where an engine knows it."""

    def __init__(self, prepared: Prepared, log: Log, lease: LeaseKeeper) -> None:
        self.application = prepared.application
        self.prepared = prepared
        self.log = log
        self.lease = lease
        self.repeats = Repeats(SystemClock().now_ms)
        self.server: str | None = None
        """The URL of the server of its stores that the run has beside it."""
        self._internal_ids = log.topic_ids(prepared.assignment.internal)

    def prepare_again(self) -> None:
        """Find the tasks again, after topics have changed. Raises as `prepare`."""
        self.prepared = prepare_and_continue(self.application, self.log, self.lease.renew)

    def take(self, reports: Sequence[TaskReport]) -> None:
        """Record the partitions with a committed position, and purge processed records of repartition topics.

        A reset makes these topics again. A driver that was frozen over it must not delete what the new ones have.
        """
        self.prepared.committed.add(each for report in reports for each in report.positions)
        for report in reports:
            for partition, position in report.purgeable.items():
                self.log.purge(partition, position, self._internal_ids.get(partition.topic, ""))


@contextmanager
def prepared_application(
    application: Application, is_wanted: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Prepared, Log, LeaseKeeper]]:
    """Open the log, take the lease (`is_wanted`: see LeaseKeeper) and prepare. Raises as `prepare`."""
    if (other := other_distribution()) is not None:
        _log.warning("%s", other)
    # Task hosts have working directories of their own.
    directory = str(Path(application.settings.data_dir).absolute())
    application = application.with_settings(data_dir=directory)
    # Processes that are started from now on inherit the limit.
    raise_open_files_limit()
    with ExitStack() as stack:
        log = open_log(application.settings)
        stack.callback(log.close)
        lease = LeaseKeeper(log, application.id, is_wanted)
        stack.callback(lease.release)
        check_sources(application, log)
        yield prepare_and_continue(stored_application(application, log), log, lease.renew), log, lease


@dataclass(frozen=True)
class RunView:
    """A run as its companions see it.

    `application`: as it was given, with the id and the settings of the run. `waits`: the run waits for the end of
    another driver. `has_tasks_here`: its tasks run on this machine. `status` and `lag` return the run's latest ones.
    """

    application: Application
    waits: bool
    has_tasks_here: bool
    status: Callable[[], RunStatus]
    lag: Callable[[], Sequence[PartitionLag]]


class Companion:
    """A part of a run beside its tasks. One is made for each run; an error of a method ends the run.

    A plugin names its companions in the hook `penstock_companions`. A companion that the run's settings do not ask for
    does nothing. Its methods are called in the run's thread.
    """

    def __init__(self, run: RunView) -> None:
        self.run = run

    def around(self) -> AbstractContextManager[object]:
        """Return a context manager to enter before the application is opened, and to leave after it is closed."""
        return nullcontext()

    def wait(self) -> None:
        """Work while another driver runs the application; called repeatedly until that driver ends."""

    def beside(self, running: OpenApplication) -> AbstractContextManager[object]:
        """Return a context manager to enter before the tasks run, and to leave before the application is closed."""
        return nullcontext()

    @classmethod
    def queries(cls, application: Application) -> Any:
        """Return the object behind `running.queries`, with `store` and `close`; None if this companion has none."""
        return None

    @classmethod
    def pages(cls, application: Application) -> Any:
        """Return the factory of further pages of the query server (`ServerOptions.pages`); None if there are none."""
        return None


def not_a_companion(found: Any) -> str | None:
    """Return why `value` is no class of companions; None if it is one."""
    if isinstance(found, type) and issubclass(found, Companion):
        return None
    return f"expected a class of Companion (`{Companion.__module__}`), found {found!r}"


def companions() -> list[type[Companion]]:
    """Return the companions of the installed plugins, ours first. One that cannot be loaded is logged and left out."""
    found: list[type[Companion]] = []
    for kind, name in list(registry().components):
        if kind != "companion":
            continue
        component = registry().components[kind, name]
        try:
            loaded = registry().find(kind, name).load()
            if why := not_a_companion(loaded):
                raise PluginError(why)
            found.append(loaded)
        except PenstockError as error:
            _log.warning("%s is left out: %s", component.title, error)
    return found
