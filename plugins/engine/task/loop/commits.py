"""Commits of a loop's tasks. The loop's thread takes each out of its task, and another thread writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

from penstock import World

from .continuous_worker import ContinuousWorker
from .upkeeps import Upkeeps


class Commits:
    """Begins and ends commits; between the two, their tasks rest. The loop's thread calls all methods.

    `threads` write them. `working` is called with the task whose processors and stores are
    used, and "" after that. `fail` gets a task's name and the error that its commit raised. After a commit a step of
    `upkeeps` may begin.
    """

    def __init__(
        self,
        tasks: Mapping[str, ContinuousWorker],
        threads: Executor,
        world: World,
        upkeeps: Upkeeps,
        working: Callable[[str], None],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self._tasks = tasks
        self._threads = threads
        self._world = world
        self._upkeeps = upkeeps
        self._working = working
        self._fail = fail
        self._writing: dict[str, Future[None]] = {}
        self._late_errors: dict[str, BaseException] = {}

    def __bool__(self) -> bool:
        return bool(self._writing)

    def begin_due(self, now: float, *, but: str | None = None) -> None:
        """Begin the commits that are due. `but`: before this task may take long, also those of all others."""
        for name, task in self._tasks.items():
            if task.commit_due() <= now or (but is not None and name != but and task.has_uncommitted):
                self.begin(name)

    def rest(self, seconds: float) -> int:
        """Begin the commits of all tasks that have processed something, and wait for them, or so long; return 0."""
        for name, task in self._tasks.items():
            if task.has_uncommitted:
                self.begin(name)
        if self._writing:
            self._world.wait(self._writing.values(), seconds)
        else:
            self._world.sleep(seconds)
        return 0

    def begin(self, name: str) -> None:
        """Begin a task's commit, if it has anything to commit."""
        self._working(name)
        try:
            pending = self._tasks[name].begin_commit()
        except BaseException as error:
            self._fail(name, error)
            return
        finally:
            self._working("")
        if pending is not None:
            self._writing[name] = self._threads.submit(pending.write)

    def end_written(self, *, patiently: bool = False) -> None:
        """End the commits that are written; `patiently`: wait for all, and begin nothing that takes long after them."""
        if patiently:
            self._world.wait(self._writing.values())
        for name, written in list(self._writing.items()):
            if written.done():
                error = written.exception()
                del self._writing[name]
                self._end(name, self._late_errors.pop(name, error), may_take_long=not patiently)

    def _end(self, name: str, error: BaseException | None, may_take_long: bool) -> None:
        try:
            if error is not None:
                raise error
            self._tasks[name].end_commit()
            if may_take_long:
                self._upkeeps.begin_step(name, self._tasks[name])
        except BaseException as raised:
            self._fail(name, raised)

    def fail_later(self, name: str, error: BaseException) -> bool:
        """Let a task fail once its commit is written; return False if none is being written."""
        # The committer cannot be closed in the middle; what came of it is read from the log.
        if name in self._writing:
            self._late_errors.setdefault(name, error)
        return name in self._writing

    def close(self, seconds: float) -> dict[str, Future[None]]:
        """Drop what no thread has begun, wait for the rest, and return what takes longer than `seconds`."""
        begun = {name: written for name, written in self._writing.items() if not written.cancel()}
        self._writing.clear()
        self._world.wait(begun.values(), seconds)
        return {name: written for name, written in begun.items() if not written.done()}
