"""Upkeeps: the threads that keep the changelogs of a loop's tasks short."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from penstock import World

from .continuous_worker import ContinuousWorker
from .upkeep import Upkeep, Upkept

_MOST = 2
"""How many changelogs are worked on at once."""
_LAST_SECONDS = 5.0


class Upkeeps:
    """Runs steps of upkeep, one at a time for each task, in threads of its own: commits must not wait for snapshots.

    The loop's thread calls all methods. `fail` gets a task's name and the error that its step raised.
    """

    def __init__(self, world: World, fail: Callable[[str, BaseException], None]) -> None:
        self._fail = fail
        self._wait = world.wait
        self._threads = world.threads(_MOST, "penstock-upkeep")
        self._steps: dict[str, tuple[ContinuousWorker, Upkeep | None, Future[Upkept]]] = {}

    @property
    def are_running(self) -> bool:
        """Whether there is a step that has not been ended."""
        return bool(self._steps)

    def begin_step(self, name: str, task: ContinuousWorker) -> None:
        """Begin a task's next step, if there is one and a thread is free. Raises as `Upkeep.next_step`."""
        # None waits for a thread: its stores would be as of an earlier time than necessary.
        if name not in self._steps and len(self._steps) < _MOST:
            step = task.next_upkeep()
            if step is not None:
                self._steps[name] = task, task.upkeep, self._threads.submit(step)

    def end_steps(self) -> None:
        """Take the results of steps that have ended."""
        for name, (task, upkeep, step) in list(self._steps.items()):
            if step.done() and not task.is_committing:
                del self._steps[name]
                if task.upkeep is not upkeep:
                    continue  # the task was closed since: an error of the step says nothing of the task now
                try:
                    task.end_upkeep(step.result())
                    self.begin_step(name, task)
                except BaseException as error:
                    self._fail(name, error)

    def close(self) -> None:
        """Wait some seconds for steps, which end when their tasks are closed."""
        self._threads.shutdown(wait=False)
        self._wait([step for *_, step in self._steps.values()], _LAST_SECONDS)
