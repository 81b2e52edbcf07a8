"""Lifecycle: the state of one run, and its listener."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from penstock import StateChange

STARTING, REBALANCING, RUNNING = "starting", "rebalancing", "running"
STOPPING, STOPPED, FAILED = "stopping", "stopped", "failed"
STATES = STARTING, REBALANCING, RUNNING, STOPPING, STOPPED, FAILED
_AFTER = {STOPPING: {STOPPED, FAILED}, STOPPED: frozenset[str](), FAILED: frozenset[str]()}
"""The states that may follow a state; after one that is not named, any."""

_log = logging.getLogger("penstock.runs")


class Lifecycle:
    """The state of one run. Any thread may call all methods.

    Kafka Streams: `KafkaStreams.State`; docs/running.md has its names.
    """

    def __init__(self) -> None:
        self.state = STARTING
        self.paused: frozenset[int] = frozenset()
        """The sub-topologies that the run processes no records of."""
        self.looks_at_pauses = threading.Event()
        """Set: the run reads the note about pauses at its next turn."""
        self._application_id = ""
        self._listener: Callable[[StateChange], Any] | None = None
        self._changing = threading.RLock()

    def listen(self, application_id: str, listener: Callable[[StateChange], Any] | None) -> None:
        """Call `listener` with each change from now on, in the thread that makes it; its errors are logged."""
        self._application_id, self._listener = application_id, listener

    def enter(self, state: str) -> None:
        """Change the state; a run that ends does not go back to work, and one that has ended stays as it is."""
        with self._changing:
            before = self.state
            if state == before or state not in _AFTER.get(before, {state}):
                return
            self.state = state
            if self._listener is None:
                return
            try:
                self._listener(StateChange(self._application_id, before, state))
            except Exception:
                _log.warning(
                    "application %r: the state listener raised an error (%s -> %s)",
                    self._application_id, before, state, exc_info=True,
                )  # fmt: skip
