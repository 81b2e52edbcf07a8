"""Catalog: the backups of one application in one place. A backup is there once its entry is; entries come last."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from penstock import Commit, ConfigError, StoreError, TopicPartition, World
from penstock.plugins.changelogs.directory import DirectoryChangelog, location_and_options
from penstock.plugins.changelogs.storage import TEMPORARY, Storage, absolute, open_storage
from penstock.plugins.replicas.saved_tasks import saved_layouts
from penstock.plugins.upgrade.saved_program import Note

FORMAT = 1
IN_TRANSIT = "in-transit"
"""The folder of the records that waited in repartition topics; the others have the ids of tasks."""
_ENTRIES, _END = "backups", ".json"
_PRUNING = "pruning"
"""The file, beside the entries, with the names of the files that a prune deletes; the next one goes on with them."""


@dataclass(frozen=True)
class Backup:
    """A consistent set of commits of all tasks of an application, whose state is beside it.

    `name`: begins with the time, so that names are in the order of time. `note`: of the program that ran last.
    `commits` by task; None for a task without a commit. `in_transit`: the version of the records that waited in
    repartition topics; None if there are no such topics. `topic_ids`: of the topics that the tasks read. `outputs`: the
    ends of output topics at that moment, where they are known: what the application has written since lies behind them.
    `starts`: where the topics began that tasks without a commit would have read from their start.
    """

    name: str
    application_id: str
    made_at_ms: int
    note: Note
    commits: Mapping[str, Commit | None]
    in_transit: str | None
    topic_ids: Mapping[str, str]
    outputs: Mapping[TopicPartition, int] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """The incarnation of the application in its log."""
        found: str = self.note["identity"]
        return found

    @property
    def versions(self) -> Mapping[str, str]:
        """The version that it has in each folder: of each task with stores, and of the records in between."""
        found = {
            task: commit.version
            for task, commit in self.commits.items()
            if commit is not None and saved_layouts(self.note, task.partition("_")[0]).now
        }
        return found if self.in_transit is None else {**found, IN_TRANSIT: self.in_transit}


class Catalog:
    """The backups of one application in `location`: a directory, or a URL that pyarrow.fs knows.

    Under LOCATION/APPLICATION ID there is a folder for each task, with the files of a changelog in a directory, and the
    folder `backups` with an entry for each backup. Methods raise ChangelogError that names the place.
    """

    def __init__(self, location: str, application_id: str, world: World | None = None) -> None:
        self._world = world or World()
        self.location = location
        self._place = absolute(location_and_options(location)[0])
        self.application_id = application_id
        self._entries = _open(self._place, application_id, _ENTRIES, world=self._world)

    @property
    def where(self) -> str:
        """The place, as messages name it."""
        return self._entries.location.removesuffix(f"/{_ENTRIES}")

    def changelog(self, folder: str) -> DirectoryChangelog:
        """Return the changelog in which the backups of a task are, one version each."""
        found = DirectoryChangelog(self.location, self.application_id, folder, open_storage=_open)
        found.world = self._world
        return found

    def names(self) -> list[str]:
        """Return the names of all backups, the oldest first."""
        with self._entries.explaining("list the backups"):
            return sorted(each.name.removesuffix(_END) for each in self._entries.files() if each.name.endswith(_END))

    def written_ms(self, name: str) -> int:
        """Return when the entry of a backup was written, by the clock of the place."""
        with self._entries.explaining("list the backups"):
            found = [each.modified_ms for each in self._entries.files() if each.name == f"{name}{_END}"]
        return min(found, default=0)

    def read(self, name: str | None = None) -> Backup:
        """Return a backup, or the last one. Raises ConfigError if there is none, StoreError for a damaged entry."""
        names = self.names()
        if not names:
            raise ConfigError(
                f"there is no backup of application {self.application_id!r} in {self.where}: check the place; --of "
                "names the application whose backup it is, if that is another one"
            )
        if name is not None and name not in names:
            raise ConfigError(f"{self.where} has no backup {name!r}; it has: {', '.join(names[-5:])}")
        file = f"{name or names[-1]}{_END}"
        with self._entries.explaining(f"read {file}"), self._entries.open(file) as opened:
            data = opened.read()
        try:
            entry = json.loads(data)
            is_whole = entry["sha256"] == _digest(entry["backup"])
        except (ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise StoreError(f"{self.where}/{_ENTRIES}/{file} is damaged: its checksum does not match what it has")
        return _backup(entry["backup"], f"{self.where}/{_ENTRIES}/{file}")

    def write(self, backup: Backup) -> None:
        """Write the entry of a backup, whose files are all there."""
        data = _data(backup)
        entry = json.dumps({"backup": data, "sha256": _digest(data)}, indent=1).encode()
        with self._entries.explaining(f"write {backup.name}{_END}"):
            self._entries.write(f"{backup.name}{_END}", [entry])

    def delete(self, name: str) -> None:
        """Delete the entry of a backup: it can be restored no more."""
        with self._entries.explaining(f"delete {name}{_END}"):
            self._entries.delete(f"{name}{_END}")

    def delete_temporaries(self, before_ms: int) -> None:
        """Delete what killed processes have left among the entries and not written since `before_ms`."""
        with self._entries.explaining("delete files that are left over"):
            for each in self._entries.files():
                if each.name.endswith(TEMPORARY) and each.modified_ms < before_ms:
                    self._entries.delete(each.name)

    # ------------------------------------------------------------------ what is being pruned

    def noted(self) -> dict[str, set[str]]:
        """Return the files that `note` has noted, by folder."""
        found: dict[str, set[str]] = {}
        with self._entries.explaining(f"read {_PRUNING}"):
            if any(each.name == _PRUNING for each in self._entries.files()):
                with suppress(FileNotFoundError), self._entries.open(_PRUNING) as opened:
                    for line in opened.read().decode().split():
                        folder, _, name = line.partition("/")
                        found.setdefault(folder, set()).add(name)
        return found

    def note(self, files: Mapping[str, Collection[str]]) -> None:
        """Note the files that are to be deleted, by folder, in place of those before; none: it is done."""
        lines = sorted(f"{folder}/{name}" for folder, names in files.items() for name in names)
        with self._entries.explaining(f"write {_PRUNING}"):
            if lines:
                self._entries.write(_PRUNING, ["\n".join(lines).encode()], may_exist=True)
            else:
                self._entries.delete(_PRUNING)


def stores_of(note: Note, task: str) -> list[str]:
    """Return the names of the stores that a task's backups may have, earlier ones included."""
    layouts = saved_layouts(note, task.partition("_")[0])
    return sorted({store for layout in (layouts.now, *layouts.earlier.values()) for store in layout})


