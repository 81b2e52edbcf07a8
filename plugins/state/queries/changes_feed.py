"""ChangesFeed: reads what commits change from the changelogs of tasks, while they run, for readers of this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from penstock import (
    Application,
    Commit,
    LogChangelog,
    PenstockError,
    Restore,
    Serde,
    SerdeError,
    StoreBuilder,
    TaskChangelog,
)
from penstock.changelog import is_version
from penstock.plugins.engine.program.saved_tasks import SavedTask
from penstock.plugins.engine.task.locations import open_changelog
from penstock.plugins.state.copies.contents import (
    KINDS_OF_TIMES,
    Entry,
    changed_entries,
    declared_store,
    entries_of,
    key_serde,
    store_over,
)
from penstock.plugins.state.copies.replica import LogHistory, OvertakenError
from penstock.store import Change as Row
from penstock.store import Changes
from penstock.stores.memory import MemoryBackend
from penstock.support.repeats import Repeats
from penstock.world import Ticker

from .copies import Copies
from .subscription import ChangesEndedError, Portion, Subscription

_log = logging.getLogger("penstock.queries")

FEED_SECONDS = 0.1
"""Seconds from one look at the tasks' commits to the next."""
_ROW_BYTES = 200
_TRIES = 5
"""How often a task's history is read on at once, because the task has committed meanwhile."""


_Rows = dict[str, dict[bytes, bytes | None]]


@dataclass
class _Source:
    """The history of one task, as the program that ran last keeps it.

    `rows`: by version, the rows that were read last up to it. A changelog in topics shows some of them again to those
    who read on from there.
    """

    task: SavedTask
    history: TaskChangelog
    rows: dict[str | None, _Rows] = field(default_factory=dict)

    def steps(self, plan: Restore) -> Iterator[tuple[Changes, str]]:
        """Yield the steps of a plan that begins at its base, without what has been there before."""
        if not isinstance(self.history, LogHistory):
            yield from plan.steps
            return
        before, read = self.rows.get(plan.base, {}), _Rows()
        for changes, version in plan.steps:
            for store, rows in changes.items():
                read.setdefault(store, {}).update(rows)
            self.rows[version] = read
            yield (
                {
                    store: [row for row in rows if before.get(store, {}).get(row[0], row) != row[1]]
                    for store, rows in changes.items()
                },
                version,
            )

    def needs_rows(self, version: str | None) -> bool:
        """Return whether those who begin at a version would get its changes."""
        return version not in self.rows and isinstance(self.history, LogHistory)

    def forget(self, versions: Collection[str | None]) -> None:
        """Drop the rows of all versions but these, at which readers are."""
        self.rows = {version: rows for version, rows in self.rows.items() if version in versions}


