"""The state of one task: its stores, the backends that hold them on this host, and how they move between versions."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from penstock.changelog import TaskChangelog
from penstock.config import Settings
from penstock.errors import IncompatibleStateError, StaleStoreError, StoreLockedError
from penstock.hooks import registry
from penstock.nodes import ProcessorNode, Subtopology
from penstock.record import OutputBatch
from penstock.serde import Serde
from penstock.store import Changes, StateStore, StoreBackend, StoreBackendFactory, StoreBuilder
from penstock.stores.layers.commit_buffer import CommitBuffer
from penstock.task import Task, resolve_serde

from .directories import DirectoryUse
from .locations import making_state_directory

_log = logging.getLogger("penstock.state")


def first_version() -> str:
    """Return a new name for the empty state."""
    return f"{0:012d}-{secrets.token_hex(4)}"


def next_version(previous: str) -> str:
    """Return a new name for the version after `previous`. Two attempts never get the same one."""
    return f"{version_counter(previous) + 1:012d}-{secrets.token_hex(4)}"


def version_counter(version: str) -> int:
    """Return how many versions came before `version`."""
    return int(version.partition("-")[0])


class TaskState:
    """All stores of one task. One backend per backend name, each in a directory of its own under `directory`.

    Nothing here is ahead of the log's commit: `commit` is called after it. Called from one thread.
    """

    def __init__(
        self,
        builders: Sequence[StoreBuilder],
        directory: Path,
        changelog: TaskChangelog | None,
        settings: Settings,
        application_id: str,
        task_id: str,
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._changelog = changelog
        self.application_id = application_id
        self.task_id = task_id
        self._names: dict[str, list[str]] = {}
        for builder in builders:
            self._names.setdefault(builder.backend or settings.store_backend, []).append(builder.name)
        self._builders = builders
        self._logged = frozenset(builder.name for builder in builders if builder.logged)
        self._backends: dict[str, StoreBackend] = {}
        self._use: DirectoryUse | None = None
        self._buffers: dict[str, CommitBuffer] = {}
        self.stores: dict[str, StateStore] = {}
        self.version: str | None = None
        self.stream_time: Callable[[], int] = lambda: -1
        self.dropped: Callable[[str, str, int], None] = lambda store, reason, count: None
        self.restored_changes = 0

    # ------------------------------------------------------------------ opening

    def open(self, version: str) -> None:
        """Bring every backend to `version` and build the stores. Raises ChangelogError when it cannot be reached."""
        if self._names:
            self._use = DirectoryUse(self._directory)
        for name, stores in self._names.items():
            self._backends[name] = self._open_backend(name, stores, version)
        self._build(version)

    def open_fresh(self, version: str) -> None:
        """Build the stores, empty, at `version`: for a state that no log knows of."""
        for name, stores in self._names.items():
            directory = self._directory / name / "0"
            directory.mkdir(parents=True, exist_ok=True)
            backend = self._backends[name] = registry().load("store backend", name)(directory, stores)
            backend.write({}, backend.version(), version)
        self._build(version)

    def _build(self, version: str) -> None:
        self.version = version
        for builder in self._builders:
            backend = self._backends[builder.backend or self._settings.store_backend]
            buffer = self._buffers[builder.name] = CommitBuffer(backend, builder.name)
            self.stores[builder.name] = builder.build(buffer, _Context(self, builder.name))

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
        return max((int(path.name) for path in (self._directory / name).glob("*") if path.name.isdigit()), default=0)

    def _bring_to(
        self, backend: StoreBackend, reopen: Callable[[], StoreBackend], name: str, stores: list[str], version: str
    ) -> StoreBackend:
        have = backend.version()
        trusted = backend.trusted()
        if have == version and trusted:
            return backend
        if self._changelog is None:
            raise IncompatibleStateError(
                f"application {self.application_id!r}, task {self.task_id}: the commit names state version {version}, "
                "but the task keeps no changelog"
            )
        plan = self._changelog.restore(version, have if trusted else None)
        if plan.base is None and have is not None:
            _log.warning(
                "task %s: local %s state is %s, not on the way to %s: rebuilding it from the changelog",
                self.task_id, name, have if trusted else "not to be trusted after a crash of the machine", version,
            )  # fmt: skip
            backend.destroy()
            backend = reopen()
        at = plan.base
        wanted = set(stores)
        for changes, reached in plan.steps:
            own = {store: rows for store, rows in changes.items() if store in wanted}
            backend.write(own, at, reached)
            at = reached
            self.restored_changes += sum(map(len, own.values()))
        if at != version:
            backend.write({}, at, version)
        return backend

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
        self.dropped = lambda store, reason, count: task.node_metrics[owners[store]].drop(reason, count)

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

    def new_version(self, previous: str | None) -> str:
        """Return a new name for the version after `previous`; for the empty state, if that is None."""
        suffix = "" if self._changelog is None else self._changelog.version_suffix(previous)
        return (first_version() if previous is None else next_version(previous)) + suffix

    def append_delta(self, changes: Changes, version: str) -> list[OutputBatch]:
        """Make the changes durable in the changelog as the delta that leads to `version`.

        Return what of it the commit must produce, where the changelog lives in the log.
        """
        if self._changelog is None:
            return []
        logged = {name: rows for name, rows in changes.items() if name in self._logged}
        self._changelog.append(logged, self.version, version)
        return self._changelog.records(logged)

    def apply(self, changes: Changes, version: str) -> None:
        """Write committed changes to the backends: the last step of a commit."""
        for name, stores in self._names.items():
            own = {store: changes[store] for store in stores if store in changes}
            self._backends[name].write(own, self.version, version)
        for buffer in self._buffers.values():
            buffer.clear()
        self.version = version

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

    def tend_changelog(self, grace_ms: int, now_ms: int) -> None:
        """Write a snapshot when one is due, and delete what it made needless."""
        if self.snapshot_when_due() and self.version is not None:
            self.clean_changelog(self.version, grace_ms, now_ms)

    def snapshot_when_due(self) -> bool:
        """Write a snapshot of the version at hand if one is due; return whether it was."""
        if self._changelog is None or self.version is None or not self._changelog.wants_snapshot():
            return False
        try:
            self._changelog.snapshot(self.version, self._rows())
        except StaleStoreError as error:
            _log.info("task %s: no snapshot: %s", self.task_id, error)
            return False
        return True

    def clean_changelog(self, version: str, grace_ms: int, now_ms: int) -> None:
        """Delete what is needed to reach neither `version` nor any later one."""
        if self._changelog is not None:
            self._changelog.clean(version, grace_ms, now_ms)

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
        for backend in self._backends.values():
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
