"""Catalog: the backups of one application in one place. A backup is there once its entry is; entries come last.

Backups are made and deleted by several processes at a time, each of which may stop anywhere and go on much later. No
file is deleted that a backup needs, by this order:

- A process that makes a backup writes a claim, checks that the files are there and that no note names one, and writes
  the entry. An entry counts only with its claim.
- A process that deletes backups notes the files that it may delete, looks for claims, and deletes files that none of
  them needs. It deletes old claims without an entry, too, and before the files. Its note stays until it has ended.

So a claim that was too late for that look finds the note, or that a file is gone.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from penstock import ChangelogError, Commit, ConfigError, PenstockError, StoredFile, StoreError, TopicPartition, World
from penstock.plugins.changelogs.directory import DirectoryChangelog, location_and_options
from penstock.plugins.changelogs.storage import TEMPORARY, Storage, absolute, open_storage
from penstock.plugins.engine.program.saved_program import ProgramNote, saved_layouts

FORMAT = 1
IN_TRANSIT = "in-transit"
"""The folder of the records that waited between the tasks; the others have the ids of tasks."""
_ENTRIES, _END, _CLAIM = "backups", ".json", ".claim"
_PRUNING = "pruning"
"""The beginning of the names of notes: files beside the entries, with the names of the files that a prune deletes."""
_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True)
class Backup:
    """A consistent set of commits of all tasks of an application, whose state is beside it.

    `name` begins with the time. `note`: of the program that ran last. `commits` by task; None for a task without one.
    `in_transit`: the version of the records that waited between the tasks, in repartition topics and `intermediate`
    ones, which the tasks write and read; None without such topics. `topic_ids`: of the topics that the tasks read.
    `outputs`: the ends, where known, of output and intermediate topics. `starts`: where topics began that tasks without
    a commit would have read from their start.
    """

    name: str
    application_id: str
    made_at_ms: int
    note: ProgramNote
    commits: Mapping[str, Commit | None]
    in_transit: str | None
    topic_ids: Mapping[str, str]
    outputs: Mapping[TopicPartition, int] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    intermediate: Collection[str] = frozenset()

    @property
    def identity(self) -> str:
        """The incarnation of the application in its log."""
        return str(self.note["identity"])

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The positions of all commits."""
        return {each: at for commit in self.commits.values() if commit for each, at in commit.positions.items()}

    @property
    def versions(self) -> Mapping[str, str]:
        """The version that it has in each folder: of each task with stores, and of the records in between."""
        versions = {
            task: commit.version
            for task, commit in self.commits.items()
            if commit is not None and saved_layouts(self.note, task.partition("_")[0]).now
        }
        return versions if self.in_transit is None else {**versions, IN_TRANSIT: self.in_transit}


class Listed(NamedTuple):
    """The names of backups at one moment, the oldest first.

    `unfinished`: with a claim alone: being made, or cut short. `void`: entries written after their claim was deleted.
    """

    made: list[str]
    unfinished: list[str]
    void: list[str]


