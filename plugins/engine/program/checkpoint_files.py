"""What Spark's queries leave: checkpoints of an application, and folders of ended queries of `transform`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import Application, ConfigError, Setting, Settings, StoreError, World
from penstock.plugins.changelogs.directory import location_and_options
from penstock.plugins.changelogs.storage import Storage, absolute, open_storage
from penstock.plugins.engine.task.local_state.directories import disk_bytes, is_used, remove_all
from penstock.plugins.engine.task.locations import Places, making_state_directory, open_deltas, resolve
from penstock.settings.secret import hide_in_places
from penstock.settings.types import DIRECTORY
from penstock.support.packages import needed
from penstock.support.system_errors import what_to_do
from penstock.support.urls import url_scheme

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
    """Return the location of an application's checkpoint for messages, without the user in a URL; None without one."""
    found = has_checkpoint(settings, application_id)
    return hide_in_places(checkpoint_location(settings, application_id)) if found else None


def delete_checkpoint(settings: Settings, application_id: str) -> str | None:
    """Delete an application's checkpoints; return a remark if one cannot be deleted from here."""
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


LOCAL, CHANGELOG = "local state", "changelog"
_NAME = re.compile(r"(\d+_\d+)\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_OF_HADOOP = ("s3a", "s3n")
"""Schemes that Spark's checkpoints may have, and pyarrow calls s3."""


@dataclass(frozen=True)
class QueryFolder:
    """A folder of one task of a query. `kind`: LOCAL or CHANGELOG; `is_used`: a process of this machine uses the query.

    `place`: its path or URL, without secrets.
    """

    kind: str
    query: str
    task: str
    place: str
    bytes: int
    is_used: bool = False

    @property
    def name(self) -> str:
        """The name of the folder."""
        return f"{self.task}.{self.query}"


def query_of(checkpoint: str) -> str:
    """Return the id of the query of a checkpoint, a path or a URL. Raises StoreError if it cannot be read."""
    scheme = url_scheme(checkpoint)
    place = f"s3{checkpoint[len(scheme) :]}" if scheme in _OF_HADOOP else checkpoint
    if not place:
        raise ConfigError("checkpoint '': expected the folder of a query's checkpoint, a path or a URL")
    storage = open_storage(absolute(place), world=World())
    try:
        with storage.open("metadata") as file:
            query: str = json.loads(file.read())["id"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = error.strerror or str(error) if isinstance(error, OSError) else "its content is not Spark's"
        # The location itself may hold a secret.
        raise StoreError(
            f"checkpoint {storage.location if scheme else checkpoint}: the id of its query cannot be read from its "
            f"file 'metadata': {reason}. Name the folder of the option checkpointLocation"
        ) from error
    return query


def ended_queries(application: Application, queries: Collection[str]) -> list[QueryFolder]:
    """Return the folders of an application's queries except `queries`: those of this machine, then changelogs.

    Raises ConfigError for a changelog in which `transform` cannot have anything, and StoreError or ChangelogError for
    a place that cannot be read.
    """
    changelogs = _changelogs(application)
    root = Places.of(application).root
    with making_state_directory(root):
        local = sorted(each.name for each in root.glob("*") if each.is_dir())
    found = [
        QueryFolder(LOCAL, query, task, str((root / name).absolute()), disk_bytes(root / name), is_used(root / name))
        for name, task, query in _left_by_others(local, queries)
    ]
    with changelogs.explaining("list its folders"):
        names = sorted(changelogs.folders())
    for name, task, query in _left_by_others(names, queries):
        size = changelog_bytes(application, name)
        if size:  # pyarrow leaves an empty object for a folder of an object store whose last file it deletes
            found.append(QueryFolder(CHANGELOG, query, task, _changelogs(application, name).location, size))
    used = {each.query for each in found if each.is_used}
    return [replace(each, is_used=each.query in used) for each in found]


def changelog_bytes(application: Application, folder: str) -> int:
    """Return the size of the changelog of a query's task, TASK.QUERY-ID; 0: none. Raises as `ended_queries`."""
    storage = _changelogs(application, folder)
    with storage.explaining("list its files"):
        return sum(file.size for file in storage.files())


def delete_folders(application: Application, folders: Sequence[QueryFolder]) -> list[QueryFolder]:
    """Delete unused folders, local state first, of queries that still do not run here; return those deleted."""
    chosen = [folder for folder in folders if not folder.is_used]
    names = {each.name for each in chosen if each.kind == LOCAL}
    _, used = remove_all(Places.of(application).root, names)
    running = {query for _, _, query in _left_by_others(used, ())}
    for each in chosen:
        if each.kind == CHANGELOG and each.query not in running:
            open_deltas(application.settings, application.id, each.name).destroy()
    return [each for each in chosen if each.query not in running]


def _changelogs(application: Application, *folders: str) -> Storage:
    name, _, location = application.settings.changelog.partition(":")
    if name != "directory":
        raise ConfigError(
            f"application {application.id!r}, setting 'changelog': a query of `transform` has its changelog in a "
            f"`directory:`, found {application.settings.shown('changelog').partition('?')[0]!r}; give the settings of "
            "the pipeline, for instance --set changelog=directory:s3://bucket/folder"
        )
    place, _ = location_and_options(resolve(application.settings, location))
    return open_storage(absolute(place), application.id, *folders, world=World())


def _left_by_others(names: Sequence[str], queries: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, task and query of folders that none of `queries` uses; tasks on a log have no query in their name."""
    for name in names:
        if (match := _NAME.fullmatch(name)) and match[2] not in queries:
            yield name, match[1], match[2]
