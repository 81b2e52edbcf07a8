"""TaskState: the stores of one task, their local backends, and how they move from version to version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path

from penstock import (
    Application,
    ChangelogError,
    Commit,
    DeltaChangelog,
    LogChangelog,
    OutputBatch,
    ProcessorNode,
    StaleStoreError,
    StateStore,
    StoreBackend,
    StoreContext,
    StoreView,
    TaskChangelog,
    TaskId,
    World,
    version_counter,
    version_name,
)
from penstock.program.layouts import Layouts
from penstock.store import Change, Changes
from penstock.store.record_cache import CacheBudget, RecordCache
from penstock.store.state_store import built_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.support.names import index_name
from penstock.support.repeats import Repeats
from penstock.task.progress import TaskProgress
from penstock.task.saved_values import adopt_values
from penstock.task.task import Task

from .backends import Backends, Coverage
from .refill import Refill
from .store_context import TaskStoreContext, close_store

_log = logging.getLogger("penstock.state")

_Row = tuple[str, bytes, bytes]
_FEW_CHANGES = 1_000
"""The memory that so many changes take while they are written is too little to count."""
_LONG_COUNT, _COUNT_PAUSES = 0.05, 200
"""After a count of the entries that took more seconds, the next one begins after so many times the time it took."""
_MOST_FREED = 10_000
"""Freed entries that wait for a commit with other changes; so many are a reason for a commit of their own."""
_AGAIN_SECONDS = 60.0
"""After so long upkeep that failed is tried again."""


def first_version(world: World) -> str:
    """Return a new name for the empty state of a task, whatever its layout."""
    return version_name(0, None, world.token)


class TaskState:
    """All stores of one task. One backend per backend name, each in a directory of its own under `directory`.

    `layouts`: the layouts of stores, including parked ones (None: from the program). The local state is never ahead of
    the log's commit: `apply` is called after it. `task_count`: number of tasks of the application. `repeats` and
    `world` are those of the process. Called by one thread at a time: `open` and `append_layout` may be in another one
    than the rest.
    """

    def __init__(
        self,
        application: Application,
        task_id: TaskId,
        directory: Path,
        changelog: TaskChangelog | None,
        layouts: Layouts | None = None,
        task_count: int = 1,
        repeats: Repeats | None = None,
        world: World | None = None,
    ) -> None:
        self._world = world or World()
        self._settings = application.settings
        self._repeats = repeats or Repeats(lambda: self._progress.wall_clock)
        # A fixed share, so that what is forwarded does not depend on the other tasks of a process.
        self._cache_budget = CacheBudget(self._settings.statestore_cache_max_bytes // task_count)
        self._changelog = changelog
        if changelog is not None:
            changelog.world = self._world
        self._deltas = changelog if isinstance(changelog, DeltaChangelog) else None
        self.upkeep = ChangelogUpkeep(str(task_id), self._deltas, self._world)
        self._in_log = changelog if isinstance(changelog, LogChangelog) else None
        self._subtopology = application.program.subtopology(task_id.subtopology)
        self._builders = self._subtopology.stores
        self.directory = directory
        self.application_id = application.id
        self.task_id = str(task_id)
        self._layouts = layouts or Layouts.of_program(self._builders, self._settings.store_backend)
        self._logged = frozenset(store for store, kept in self._layouts.now.items() if kept.logged)
        self._where = f"application {application.id!r}, task {task_id}"
        self.backends = Backends(
            directory, self._layouts, changelog, self._where, self.task_id, self._world,
            self._settings.restore_listener,
        )  # fmt: skip
        """The stores' bytes on this host; any thread may watch, and end, their `opening` and `restoring`."""
        self._coverage = Coverage(Layouts(self._layouts.now), "")
        self._buffers: dict[str, CommitBuffer] = {}
        self._indexes: dict[str, CommitBuffer] = {}
        self.stores: dict[str, StateStore] = {}
        self.version: str | None = None
        self._progress = TaskProgress(0)
        self._taken = 0
        self._rows, self._count_at = 0, -inf
        self.dropped: Callable[[str, str, int], None] = lambda store, reason, count: None

    # ------------------------------------------------------------------ opening

    def open(self, version: str, refills: Sequence[Refill] = ()) -> None:
        """Bring every backend to `version` and build the stores. Raises ChangelogError when it cannot be reached.

        `refills`: fill read-only stores whose content this host lacks.
        """
        self._coverage = Coverage(self._layouts, version)
        self.backends.refills = {each.spec.store.name: self._changes_of(each) for each in refills}
        self.backends.open(version, self._coverage)
        self._build(version)

    def _changes_of(self, refill: Refill) -> Callable[[StoreBackend], Iterator[Changes]]:
        pause = self.backends.opening.pause
        return lambda backend: refill.changes(backend, self._context, self._connect_clocks, pause)

    def _connect_clocks(self, task: Task) -> None:
        self._progress = task.progress

    def set_clocks(self, stream_time: int, wall_clock: int) -> None:
        """Set the times (ms) that stores count from, for a tool that puts rows without a task."""
        progress = self._progress
        progress.stream_time, progress.time_of_all, progress.wall_clock = stream_time, stream_time, wall_clock

    def open_fresh(self, version: str) -> None:
        """Build the stores, empty, at `version`: for a state without a log."""
        self.backends.open_empty(version)
        self._build(version)

    def _build(self, version: str) -> None:
        self.version = version
        for builder in self._builders:
            kept, backend = self._layouts.now[builder.name], self.backends.of(builder.name)
            buffer = self._buffers[builder.name] = CommitBuffer(backend, builder.name)
            index = CommitBuffer(backend, index_name(builder.name)) if kept.has_index else None
            if index is not None:
                self._indexes[builder.name] = index
            store = self.stores[builder.name] = built_store(builder, buffer, self._context(builder.name, index))
            if store.calls is not None:
                buffer.count(store.calls, self._world.seconds)

    def _context(self, store: str, index: CommitBuffer | None) -> StoreContext:
        kept = self._layouts.now[store]
        return TaskStoreContext(
            self.application_id,
            self.task_id,
            self._settings.state_serde,
            kept.fixed_options,
            lambda: self._progress.stream_time,
            lambda: self._progress.wall_clock,
            lambda reason, count: self.dropped(store, reason, count),
            index,
            kept.expires,
            RecordCache(store, self._cache_budget),
            self._repeats,
            self._settings.of_plugins,
        )

    # ------------------------------------------------------------------ another layout

    @property
    def is_settled(self) -> bool:
        """Whether the present version was written in the present layout."""
        return self._coverage.is_settled

    def adopt(self, version: str, engine_state: bytes) -> bytes:
        """Return the engine state that was committed with `version`, as far as it belongs to the present stores."""
        return adopt_values(engine_state, self._layouts.of_version(version), self._layouts.now)

    def append_layout(self, last: Commit, commit: Commit) -> list[OutputBatch]:
        """Let the changelog lead from `last`, whose version is of an earlier layout, to `commit` of the present one.

        Return records that the commit must produce. Where a store has come into the changelog or has left it, a
        snapshot leads there: the history before it does not count any more.
        """
        outputs: list[OutputBatch] = []
        if self._in_log is not None:
            begun = self._coverage.begun
            outputs = self._in_log.begin(begun, (row for row in self._counted(self.rows()) if row[0] in begun))
        elif self._deltas is not None and self._coverage.needs_new_history:
            self._deltas.snapshot(commit.version, self._counted(self.rows()), commit)
        elif self._deltas is not None:
            self._deltas.append({}, last.version, commit.version, last)
        self.backends.begin_transition(last.version, commit.version)
        return outputs

    def apply_layout(self, version: str) -> None:
        """Bring the backends to the first version of the present layout, once it is committed."""
        gone = self._coverage.gone
        self.apply({}, version)
        stores = ", ".join(sorted(self._layouts.now)) or "none"
        _log.info("task %s: from version %s on, its state has these stores: %s", self.task_id, version, stores)
        self.backends.end_transition(gone, version)

    def _counted(self, rows: Iterator[_Row]) -> Iterator[_Row]:
        for row in rows:
            self.backends.opening.moved()
            yield row

    def connect(self, task: Task) -> None:
        """Give the stores the task's clocks; the task's nodes count dropped entries from now on."""
        # A store cannot see which node called it: what it drops counts for the first node that is connected to it.
        owners = {
            store: node.name
            for node in reversed(self._subtopology.nodes)
            if isinstance(node, ProcessorNode)
            for store in node.stores
        }
        self._progress = task.progress
        self.dropped = lambda store, reason, count: task.drop(owners[store], reason, count)

    # ------------------------------------------------------------------ a commit

    def least_commit_interval(self) -> float:
        """Return the changelog's minimum seconds between two commits; it may measure that."""
        return 0.0 if self._deltas is None else self._deltas.least_commit_interval()

    def size_bytes(self) -> int:
        """Return about the bytes of memory of the uncommitted changes, now and while they are written."""
        total = sum(buffer.size_bytes for buffer in (*self._buffers.values(), *self._indexes.values()))
        for name, buffer in self._buffers.items():
            changes = len(buffer) + self.stores[name].unflushed()
            if changes > _FEW_CHANGES:
                total += self.backends.of(name).write_bytes(name, changes)
        return total

    def count_rows(self) -> int:
        """Return about the number of entries in the stores, including uncommitted changes; call `flush` first.

        Where counting takes long, the number may be that of some time ago.
        """
        began = self._world.seconds()
        if began >= self._count_at:
            self._rows = sum(buffer.approximate_count() for buffer in self._buffers.values())
            took = self._world.seconds() - began
            self._count_at = began + (_COUNT_PAUSES * took if took > _LONG_COUNT else 0.0)
        return self._rows

    def flush(self) -> None:
        """Write the stores' pending objects to the commit buffers, and free what has expired.

        Records in flight come back with their own stream time, so what has expired since is still there for them.
        """
        progress = self._progress
        stream_time, progress.stream_time = progress.stream_time, progress.time_of_all
        try:
            for store in self.stores.values():
                store.flush()
        finally:
            progress.stream_time = stream_time

    def changes(self) -> Changes:
        """Return the changes since the last commit, by store; call `flush` first."""
        return {
            name: changes
            for name, buffer in self._buffers.items()
            if (changes := buffer.changes()) or buffer.freed > _MOST_FREED
        }

    def take_restored(self) -> int:
        """Return the number of changes restored since the last call."""
        before, self._taken = self._taken, self.backends.restoring.entries
        return self._taken - before

    @property
    def keeps_commits(self) -> bool:
        """Whether `reset --from-state` can use commits that the changelog keeps."""
        return self._deltas is not None

    def proven(self) -> set[str]:
        """Return the versions that the changelog proves to have been committed."""
        return set() if self._deltas is None else self._deltas.proven()

    def new_version(self, previous: str | None) -> str:
        """Return a unique name for the version after `previous` (None: for the empty state)."""
        counter = 0 if previous is None else version_counter(previous) + 1
        named = previous if self._coverage.had_changelog else None
        suffix = "" if self._in_log is None else self._in_log.version_suffix(named)
        return f"{version_name(counter, previous, self._world.token)}_{self._layouts.id}{suffix}"

    def append_delta(self, changes: Changes, version: str, commit: Commit | None = None) -> list[OutputBatch]:
        """Write the changes to the changelog as the delta that leads to `version`.

        Return the records of the delta that the commit must produce, where the changelog is kept in the log. `commit`
        is kept beside the delta (`DeltaChangelog.append`).
        """
        if self._in_log is not None:
            return self._in_log.records(
                self._with(lambda buffer, rows: buffer.topic_changes(rows), changes, self._logged)
            )
        if self._deltas is not None:
            logged = {name: rows for name, rows in changes.items() if rows and name in self._logged}
            self._deltas.append(logged, self.version if self._coverage.had_changelog else None, version, commit)
        return []

    def apply(self, changes: Changes, version: str) -> None:
        """Write committed changes to the backends: the last step of a commit."""
        local = self._with(lambda buffer, rows: buffer.local_changes(rows), changes, self._buffers)
        for index in self._indexes.values():
            if index:
                local[index.name] = index.changes()
        self.backends.write(local, self.version, version)
        for buffer in (*self._buffers.values(), *self._indexes.values()):
            buffer.clear()
        self.version = version
        if not self._coverage.is_settled:
            self._coverage = Coverage(self._layouts, version)

    def _with(
        self,
        complete: Callable[[CommitBuffer, Sequence[Change]], Sequence[Change]],
        changes: Changes,
        stores: Collection[str],
    ) -> dict[str, Sequence[Change]]:
        """Return the rows of `stores` that `complete` makes of the changes of a commit."""
        made = {
            name: complete(buffer, changes.get(name, ())) for name, buffer in self._buffers.items() if name in stores
        }
        return {name: rows for name, rows in made.items() if rows}

    def is_at(self, version: str) -> bool:
        """Return whether every backend still is at `version`, and no other process has written."""
        return self.version == version and self.backends.are_at(version)

    # ------------------------------------------------------------------ upkeep

    def maintain_changelog(self, grace_ms: int, now_ms: int, commit: Commit, is_current: Callable[[], bool]) -> bool:
        """Write a snapshot when one is due, and delete files that are not needed after it."""
        written = self.snapshot_when_due(is_current, commit)
        if written and self.version is not None:
            self.upkeep.clean(self.version, grace_ms, now_ms, is_current)
        return written

    def snapshot_when_due(self, is_current: Callable[[], bool], commit: Commit | None = None) -> bool:
        """Write a snapshot if one is due and `is_current` returns True; return whether it did."""
        if self.version is None or not self.upkeep.wants_snapshot(is_current):
            return False
        return self.upkeep.write_snapshot(self.version, self.rows(), commit)

    def content(self, commit: Commit) -> StateContent | None:
        """Return the content of a snapshot of `commit`, the last one; None if a backend has no views."""
        views = self.backends.views(sorted(self._logged))
        return None if views is None else StateContent(commit, views)

    def rows(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield store, key and value of all rows of logged stores; StaleStoreError comes at the end, if at all."""
        for store in sorted(self._logged):
            for key, value in self.backends.of(store).range(store):
                yield store, key, value
        # Another process may have taken the store over while this one was frozen: the rows may be of a later version.
        if self.version is None or not self.is_at(self.version):
            raise StaleStoreError(f"the store is no longer at version {self.version}")

    def destroy(self) -> None:
        """Close, and delete the local copy; the changelog stays."""
        self.backends.destroy()
        self.close()

    def close(self) -> None:
        """Close stores and backends; uncommitted changes are lost."""
        for store in self.stores.values():
            close_store(store, self.task_id)
        self.backends.close()
        if self._changelog is not None:
            self._changelog.close()
        self.backends.end_use()


class StateContent:
    """The rows of the stores at `commit`, whatever the task does meanwhile. `views`: by store, in order."""

    def __init__(self, commit: Commit, views: Mapping[str, StoreView]) -> None:
        self.commit = commit
        self._views = views
        self._has_ended = False

    def rows(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield store, key and value of all rows. Raises StaleStoreError once the stores are taken, or ended."""
        for store, view in self._views.items():
            if view.version != self.commit.version:
                raise StaleStoreError(f"the store is no longer at version {self.commit.version}")
            for key, value in view.range(store):
                if self._has_ended:
                    raise StaleStoreError("the task was closed meanwhile")
                yield store, key, value

    def end(self) -> None:
        """Let `rows` raise; any thread may call it."""
        self._has_ended = True

    def close(self) -> None:
        """Release the views; idempotent."""
        for view in self._views.values():
            view.close()


class ChangelogUpkeep:
    """Writes snapshots and cleans. Any thread may call all methods. `deltas` None: the task has no such changelog.

    The state is in the deltas, so a ChangelogError here is a warning, and the next try is a minute later.
    """

    def __init__(self, task_id: str, deltas: DeltaChangelog | None, world: World) -> None:
        self._task_id = task_id
        self._deltas = deltas
        self._world = world
        self._rests_until = 0.0

    def wants_snapshot(self, is_current: Callable[[], bool]) -> bool:
        """Return whether a snapshot is due and `is_current` returns True."""
        wanted = False
        if self._deltas is not None and self._world.seconds() >= self._rests_until:
            with self._failing_later("whether a snapshot is due is not known"):
                wanted = self._deltas.wants_snapshot() and is_current()
        return wanted

    def write_snapshot(self, version: str, rows: Iterable[tuple[str, bytes, bytes]], commit: Commit | None) -> bool:
        """Write a snapshot of `version`, which has these rows of (store, key, value); return whether it was written."""
        assert self._deltas is not None
        is_written = False
        with self._failing_later(f"a snapshot of version {version} cannot be written"):
            try:
                self._deltas.snapshot(version, rows, commit)
                is_written = True
            except StaleStoreError as error:
                _log.info("task %s: no snapshot: %s", self._task_id, error)
        return is_written

    def clean(self, version: str, grace_ms: int, now_ms: int, is_current: Callable[[], bool]) -> None:
        """Delete history that `version` and later versions do not need, while `is_current` returns True."""
        # Ask here as well: writing the snapshot may have taken long.
        if self._deltas is not None and is_current():
            with self._failing_later("history that is not needed cannot be deleted"):
                self._deltas.clean(version, grace_ms, now_ms, is_current)

    @contextmanager
    def _failing_later(self, what: str) -> Iterator[None]:
        try:
            yield
        except ChangelogError as error:
            self._rests_until = self._world.seconds() + _AGAIN_SECONDS
            _log.warning(
                "task %s: %s: %s. Nothing is lost, and the changelog grows; it is tried again in a minute",
                self._task_id, what, error,
            )  # fmt: skip
