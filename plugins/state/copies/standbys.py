"""Standbys: warm copies of tasks' stores in the local state of this machine, for tasks that are opened here later."""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from penstock import (
    Application,
    Log,
    PenstockError,
    RestoreEvent,
    RestorePhase,
    StaleStoreError,
    StoreLockedError,
    World,
)
from penstock.plugins.engine.program.saved_program import saved_tasks
from penstock.plugins.engine.task.locations import Places

from .last_seen import LastSeen
from .replica import Replica
from .settings import STANDBY_LISTENER

_log = logging.getLogger("penstock.standbys")

_THREADS = 2
"""How many copies are brought on at once, however many there are."""
_TURN_SECONDS = 0.05
"""Seconds between two looks whether a task wants its directory."""
_LOOK_SECONDS = 0.5
"""Seconds from the end of bringing a copy on to its next turn; longer where asking the log takes long."""
_COST_SHARE = 20
_AWAY_SECONDS = 2.0
"""How long a copy is left alone after its task has taken it, or while the task has it."""
_FAILED_SECONDS, _LONGEST_SECONDS = 5.0, 60.0
_TASKS_SECONDS = 10.0
"""Seconds between two looks which tasks the application has."""
_SAYS_AFTER_SECONDS = 10.0
"""Seconds without a portion of a copy's update after which the reason is logged."""

RESTORING, FOLLOWING, TAKEN, FAILED = "restoring", "following", "taken", "failed"


@dataclass(frozen=True)
class StandbyStatus:
    """A task's copy on this machine.

    `state`: "restoring" until it first was at the last commit, then "following"; "taken" while the task has the
    directory; "failed", with `error`, until a try succeeds. `behind`: versions to the last commit when its turn began.
    `current_seconds`: since it was at the last commit. `restored`: entries that were written to it.
    """

    task: str
    state: str
    version: str | None
    behind: int | None
    current_seconds: float | None
    restored: int
    error: str


class Standbys:
    """Keeps copies of all tasks of an application, or of `tasks`, in its local state, until `close`.

    A task that is opened on this machine takes its copy over, and restores what is missing; the copy is taken up again
    after the task has left. `application` gives the id and the settings. A few threads do the work, in portions. Errors
    are logged, and what failed is tried again.
    """

    def __init__(
        self, application: Application, log: Log, tasks: Collection[str] | None = None, *, world: World | None = None
    ) -> None:
        self._application = application
        self._log = log
        self._world = world or World()
        self._wanted = None if tasks is None else frozenset(tasks)
        self._copies: dict[str, _Copy] = {}
        self._running: dict[str, Future[None]] = {}
        self._tasks_at = 0.0
        self._has_looked = self._has_ended = False
        self._threads = self._world.threads(_THREADS, "penstock-standby")
        self._ticker = self._world.ticker("penstock-standbys", _TURN_SECONDS, self._turn)

    def choose(self, tasks: Collection[str]) -> None:
        """Set the tasks to keep copies of; existing copies of others stay unchanged."""
        chosen = frozenset(tasks)
        if self._wanted != chosen:
            self._wanted, self._tasks_at = chosen, 0.0

    def status(self) -> list[StandbyStatus]:
        """Return the state of each copy, by task."""
        return [each.status() for _, each in sorted(self._copies.items())]

    @property
    def are_current(self) -> bool:
        """Whether every copy has been at its task's last commit, or is the task's now."""
        return self._has_looked and all(copy.state in (FOLLOWING, TAKEN) for copy in list(self._copies.values()))

    def close(self) -> None:
        """End, and leave the copies to the tasks, after the portions that have begun. Idempotent.

        A copy may wait for a transaction that only the opening of its task ends: who opens tasks here must not wait for
        this.
        """
        self._has_ended = True
        self._ticker.close()
        for each in self._copies.values():
            each.ends = True
        self._running = {task: each for task, each in self._running.items() if not each.cancel()}
        for task, copy in self._copies.items():
            if task not in self._running:
                copy.leave()
        self._world.wait(list(self._running.values()))
        self._threads.shutdown()
        for copy in self._copies.values():
            copy.leave()

    # ------------------------------------------------------------------ a thread of its own

    def _turn(self) -> None:
        now = self._world.seconds()
        if now >= self._tasks_at:
            self._tasks_at = now + _TASKS_SECONDS
            self._find_tasks()
        for task, running in list(self._running.items()):
            if running.done():
                del self._running[task]
        for task, copy in list(self._copies.items()):
            if task in self._running or self._has_ended:
                copy.say_slow(now)
                continue
            if copy.ends:
                copy.leave()
                del self._copies[task]
            elif copy.is_wanted():
                copy.take_away()
            elif now >= copy.due:
                self._running[task] = self._threads.submit(copy.bring_on)

    def _find_tasks(self) -> None:
        wanted = self._wanted
        try:
            saved = saved_tasks(self._application.id, self._log)
        except PenstockError as error:
            _log.warning("application %r: its tasks cannot be read now: %s", self._application.id, error)
            return
        found = {
            name
            for name, task in saved.items()
            if (wanted is None or name in wanted) and any(kept.logged for kept in task.layouts.now.values())
        }
        places = Places.of(self._application)
        for task in found - self._copies.keys():
            self._copies[task] = _Copy(self._application, task, self._log, places.task(task), self._world)
        for task in self._copies.keys() - found:
            self._copies[task].ends = True
        self._has_looked = True


