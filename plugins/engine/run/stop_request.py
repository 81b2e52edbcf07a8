"""StopRequest: whether a run should end, because of a signal or the caller's event."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_TURN_SECONDS = 0.05


class StopRequest:
    """The reason why the run should end: a signal, or the caller's event."""

    def __init__(self, event: threading.Event | None) -> None:
        self._event = event
        self._signalled = threading.Event()
        self._signal: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    @classmethod
    @contextmanager
    def listening(cls, event: threading.Event | None) -> Iterator[StopRequest]:
        """Handle SIGTERM and SIGINT while the block runs; a second one of either has its usual effect."""
        request = cls(event)
        if threading.current_thread() is not threading.main_thread():
            yield request
            return
        before = {number: signal.signal(number, request._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        request._before = before
        try:
            yield request
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            handler = self._before[signal.Signals(number)]
            signal.signal(number, handler)
            if callable(handler):
                handler(number, frame)
            return
        self._signal = signal.Signals(number).name
        self._signalled.set()

    def ask(self, name: str) -> None:
        """Take note of a signal that another process got; any thread may call it."""
        if self._signal is None:
            self._signal = name
            self._signalled.set()

    @property
    def reason(self) -> str | None:
        """The signal's name, "stop" for the caller's event, or None."""
        if self._signal is not None:
            return self._signal
        return "stop" if self._event is not None and self._event.is_set() else None

    def wait(self, seconds: float) -> None:
        """Wait, at most until there is a reason; when there is one already, for a moment."""
        if self.reason is not None:
            seconds = 0.001
        if self._event is None:
            self._signalled.wait(seconds)
            return
        # A signal does not end a wait for the caller's event, and this must not set that: look at both in turns.
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not (
            self._event.wait(min(left, _TURN_SECONDS)) or self._signalled.is_set()
        ):
            pass
