"""Copies: the tasks' stores that this process can read, and which of their versions may answer a query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock import (
    Application,
    ConfigError,
    Log,
    StoreUnavailableError,
    TopicPartition,
    World,
    version_counter,
)
from penstock.plugins.replicas.saved_tasks import SavedTask, saved_tasks
from penstock.support.names import did_you_mean

from .snapshots import Snapshot

MOST_AGE_SECONDS = 2.0
"""How long ago the log may have had no later version than the one that answers, unless a stale one may."""
_WAIT_SECONDS = 0.005
"""Seconds between two looks at a copy that is about to get a version."""
_LOOK_SECONDS = 10.0
"""Seconds between two looks at the note of the program that ran last."""


@dataclass(frozen=True)
class Bounds:
    """Which committed versions may answer a query. Semantics: Kafka Streams' PositionBound (KIP-796).

    Without bounds a copy answers if the log had no later version within the last two seconds. `stale_ok`: any version
    may answer, however old. `at_least`: only one after whose commit the records before these offsets are processed, of
    the partitions that the task reads; other partitions are passed over. `wait`: seconds to wait for such a version.
    """

    stale_ok: bool = False
    at_least: Mapping[TopicPartition, int] = field(default_factory=dict)
    wait: float = 5.0


@dataclass(frozen=True)
class TaskLag:
    """A task whose stores can be asked. `version`: the number of the version that answers; None: none can now.

    `behind`: how many versions the last commit is ahead.
    """

    task: str
    version: int | None
    behind: int


class Copies(ABC):
    """The stores of an application's tasks, as this process can read them. Any thread calls all methods."""

    def __init__(self, application: Application, log: Log, world: World | None = None) -> None:
        self.application = application
        self.world = world or World()
        self._log = log
        self._tasks: Mapping[str, SavedTask] = {}
        self._looked_at = float("-inf")

    # ------------------------------------------------------------------ tasks

    def tasks(self, subtopology: int, *, afresh: bool = False) -> Sequence[SavedTask]:
        """Return the tasks of a sub-topology that have stores, as the program that ran last noted them; maybe none."""
        now = self.world.seconds()
        if afresh or not self._tasks or now - self._looked_at > _LOOK_SECONDS:
            self._tasks, self._looked_at = saved_tasks(self.application.id, self._log), now
        return [each for name, each in self._tasks.items() if name.startswith(f"{subtopology}_")]

    def task(self, subtopology: int, name: str) -> SavedTask:
        """Return one task. Raises ConfigError for one that is not of the sub-topology."""
        tasks = {each.id: each for each in self.tasks(subtopology)}
        if name not in tasks:
            advice = did_you_mean(name, tasks) or f"it is in: {', '.join(tasks) or 'none that has run'}"
            raise ConfigError(f"task {name!r} of application {self.application.id!r} does not have the store; {advice}")
        return tasks[name]

    # ------------------------------------------------------------------ snapshots

    def snapshot(self, task: SavedTask, store: str, bounds: Bounds) -> Snapshot:
        """Return a store at a version that the bounds allow.

        Raises StoreUnavailableError when `bounds.wait` seconds have brought none, StoreError for a store that cannot be
        read here, and LogError.
        """
        until = self.world.seconds() + bounds.wait
        while True:
            try:
                found = self._open(task, store)
                missing = self._missing(task, found, bounds)
                if missing is None:
                    return found
                found.close()
            except StoreUnavailableError as error:
                missing = str(error)
            if self.world.seconds() >= until:
                raise StoreUnavailableError(
                    f"store {store!r} in task {task.id} of application {self.application.id!r} cannot answer now: "
                    f"{missing}"
                )
            self.world.sleep(_WAIT_SECONDS)
            task = self.task(int(task.id.partition("_")[0]), task.id)

    def _missing(self, task: SavedTask, found: Snapshot, bounds: Bounds) -> str | None:
        """Return what is missing until a snapshot may answer, in words; None if nothing is."""
        wanted = {each: bounds.at_least[each] for each in task.partitions if each in bounds.at_least}
        if wanted and not found.has(wanted) and not self._confirmed(task, found).has(wanted):
            return f"its copy here is not known to have processed the records before {_shown(wanted)}"
        if bounds.stale_ok or self._is_fresh(found) or self._is_fresh(self._confirmed(task, found)):
            return None
        return (
            f"its copy here is at version {found.counter}, and the log has a later one: it is behind, or the task runs "
            "elsewhere; with stale_ok it answers as it is"
        )

    def _is_fresh(self, found: Snapshot) -> bool:
        return found.confirmed_at is not None and self.world.seconds() - found.confirmed_at <= MOST_AGE_SECONDS

    @abstractmethod
    def _open(self, task: SavedTask, store: str) -> Snapshot:
        """Return a store as it is here now. Raises as `snapshot`."""

    @abstractmethod
    def _confirmed(self, task: SavedTask, found: Snapshot) -> Snapshot:
        """Return the snapshot with what the log says of its version now."""

    # ------------------------------------------------------------------ facts

    def has(self, task: SavedTask, store: str) -> bool:
        """Return whether a store of a task is here, at any version; the log is not asked again for it."""
        try:
            self._open(task, store).close()
        except StoreUnavailableError:
            return False
        return True

    def lag(self, task: SavedTask, store: str) -> TaskLag:
        """Return how far the copy of a store is behind the task's last commit."""
        commit = self._log.last_commit(self.application.id, task.id, task.partitions)
        last = -1 if commit is None else version_counter(commit.version)
        try:
            found = self._open(task, store)
        except StoreUnavailableError:
            return TaskLag(task.id, None, last + 1)
        found.close()
        return TaskLag(task.id, found.counter, max(0, last - found.counter))

    @abstractmethod
    def close(self) -> None:
        """Release everything; idempotent."""


def _shown(positions: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}:{offset}" for each, offset in sorted(positions.items()))
