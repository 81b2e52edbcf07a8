"""Spark's checkpoint of an application: used again while it fits, else replaced, for the truth is in the log."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError, IncompatibleStateError
from penstock.plugins.runtime.locations import resolve
from penstock.settings.secret import hide
from penstock.settings.settings import Settings
from penstock.system_errors import what_to_do

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    replaced. `delete` removes the directory or URL of one that was replaced.
    """

    def __init__(
        self,
        settings: Settings,
        application_id: str,
        identity: str,
        parallelism: int,
        spark: str,
        delete: Callable[[str], None],
    ) -> None:
        self._delete = delete
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
                f"application {application_id!r}: Spark's checkpoint in {self._path.parent} was made with another log, or this one was replaced: "
                f"the log {hide('log', settings.log)!r} does not know the commits that it remembers. Is it the right log? If the application was "
                f"reset with `penstock reset` on another host, delete {self._path.parent}. Otherwise bring that log back: with this one everything is processed again"
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
        if previous is not None:
            try:
                self._delete(previous.directory)
            except Exception as error:
                _log.warning("%s", _stays(previous.directory, error))

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
    """Delete an application's checkpoints, this host's pointer to them first; return a remark about what cannot be deleted elsewhere."""
    local = _pointer_directory(settings, application_id)
    found = local.exists()
    with _writable(local):
        # A directory that nothing points to is never used again, whatever is left of it.
        (local / "current.json").unlink(missing_ok=True)
        if found:
            shutil.rmtree(local)
    location = checkpoint_location(settings, application_id)
    if not found or "://" not in location:
        return None
    try:
        _delete_without_spark(location)
    except Exception as error:
        return _stays(location, error)
    return None


def delete_with_spark(session: SparkSession, location: str) -> None:
    """Delete a directory or URL with all that is in it, by the file systems and credentials that Spark has."""
    context = session.sparkContext
    assert context._jvm is not None
    path = context._jvm.org.apache.hadoop.fs.Path(location)
    path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)


def _delete_without_spark(url: str) -> None:
    """Delete what is under a URL, as far as pyarrow knows its file system."""
    from pyarrow import fs

    # Hadoop's name of S3.
    system, path = fs.FileSystem.from_uri("s3://" + url.removeprefix("s3a://") if url.startswith("s3a://") else url)
    system.delete_dir_contents(path, missing_dir_ok=True)
    with suppress(OSError):
        # An object store has no directory apart from what is in it.
        system.delete_dir(path)


def _stays(location: str, error: Exception) -> str:
    reason = str(error).partition("\n")[0]
    return (
        f"Spark's checkpoint in {location} is not used any more, and cannot be deleted from here ({reason}): delete it"
    )


def _pointer_directory(settings: Settings, application_id: str) -> Path:
    location = checkpoint_location(settings, application_id)
    return Path(location) if "://" not in location else Path(settings.data_dir, "checkpoint", application_id)


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        elsewhere = "set `checkpoint_dir` to another directory"
        raise ConfigError(
            f"checkpoint directory {directory}: {error.strerror or error}; {what_to_do(error, elsewhere) or elsewhere}"
        ) from error