class _Copy:
    """The copy of one task. One thread at a time calls the methods, but for `status`."""

    def __init__(self, application: Application, task: str, log: Log, directory: Path, world: World) -> None:
        self._application = application
        self._task = task
        self._log = log
        self._directory = directory
        self._world = world
        self._replica: Replica | None = None
        self._last_seen = LastSeen(world)
        self._restored = self._before = 0
        self._version: str | None = None
        self._behind: int | None = None
        self._current_at: float | None = None
        self._error = ""
        self._failures = 0
        self._moved: tuple[int, float] | None = None
        """The steps of the replica, and since when it has made no more; None unless it is brought on now."""
        self._has_said_slow = False
        self.state = RESTORING
        self.due = 0.0
        self.ends = False

    def status(self) -> StandbyStatus:
        seconds = None if self._current_at is None else self._world.seconds() - self._current_at
        return StandbyStatus(
            self._task, self.state, self._version, self._behind, seconds, self._restored, self._error
        )  # fmt: skip

    def is_wanted(self) -> bool:
        return self._replica is not None and self._replica.is_wanted()

    def bring_on(self) -> None:
        """Bring the copy to the task's last commit, unless the task wants it, or has it."""
        began = self._world.seconds()
        self._moved, self._has_said_slow = (self._steps(), began), False
        try:
            if self.ends:
                return
            if self._replica is None:
                self._replica = Replica(
                    self._application, self._task, self._log, self._directory, world=self._world, lock_seconds=0,
                    last_seen=self._last_seen,
                )  # fmt: skip
                self.state, self._before = RESTORING, self._restored
                self._tell(RestorePhase.START)
            is_current = self._follow(self._replica)
        except StoreLockedError:
            self.take_away()
        except StaleStoreError:
            self.leave() if self.ends else self.take_away()
        except Exception as error:
            self._fail(error)
        else:
            self._error, self._failures = "", 0
            if not is_current:
                return  # the task commits faster than it can be read: others have their turn first
            self.state, self._behind = FOLLOWING, 0
            now = self._current_at = self._world.seconds()
            self.due = now + max(_LOOK_SECONDS, _COST_SHARE * (now - began))
        finally:
            self._moved = None

    def _follow(self, replica: Replica) -> bool:
        """Return whether the copy is at the task's last commit. Raises StaleStoreError if it should end."""
        self._behind = replica.behind()
        if self._is_to_end(replica):
            raise StaleStoreError("the task wants its directory")
        is_current = replica.catch_up(lambda: self._note(replica))
        self._note(replica)
        return is_current

    def _note(self, replica: Replica) -> None:
        before, self._restored = self._restored, self._before + replica.restored
        self._version = replica.version
        if self._restored > before:
            self._tell(RestorePhase.BATCH)
        if self._is_to_end(replica):
            replica.opening.end()

    def _is_to_end(self, replica: Replica) -> bool:
        return self.ends or replica.is_wanted()

    def _steps(self) -> int:
        return 0 if self._replica is None else self._replica.opening.steps

    def say_slow(self, now: float) -> None:
        """Log once the reason of a copy's wait, while it is updated and no portion arrives; any thread may call it."""
        moved = self._moved
        if moved is None:
            return
        steps, since = moved
        if (found := self._steps()) != steps:
            self._moved = found, now
        elif now - since >= _SAYS_AFTER_SECONDS and not self._has_said_slow:
            self._has_said_slow = True
            _log.warning(
                "standby of task %s: nothing for %.0f s: the log does not answer, or the task has a transaction that "
                "its driver left open, as where that was killed: it ends when the task is opened, or after "
                "transaction.timeout.ms",
                self._task, now - since,
            )  # fmt: skip

    def take_away(self) -> None:
        """Leave the directory to its task."""
        if self.state != TAKEN:
            _log.info("standby of task %s: the task has its local state on this machine now", self._task)
        self.leave("the task has taken it")
        self.state, self._error = TAKEN, ""
        self.due = self._world.seconds() + _AWAY_SECONDS

    def leave(self, reason: str = "the standby was closed") -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.close()
            self._tell(RestorePhase.SUSPENDED, reason)

    def _tell(self, phase: RestorePhase, reason: str = "") -> None:
        listener = STANDBY_LISTENER.of(self._application.settings)
        if listener is None:
            return
        stores = () if self._replica is None else tuple(sorted(self._replica.layout))
        try:
            listener(RestoreEvent(phase, self._task, stores, self._version or "", self._restored, reason=reason))
        except Exception:
            _log.exception("standby of task %s: its listener failed", self._task)

    def _fail(self, error: Exception) -> None:
        self.leave(f"{type(error).__name__}: {error}")
        if str(error) != self._error:
            trace = None if isinstance(error, PenstockError) else error
            _log.warning("standby of task %s: %s", self._task, error, exc_info=trace)
        self.state, self._error, self._failures = FAILED, str(error), self._failures + 1
        pause = min(_LONGEST_SECONDS, _FAILED_SECONDS * self._failures)
        self.due = self._world.seconds() + pause
