"""Deletes old backups, and the files that no other backup needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

from penstock import ConfigError, PenstockError

from .catalog import Catalog


def prune(catalog: Catalog, keep: int, say: Callable[[str], object] = lambda text: None) -> list[str]:
    """Delete all backups of an application but the last `keep`; return the names of those that are gone.

    Files that a kept backup needs stay, and so does what was written since the last of them: a backup may be under way.
    Whenever it is killed, all kept ones can be restored, and the next call deletes what is left. `say` gets a line for
    each folder in which files are deleted.

    Raises ConfigError as `check_keep`, and, before anything is deleted, StoreError or ChangelogError that names the
    damaged entry or the missing file of a backup that is to be kept.
    """
    check_keep(keep)
    names = catalog.names()
    if not names:
        return []
    gone = names[:-keep]
    folders = {*catalog.noted(), *(folder for name in gone for folder in _folders(catalog, name))}
    needless = _needless(catalog, folders, names[-keep:])
    # The note is first, then the backups are looked at again: one that is made meanwhile does it the other way round.
    catalog.note(needless)
    later = _needless(catalog, folders, [name for name in catalog.names() if name not in gone])
    for name in gone:
        # Entries before files: one without all of its files would be a backup that cannot be restored.
        catalog.delete(name)
    catalog.note(needless)  # which also makes it durable that the entries are gone
    for folder, files in needless.items():
        if deleted := sorted(files & later.get(folder, set())):
            with closing(catalog.changelog(folder)) as changelog:
                changelog.delete(deleted)
            say(f"{folder}: {len(deleted)} file{'' if len(deleted) == 1 else 's'} deleted")
    catalog.delete_temporaries(catalog.written_ms(names[-1]))
    catalog.note({})
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


def _needless(catalog: Catalog, folders: Iterable[str], kept: Sequence[str]) -> dict[str, set[str]]:
    """Return the files, by folder, that were written before the last of the kept backups, and that none of them needs.

    Other folders than `folders` are those of the kept backups.
    """
    versions: dict[str, set[str]] = {folder: set() for folder in folders}
    for name in kept:
        for folder, version in catalog.read(name).versions.items():
            versions.setdefault(folder, set()).add(version)
    before_ms, found = catalog.written_ms(kept[-1]), {}
    for folder, of_folder in versions.items():
        with closing(catalog.changelog(folder)) as changelog:
            found[folder] = changelog.needless(of_folder, before_ms)
    return found
