"""GlobalUpdates: keeps the global stores of a loop up to date: filled in another thread, then read on in portions."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from math import inf

from penstock import Application, Log
from penstock.task.failures import RetryRequested

from ..process_resources import ProcessResources

_SECONDS = 0.1
"""Between two looks at the topics."""
_PORTION_SECONDS = 0.05
"""How long the loop's thread reads on at a time."""


class GlobalUpdates:
    """The global stores of an application. The loop's thread calls all methods; any thread may call `still`.

    Stores belong to one thread: once tasks are open that may read them, that is the loop's.
    """

    def __init__(
        self,
        application: Application,
        log: Log,
        resources: ProcessResources,
        threads: Executor,
    ) -> None:
        self._application = application
        self._log = log
        self._resources = resources
        self._threads = threads
        self._seconds = resources.world.seconds
        self._at = 0.0 if application.program.global_stores else inf
        self._filling: Future[bool] | None = None
        self._steps, self._moved_at = -1, 0.0
        self.are_filled = not application.program.global_stores
        """Whether tasks may be opened, and work."""

    @property
    def are_filling(self) -> bool:
        """Whether another thread is at work."""
        return self._filling is not None

    def update(self, clock_ms: int, *, are_used: bool, all_of_it: bool = False) -> None:
        """Read on if it is time to: in another thread, unless they `are_used` by open tasks.

        `all_of_it`: up to the present ends, however long that takes.
        """
        try:
            if self._filling is not None:
                self._end_filling()
            elif self._at < inf and (all_of_it or self._seconds() >= self._at):
                self._update(clock_ms, are_used, all_of_it)
        except RetryRequested as retry:
            self.are_filled, self._at = False, self._seconds() + retry.delay_ms / 1000

    def begin_anew(self) -> None:
        """Fill them again, after a StaleStoreError of `update`. No task may be open."""
        self._resources.close_globals(self._application)
        self.are_filled, self._at = False, self._seconds() + _SECONDS

    def _update(self, clock_ms: int, are_used: bool, all_of_it: bool) -> None:
        if not self.are_filled and not are_used:
            self._resources.filling.begin()
            self._steps, self._moved_at = self._resources.filling.steps, self._seconds()
            self._filling = self._threads.submit(
                lambda: self._resources.globals_of(self._application).update(self._log, {}, clock_ms)
            )
            return
        until = self._seconds() + (inf if all_of_it else _PORTION_SECONDS)
        stores = self._resources.globals_of(self._application)
        stores.update(self._log, {}, clock_ms, is_over=lambda: self._seconds() >= until)
        # Those that were filled once are read on while tasks work, as by Kafka Streams' thread of global stores.
        self.are_filled, self._at = True, self._seconds() + _SECONDS

    def _end_filling(self) -> None:
        filling = self._filling
        if filling is not None and filling.done():
            self._filling = None
            filling.result()
            self.are_filled, self._at = True, self._seconds() + _SECONDS

    def still(self) -> tuple[float, str]:
        """Return for how long the filling has read no record, and what it is; 0.0 if nothing is filled."""
        now, steps = self._seconds(), self._resources.filling.steps
        if self._filling is None or steps != self._steps:
            self._steps, self._moved_at = steps, now
        return now - self._moved_at, "the filling of the global stores"

    def close(self, seconds: float) -> None:
        """End the filling as soon as it can be ended, and wait for that, at most so long."""
        if self._filling is not None and not self._filling.cancel():
            self._resources.filling.end()
            self._resources.world.wait([self._filling], seconds)
