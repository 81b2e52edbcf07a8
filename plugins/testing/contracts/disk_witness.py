"""A witness of what Python's calls write, rename, remove and sync: what a crash of the machine would lose."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any


class DiskWitness:
    """Notes in a `with` block what is done to files in a directory; `check` fails if that does not last.

    A file is durable when it is synced (`os.fsync`), and its name when the folder is synced in which it, or a folder
    above it, was made or renamed. What libraries do in C is not seen, and not accused.
    """

    def __init__(self, directory: Path) -> None:
        self._root = os.path.realpath(directory)
        self._there = {str(file) for file in Path(self._root).rglob("*") if file.is_file()}
        self._written: set[str] = set()
        """Files that were opened to be written, and not synced since."""
        self._names: set[str] = set()
        """Files and folders whose name is new in a folder that was not synced since."""
        self._made: set[str] = set()
        """Files that Python made or renamed here."""
        self._faults: list[str] = []

    def __enter__(self) -> DiskWitness:
        _hear()
        self._before: dict[str, Callable[..., Any]] = {}
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                self._before[name] = getattr(os, name)
                setattr(os, name, self._syncing(self._before[name]))
        self._profile = sys.getprofile()
        sys.setprofile(self._unseen)
        _witnesses.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _witnesses.remove(self)
        sys.setprofile(self._profile)
        for name, function in self._before.items():
            setattr(os, name, function)

    def check(self, rule: str) -> None:
        """Raise AssertionError with the rule for what was done in a wrong order, or is not durable now."""
        faults = self._faults + self._pending()
        assert not faults, f"{rule}: {faults[0]}; a crash of the machine may lose it"

    def _pending(self) -> list[str]:
        pending = []
        for path in sorted(self._made | self._written):
            if _OF_NO_USE.search(os.path.basename(path)) or not os.path.isfile(path) or not os.path.getsize(path):
                continue
            if path in self._written:
                pending.append(f"{self._shown(path)} was written and not synced (os.fsync)")
            at = path
            while path in self._made and at.startswith(self._root + os.sep):
                if at in self._names:
                    pending.append(f"{self._shown(at)} is new in its folder, which was not synced (os.fsync)")
                at = os.path.dirname(at)
        return pending

    def _shown(self, path: str) -> str:
        return repr(os.path.relpath(path, self._root))

    def _syncing(self, sync: Callable[..., Any]) -> Callable[..., Any]:
        def synced(file: Any) -> None:
            sync(file)
            path = os.path.realpath(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
            self._written.discard(path)
            self._names = {each for each in self._names if os.path.dirname(each) != path}

        return synced

    def _unseen(self, frame: FrameType, event: str, called: Any) -> None:
        """Give the benefit of the doubt to who kept a reference to the system's function."""
        if event == "c_call" and called in self._before.values() and frame.f_code.co_name != "synced":
            self._written.clear()
            self._names.clear()

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event of Python's audit hooks."""
        if event == "open":
            path, flags = self._own(arguments[0]), arguments[2]
            if path is None or not flags & (os.O_WRONLY | os.O_RDWR):
                return
            if flags & os.O_CREAT and not os.path.lexists(path):
                self._add(path)
            if not flags & os.O_DSYNC:
                self._written.add(path)
        elif event == "os.mkdir":
            if (path := self._own(arguments[0])) is not None:
                self._names.add(path)
        elif event in ("os.rename", "os.link"):
            source, path = self._own(arguments[0]), self._own(arguments[1])
            if path is None:
                return
            if source in self._written:
                if os.path.getsize(source or ""):
                    self._faults.append(f"{self._shown(path)} got its name before its content was synced (os.fsync)")
                self._written.add(path)
            if event == "os.rename" and source is not None:
                for names in (self._written, self._names, self._made):
                    names.discard(source)
            self._add(path)
        elif event == "os.remove":
            path = self._own(arguments[0])
            if path in self._there and (pending := [each for each in self._pending() if self._shown(path) not in each]):
                self._faults.append(f"{self._shown(path)} was removed when {pending[0]}")

    def _add(self, path: str) -> None:
        self._names.add(path)
        self._made.add(path)

    def _own(self, path: Any) -> str | None:
        """Return the full path of a file in the directory, None for another one."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        name = os.fsdecode(path)
        folder, last = os.path.split(os.path.abspath(name))
        full = os.path.join(os.path.realpath(folder), last)
        return full if full.startswith(self._root + os.sep) else None


_OF_NO_USE = re.compile("lock|pid", re.IGNORECASE)
"""In the names of files that nobody needs after a crash."""
_witnesses: list[DiskWitness] = []
_hearing: list[bool] = []


def _hear() -> None:
    """Install the hook, once: Python removes none."""
    if not _hearing:
        _hearing.append(True)
        sys.addaudithook(_tell)


def _tell(event: str, arguments: tuple[Any, ...]) -> None:
    if _witnesses and event in _EVENTS:
        for each in _witnesses:
            each.hear(event, arguments)


_EVENTS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove"}
