"""The state of one task: its stores, the backends that hold them on this host, and how they move between versions."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.changelog import Restore, TaskChangelog, version_counter
from penstock.errors import IncompatibleStateError, StaleStoreError, StoreLockedError
from penstock.hooks import registry
from penstock.log import Commit
from penstock.program.layouts import Layouts
from penstock.program.nodes import ProcessorNode, Subtopology
from penstock.program.serdes import resolve_serde
from penstock.record import OutputBatch
from penstock.serde import Serde
from penstock.settings.settings import Settings
from penstock.store import Changes, StateStore, StoreBackend, StoreBackendFactory, StoreBuilder
from penstock.stores.layers.commit_buffer import CommitBuffer
from penstock.stores.layers.ttl import TtlStore
from penstock.task.task import Task

from .coverage import Coverage
from .directories import DirectoryUse
from .locations import making_state_directory

_log = logging.getLogger("penstock.state")


def first_version() -> str:
    """Return a new name for the empty state of a task, whatever its layout."""
    return f"{0:012d}-{secrets.token_hex(4)}"


class TaskState:
    """All stores of one task. One backend per backend name, each in a directory of its own under `directory`.

    `layouts` has how stores are kept, those included that the program does not name any more (None: as the program says). Nothing here is ahead of the log's commit:
    `apply` is called after it. Called from one thread.
    """

    def __init__(
        self,
        builders: Sequence[StoreBuilder],
        directory: Path,
        changelog: TaskChangelog | None,
        settings: Settings,
        application_id: str,
        task_id: str,
        layouts: Layouts | None = None,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._changelog = changelog
        self.application_id = application_id
        self.task_id = task_id
        self._layouts = layouts or Layouts.of_program(builders, settings.store_backend)
        self._names: dict[str, list[str]] = {}
        for store, kept in self._layouts.now.items():
            self._names.setdefault(kept.backend, []).append(store)
        self._builders = builders
        self._logged = frozenset(store for store, kept in self._layouts.now.items() if kept.logged)
        self._backends: dict[str, StoreBackend] = {}
        self._old_backends: dict[str, StoreBackend] = {}
        self._use: DirectoryUse | None = None
        self._coverage = Coverage(Layouts(self._layouts.now), "")
        self._buffers: dict[str, CommitBuffer] = {}
        self.stores: dict[str, StateStore] = {}
        self.version: str | None = None
        self.stream_time: Callable[[], int] = lambda: -1
        self.dropped: Callable[[str, str, int], None] = lambda store, reason, count: None
        self.restored_changes = 0

    # ------------------------------------------------------------------ opening

    def open(self, version: str) -> None:
        """Bring every backend to `version` and build the stores. Raises ChangelogError when it cannot be reached."""
        self._coverage = Coverage(self._layouts, version)
        gone = self._coverage.gone
        if self._names or gone:
            self._use = DirectoryUse(self._directory)
        for name, stores in self._names.items():
            self._backends[name] = self._open_backend(name, [*stores, *gone.get(name, ())], version)
        self._take_over(version)
        self._build(version)

    def open_fresh(self, version: str) -> None:
        """Build the stores, empty, at `version`: for a state that no log knows of."""
        for name, stores in self._names.items():
            directory = self._directory / name / "0"
            with making_state_directory(directory):
                directory.mkdir(parents=True, exist_ok=True)
            backend = self._backends[name] = registry().load("store backend", name)(directory, stores)
            backend.write({}, backend.version(), version)
        self._build(version)

    def _build(self, version: str) -> None:
        self.version = version
        for builder in self._builders:
            kept, context = self._layouts.now[builder.name], _Context(self, builder.name)
            buffer = self._buffers[builder.name] = CommitBuffer(self._backends[kept.backend], builder.name)
            # What had a TTL in an earlier program still expires; a store that has one of its own sees to that itself.
            hides = kept.expires and getattr(builder, "ttl_ms", None) is None
            below = TtlStore(buffer, None, context.stream_time) if hides else buffer
            self.stores[builder.name] = builder.build(below, context)

    def _open_backend(self, name: str, stores: list[str], version: str) -> StoreBackend:
        factory = registry().load("store backend", name)
        try:
            return self._open_incarnation(factory, name, self._latest(name), stores, version)
        except StoreLockedError as error:
            # A process that was stopped while it wrote may hold the directory for ever: its successor uses a new one.
            _log.warning("task %s: %s; restoring into a new directory", self.task_id, error)
            return self._open_incarnation(factory, name, self._latest(name) + 1, stores, version)

    def _open_incarnation(
        self, factory: StoreBackendFactory, name: str, number: int, stores: list[str], version: str
    ) -> StoreBackend:
        directory = self._directory / name / str(number)
        with making_state_directory(directory):
            directory.mkdir(parents=True, exist_ok=True)
        backend = factory(directory, stores)
        try:
            backend = self._bring_to(backend, partial(factory, directory, stores), name, stores, version)
        except BaseException:
            backend.close()
            raise
        for old in range(number):
            shutil.rmtree(self._directory / name / str(old), ignore_errors=True)
        return backend

    def _latest(self, name: str) -> int:
        directory = self._directory / name
        with making_state_directory(directory):
            return max((int(path.name) for path in directory.glob("*") if path.name.isdigit()), default=0)

    def _bring_to(
        self, backend: StoreBackend, reopen: Callable[[], StoreBackend], name: str, stores: list[str], version: str
    ) -> StoreBackend:
        have = backend.version() if backend.trusted() else None
        missing = frozenset[str]() if have is None else self._coverage.missing(name, have)
        if have is not None and [have, version] == self._settled():
            backend.write({}, have, version)
        elif have != version:
            plan = self._plan(version, have) if self._coverage.had_changelog else Restore(None, iter(()))
            if plan.base is None and (found := backend.version()) is not None:
                _log.warning(
                    "task %s: local %s state is %s, not on the way to %s: rebuilding it from the changelog",
                    self.task_id, name, found if have else "not to be trusted after a crash of the machine", version,
                )  # fmt: skip
                backend.destroy()
                backend = reopen()
            if plan.base is None:
                missing = frozenset()
            at = plan.base
            for changes, reached in plan.steps:
                backend.write(
                    self._restored(changes, self._coverage.in_history.intersection(self._names[name])), at, reached
                )
                at = reached
            if at != version:
                backend.write({}, at, version)
        if missing:
            self._fill(backend, missing, version)
        return backend

    def _plan(self, version: str, have: str | None) -> Restore:
        if self._changelog is None:
            raise IncompatibleStateError(
                f"application {self.application_id!r}, task {self.task_id}: the commit names state version {version}, "
                "but the task keeps no changelog"
            )
        return self._changelog.restore(version, have)

    def _restored(self, changes: Changes, stores: frozenset[str]) -> Changes:
        own = {store: rows for store, rows in changes.items() if store in stores}
        self.restored_changes += sum(map(len, own.values()))
        return own

    def _fill(self, backend: StoreBackend, stores: frozenset[str], version: str) -> None:
        """Give stores that a copy at `version` does not have, or has from another time, their content: the changelog's, or none."""
        self._empty(backend, stores, version)
        wanted = stores & self._coverage.in_history
        if wanted:
            for changes, _ in self._plan(version, None).steps:
                backend.write(self._restored(changes, wanted), version, version)

    # ------------------------------------------------------------------ another layout

    def _take_over(self, version: str) -> None:
        """Open backends that no store has any more, and copy to the new ones what is not in the changelog."""
        for name, stores in self._coverage.gone.items():
            directory = self._directory / name / str(self._latest(name))
            if name not in self._names and directory.is_dir():
                self._old_backends[name] = registry().load("store backend", name)(directory, stores)
        for store, other in self._coverage.moved.items():
            source = self._backends.get(other) or self._old_backends.get(other)
            if source is not None:
                to = self._backends[self._layouts.now[store].backend]
                to.write({store: list(source.range(store))}, version, version)

    @property
    def is_settled(self) -> bool:
        """Whether the version at hand is of the present layout."""
        return self._coverage.is_settled

    def settle(self, last: Commit, make: Callable[[Commit, list[OutputBatch]], None]) -> Commit:
        """Commit a version of the present layout, where that of `last`, at which the state is, is of an earlier one; return the last commit then.

        Call it before the stores are used. `make` is called with the commit and records to produce, once the changelog has what leads
        there: where a store has come into it or has left it, a snapshot, so that nothing of the history before counts.
        """
        if self._coverage.is_settled:
            return last
        commit = replace(last, version=self.new_version(last.version))
        previous, version, outputs = last.version, commit.version, list[OutputBatch]()
        begun, gone = self._coverage.begun, self._coverage.gone
        if self._changelog is not None:
            if self._coverage.needs_new_history:
                self._changelog.snapshot(version, self._rows(), commit)
            else:
                self._changelog.append({}, previous, version, last)
            outputs = self._changelog.begin(begun, (row for row in self._rows() if row[0] in begun))
        # A copy between the commit and the last step cannot go by the changelog, which has no way from the old version to the new one.
        if self._backends:
            with making_state_directory(self._directory):
                self._settling.write_text(f"{previous} {version}")
        make(commit, outputs)
        self.apply({}, version)
        stores = ", ".join(sorted(self._layouts.now)) or "none"
        _log.info("task %s: from version %s on, its state has these stores: %s", self.task_id, version, stores)
        self._forget(gone, version)
        self._settling.unlink(missing_ok=True)
        return commit

    @property
    def _settling(self) -> Path:
        return self._directory / "settling"

    def _settled(self) -> list[str]:
        with making_state_directory(self._directory):
            try:
                return self._settling.read_text().split()
            except FileNotFoundError:
                return []

    def _forget(self, gone: Mapping[str, list[str]], version: str) -> None:
        """Delete this host's content of stores, by backend, that nobody needs any more."""
        for name, backend in self._old_backends.items():
            backend.destroy()
            shutil.rmtree(self._directory / name, ignore_errors=True)
        self._old_backends.clear()
        for name, stores in gone.items():
            if name in self._backends:
                self._empty(self._backends[name], stores, version)

    def _empty(self, backend: StoreBackend, stores: Iterable[str], version: str) -> None:
        for store in stores:
            if rows := [(key, None) for key, _ in backend.range(store)]:
                backend.write({store: rows}, version, version)

    def serve(self, task: Task, subtopology: Subtopology) -> None:
        """Have the stores know the task's stream time, and the task's nodes what the stores drop."""
        # A store does not know who called it; what it drops counts for the first node that is connected to it.
        owners = {
            store: node.name
            for node in reversed(subtopology.nodes)
            if isinstance(node, ProcessorNode)
            for store in node.stores
        }
        self.stream_time = lambda: task.stream_time
        self.dropped = lambda store, reason, count: task.drop(owners[store], reason, count)

    # ------------------------------------------------------------------ a commit

    def size_bytes(self) -> int:
        """Return about how many bytes of uncommitted changes are held."""
        return sum(buffer.size_bytes for buffer in self._buffers.values())

    def flush(self) -> None:
        """Hand what stores hold as objects to the commit buffers."""
        for store in self.stores.values():
            store.flush()

    def changes(self) -> Changes:
        """Return what changed since the last commit, by store; call `flush` first."""
        return {name: changes for name, buffer in self._buffers.items() if (changes := buffer.changes())}

    @property
    def keeps_commits(self) -> bool:
        """Whether `reset --from-state` can go back to a commit that the changelog keeps."""
        return self._changelog is not None and not getattr(self._changelog, "in_log", False)

    def proven(self) -> set[str]:
        """Return the versions that the changelog proves to have been committed."""
        return set() if self._changelog is None else self._changelog.proven()

    def new_version(self, previous: str | None) -> str:
        """Return a new name for the version after `previous`; for the empty state, if that is None. Two attempts never get the same one."""
        counter = 0 if previous is None else version_counter(previous) + 1
        named = previous if self._coverage.had_changelog else None
        suffix = "" if self._changelog is None else self._changelog.version_suffix(named)
        return f"{counter:012d}-{secrets.token_hex(4)}_{self._layouts.id}{suffix}"

    def append_delta(self, changes: Changes, version: str, commit: Commit | None = None) -> list[OutputBatch]:
        """Make the changes durable in the changelog as the delta that leads to `version`.

        Return what of it the commit must produce, where the changelog lives in the log. `commit` is kept beside them
        (`TaskChangelog.append`).
        """
        if self._changelog is None:
            return []
        logged = {name: rows for name, rows in changes.items() if name in self._logged}
        previous = self.version if self._coverage.had_changelog else None
        self._changelog.append(logged, previous, version, commit)
        return self._changelog.records(logged)

    def apply(self, changes: Changes, version: str) -> None:
        """Write committed changes to the backends: the last step of a commit."""
        for name, stores in self._names.items():
            own = {store: changes[store] for store in stores if store in changes}
            self._backends[name].write(own, self.version, version)
        for buffer in self._buffers.values():
            buffer.clear()
        self.version = version
        if not self._coverage.is_settled:
            self._coverage = Coverage(self._layouts, version)

    def discard(self) -> None:
        """Forget what is not committed."""
        for store in self.stores.values():
            store.discard()
        for buffer in self._buffers.values():
            buffer.clear()

    def is_at(self, version: str) -> bool:
        """Return whether every backend still is at `version`: another process may have written meanwhile."""
        return self.version == version and all(backend.version() == version for backend in self._backends.values())

    # ------------------------------------------------------------------ upkeep

    def tend_changelog(self, grace_ms: int, now_ms: int, commit: Commit, is_current: Callable[[], bool]) -> bool:
        """Write a snapshot when one is due, and delete what it made needless; both only while `is_current` returns True.

        `commit` is the last one. Return whether a snapshot was written.
        """
        written = self.snapshot_when_due(is_current, commit)
        if written and self.version is not None:
            self.clean_changelog(self.version, grace_ms, now_ms, is_current)
        return written

    def snapshot_when_due(self, is_current: Callable[[], bool], commit: Commit | None = None) -> bool:
        """Write a snapshot of the version at hand if one is due and `is_current` returns True; return whether it was written."""
        if self._changelog is None or self.version is None or not self._changelog.wants_snapshot() or not is_current():
            return False
        try:
            self._changelog.snapshot(self.version, self._rows(), commit)
        except StaleStoreError as error:
            _log.info("task %s: no snapshot: %s", self.task_id, error)
            return False
        return True

    def clean_changelog(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete what is needed to reach neither `version` nor any later one, while `is_current` returns True."""
        # Asked here, too, before the changelog looks: a snapshot may take long to write.
        if self._changelog is not None and is_current():
            self._changelog.clean(version, grace_ms, now_ms, is_current)

    def _rows(self) -> Iterator[tuple[str, bytes, bytes]]:
        owner = {store: self._backends[name] for name, stores in self._names.items() for store in stores}
        for store in sorted(self._logged):
            for key, value in owner[store].range(store):
                yield store, key, value
        # Another process may have taken the store on while this one stood still: then these are not the rows of the version.
        if self.version is None or not self.is_at(self.version):
            raise StaleStoreError(f"the store is no longer at version {self.version}")

    def release(self) -> None:
        """Let go of what pins resources until the next batch."""
        for backend in self._backends.values():
            backend.release()

    def destroy(self) -> None:
        """Close, and delete this host's copy; the changelog stays."""
        for backend in self._backends.values():
            backend.destroy()
        self.close()

    def close(self) -> None:
        """Close stores and backends; uncommitted changes are forgotten."""
        for store in self.stores.values():
            store.close()
        for backend in (*self._backends.values(), *self._old_backends.values()):
            backend.close()
        if self._changelog is not None:
            self._changelog.close()
        if self._use is not None:
            self._use.close()


class _Context:
    """What a store is told about its task (penstock.store.StoreContext)."""

    def __init__(self, state: TaskState, store: str) -> None:
        self._state = state
        self._store = store
        self.application_id = state.application_id
        self.task_id = state.task_id

    def serde(self, given: str | Serde[Any] | None, store: str) -> Serde[Any]:
        return resolve_serde(given, self._state._settings.state_serde, f"store {store!r}")

    def stream_time(self) -> int:
        return self._state.stream_time()

    def dropped(self, reason: str, count: int = 1) -> None:
        self._state.dropped(self._store, reason, count)
