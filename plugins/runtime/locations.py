"""Opens the log, the changelog and the directories that settings name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.changelog import TaskChangelog
from penstock.clock import duration_ms
from penstock.errors import ConfigError, LogError, PenstockError, StoreError
from penstock.hooks import registry
from penstock.log import Log, LogFactory, TakesPath
from penstock.program.layouts import Layout
from penstock.settings.secret import ClientSettings
from penstock.settings.settings import Settings
from penstock.support.system_errors import what_to_do

_ELSEWHERE = "set `state_dir` to another directory"


def user_cache() -> Path:
    """Return the directory of all applications of this user: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "penstock"


def open_log(settings: Settings, *, sends_at_once: bool = False) -> Log:
    """Return the log that `settings.log` names.

    `sends_at_once`: what can be read before a commit does not wait for more records, unless `clients` says how long it
    does. Raises PluginError when the log is not installed, LogError when it cannot be opened.
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


def open_changelog(
    settings: Settings, application_id: str, task_id: str, log: Log | None = None, layout: Layout | None = None
) -> TaskChangelog:
    """Return the changelog of a task that `settings.changelog` names.

    A changelog that is kept in the log also needs `log` and the task's stores. Raises ConfigError without them.
    """
    name, _, location = settings.changelog.partition(":")
    factory: Any = registry().load("changelog", name)
    changelog: TaskChangelog
    if not getattr(factory, "in_log", False):
        changelog = factory(resolve(settings, location), application_id, task_id)
    elif log is None:
        raise ConfigError(
            f"setting 'changelog': {settings.changelog!r} keeps the state's history in the log, and there is none "
            "here: use `directory:PATH-OR-URL`"
        )
    else:
        stores = {name: kept for name, kept in (layout or {}).items() if kept.logged}
        changelog = factory(location, application_id, task_id, log=log, stores=stores)
    return changelog


def state_directory(settings: Settings) -> Path:
    """Return the directory of local state."""
    return Path(resolve(settings, settings.state_dir))


@contextmanager
def making_state_directory(directory: Path) -> Iterator[None]:
    """Turn an OSError in the block into a StoreError.

    The message has the directory, which the block creates or writes to, and says what to do.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"state directory {directory}: {error.strerror or error}; " + (what_to_do(error, _ELSEWHERE) or _ELSEWHERE)
        ) from error


def resolve(settings: Settings, location: str) -> str:
    """Return a location with a relative path put under `data_dir`; URLs and absolute paths stay."""
    if "://" in location:
        return location
    return str(Path(settings.data_dir).expanduser() / Path(location).expanduser())
