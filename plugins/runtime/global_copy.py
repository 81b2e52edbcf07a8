"""The copies of a global store on this host: the one that tasks read, and one that is built to replace it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock.clock import duration_ms
from penstock.errors import StoreLockedError
from penstock.file_lock import FileLock
from penstock.hooks import registry
from penstock.program.nodes import GlobalStore
from penstock.settings.application import Application
from penstock.store import StateStore, StoreBackend
from penstock.stores.layers.commit_buffer import CommitBuffer

from .locations import making_state_directory
from .store_context import TaskStoreContext

_LOOK_SECONDS = 1.0
"""How often a process that waits for the lock looks whether the holder makes progress."""


@dataclass(frozen=True)
class Position:
    """How far a copy has read its topic; the version of its backend, as JSON.

    `positions`: the next offset, by partition number. `engine`: the filling task's own state. `topic_id`: which topic of that name it
    read ("" in a copy of an earlier release, and where the log has no ids). `as_of_ms`: the time at which it last held all of the
    topic, or at which reading from the start began; None in a copy of an earlier release. `form`: the serdes that its entries are written
    with ("" in a copy of an earlier release).
    """

    positions: dict[str, int] = field(default_factory=dict)
    engine: str = ""
    topic_id: str = ""
    as_of_ms: int | None = None
    form: str = ""

    @classmethod
    def from_version(cls, version: str | None) -> Position:
        """Return what `to_version` wrote; nothing has been read where there is no version."""
        return cls() if version is None else cls(**json.loads(version))

    def to_version(self) -> str:
        """Return this as text."""
        return json.dumps(asdict(self))


class Copy:
    """One copy: a backend in a directory, and the typed store on top of it."""

    def __init__(self, application: Application, spec: GlobalStore, backend: StoreBackend) -> None:
        self.name = spec.store.name
        self.backend = backend
        self.buffer = CommitBuffer(backend, self.name)
        context = TaskStoreContext(
            application.id, "global", application.settings.state_serde, lambda: -1, lambda reason, count: None
        )
        self.store: StateStore = spec.store.build(self.buffer, context)
        self._version: str | None = None
        self._position = Position()

    def position(self) -> Position:
        """Return how far any process has read; lets go of what this one holds of an earlier state."""
        version = self.backend.version()
        if version != self._version:
            # What the typed store holds as objects is of before.
            self.store.discard()
            self._version, self._position = version, Position.from_version(version)
        return self._position

    def write(self, position: Position) -> None:
        """Write what is pending, and the position, in one step. Raises StaleStoreError when another process has written since `position`."""
        self.store.flush()
        version = position.to_version()
        self.backend.write({self.name: self.buffer.changes()}, self._version, version)
        self._version, self._position = version, position
        self.give_up()

    def give_up(self) -> None:
        """Forget what is pending, and what is held as objects."""
        self.store.discard()
        self.buffer.clear()

    def move_to(self, other: Copy) -> None:
        """Show what `other` has from now on, under the same store object, and take its backend over."""
        other.store.close()
        self.give_up()
        self.backend, self._version = other.backend, None
        self.buffer.read_from(other.backend)

    def close(self) -> None:
        """Close the store and its backend."""
        self.store.close()
        self.backend.close()


class Copies:
    """A global store's directory on this host.

    Copies are numbered; a file names the number that tasks read, and the next number is one that is being built. A copy is replaced as a
    whole, so that tasks of other processes see the old one, complete, until their next batch. Every change is made under a lock.
    """

    def __init__(self, application: Application, spec: GlobalStore, directory: Path) -> None:
        with making_state_directory(directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(str(directory / "lock"))
        self._application = application
        self._spec = spec
        self._directory = directory
        self._backend = spec.store.backend or application.settings.store_backend
        self._factory = registry().load("store backend", self._backend)
        self._limit = duration_ms(application.settings.task_timeout) / 1000
        self._pointer = directory / f"{self._backend}.current"
        try:
            with self._locked():
                self._number = self._current()
                self._remove_others()
                self.current = self._open(self._number)
        except BaseException:
            self._lock.close()
            raise

    def refresh(self) -> None:
        """Turn to the copy that is the current one by now, if another process has built one."""
        if self._current() != self._number:
            with self.writing():
                pass

    def is_being_replaced(self) -> bool:
        """Return whether some process began a new copy, which is not the current one yet."""
        return self._path(self._number + 1).exists()

    def open_next(self) -> Copy:
        """Return the copy that will replace the current one, as far as it was built. Call while `writing`."""
        return self._open(self._number + 1)

    def replace(self, built: Copy) -> None:
        """Make a copy from `open_next` the current one and delete the one before. Call while `writing`."""
        number = self._number + 1
        aside = self._pointer.with_suffix(".new")
        with making_state_directory(self._directory):
            aside.write_text(str(number))
            os.replace(aside, self._pointer)
        self._turn_to(number, built)
        self._remove_others()

    def drop_next(self, copy: Copy) -> None:
        """Delete a copy from `open_next`. Call while `writing`."""
        copy.store.close()
        copy.backend.destroy()
        shutil.rmtree(self._path(self._number + 1), ignore_errors=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of this store on this host, and turn to the copy that is the current one by then.

        Raises StoreLockedError when another process has held it for `task_timeout` without a sign of progress.
        """
        with self._locked():
            number = self._current()
            if number != self._number:
                self._turn_to(number)
            yield

    def show_progress(self) -> None:
        """Tell those who wait for the lock that this process moves."""
        with making_state_directory(self._directory):
            os.utime(self._path_of_lock())

    def close(self) -> None:
        """Close the current copy."""
        self.current.close()
        self._lock.close()

    # ------------------------------------------------------------------ helpers

    @contextmanager
    def _locked(self) -> Iterator[None]:
        waited, seen = 0.0, 0
        while not self._acquire():
            progress = self._path_of_lock().stat().st_mtime_ns
            waited, seen = (waited + _LOOK_SECONDS if progress == seen else 0.0), progress
            if waited >= self._limit:
                raise StoreLockedError(
                    f"global store {self._spec.store.name!r}: {self._lock.holder()} holds the lock {self._path_of_lock()} and has not "
                    f"moved for {self._limit:g} s (task_timeout). If it was stopped, let it go on (`kill -CONT`) or end it (`kill -9`, "
                    "which loses nothing)"
                )
        try:
            yield
        finally:
            self._lock.release()

    def _acquire(self) -> bool:
        with making_state_directory(self._directory):
            return self._lock.acquire(_LOOK_SECONDS)

    def _open(self, number: int) -> Copy:
        return Copy(self._application, self._spec, self._open_backend(number))

    def _open_backend(self, number: int) -> StoreBackend:
        path = self._path(number)
        with making_state_directory(path):
            path.mkdir(exist_ok=True)
        backend: StoreBackend = self._factory(path, [self._spec.store.name])
        if not backend.trusted():
            backend.destroy()
            backend = self._factory(path, [self._spec.store.name])
        return backend

    def _turn_to(self, number: int, built: Copy | None = None) -> None:
        before = self.current.backend
        self.current.move_to(built or self._open(number))
        self._number = number
        before.destroy()

    def _remove_others(self) -> None:
        """Delete copies that were replaced; a process that has one open keeps the files until it closes them."""
        name = re.compile(re.escape(self._backend) + r"(?:\.\d+)?")
        kept = {self._path(self._number), self._path(self._number + 1)}
        with making_state_directory(self._directory):
            paths = list(self._directory.iterdir())
        for path in paths:
            if name.fullmatch(path.name) and path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _current(self) -> int:
        with making_state_directory(self._directory):
            try:
                return int(self._pointer.read_text())
            except (FileNotFoundError, ValueError):
                # Not written yet, or lost when the machine went down: what this number names is read from the start if need be.
                return 0

    def _path(self, number: int) -> Path:
        return self._directory / (f"{self._backend}.{number}" if number else self._backend)

    def _path_of_lock(self) -> Path:
        return self._directory / "lock"
