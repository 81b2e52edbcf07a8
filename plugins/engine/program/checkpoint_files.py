"""Where Spark's checkpoint of an application is, and deleting it without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock import ConfigError, Setting, Settings
from penstock.plugins.engine.task.locations import resolve
from penstock.settings.secret import hide_in_places
from penstock.settings.types import DIRECTORY
from penstock.support.packages import needed
from penstock.support.system_errors import what_to_do

CHECKPOINT_DIR = Setting(
    "checkpoint_dir", DIRECTORY, "checkpoint", "Spark's checkpoint; disposable, the truth is in the log."
)


def checkpoint_location(settings: Settings, application_id: str) -> str:
    """Return the directory, or URL, under which an application's checkpoints are."""
    return f"{resolve(settings, CHECKPOINT_DIR.of(settings))}/{application_id}"


def has_checkpoint(settings: Settings, application_id: str) -> bool:
    """Return whether there is a checkpoint, or a part of one, that a driver on this machine would use."""
    return pointer_directory(settings, application_id).exists()


def shown_checkpoint(settings: Settings, application_id: str) -> str | None:
    """Return where an application has a checkpoint, for people: without the user in a URL; None if there is none."""
    found = has_checkpoint(settings, application_id)
    return hide_in_places(checkpoint_location(settings, application_id)) if found else None


def delete_checkpoint(settings: Settings, application_id: str) -> str | None:
    """Delete an application's checkpoints.

    Return a remark if one in another file system cannot be deleted from here.
    """
    local = pointer_directory(settings, application_id)
    found = local.exists()
    with checkpoint_writable(local):
        # Delete the local pointer first: a checkpoint without a pointer is never used again.
        (local / "current.json").unlink(missing_ok=True)
        if found:
            shutil.rmtree(local)
    location = checkpoint_location(settings, application_id)
    if not found or "://" not in location:
        return None
    try:
        _delete_without_spark(location)
    except Exception as error:
        return not_deleted(location, error)
    return None


def _delete_without_spark(url: str) -> None:
    """Delete a directory of a file system that pyarrow supports."""
    with needed("the deletion of Spark's checkpoint"):
        from pyarrow import fs

    # Hadoop's name of S3.
    system, path = fs.FileSystem.from_uri("s3://" + url.removeprefix("s3a://") if url.startswith("s3a://") else url)
    system.delete_dir_contents(path, missing_dir_ok=True)
    with suppress(OSError):
        # An object store has no directory apart from what is in it.
        system.delete_dir(path)


def not_deleted(location: str, error: Exception) -> str:
    """Return a remark about a checkpoint that has to be deleted by hand."""
    reason = str(error).partition("\n")[0]
    return hide_in_places(
        f"Spark's checkpoint in {location} is not used any more, and cannot be deleted from here ({reason}): delete it"
    )


def pointer_directory(settings: Settings, application_id: str) -> Path:
    """Return the local directory that says which checkpoint is in use."""
    location = checkpoint_location(settings, application_id)
    return Path(location) if "://" not in location else Path(settings.data_dir, "checkpoint", application_id)


@contextmanager
def checkpoint_writable(directory: Path) -> Iterator[None]:
    """Turn an OSError in the block into a ConfigError that names the directory and what to do."""
    try:
        yield
    except OSError as error:
        elsewhere = "set `checkpoint_dir` to another directory"
        raise ConfigError(
            f"checkpoint directory {directory}: {error.strerror or error}; {what_to_do(error, elsewhere) or elsewhere}"
        ) from error
