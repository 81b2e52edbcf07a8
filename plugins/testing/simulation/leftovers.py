"""Files of a changelog in a directory that no version needs any more, and that no cleaning deletes."""

from __future__ import annotations

import os
from contextlib import closing
from io import BytesIO

from penstock import Application, ChangelogError, DeltaChangelog, version_counter
from penstock.plugins.changelogs.file_format import DELTA, DamagedError, Reader
from penstock.plugins.runtime.locations import open_deltas

from .disk import Disk
from .host_world import HostWorld

_LATER_MS = 24 * 3_600_000


def left_for_ever(application: Application, task: str, version: str, disk: Disk, outside: HostWorld) -> list[str]:
    """Clean a task's changelog for its last version; return the files that stay and that no version needs.

    Orphans may stay until the task has passed their counters, and the newest snapshot until the next one is written,
    though the deltas before it may be there as well: those of its version can be in one file with later ones.
    """
    with closing(open_deltas(application.settings, application.id, task, outside.world)) as changelog:
        changelog.clean(version, 0, outside.now_ms() + _LATER_MS, lambda: True)
        place = application.settings.changelog.partition(":")[2].partition("?")[0]
        own = disk.files(f"/{place.rpartition('://')[2]}/{application.id}/{task}")
        newest = max((path for path in own if path.endswith(".snapshot")), key=os.path.basename, default=None)
        return [
            path
            for path in own
            if path != newest and not _may_stay(path, version, disk) and _does_without(changelog, version, path, disk)
        ]


def _may_stay(path: str, version: str, disk: Disk) -> bool:
    """Return whether a file has something of a version that is not before `version`."""
    counter, name = version_counter(version), os.path.basename(path)
    if not name[0].isdigit():
        return False
    if version_counter(name) >= counter:
        return not name.endswith(".tmp") or version_counter(name) > counter
    file, highest = BytesIO(disk.file(path).data), -1
    try:
        while path.endswith(".delta"):
            reader = Reader(file, DELTA)
            reader.skip()
            highest = version_counter(reader.version)
    except DamagedError:  # its end, too
        return highest >= counter
    return False


def _does_without(changelog: DeltaChangelog, version: str, path: str, disk: Disk) -> bool:
    """Return whether a version can be restored without a file."""
    directory, name = os.path.split(path)
    names = disk.directory(directory).names
    file = names.pop(name)
    try:
        for _ in changelog.restore(version, None).steps:
            pass
    except ChangelogError:
        return False
    finally:
        names[name] = file
    return True
