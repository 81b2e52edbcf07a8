"""RunOrder: what the caller of a run gives besides the application."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock import Clock, ConfigError

from .lifecycle import Lifecycle
from .progress import RunProgress
from .trigger import Trigger


@dataclass(frozen=True)
class RunOrder:
    """A run as its caller wants it.

    `on_progress` is called after each batch, and twice a second within one. `clock`: the wall clock that tasks see in
    batches; None is the machine's.
    `stop` ends the run when it is set, as SIGTERM and SIGINT do where the run is in the main thread. `waits`: while
    another driver runs the application, wait until that ends, and take over. `on_start` is called when the application
    is prepared, and its tasks begin to run. `lifecycle`: gets the state of the run.
    """

    trigger: Trigger
    on_progress: Callable[[RunProgress], None] | None = None
    clock: Clock | None = None
    stop: threading.Event | None = None
    waits: bool = False
    on_start: Callable[[], None] | None = None
    lifecycle: Lifecycle = field(default_factory=Lifecycle)

    def __post_init__(self) -> None:
        if self.clock is not None and self.trigger.is_continuous:
            raise ConfigError(
                "clock: with trigger 'continuous' tasks see their machine's clock; leave it out, or let batches run"
            )

    def is_waiting_wanted(self) -> bool:
        """Return whether to wait for another driver's end."""
        return self.waits and not (self.stop is not None and self.stop.is_set())

    def note_start(self) -> None:
        """Tell the caller that the tasks begin to run."""
        if self.on_start is not None:
            self.on_start()
