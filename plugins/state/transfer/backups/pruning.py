"""Deletes old backups, and the files that no other backup needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing

from penstock import ConfigError, PenstockError

from .catalog import Backup, Catalog, Listed


def prune(catalog: Catalog, keep: int, say: Callable[[str], object] = lambda text: None) -> list[str]:
    """Delete all backups of an application but the last `keep`; return the names of those that are gone.

    Files that a kept backup needs stay, and so does what was written since the last of them: a backup may be under way.
    Backups that were cut short are deleted, too, if they are older than the last one. Whenever it is killed, all kept
    ones can be restored, and the next call deletes what is left. `say` gets a line for each folder in which files are
    deleted.

    Raises ConfigError as `check_keep`, and, before anything is deleted, StoreError or ChangelogError that names the
    damaged entry or the missing file of a backup that is to be kept.
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
    """Return the files, by folder, that were not written since `before_ms`, and that none of the kept backups needs.

    Other folders than `folders` are those of the kept backups.
    """
    versions: dict[str, set[str]] = {folder: set() for folder in folders}
    for backup in kept:
        for folder, version in backup.versions.items():
            versions.setdefault(folder, set()).add(version)
    found = {}
    for folder, of_folder in versions.items():
        with closing(catalog.changelog(folder)) as changelog:
            found[folder] = changelog.needless(of_folder, before_ms)
    return found
