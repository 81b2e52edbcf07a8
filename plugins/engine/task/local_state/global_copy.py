"""The copies of a global store on this machine: the current one for tasks, and its successor under construction."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from penstock import (
    Application,
    GlobalStore,
    OpensAlone,
    StateStore,
    StoreBackend,
    StoreBuilder,
    StoreLockedError,
    duration_ms,
)
from penstock.hooks import registry
from penstock.program.serdes import resolve_serde
from penstock.store.kept_store import KeptStore
from penstock.store.record_cache import CacheBudget, RecordCache
from penstock.store.specs import declared_serdes
from penstock.store.state_store import built_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.support.file_lock import FileLock
from penstock.support.names import index_name
from penstock.support.private_files import make_private_directory, write_private_text
from penstock.support.repeats import Repeats
from penstock.task.progress import TaskProgress

from ..locations import GLOBAL, making_state_directory
from .restoring import Stretch
from .store_context import TaskStoreContext

_SHARED_BACKEND = "lmdb"
"""In place of a backend whose directory one process has for itself: every process of this machine opens a copy."""
_LOOK_SECONDS = 1.0
"""Seconds between two looks of a waiting process whether the owner of the lock makes progress."""


@dataclass(frozen=True)
class Position:
    """How far a copy has read its topic. The backend's version, as JSON.

    `positions`: the next offset, by partition number. `engine`: the filling task's own state. `topic_id`: the id of the
    topic that was read. `as_of_ms`: the time at which the copy last had all of the topic, or at which reading from the
    start began, None if nothing has been read. `form`: the serdes of its entries. `topic_id` is "" where the log has no
    ids.
    """

    positions: dict[str, int] = field(default_factory=dict)
    engine: str = ""
    topic_id: str = ""
    as_of_ms: int | None = None
    form: str = ""

    @classmethod
    def from_version(cls, version: str | None) -> Position:
        """Return the position that `to_version` wrote; without a version, nothing has been read."""
        return cls() if version is None else cls(**json.loads(version))

    @property
    def stream_time(self) -> int:
        """The highest timestamp that was read; -1 before the first record."""
        return int(json.loads(self.engine).get("stream", -1)) if self.engine else -1

    def contradiction(self, form: str, topic_id: str) -> str | None:
        """Return why a copy at this position is none of a topic of this id, with entries of this form; None if it is.

        An id that is "" is not known.
        """
        if self.positions and self.form != form:
            written = self.form or "of an older version of penstock"
            return f"its entries were written with the serdes {written}, and those of the program are {form}"
        if self.topic_id and topic_id and self.topic_id != topic_id:
            return "its topic was deleted and made again"
        return None

    def to_version(self) -> str:
        """Return this as text."""
        return json.dumps(asdict(self))


def form_of_entries(application: Application, store: StoreBuilder) -> str:
    """Return the written forms of a global store's serdes, as a name of how its entries are written."""
    forms = ", ".join(
        resolve_serde(given, application.settings.state_serde, f"store {store.name!r}").written_form()
        for given in declared_serdes(store).values()
    )
    return forms + (", with a TTL" if store.traits.expires else "")


class GlobalCopy:
    """One copy: a backend in a directory, and the typed store on top of it."""

    def __init__(self, application: Application, spec: GlobalStore, backend: StoreBackend) -> None:
        self.name = spec.store.name
        self.backend = backend
        self.buffer = CommitBuffer(backend, self.name)
        index = CommitBuffer(backend, index_name(self.name)) if spec.store.traits.has_index else None
        self._buffers = [self.buffer] if index is None else [self.buffer, index]
        context = TaskStoreContext(
            application.id,
            GLOBAL,
            application.settings.state_serde,
            spec.store.traits.fixed_options,
            lambda: self.progress.stream_time,
            lambda: self.progress.wall_clock,
            lambda reason, count: None,
            index,
            spec.store.traits.expires,
            RecordCache(self.name, CacheBudget(0)),
            Repeats(lambda: self.progress.wall_clock),
            application.settings.of_plugins,
        )
        self.store: StateStore = built_store(spec.store, self.buffer, context)
        self.progress = TaskProgress(0)
        """The clocks by which entries expire: stream time is the highest timestamp that was read from the topic."""
        self._version: str | None = None
        self._position = Position()

    def position(self) -> Position:
        """Return the latest position of any process, and drop cached objects of an earlier state."""
        version = self.backend.version()
        if version != self._version:
            # The typed store's objects are of the earlier version.
            self.store.discard()
            self._version, self._position = version, Position.from_version(version)
            self.progress.stream_time = self._position.stream_time
        return self._position

    def write(self, position: Position) -> None:
        """Write the pending changes and the position in one step. Raises StaleStoreError after another writer."""
        self.store.flush()
        version = position.to_version()
        rows = {buffer.name: buffer.local_changes(buffer.changes()) for buffer in self._buffers}
        self.backend.write(rows, self._version, version)
        self._version, self._position = version, position
        self.give_up()

    def give_up(self) -> None:
        """Drop pending changes and cached objects."""
        self.store.discard()
        for buffer in self._buffers:
            buffer.clear()

    def move_to(self, other: GlobalCopy) -> None:
        """Replace the content by that of `other`, and take over its backend; the store object stays."""
        other.store.close()
        self.give_up()
        self.backend, self._version, self.progress = other.backend, None, other.progress
        for buffer in self._buffers:
            buffer.read_from(other.backend)

    def close(self) -> None:
        """Close the store and its backend."""
        self.store.close()
        self.backend.close()


