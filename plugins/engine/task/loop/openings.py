"""Openings: prepares tasks in other threads: their fences and last commits, and then their local state."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from penstock import Commit, World

from ..local_state.restoring import RestoreProgress
from ..local_state.stretch import Stretch
from .continuous_worker import ContinuousWorker
from .pools import Pools

_MOST = 2
"""How many tasks are restored at once: each takes processor time from the tasks that work."""


class Turnstile:
    """Lets a few threads work at once; the others wait, and those that waited longest come first."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Wait for a place."""
        place = threading.Event()
        with self._lock:
            if self._free and not self._waiting:
                self._free -= 1
                return
            self._waiting.append(place)
        place.wait()

    def leave(self) -> None:
        """Give the place to the thread that waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1

    def let_others_in(self) -> None:
        """Let the threads that wait have their turn, if any do."""
        if self._waiting:
            self.leave()
            self.enter()


@dataclass
class _Opening:
    """A task that is being prepared. `steps` are those of its restoring when they last grew, at `moved_at`.

    `is_renewal`: the task only repeats its commit, and stays closed.
    """

    task: ContinuousWorker
    future: Future[None]
    steps: int = -1
    moved_at: float = 0.0
    is_renewal: bool = False


class Openings:
    """Prepares tasks. The loop's thread calls all methods; any thread may call `still` and `restoring`.

    Fences wait for the log, many at once. Restoring works: a few tasks at once, in turns, a portion each, so that a
    task with little to restore does not wait for one with much.
    """

    def __init__(self, pools: Pools, world: World) -> None:
        self._pools = pools
        self._world = world
        self._turnstile = Turnstile(_MOST)
        self._all: dict[str, _Opening] = {}
        self._restoring: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def begin(self, name: str, task: ContinuousWorker, clock_ms: int, known: Mapping[str, Commit]) -> None:
        """Begin to prepare a task."""
        future = self._pools.fences.submit(task.prepare, clock_ms, known.get(name))
        self._all[name] = _Opening(task, future)

    def renew(self, name: str, task: ContinuousWorker, clock_ms: int, known: Mapping[str, Commit]) -> None:
        """Begin to repeat the commit of a task that waits before a retry, unless that has begun."""
        if name not in self._all:
            future = self._pools.fences.submit(task.renew, clock_ms, known.get(name))
            self._all[name] = _Opening(task, future, is_renewal=True)

    def take_ended(self) -> Iterator[tuple[str, BaseException | None]]:
        """Yield tasks that are prepared, with the error if that failed. The caller may stop after any of them."""
        for name, opening in list(self._all.items()):
            if not opening.future.done():
                continue
            error = opening.future.exception()
            if error is None and opening.is_renewal:
                del self._all[name]
                continue
            if error is None and name not in self._restoring:
                self._restoring.add(name)
                opening.future = self._pools.restores.submit(self._restore, opening.task)
                if not opening.future.done():
                    continue
                error = opening.future.exception()
            del self._all[name]
            self._restoring.discard(name)
            yield name, error

    def _restore(self, task: ContinuousWorker) -> None:
        stretch = task.opening
        assert stretch is not None
        with stretch.waiting():
            self._turnstile.enter()
        try:
            task.restore(self._turnstile.let_others_in)
        finally:
            self._turnstile.leave()

    def restoring(self) -> dict[str, RestoreProgress]:
        """Return how far the restoring of each task is. Any thread may call it."""
        found = {name: opening.task.restoring for name, opening in list(self._all.items())}
        return {name: progress for name, progress in found.items() if progress is not None}

    def still(self) -> tuple[float, str]:
        """Return for how long the restoring of a task has made no step, and of which; 0.0 if none is restored.

        Waiting for the log is not restoring; it ends by itself, with an error.
        """
        now, longest = self._world.seconds(), (0.0, "")
        for name, opening in list(self._all.items()):
            stretch: Stretch | None = opening.task.opening
            if name not in self._restoring or stretch is None or stretch.is_waiting:
                opening.steps = -1
            elif opening.steps != stretch.steps:
                opening.steps, opening.moved_at = stretch.steps, now
            else:
                longest = max(longest, (now - opening.moved_at, f"the restoring of task {name}"))
        return longest

    def close(self, seconds: float) -> dict[str, Future[None]]:
        """Drop what no thread has begun, end the rest, and return what takes longer than `seconds` to end."""
        begun = {name: each for name, each in self._all.items() if not each.future.cancel()}
        self._all.clear()
        for each in begun.values():
            if each.task.opening is not None:
                each.task.opening.end()
        self._world.wait([each.future for each in begun.values()], seconds)
        return {name: each.future for name, each in begun.items() if not each.future.done()}