def _open(location: str, *folders: str, world: World) -> Storage:
    found = open_storage(location, *folders, world=world)
    found.what, found.elsewhere = "backup", "name another place"
    return found


def _digest(data: Any) -> str:
    return sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _data(backup: Backup) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": backup.name,
        "application_id": backup.application_id,
        "made_at_ms": backup.made_at_ms,
        "note": backup.note,
        "commits": {task: None if each is None else _commit_data(each) for task, each in backup.commits.items()},
        "in_transit": backup.in_transit,
        "topic_ids": dict(backup.topic_ids),
        "outputs": _offsets_data(backup.outputs),
        "starts": _offsets_data(backup.starts),
    }


def _commit_data(commit: Commit) -> dict[str, Any]:
    return {
        "version": commit.version,
        "positions": _offsets_data(commit.positions),
        "engine_state": b64encode(commit.engine_state).decode(),
    }


def _offsets_data(offsets: Mapping[TopicPartition, int]) -> list[list[Any]]:
    return [[*each, offset] for each, offset in offsets.items()]


def _offsets(data: list[list[Any]]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): at for topic, partition, at in data}


def _backup(data: dict[str, Any], where: str) -> Backup:
    if data["format"] != FORMAT:
        raise StoreError(f"{where} has format {data['format']}, and this penstock reads {FORMAT}: install a newer one")
    return Backup(
        data["name"],
        data["application_id"],
        data["made_at_ms"],
        data["note"],
        {task: None if each is None else _commit(each) for task, each in data["commits"].items()},
        data["in_transit"],
        data["topic_ids"],
        _offsets(data.get("outputs", [])),
        _offsets(data.get("starts", [])),
    )


def _commit(data: dict[str, Any]) -> Commit:
    return Commit(_offsets(data["positions"]), data["version"], b64decode(data["engine_state"]))
