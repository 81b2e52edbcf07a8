"""The files of a changelog directory: their names, and what one listing of them says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from penstock import ChangelogError, version_counter
from penstock.world import StoredFile

from .chain import Delta
from .storage import TEMPORARY

DELTA_END = ".delta"
_VERSION = r"[0-9]+-[A-Za-z0-9_-]*"
_DELTA_NAME = re.compile(rf"({_VERSION})\.({_VERSION}|-)\.(\d+)\.delta")
_SNAPSHOT_NAME = re.compile(rf"({_VERSION})\.snapshot")


@dataclass
class Listing:
    """One listing of a task's folder, by version.

    `deltas`: the first delta of each file, by version. `continued`: files that are larger than their first delta.
    `damaged`: versions whose file is smaller than its name says, each with a description. `ours`: every file that this
    changelog wrote.
    """

    ours: list[StoredFile] = field(default_factory=list)
    deltas: dict[str, Delta] = field(default_factory=dict)
    continued: set[str] = field(default_factory=set)
    snapshots: dict[str, StoredFile] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)
    """Damaged snapshots that a look for a way to a version came across."""

    @classmethod
    def of(cls, stored: Iterable[StoredFile]) -> Listing:
        """Return the listing that file names and sizes give; other programs' files are left out."""
        files = cls()
        for file in stored:
            if delta := _DELTA_NAME.fullmatch(file.name):
                version, previous, size = delta[1], None if delta[2] == "-" else delta[2], int(delta[3])
                if file.size >= size:
                    files.deltas[version] = Delta(version, previous, size, file.name)
                    if file.size > size:
                        files.continued.add(file.name)
                else:
                    files.damaged[version] = f"{file.name} ({file.size} bytes instead of {size})"
            elif snapshot := _SNAPSHOT_NAME.fullmatch(file.name):
                files.snapshots[snapshot[1]] = file
            elif not file.name.endswith(TEMPORARY):
                continue
            files.ours.append(file)
        return files


def snapshot_name(version: str) -> str:
    """Return the file name of a version's snapshot."""
    return f"{version}.snapshot"


def delta_name(version: str, previous: str | None, size: int) -> str:
    """Return the name of the file that begins with a delta of `size` bytes."""
    return f"{checked_version(version)}.{'-' if previous is None else checked_version(previous)}.{size}{DELTA_END}"


def is_version(name: str) -> bool:
    """Return whether a name can be that of a version in a file."""
    return re.fullmatch(_VERSION, name) is not None


def checked_version(version: str) -> str:
    """Return `version`. Raises ChangelogError when it cannot be part of a file name."""
    if not is_version(version):
        raise ChangelogError(
            f"version {version!r} cannot be a file's name: expected a number, '-', and letters, digits, '_' and '-'"
        )
    return version


def is_left_over(name: str, version: str) -> bool:
    """Return whether a file is temporary, and not one of a delta that follows `version`: it may be written just now."""
    counter = name.partition("-")[0]
    return name.endswith(TEMPORARY) and not (counter.isdigit() and int(counter) > version_counter(version))
