"""WorkerProcess: what one of Spark's Python workers keeps open between batches, in a thread of its own."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from penstock.plugins.runtime.process_resources import ProcessResources

IDLE_SECONDS = 30.0
"""Seconds that an unused task stays open. Less than the minute after which Spark ends an idle worker."""

_log = logging.getLogger("penstock.spark")


class Closeable(Protocol):
    """A task."""

    def close(self) -> None:
        """Close it."""


Result = TypeVar("Result")
Name = TypeVar("Name", bound=Hashable)
OpenTask = TypeVar("OpenTask", bound=Closeable)


class OpenProgram(ABC, Generic[Name, OpenTask]):
    """What one program has open in this process: shared resources, and the tasks used lately."""

    def __init__(self) -> None:
        self.resources = ProcessResources()
        self._tasks: dict[Name, OpenTask] = {}
        self._last_used: dict[Name, float] = {}

    @abstractmethod
    def open_task(self, name: Name) -> OpenTask:
        """Make a task."""

    def task(self, name: Name) -> OpenTask:
        """Return a task, made if it is not open."""
        found = self._tasks.get(name)
        if found is None:
            found = self._tasks[name] = self.open_task(name)
        self._last_used[name] = time.monotonic()
        return found

    def close_idle(self) -> None:
        """Close tasks that have not run here for a while: they have moved, or have no records."""
        limit = time.monotonic() - IDLE_SECONDS
        for name, used in list(self._last_used.items()):
            if used < limit:
                del self._last_used[name]
                self._tasks.pop(name).close()

    def close(self) -> None:
        """Close everything."""
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()
        self._last_used.clear()
        self.resources.close()


Program = TypeVar("Program", bound=OpenProgram[Any, Any])


class WorkerProcess(Generic[Name, Program]):
    """Runs calls in one thread, to which Spark's own thread passes each batch.

    Processors and stores are only called from one thread, and tasks can also be closed between batches. Only that
    thread uses `programs`.
    """

    def __init__(self) -> None:
        self.programs: dict[Name, Program] = {}
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="penstock-tasks", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Run `call` in the thread."""
        future: Future[Result] = Future()
        self._calls.put((future, call))
        return future

    def _serve(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=IDLE_SECONDS / 3)
            except Empty:
                self._close_idle()
                continue
            if call is None:
                return
            future, function = call
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    def _close_idle(self) -> None:
        for opened in self.programs.values():
            try:
                opened.close_idle()
            except Exception as error:
                _log.warning("closing an idle task raised %s: %s", type(error).__name__, error)

    def _end(self) -> None:
        def close_all() -> None:
            for opened in self.programs.values():
                opened.close()

        self.submit(close_all)
        self._calls.put(None)
        self._thread.join(10)