class ChangesFeed:
    """Reads the changes of tasks in a thread, once for all readers of a task, while there are any."""

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._application = copies.application
        self._subscriptions: list[Subscription] = []
        self._sources: dict[str, _Source] = {}
        self._lock = threading.Lock()
        self._has_closed = False
        self._repeats = Repeats(copies.world.clock.now_ms)
        self._ticker: Ticker | None = None

    def add(self, subscription: Subscription) -> None:
        """Begin to read for a reader; one that comes after `close` is ended."""
        with self._lock:
            if not self._has_closed:
                self._subscriptions.append(subscription)
                if self._ticker is None:
                    self._ticker = self._copies.world.ticker("penstock-changes", FEED_SECONDS, self._look)
                self._ticker.resume()
                return
        subscription.end(_closed())

    def remove(self, subscription: Subscription) -> None:
        """Read no more for a reader; idempotent."""
        with self._lock, suppress(ValueError):
            self._subscriptions.remove(subscription)

    def close(self) -> None:
        """End all readers; idempotent."""
        with self._lock:
            self._has_closed = True
        if self._ticker is not None:
            self._ticker.resume()
            self._ticker.close()
        for each in self._subscriptions:
            each.end(_closed())
        self._close_sources()

    # ------------------------------------------------------------------ the thread

    def _look(self) -> None:
        with self._lock:
            self._subscriptions = [each for each in self._subscriptions if not each.has_ended]
            now = list(self._subscriptions)
            if not now and not self._has_closed and self._ticker is not None:
                self._ticker.pause()
        if not now:
            self._close_sources()
            return
        for task in sorted({task for each in now for task in each.tasks}):
            if self._has_closed:
                return
            own = [each for each in now if task in each.tasks]
            try:
                self._look_at(task, own)
            except Exception as error:  # the other tasks go on
                self._repeats.log(
                    _log, logging.WARNING, (task, type(error)), "application %r: changes of task %s cannot be read: %s",
                    self._application.id, task, error,
                )  # fmt: skip

    def _look_at(self, task: str, subscriptions: Sequence[Subscription]) -> None:
        source = self._source(task, subscriptions)
        if source is None:
            return
        for _ in range(_TRIES):
            commit = self._copies.last_commit(source.task)
            version = None if commit is None else commit.version
            by_version: dict[str | None, list[Subscription]] = {}
            for each in subscriptions:
                if each.read_to.get(task, version) != version and not each.has_ended:
                    by_version.setdefault(each.read_to[task], []).append(each)
            failed: Exception | None = None
            try:
                for have, own in by_version.items():
                    try:
                        self._read(source, have, commit, own)
                    except OvertakenError:
                        raise
                    except Exception as error:  # those who are elsewhere in the history go on
                        failed = error
                new = [each for each in subscriptions if task not in each.read_to]
                if new and commit is not None and source.needs_rows(version):
                    self._read(source, version, commit, [])
                for each in new:
                    each.begin(task, version)
                source.forget({each.read_to[task] for each in subscriptions})
                if failed is not None:
                    raise failed
                return
            except OvertakenError:
                continue

    def _source(self, task: str, subscriptions: Sequence[Subscription]) -> _Source | None:
        """Return the history of a task; None if the program that ran last does not have the task any more."""
        saved = self._copies.tasks(int(task.partition("_")[0])).get(task)
        source = self._sources.get(task)
        if source is not None and source.task == saved:
            return source
        if source is not None:
            source.history.close()
            del self._sources[task]
        if saved is None:
            _end_by_gap(subscriptions, f"task {task} is not there any more")
            return None
        stores = {name: kept for name, kept in saved.layouts.now.items() if kept.logged}
        history = open_changelog(self._application.settings, self._application.id, task, self._copies.log, stores)
        history.world, history.beside_writer = self._copies.world, True
        if isinstance(history, LogChangelog):
            history = LogHistory(history, lambda version: self._is_last(saved, version))
        self._sources[task] = _Source(saved, history)
        return self._sources[task]

    def _is_last(self, task: SavedTask, version: str) -> bool:
        commit = self._copies.last_commit(task)
        return commit is not None and commit.version == version

    def _read(
        self, source: _Source, have: str | None, commit: Commit | None, subscriptions: Sequence[Subscription]
    ) -> None:
        """Give readers that are at `have` the changes up to a commit."""
        if commit is None:
            _end_by_gap(subscriptions, "the application was reset")
            return
        plan = source.history.restore(commit.version, have)
        if plan.base != have:
            _end_by_gap(subscriptions, "the changelog has no changes from there on any more")
            return
        for changes, version in source.steps(plan):
            known: dict[str, dict[bytes, Entry]] = {}
            shown = version if is_version(version) else None
            for each in subscriptions:
                rows = [row for row in changes.get(each.store, ()) if each.keys.has_row(row[0])]
                try:
                    entries = self._entries(each.store, source.task, rows, commit, known.setdefault(each.store, {}))
                except PenstockError as error:  # such as a serde that does not read them
                    each.end(error)
                    continue
                except Exception as error:  # a serde of another package may raise anything
                    cause = f"{type(error).__name__}: {error}"
                    each.end(SerdeError(f"store {each.store!r}: a change cannot be read: {cause}"))
                    continue
                size = sum(len(key) + len(value or b"") + _ROW_BYTES for key, value in rows)
                each.put(Portion(source.task.id, shown, entries, size))
                each.read_to[source.task.id] = version

    def _entries(
        self, store: str, task: SavedTask, rows: Sequence[Row], commit: Commit, known: dict[bytes, Entry]
    ) -> list[Entry]:
        """Return changed rows of a store as entries; the value is None where the entry was deleted.

        `known` has those that were made before. Raises as the store's serdes.
        """
        missing = [row for row in rows if row[0] not in known]
        if missing:
            known.update(
                _decoded(self._application, declared_store(self._application, store)[1], task, missing, commit)
            )
        return [known[raw] for raw, _ in rows if raw in known]

    def _close_sources(self) -> None:
        while self._sources:
            self._sources.popitem()[1].history.close()


def _closed() -> ChangesEndedError:
    return ChangesEndedError("closed", "the stores are not read any more")


def _end_by_gap(subscriptions: Sequence[Subscription], reason: str) -> None:
    for each in subscriptions:
        each.end(ChangesEndedError("gap", f"{reason}: follow its changes from now on, and then read the store again"))


def _decoded(
    application: Application, builder: StoreBuilder, task: SavedTask, rows: Sequence[Row], commit: Commit
) -> Iterator[tuple[bytes, Entry]]:
    name = builder.name
    kept = task.layouts.now[name]
    backend = MemoryBackend.ephemeral(kept.tables(name))
    if kept.kind in KINDS_OF_TIMES:
        yield from changed_entries(store_over(application, task, builder, kept, backend, commit), rows)
        return
    backend.write({name: [row for row in rows if row[1] is not None]}, None, commit.version)
    store = store_over(application, task, builder, kept, backend, commit)
    serde: Serde[Any] = key_serde(application, builder)
    for raw, _ in rows:
        key = serde.deserialize(raw)
        yield raw, next(entries_of(store, key), {"key": key, "value": None})