class Catalog:
    """The backups of one application in `location`: a directory, or a URL that pyarrow.fs knows.

    Under LOCATION/APPLICATION ID there is a folder for each task, with the files of a changelog in a directory, and the
    folder `backups` with an entry and a claim for each backup. Methods raise ChangelogError that names the place.
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
        return self.listed().made

    def listed(self) -> Listed:
        """Return the names of backups that are made, and of the others."""
        with self._entries.explaining("list the backups"):
            there = {each.name for each in self._entries.files()}
        entries, claims = ({each.removesuffix(end) for each in there if each.endswith(end)} for end in (_END, _CLAIM))
        made = {name for name in entries if name in claims or not self._had_claim(name)}
        return Listed(sorted(made), sorted(claims - entries), sorted(entries - made))

    def _had_claim(self, name: str) -> bool:
        """Return whether an entry was written after a claim; earlier versions of penstock made none."""
        try:
            return "claimed" in json.loads(self._content(f"{name}{_END}"))["backup"]
        except (ValueError, KeyError, TypeError, ChangelogError):
            return False  # `read` says what is wrong with it

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
        return self._read(f"{name or names[-1]}{_END}")

    def claimed(self, name: str) -> Backup:
        """Return an unfinished backup. Raises StoreError if its claim is damaged."""
        return self._read(f"{name}{_CLAIM}")

    def _read(self, file: str) -> Backup:
        try:
            entry = json.loads(self._content(file))
            is_whole = entry["sha256"] == _digest(entry["backup"])
        except (ValueError, KeyError, TypeError):
            is_whole = False
        if not is_whole:
            raise StoreError(f"{self.where}/{_ENTRIES}/{file} is damaged: its checksum does not match what it has")
        return _backup(entry["backup"], f"{self.where}/{_ENTRIES}/{file}")

    def _content(self, file: str) -> bytes:
        with self._entries.explaining(f"read {file}"), self._entries.open(file) as opened:
            return opened.read()

    def write(self, backup: Backup) -> None:
        """Write the entry of a backup, whose files are there. Raises ChangelogError if a prune has deleted some."""
        self._write(backup, _CLAIM)  # a prune that looks for claims from now on leaves the files
        self._check_kept(backup)
        self._write(backup, _END)
        if backup.name not in self.names():
            raise ChangelogError(
                f"{self.where}: the backup was deleted with old backups, because a later one was there before it was "
                "whole: make the backup again"
            )

    def _check_kept(self, backup: Backup) -> None:
        """Give a backup up if a prune, which did not see its claim, deletes files of it. It first notes which."""
        noted = self.noted()
        for folder, version in backup.versions.items():
            with closing(self.changelog(folder)) as changelog:
                is_kept = stays(changelog, version, noted.get(folder, set()))
            if not is_kept:
                self.delete(backup.name)
                raise ChangelogError(
                    f"{self.where}: files of the backup, in the folder {folder}, were deleted meanwhile, with old "
                    "backups: make the backup again"
                )

    def _write(self, backup: Backup, end: str) -> None:
        data = {**_data(backup), "claimed": True}
        entry = json.dumps({"backup": data, "sha256": _digest(data)}, indent=1).encode()
        with self._entries.explaining(f"write {backup.name}{end}"):
            self._entries.write(f"{backup.name}{end}", [entry])

    def delete(self, name: str) -> None:
        """Delete entry and claim of a backup: it can be restored no more, and is not made any more."""
        for file in (f"{name}{_END}", f"{name}{_CLAIM}"):
            with self._entries.explaining(f"delete {file}"):
                self._entries.delete(file)

    def sync(self) -> None:
        """Make durable which entries and claims are there."""
        with self._entries.explaining("sync the backups"):
            self._entries.sync()

    def delete_temporaries(self, before_ms: int) -> None:
        """Delete temporary files of killed processes among the entries, not written since `before_ms`."""
        with self._entries.explaining("delete files that are left over"):
            for each in self._entries.files():
                if each.name.endswith(TEMPORARY) and each.modified_ms < before_ms:
                    self._entries.delete(each.name)

    # ------------------------------------------------------------------ what is being pruned

    def noted(self) -> dict[str, set[str]]:
        """Return the files that processes which are pruning may delete, by folder; some of these may have died."""
        found: dict[str, set[str]] = {}
        with self._entries.explaining("read what is being pruned"):
            for note in self._notes():
                with suppress(FileNotFoundError), self._entries.open(note.name) as opened:
                    for line in opened.read().decode().split():
                        folder, _, name = line.partition("/")
                        found.setdefault(folder, set()).add(name)
        return found

    @contextmanager
    def noting(self, files: Mapping[str, Collection[str]]) -> Iterator[None]:
        """Note the files, by folder, that are deleted in the block; a process that dies leaves its note for a day."""
        name = f"{_PRUNING}-{self._world.token(8)}"
        lines = sorted(f"{folder}/{file}" for folder, of_folder in files.items() for file in of_folder)
        with self._entries.explaining(f"write {name}"):
            self._entries.write(name, ["\n".join(lines).encode()])
        try:
            yield
        finally:
            with self._entries.explaining(f"delete {name}"):
                notes = {each.name: each.modified_ms for each in self._notes()}
                own_ms = notes.get(name, 0)
                for each, written_ms in notes.items():
                    if each == name or written_ms < own_ms - _DAY_MS:
                        self._entries.delete(each)

    def _notes(self) -> list[StoredFile]:
        return [
            each
            for each in self._entries.files()
            if each.name.startswith(_PRUNING) and not each.name.endswith(TEMPORARY)
        ]


def stays(changelog: DirectoryChangelog, version: str, noted: set[str]) -> bool:
    """Return whether a version can be restored, and none of its files is announced for deletion."""
    try:
        return not changelog.needed(version) & noted
    except ChangelogError:
        return False


def stores_of(note: ProgramNote, task: str) -> list[str]:
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
        "commits": {
            task: commit
            and {
                "version": commit.version,
                "positions": _offsets_data(commit.positions),
                "engine_state": b64encode(commit.engine_state).decode(),
            }
            for task, commit in backup.commits.items()
        },
        "in_transit": backup.in_transit,
        "topic_ids": dict(backup.topic_ids),
        "outputs": _offsets_data(backup.outputs),
        "starts": _offsets_data(backup.starts),
        "intermediate": sorted(backup.intermediate),
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
        {
            task: each and Commit(_offsets(each["positions"]), each["version"], b64decode(each["engine_state"]))
            for task, each in data["commits"].items()
        },
        data["in_transit"],
        data["topic_ids"],
        _offsets(data.get("outputs", [])),
        _offsets(data.get("starts", [])),
        frozenset(data.get("intermediate", ())),
    )


def prune(catalog: Catalog, keep: int, say: Callable[[str], object] = lambda text: None) -> list[str]:
    """Delete all backups of an application but the last `keep`; return the names of those that are gone.

    Files that a kept backup needs stay, and what was written since the last of them: a backup may be under way. Older
    backups that were cut short are deleted, too. If it is killed, kept ones can be restored, and the next call deletes
    what is left. `say` gets a line for each folder. Raises ConfigError as `check_keep`, and, before anything is
    deleted, StoreError or ChangelogError for what is damaged of a kept backup.
    """
    check_keep(keep)
    before = catalog.listed()
    if not before.made:
        return []
    last, gone = before.made[-1], before.made[:-keep]
    folders = {*catalog.noted(), *(folder for name in gone for folder in _folders(catalog, name))}
    before_ms = catalog.written_ms(last)
    needless = _needless(catalog, folders, _kept(catalog, before, last, gone), before_ms)
    # First the note, then another look at claims: a process that makes a backup does it the other way round.
    with catalog.noting(needless):
        now = catalog.listed()
        # Twice: a look while names are added may miss one that is older than another one that it finds.
        void = set(before.void) & set(now.void)
        later = _needless(catalog, folders, _kept(catalog, now, last, gone), before_ms)
        for name in (*gone, *_cut_short(now, last), *void):
            # Entries before files: one without all of its files would be a backup that cannot be restored.
            catalog.delete(name)
        catalog.sync()
        for folder, files in needless.items():
            if deleted := sorted(files & later.get(folder, set())):
                with closing(catalog.changelog(folder)) as changelog:
                    changelog.delete(deleted)
                say(f"{folder}: {len(deleted)} file{'' if len(deleted) == 1 else 's'} deleted")
        catalog.delete_temporaries(before_ms)
    return gone


def check_keep(keep: int | None) -> None:
    """Raise ConfigError for a number of backups to keep that is below 1; None: nothing is deleted."""
    if keep is not None and keep < 1:
        raise ConfigError(f"--keep: expected 1 or more, found {keep}: the last backup always stays")


def _folders(catalog: Catalog, name: str) -> set[str]:
    try:
        return set(catalog.read(name).versions)
    except PenstockError:
        return set()  # damaged, or of a later release


def _cut_short(listed: Listed, last: str) -> list[str]:
    """Return the unfinished backups that a later one has overtaken."""
    return [name for name in listed.unfinished if name < last]


def _kept(catalog: Catalog, listed: Listed, last: str, gone: list[str]) -> list[Backup]:
    """Return the backups whose files stay: those that are made, and those that may be under way."""
    unfinished = set(listed.unfinished).difference(_cut_short(listed, last))
    made = [catalog.read(name) for name in listed.made if name not in gone]
    return made + [catalog.claimed(name) for name in sorted(unfinished)]


def _needless(catalog: Catalog, folders: Iterable[str], kept: Iterable[Backup], before_ms: int) -> dict[str, set[str]]:
    """Return the old files, by folder (of `folders` and of kept backups), that none of the kept backups needs."""
    versions: dict[str, set[str]] = {folder: set() for folder in folders}
    for backup in kept:
        for folder, version in backup.versions.items():
            versions.setdefault(folder, set()).add(version)
    found = {}
    for folder, of_folder in versions.items():
        with closing(catalog.changelog(folder)) as changelog:
            found[folder] = changelog.needless(of_folder, before_ms)
    return found
