"""Folders that queries of `transform` have left behind: local state and changelogs, named TASK.QUERY-ID."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from penstock import Application, ConfigError, StoreError, World
from penstock.plugins.changelogs.directory import location_and_options
from penstock.plugins.changelogs.storage import Storage, absolute, open_storage
from penstock.plugins.engine.task.local_state.directories import disk_bytes, is_used, remove_all
from penstock.plugins.engine.task.locations import Places, making_state_directory, open_deltas, resolve
from penstock.support.urls import url_scheme

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
    """Return the size of the changelog of a task of a query, TASK.QUERY-ID; 0 if there is none.

    Raises ConfigError and ChangelogError as `ended_queries`.
    """
    storage = _changelogs(application, folder)
    with storage.explaining("list its files"):
        return sum(each.size for each in storage.files())


def delete_folders(application: Application, folders: Sequence[QueryFolder]) -> list[QueryFolder]:
    """Delete those that are not used, local state first; return those deleted.

    Nothing is deleted of a query that has begun to run on this machine since.
    """
    chosen = [each for each in folders if not each.is_used]
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
