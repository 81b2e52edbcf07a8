"""StoreReading: one store of an application, read by the verb `state`, from a log or from a query's checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Any

from penstock import ConfigError, StoreError

from .options import check_batch, find_checkpoint, open_application
from .output import note

if TYPE_CHECKING:
    from penstock import Application, Commit, Log
    from penstock.plugins.engine.program.saved_tasks import SavedTask
    from penstock.plugins.spark.dataframe.checkpoint_state import Checkpoint
    from penstock.plugins.state.copies.arrow_columns import ArrowColumns
    from penstock.plugins.state.copies.replica import Replica


@contextmanager
def reading_store(
    application: Application, store: str, checkpoint: str | None, batch: int | None
) -> Iterator[StoreReading]:
    """Return a store to be read in the block: on the application's log, or as of a batch of a checkpoint."""
    check_batch(checkpoint, batch)
    if checkpoint is None:
        with open_application(application) as (application, log):
            yield _OnLog(application, log, store)
    else:
        yield _InCheckpoint(application, find_checkpoint(checkpoint, batch), store)


class StoreReading(ABC):
    """One store of an application. `count`: number of tasks of its sub-topology."""

    def __init__(self, application: Application, store: str, tasks: Collection[str], count: int) -> None:
        from penstock.plugins.state.copies.contents import StoreText, declared_store

        self._application = application
        self._number, self._store = declared_store(application, store)
        self.text = StoreText(application, self._store)
        """The text form of its entries."""
        self._tasks = tasks
        self._count = count

    def key(self, text: str) -> Any:
        """Return the key that a text means. Raises ConfigError."""
        return self.text.key_of_text(text)

    def check_times(self, first: int, last: int) -> None:
        """Raise ConfigError for limits of time that the entries of the store do not have."""
        from penstock.plugins.state.copies.contents import KINDS_OF_TIMES, LATEST

        kind = getattr(self._store, "kind", "key_value")
        if (first, last) != (0, LATEST) and kind not in KINDS_OF_TIMES:
            raise ConfigError(
                f"--from, --to: store {self._store.name!r} is of the kind {kind!r}, whose entries have no times"
            )

    def tasks(self, task: str | None) -> list[str]:
        """Return all tasks with the store, or the one. Raises ConfigError for one that has not got it."""
        if task is not None and task not in self._tasks:
            raise ConfigError(f"--task {task}: store {self._store.name!r} is in the tasks {', '.join(self._tasks)}")
        return [task] if task is not None else list(self._tasks)

    def tasks_of(self, key: Any) -> list[str]:
        """Return the tasks that read records with a key. Raises ConfigError, with the options that help."""
        from penstock.plugins.state.copies.keys import KeyTasks

        try:
            return KeyTasks(self._application, self._number).may_have(key, self._count)
        except ConfigError as error:
            raise ConfigError(f"{error}: name it with --task, or add --all-tasks") from error

    def arrow_columns(self) -> ArrowColumns:
        """Return how the entries of the store are columns. Raises ConfigError for one that has none."""
        from penstock.plugins.state.copies.arrow_columns import ArrowColumns

        return ArrowColumns(self._application, self._store)

    @abstractmethod
    def commits(self, tasks: Sequence[str]) -> Mapping[str, Any]:
        """Return the last commits of tasks, looked at one right after the other. Raises StoreError if one has none."""

    @abstractmethod
    def open(self, task: str, commit: Any = None) -> AbstractContextManager[tuple[Any, str]]:
        """Bring a copy of the store to one of `commits`, or the task's last one; return the store and its version."""


class _OnLog(StoreReading):
    """Reads replicas of the tasks, which stay under `state_dir`."""

    def __init__(self, application: Application, log: Log, store: str) -> None:
        from penstock.plugins.engine.program.saved_tasks import saved_tasks
        from penstock.plugins.state.copies.contents import declared_store

        self._log = log
        number, _ = declared_store(application, store)
        self._saved: Mapping[str, SavedTask] = {
            name: each for name, each in saved_tasks(application.id, log).items() if name.startswith(f"{number}_")
        }
        if not self._saved:
            raise ConfigError(
                f"application {application.id!r} has saved no store {store!r} in the log {application.settings.shown('log')}: it "
                "has not run there since its last reset; check --log and --data-dir"
            )
        super().__init__(application, store, self._saved, len(self._saved))

    def commits(self, tasks: Sequence[str]) -> Mapping[str, Commit]:
        found = {
            task: self._log.last_commit(self._application.id, task, self._saved[task].partitions) for task in tasks
        }
        for task, commit in found.items():
            if commit is None:
                raise self._no_commit(task)
        return {task: commit for task, commit in found.items() if commit is not None}

    @contextmanager
    def open(self, task: str, commit: Commit | None = None) -> Iterator[tuple[Any, str]]:
        """Bring a replica there: to a later commit if the changelog does not lead to this one any more."""
        from penstock.plugins.state.copies.contents import open_store
        from penstock.plugins.state.copies.local_copies import replica_directory
        from penstock.plugins.state.copies.replica import Replica

        directory = replica_directory(self._application, task, self._store.name)
        with Replica(self._application, task, self._log, directory, stores=[self._store.name]) as replica:
            if commit is not None and replica.bring_to(commit):
                version = commit.version
            else:
                version = self._caught_up(replica)
            with closing(open_store(self._application, replica, self._store)) as opened:
                yield opened, version

    def _caught_up(self, replica: Replica) -> str:
        for _ in iter(lambda: replica.catch_up(), True):
            note(f"task {replica.task} commits faster than its records can be read; trying again")
        if replica.version is None:
            raise self._no_commit(replica.task)
        return replica.version

    def _no_commit(self, task: str) -> StoreError:
        return StoreError(
            f"task {task} of application {self._application.id!r} has no commit in the log "
            f"{self._application.settings.shown('log')}: it has not run yet"
        )


class _InCheckpoint(StoreReading):
    """Restores the state of the tasks from the changelog, into temporary directories."""

    def __init__(self, application: Application, found: Checkpoint, store: str) -> None:
        self._place, self._query = found.place, found.query
        self._commits = found.commits_of(application, store)
        super().__init__(application, store, self._commits, found.partitions)

    def commits(self, tasks: Sequence[str]) -> Mapping[str, Any]:
        return {task: self._commits[task] for task in tasks}

    @contextmanager
    def open(self, task: str, commit: Any = None) -> Iterator[tuple[Any, str]]:
        from penstock.plugins.engine.task.temporary import TemporaryDirectory
        from penstock.plugins.spark.dataframe.checkpoint_state import open_at

        found = self._commits.get(task)
        if found is None:
            raise StoreError(f"task {task} has no commit in checkpoint {self._place}: it has had no row yet")
        with (
            TemporaryDirectory("state") as directory,
            open_at(self._application, self._store.name, task, self._query, found, directory / "task") as opened,
        ):
            yield opened, found.version
