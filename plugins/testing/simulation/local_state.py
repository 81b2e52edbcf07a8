"""LocalState: what a crash of a machine takes back of the stores on it."""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path
from random import Random

from penstock.stores.memory import MemoryBackend, Saved

_KEPT = 3
"""The most earlier contents of a directory that a crash may bring back."""


class LocalState:
    """The stores in memory under `directory`, a machine's disk. Nothing of them is synced.

    So a crash of the machine leaves a content of before, one for each task, or none: as a backend that writes
    atomically does, or one that does not trust what it has after a crash.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.replicas = directory / "replicas"
        self._before: dict[str, deque[Saved]] = {}

    def contents(self) -> dict[str, Saved]:
        """Return the stores' present contents, by directory."""
        return MemoryBackend.saved(self.directory)

    def adopt(self, task: str, application_id: str) -> None:
        """Let the replica of a task, which nobody has open, be the task's local state, in place of what is there."""
        source, target = self.replicas / task, self.directory / application_id / task
        contents = MemoryBackend.saved(source)
        for each in (source, target):
            MemoryBackend.forget(each)
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        places = {place: place.replace(str(source.absolute()), str(target.absolute()), 1) for place in contents}
        MemoryBackend.put_back({places[place]: saved for place, saved in contents.items()})

    def note(self) -> None:
        """Note the present contents, and forget those whose directories were removed."""
        for place, version in MemoryBackend.versions(self.directory).items():
            before = self._before.setdefault(place, deque(maxlen=_KEPT))
            if not os.path.exists(place):
                MemoryBackend.forget(Path(place).parent)
                del self._before[place]
            elif not before or before[-1][0] != version:
                before.append(MemoryBackend.saved(Path(place))[place])

    def lose(self, random: Random) -> None:
        """Let the machine go down; no process on it may live."""
        for place, before in sorted(self._before.items()):
            left = random.randrange(len(before) + 1)
            MemoryBackend.forget(Path(place).parent)
            if left < len(before):
                MemoryBackend.put_back({place: before[-1 - left]})
        self._before.clear()
