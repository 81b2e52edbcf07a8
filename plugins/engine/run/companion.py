"""Companion: what a run has beside its tasks, such as its metrics, its status and a server of its stores."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from penstock import Application, PenstockError, PluginError
from penstock.hooks import registry
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.engine.program.run_status import RunStatus

from .open_application import OpenApplication

_log = logging.getLogger("penstock.runs")


@dataclass(frozen=True)
class RunView:
    """A run as its companions see it.

    `application`: as it was given, with the id and the settings of the run. `waits`: the run waits for the end of
    another driver. `has_tasks_here`: its tasks run on this machine. `status` and `lag` return what the run knows now.
    """

    application: Application
    waits: bool
    has_tasks_here: bool
    status: Callable[[], RunStatus]
    lag: Callable[[], Sequence[PartitionLag]]


class Companion:
    """What a run has beside its tasks. One is made for each run; what a method raises ends the run.

    A plugin names its companions in the hook `penstock_companions`. Those whose settings do not want them do nothing.
    The methods of a run are called in the run's thread.
    """

    def __init__(self, run: RunView) -> None:
        self.run = run

    def around(self) -> AbstractContextManager[object]:
        """Return what is entered before the application is opened, and left after it is closed."""
        return nullcontext()

    def wait(self) -> None:
        """Do what is to be done while another driver runs the application; called again and again until it ends."""

    def beside(self, running: OpenApplication) -> AbstractContextManager[object]:
        """Return what is entered before the tasks begin to run, and left before the application is closed."""
        return nullcontext()

    @classmethod
    def queries(cls, application: Application) -> Any:
        """Return what answers `running.queries` on this machine, with `store` and `close`; None: this one does not."""
        return None

    @classmethod
    def pages(cls, application: Application) -> Any:
        """Return what makes the pages of the server of queries (`ServerOptions.pages`); None: this one has none."""
        return None


def not_a_companion(found: Any) -> str | None:
    """Return why something is no class of companions; None if it is one."""
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
