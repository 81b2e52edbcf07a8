"""Ahead: asks the log in threads for what queries will need soon, so that none of them waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress

from penstock import World

_THREADS = 4

_log = logging.getLogger("penstock.queries")


class Ahead:
    """Calls functions in threads of its own, one call at a time of each name. Any thread calls all methods.

    A busy log takes a part of a second to answer. The connections of all clients would soon stand behind the queries
    that wait for it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self._threads: Executor | None = None
        self._has_closed = False
        self.running: set[str] = set()
        """The names of the calls that have begun."""

    def start(self, name: str, call: Callable[[], object]) -> None:
        """Begin a call, unless one of its name runs. What it raises is logged: a query that needs it calls again."""
        with self._lock:
            if self._has_closed or name in self.running:
                return
            self.running.add(name)
            if self._threads is None:
                self._threads = self._world.threads(_THREADS, "penstock-ahead")
            with suppress(RuntimeError):  # the interpreter ends
                self._threads.submit(self._run, name, call)

    def _run(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            _log.debug("what queries need next is not known: %s", name, exc_info=True)
        finally:
            self.running.discard(name)

    def close(self) -> None:
        """Begin no more calls, and wait for those that run; idempotent."""
        with self._lock:
            self._has_closed = True
        if self._threads is not None:
            self._threads.shutdown()