def copy_backend(application: Application, store: StoreBuilder) -> str:
    """Return the name of the store backend on which a global store is kept on each machine."""
    name = store.backend or application.settings.store_backend
    factory = registry().load("store backend", name)
    return _SHARED_BACKEND if isinstance(factory, OpensAlone) and factory.exclusive else name


def current_number(directory: Path, backend: str) -> int:
    """Return the number of the copy that tasks read."""
    with making_state_directory(directory):
        try:
            return int((directory / f"{backend}.current").read_text())
        except (FileNotFoundError, ValueError):
            # Not written yet, or lost when the machine went down: copy 0 is then filled from the start if need be.
            return 0


def copy_directory(directory: Path, backend: str, number: int) -> Path:
    """Return the directory of a copy, under that of its store."""
    return directory / (f"{backend}.{number}" if number else backend)


class GlobalDirectory:
    """A global store's directory on this machine.

    A file has the number of the copy that tasks read; the next number is being built, and replaces the old one as a
    whole. Every change is made under a lock. `filling`: shows that this process does not stand still.
    """

    def __init__(
        self, application: Application, spec: GlobalStore, directory: Path, filling: Stretch | None = None
    ) -> None:
        self._filling = filling or Stretch("a copy of a global store")
        with making_state_directory(directory):
            make_private_directory(directory)
        self._lock = FileLock(str(directory / "lock"))
        self._application = application
        self._spec = spec
        self._directory = directory
        self._backend = copy_backend(application, spec.store)
        self._factory = registry().load("store backend", self._backend)
        self._tables = KeptStore.of(spec.store, self._backend).tables(spec.store.name)
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

    def refresh(self, *, wait: bool = True) -> None:
        """Switch to the present copy, if another process has built one; not `wait`: and if its lock is free."""
        if self._current() != self._number:
            with self.writing(wait=wait):
                pass

    def is_being_replaced(self) -> bool:
        """Return whether some process is building a new copy."""
        return self._path(self._number + 1).exists()

    def open_next(self) -> GlobalCopy:
        """Return the next copy in its present, perhaps unfinished, state. Call while `writing`."""
        return self._open(self._number + 1)

    def replace(self, built: GlobalCopy) -> None:
        """Make a copy from `open_next` the current one and delete its predecessor. Call while `writing`."""
        number = self._number + 1
        aside = self._pointer.with_suffix(".new")
        with making_state_directory(self._directory):
            write_private_text(aside, str(number))
            os.replace(aside, self._pointer)
        self._turn_to(number, built)
        self._remove_others()

    def drop_next(self, copy: GlobalCopy) -> None:
        """Delete a copy from `open_next`. Call while `writing`."""
        copy.store.close()
        copy.backend.destroy()
        shutil.rmtree(self._path(self._number + 1), ignore_errors=True)

    @contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[bool]:
        """Take the lock of this store on this machine for the block, and switch to the present copy.

        Yields whether this process has the lock: always, unless it does not `wait`. Raises StoreLockedError when
        another process has had it for `task_timeout` without progress.
        """
        with self._locked(wait) as has_lock:
            if has_lock and (number := self._current()) != self._number:
                self._turn_to(number)
            yield has_lock

    def show_progress(self) -> None:
        """Show processes that wait for the lock that this one makes progress."""
        with making_state_directory(self._directory):
            os.utime(self._path_of_lock())

    def close(self) -> None:
        """Close the current copy."""
        self.current.close()
        self._lock.close()

    # ------------------------------------------------------------------ helpers

    @contextmanager
    def _locked(self, wait: bool = True) -> Iterator[bool]:
        waited, seen = 0.0, 0
        while not self._acquire(_LOOK_SECONDS if wait else 0.0):
            if not wait:
                yield False
                return
            progress = self._path_of_lock().stat().st_mtime_ns
            if progress == seen:
                waited += _LOOK_SECONDS
            else:
                waited, seen = 0.0, progress
                self._filling.moved()  # the other process does this one's work
            if waited >= self._limit:
                raise StoreLockedError(
                    f"global store {self._spec.store.name!r}: {self._lock.holder()} holds the lock "
                    f"{self._path_of_lock()} and has not moved for {self._limit:g} s (task_timeout). If it was "
                    "stopped, let it go on (`kill -CONT`) or end it (`kill -9`, which loses nothing)"
                )
        try:
            yield True
        finally:
            self._lock.release()

    def _acquire(self, seconds: float) -> bool:
        with making_state_directory(self._directory):
            return self._lock.acquire(seconds)

    def _open(self, number: int) -> GlobalCopy:
        return GlobalCopy(self._application, self._spec, self._open_backend(number))

    def _open_backend(self, number: int) -> StoreBackend:
        path = self._path(number)
        with making_state_directory(path):
            make_private_directory(path)
        backend: StoreBackend = self._factory(path, self._tables)
        if not backend.trusted():
            backend.destroy()
            backend = self._factory(path, self._tables)
        return backend

    def _turn_to(self, number: int, built: GlobalCopy | None = None) -> None:
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
        return current_number(self._directory, self._backend)

    def _path(self, number: int) -> Path:
        return copy_directory(self._directory, self._backend, number)

    def _path_of_lock(self) -> Path:
        return self._directory / "lock"
