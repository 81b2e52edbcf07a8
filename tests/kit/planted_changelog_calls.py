"""Changelogs with one wrong line each, which shows where other calls come between, or a file is not as it was left.

Other processes import this module.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock import World, version_counter
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.changelogs.storage import TEMPORARY, LocalStorage, _write_all

from .planted_folders import _ASIDE, _DELTA, FolderChangelog


class CleansWhatIsWritten(FolderChangelog):
    """Files that are being written are deleted however young they are."""

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        super().clean(version, grace_ms, now_ms, is_current)
        if is_current():
            for file in self._files():
                if file.suffix == _ASIDE:
                    file.unlink(missing_ok=True)


class CleansTheTemporaryOfOthers(DirectoryChangelog):
    """As above."""

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        super().clean(version, grace_ms, now_ms, is_current)
        if is_current():
            self.delete([each.name for each in self._storage.files() if each.name.endswith(TEMPORARY)])


class GraceInSeconds(FolderChangelog):
    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        super().clean(version, grace_ms // 1000, now_ms, is_current)


class CleansTheSameCounter(FolderChangelog):
    """A delta that is no older than the version is deleted."""

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        super().clean(version, grace_ms, now_ms, is_current)
        for each in self._versions(_DELTA):
            if version_counter(each) == version_counter(version) and each != version and is_current():
                (self._folder / f"{each}{_DELTA}").unlink()


class BeginsWhereSomethingIsMissing(FolderChangelog):
    def beginnings(self) -> set[str]:
        deltas = self._deltas()
        return {each.version for each in deltas.values() if each.previous not in deltas}


class FolderFromThere(FolderChangelog):
    """The folder depends on the working directory."""

    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        super().__init__(location, application_id, task_id)
        self._folder = Path(os.path.relpath(self._folder))


class DestroysNamesThatBeginAlike(FolderChangelog):
    def destroy(self) -> None:
        for folder in self._folder.parent.glob(f"{self._folder.name}*"):
            shutil.rmtree(folder)


class OneAsideForAll(FolderChangelog):
    """Two processes that write the same snapshot write the same file."""

    def _aside(self, name: str) -> Path:
        return self._folder / f"{name}{_ASIDE}"


class NamesInAField(FolderChangelog):
    """A thread that appends, and one that snapshots, share the name of the file."""

    def _write(self, name: str, parts: Iterator[Any]) -> None:
        self._name = name
        super()._write(name, parts)

    def _publish(self, file: Any, path: Path) -> None:
        super()._publish(file, self._folder / self._name)


class DestroysFileByFile(FolderChangelog):
    """What another process writes meanwhile ends it with an error of the system."""

    def destroy(self) -> None:
        if self._folder.exists():
            for file in list(self._folder.iterdir()):
                file.unlink()
            self._folder.rmdir()


class _Blind(LocalStorage):
    def append(self, name: str, size: int, data: bytes) -> None:
        with closing(self.world.files.open_end(self._path(name))) as file:
            _write_all(file, data)
            file.sync(data_only=True)


class AppendsBlindly(DirectoryChangelog):
    """A delta is appended to a file that is not as it was left."""

    storage: type[LocalStorage] = _Blind

    def __init__(self, location: str, application_id: str, task_id: str) -> None:
        def opened(place: str, *folders: str, world: World) -> LocalStorage:
            return self.storage(Path(place), *folders, world=world)

        super().__init__(location, application_id, task_id, open_storage=opened)
