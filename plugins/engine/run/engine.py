"""Engine: what runs applications: Spark, the embedded engine, or another package's. Plugins name theirs in a hook."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from penstock import Application, Clock, ConfigError

from .order import Lifecycle, RunOrder, Trigger
from .progress import RunProgress, RunSummary
from .started_run import StartedRun


class Engine(ABC):
    """Runs applications. `options` names what `run` takes besides an order; the engine's settings are Settings."""

    title: ClassVar[str] = "the engine"
    """How people call it."""
    options: ClassVar[Collection[str]] = ()

    @abstractmethod
    def run(self, application: Application, order: RunOrder, **options: Any) -> RunSummary:
        """Run `application` until it is done or stopped, and return what it did.

        Raises TopologyError for topics that are missing, IncompatibleStateError when the program no longer fits what it
        saved, LogError when another driver runs the application, and what a task failed with.
        """

    def run_with(
        self,
        application: Application,
        trigger: str,
        *,
        on_progress: Callable[[RunProgress], None] | None = None,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
        wait: bool = False,
        until: str | None = None,
        **options: Any,
    ) -> RunSummary:
        """Run `application` as `penstock.run` does."""
        self.check_options(application, options)
        return self.run(application, RunOrder(Trigger.of(trigger, until), on_progress, clock, stop, wait), **options)

    def start(
        self,
        application: Application,
        trigger: str,
        *,
        on_progress: Callable[[RunProgress], None] | None = None,
        clock: Clock | None = None,
        wait: bool = False,
        until: str | None = None,
        **options: Any,
    ) -> StartedRun:
        """Start `application` as `Application.start` does."""
        self.check_options(application, options)
        when, lifecycle = Trigger.of(trigger, until), Lifecycle()

        def work(stop: threading.Event, on_start: Callable[[], None]) -> RunSummary:
            order = RunOrder(when, on_progress, clock, stop, wait, on_start, lifecycle)
            return self.run(application, order, **options)

        return StartedRun(application, work, lifecycle)

    def check_options(self, application: Application, options: Collection[str]) -> None:
        """Raise ConfigError for options that are not the engine's."""
        for option in options:
            if option not in self.options:
                known = f"its options are {', '.join(sorted(self.options))}" if self.options else "it has no options"
                raise ConfigError(
                    f"application {application.id!r}: {option!r} is no option of {self.title}: {known}. Leave it out, "
                    "or choose another engine (setting 'engine')"
                )
