"""RunOrder, with its Trigger and Lifecycle: the caller's options of a run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock import Clock, ConfigError, StateChange, duration_ms

from .progress import RunProgress

STARTING, REBALANCING, RUNNING = "starting", "rebalancing", "running"
STOPPING, STOPPED, FAILED = "stopping", "stopped", "failed"
STATES = STARTING, REBALANCING, RUNNING, STOPPING, STOPPED, FAILED
_AFTER = {STOPPING: {STOPPED, FAILED}, STOPPED: frozenset[str](), FAILED: frozenset[str]()}
"""The states that may follow a state; any state may follow one that is not named."""

_log = logging.getLogger("penstock.runs")


class Lifecycle:
    """The state of one run. Any thread may call all methods. `seconds` is a clock that never goes back.

    Kafka Streams: `KafkaStreams.State`; docs/running.md has its names.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self.state = STARTING
        self._seconds = seconds
        self._entered_at = seconds()
        self.paused: frozenset[int] = frozenset()
        """The sub-topologies that the run processes no records of."""
        self.looks_at_pauses = threading.Event()
        """Set: the run reads the note about pauses at its next turn."""
        self._application_id = ""
        self._listener: Callable[[StateChange], Any] | None = None
        self._changing = threading.RLock()

    @property
    def seconds(self) -> float:
        """For how long the run has been in its state."""
        return self._seconds() - self._entered_at

    def listen(self, application_id: str, listener: Callable[[StateChange], Any] | None) -> None:
        """Call `listener` with each change from now on, in the thread that makes it; its errors are logged."""
        self._application_id, self._listener = application_id, listener

    def enter(self, state: str) -> None:
        """Change the state. A run that is ending cannot start work again, and an ended one stays ended."""
        with self._changing:
            before = self.state
            if state == before or state not in _AFTER.get(before, {state}):
                return
            self.state, self._entered_at = state, self._seconds()
            if self._listener is None:
                return
            try:
                self._listener(StateChange(self._application_id, before, state))
            except Exception:
                _log.warning(
                    "application %r: the state listener raised an error (%s -> %s)",
                    self._application_id, before, state, exc_info=True,
                )  # fmt: skip


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


AVAILABLE_NOW, CONTINUOUS = "available_now", "continuous"
ENDS, DRAINED = "ends", "drained"


@dataclass(frozen=True)
class Trigger:
    """A trigger. `text` is as it was given. `interval_ms`: the time from one batch to the next, 0 for back to back.

    `drains`: the run ends when everything is processed that the topics held at its start; with `drains_loops` also
    what the tasks then write to topics from outside that they read. `is_continuous`: tasks poll, process and commit on
    their own.
    """

    text: str
    interval_ms: int = 0
    drains: bool = False
    is_continuous: bool = False
    drains_loops: bool = False

    @classmethod
    def of(cls, text: str, until: str | None = None) -> Trigger:
        """Return the trigger for "available_now", "continuous" or a duration.

        `until`: how far "available_now" goes; "ends" or None, to the ends that topics have at its start, or "drained".
        Raises ConfigError for anything else.
        """
        if until not in (None, ENDS, DRAINED):
            raise ConfigError(f'until {until!r}: expected "ends" or "drained"')
        if text == AVAILABLE_NOW:
            return cls(text, drains=True, drains_loops=until == DRAINED)
        if until is not None:
            raise ConfigError(f'until {until!r}: the trigger {text!r} has no end; it goes with "available_now"')
        if text == CONTINUOUS:
            return cls(text, is_continuous=True)
        try:
            return cls(text, duration_ms(text))
        except ConfigError:
            raise ConfigError(
                f'trigger {text!r}: expected "available_now", "continuous" or a time between batches such as "10s"'
            ) from None
