"""Spark's checkpoint of an application: used again while it fits, else replaced, for the truth is in the log."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.config import Settings
from penstock.errors import ConfigError, IncompatibleStateError
from penstock.plugins.runtime.locations import resolve
from penstock.secret import hide

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True)
class _Pointer:
    """Which directory is in use, and what it was made for."""

    directory: str
    identity: str
    parallelism: int
    spark: str


class Checkpoint:
    """The checkpoint of one application.

    `identity` names the application's life in the log. A checkpoint of another life means that the log was replaced or
    lost: IncompatibleStateError. One made for another number of Spark partitions or another release of Spark is
    replaced.
    """

    def __init__(self, settings: Settings, application_id: str, identity: str, parallelism: int, spark: str) -> None:
        self._root = checkpoint_location(settings, application_id)
        self.is_local = "://" not in self._root
        local = _pointer_directory(settings, application_id)
        with _writable(local):
            local.mkdir(parents=True, exist_ok=True)
        self._path = local / "current.json"
        self._wanted = _Pointer("", identity, parallelism, spark)
        found = self._read()
        self.is_new = found is None
        if found is not None and found.identity != identity:
            raise IncompatibleStateError(
                f"application {application_id!r}: Spark's checkpoint in {self._path.parent} was made with "
                f"another log, or this one was "
                f"replaced: the log {hide('log', settings.log)!r} does not know the commits that it remembers. Is it the "
                f"right log? If "
                f"the application was reset on purpose, delete {self._path.parent}"
            )
        if found is not None and (found.parallelism, found.spark) == (parallelism, spark):
            self.directory = found.directory
        else:
            self.renew()

    def renew(self) -> None:
        """Start a new checkpoint and delete the one there was."""
        self.is_new = True
        directory = f"{self._root}/{secrets.token_hex(6)}"
        previous = self._read()
        aside = self._path.with_suffix(".new")
        pointer = _Pointer(directory, self._wanted.identity, self._wanted.parallelism, self._wanted.spark)
        with _writable(self._path.parent):
            aside.write_text(json.dumps(asdict(pointer)))
            os.replace(aside, self._path)
        self.directory = directory
        if previous is not None and self.is_local:
            shutil.rmtree(previous.directory, ignore_errors=True)

    def _read(self) -> _Pointer | None:
        try:
            return _Pointer(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("%s is damaged (%s): starting a new checkpoint", self._path, error)
            return None


def checkpoint_location(settings: Settings, application_id: str) -> str:
    """Return the directory, or URL, under which an application's checkpoints are."""
    return f"{resolve(settings, settings.checkpoint_dir)}/{application_id}"


def has_checkpoint(settings: Settings, application_id: str) -> bool:
    """Return whether a driver on this host would go on with a checkpoint, or has left something of one."""
    return _pointer_directory(settings, application_id).exists()


def delete_checkpoint(settings: Settings, application_id: str) -> str | None:
    """Delete what this host has of an application's checkpoint, the pointer to it first; return the URL of what stays elsewhere."""
    local = _pointer_directory(settings, application_id)
    found = local.exists()
    with _writable(local):
        # A directory that nothing points to is never used again, whatever is left of it.
        (local / "current.json").unlink(missing_ok=True)
        if found:
            shutil.rmtree(local)
    location = checkpoint_location(settings, application_id)
    return location if found and "://" in location else None


def _pointer_directory(settings: Settings, application_id: str) -> Path:
    location = checkpoint_location(settings, application_id)
    return Path(location) if "://" not in location else Path(settings.data_dir, "checkpoint", application_id)


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"checkpoint directory {directory}: {error.strerror or error}; make it writable, or set "
            f"`checkpoint_dir` to one that is"
        ) from error
