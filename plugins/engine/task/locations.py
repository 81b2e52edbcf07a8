"""Opens the log, the changelog and the directories that settings name, and reads a partition of a log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import (
    Application,
    Changelog,
    ConfigError,
    DeltaChangelog,
    Log,
    LogError,
    LogFactory,
    OffsetOutOfRangeError,
    PenstockError,
    PluginError,
    RecordBatch,
    Settings,
    StoreError,
    TakesPath,
    TaskChangelog,
    TopicPartition,
    World,
    duration_ms,
)
from penstock.hooks import registry
from penstock.settings.secret import ClientSettings
from penstock.store.kept_store import Layout
from penstock.support.system_errors import what_to_do
from penstock.support.urls import url_scheme, with_small_scheme

GLOBAL = "global"
"""The name of the directory with the copies of global stores, and of their pseudo-task."""
_ELSEWHERE = "set `state_dir` to another directory"


def user_cache() -> Path:
    """Return the directory of all applications of this user: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "penstock"


def open_log(settings: Settings, *, sends_at_once: bool = False) -> Log:
    """Return the log that `settings.log` names.

    `sends_at_once`: records that are readable before a commit do not wait for more records, unless `clients` sets a
    time. Raises PluginError when the log is not installed, LogError when it cannot be opened.
    """
    name, _, location = settings.log.partition(":")
    factory: LogFactory = registry().load("log", name)
    if isinstance(factory, TakesPath) and factory.location_is_path:
        location = resolve(settings, location)
    try:
        return factory(location, log_settings(settings, sends_at_once=sends_at_once))
    except Exception as error:
        shown = ClientSettings(settings.clients).scrub(str(error))
        if shown == str(error):
            raise
        kind = type(error) if isinstance(error, PenstockError) else LogError
        raise kind(shown) from None  # what caused it would show the secret, too


def log_settings(settings: Settings, *, sends_at_once: bool = False) -> dict[str, str]:
    """Return the options of a log besides its location: all of `clients`, and our settings by their names in Kafka."""
    own = {"sends.at.once": "true"} if sends_at_once else {}
    return {
        **settings.clients,
        **own,
        "processing.guarantee": settings.processing_guarantee,
        "task.timeout.ms": str(duration_ms(settings.task_timeout)),
        "replication.factor": str(settings.replication_factor),
    }


def open_changelog(settings: Settings, application_id: str, task_id: str, log: Log, layout: Layout) -> TaskChangelog:
    """Return the changelog of a task with the stores of `layout`: in `log`, or in a place of its own."""
    in_log = settings.log_changelog
    if in_log is None:
        return open_deltas(settings, application_id, task_id)
    stores = {name: kept for name, kept in layout.items() if kept.logged}
    return in_log(settings.changelog.partition(":")[2], application_id, task_id, log=log, stores=stores)


def open_deltas(settings: Settings, application_id: str, task_id: str, world: World | None = None) -> DeltaChangelog:
    """Return the changelog of a task, in the place of its own that `settings.changelog` names.

    `world`: its time, threads and files; None: the machine's. Raises ConfigError for one that is kept in the log,
    PluginError for one of neither type.
    """
    if settings.log_changelog is not None:
        raise ConfigError(
            f"setting 'changelog': {settings.shown('changelog')!r} keeps the state's history in the log, and there is "
            "none here: use `directory:PATH-OR-URL`"
        )
    name, _, location = settings.changelog.partition(":")
    factory: Changelog = registry().load("changelog", name)
    changelog = factory(resolve(settings, location), application_id, task_id)
    if not isinstance(changelog, DeltaChangelog):
        raise PluginError(f"changelog {name!r} opened {changelog!r}, expected a penstock.DeltaChangelog")
    if world is not None:
        changelog.world = world
    return changelog


def state_directory(settings: Settings) -> Path:
    """Return the directory of local state. Raises ConfigError for an environment variable that is not set."""

    def value(variable: re.Match[str]) -> str:
        if (found := os.environ.get(variable[1])) is None:
            raise ConfigError(
                f"setting 'state_dir' {settings.shown('state_dir')!r}: the process with the tasks has no environment "
                f"variable {variable[1]!r}; set it on each machine (for Spark's executors: "
                f"spark.executorEnv.{variable[1]})"
            )
        return found

    return Path(resolve(settings, re.sub(r"\$\{(\w+)\}", value, settings.state_dir)))


class Places:
    """The directories of one application's local state on this machine: `root`, and directories under it.

    A directory of a task, or of a reader's copy, has one for each store backend, with numbered ones in it: see
    `live_directory`. Raises as `state_directory`.
    """

    def __init__(self, settings: Settings, application_id: str) -> None:
        self.root = state_directory(settings) / application_id

    @classmethod
    def of(cls, application: Application) -> Places:
        """Return the places of an application."""
        return cls(application.settings, application.id)

    @property
    def globals(self) -> Path:
        """The copies of the global stores."""
        return self.root / GLOBAL

    @property
    def resharding(self) -> Path:
        """The state on its way to another number of partitions."""
        return self._beside("resharding")

    @property
    def cluster(self) -> Path:
        """The file with the id of the cluster on which the application ran last."""
        return self._beside("cluster")

    def task(self, task_id: str) -> Path:
        """Return the directory of a task's stores, or of a reader's by its name."""
        return self.root / task_id

    def replica(self, store: str, task_id: str) -> Path:
        """Return the directory in which commands have their replica of one store of a task."""
        return self.root / "replicas" / store / task_id

    def backup(self, task_id: str) -> Path:
        """Return the directory in which all stores of a task are copied to write a backup."""
        return self.replica(".all", task_id)

    def _beside(self, name: str) -> Path:
        """Return a path beside `root` that no application has: no id has an "@"."""
        return self.root.with_name(f"{self.root.name}@{name}")


def live_directory(directory: Path) -> Path | None:
    """Return the directory in use of a store backend: the highest-numbered one; None if there is none."""
    numbers = [int(each.name) for each in directory.glob("*") if each.name.isdigit()]
    return directory / str(max(numbers)) if numbers else None


@contextmanager
def making_state_directory(directory: Path) -> Iterator[None]:
    """Turn an OSError in the block, which uses the directory, into a StoreError that says what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"state directory {directory}: {error.strerror or error}; " + (what_to_do(error, _ELSEWHERE) or _ELSEWHERE)
        ) from error


def resolve(settings: Settings, location: str) -> str:
    """Return a location with a relative path put under `data_dir`; URLs and absolute paths stay.

    The scheme of a URL is in small letters.
    """
    if url_scheme(location):
        return with_small_scheme(location)
    return str(Path(settings.data_dir).expanduser() / Path(location).expanduser())


_FETCH_BYTES = 1024 * 1024


def read_up_to(
    log: Log, partition: TopicPartition, start: int, end: int, on_deleted: Callable[[int, int], None] | None = None
) -> Iterator[RecordBatch]:
    """Yield the records of a partition from offset `start` to `end`, in batches.

    Offsets that retention deletes meanwhile are skipped: `on_deleted` is called with the first of them and the offset
    after the last. Raises OffsetOutOfRangeError when the partition lost its end.
    """
    position = start
    while position < end:
        try:
            batches = log.fetch(partition, position, end, _FETCH_BYTES)
        except OffsetOutOfRangeError:
            first = log.start_offsets([partition])[partition]
            if first <= position:
                raise
            if on_deleted is not None:
                on_deleted(position, first)
            position = first
            continue
        yield from batches
        # Without a batch there is no record below the end: compaction may leave none.
        position = batches[-1].next_offset if batches else end
