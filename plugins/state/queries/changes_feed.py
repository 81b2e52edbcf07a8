"""ChangesFeed: reads what commits change from the changelogs of tasks, while they run, for readers of this process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
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
    Ticker,
    is_version,
)
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.engine.task.locations import open_changelog
from penstock.plugins.state.copies.contents import (
    KINDS_OF_TIMES,
    Entry,
    changed_entries,
    check_declared,
    declared_store,
    entries_of,
    key_serde,
    store_over,
)
from penstock.plugins.state.copies.last_seen import LastSeen
from penstock.plugins.state.copies.replica import LogHistory, OvertakenError
from penstock.store import Change as Row
from penstock.store import Changes
from penstock.stores.memory import MemoryBackend
from penstock.support.repeats import Repeats

from .copies import Copies
from .subscription import Beginning, ChangesEndedError, Portion, Subscription, gap_error

_log = logging.getLogger("penstock.queries")

FEED_SECONDS = 0.1
"""Seconds from one look at the tasks' commits to the next."""
_COPY_SECONDS = 0.5
"""How long a reader waits for a copy here that is behind the commit from which on it follows."""
_ROW_BYTES = 200
_TRIES = 5
"""How often a task's history is read on at once, because the task has committed meanwhile."""


_Rows = dict[str, dict[bytes, bytes | None]]


@dataclass
class _Reading:
    """Steps of a task's history up to a commit, which are read for readers."""

    subscriptions: Sequence[Subscription]
    steps: Iterator[tuple[Changes, str]]
    commit: Commit

    @property
    def is_full(self) -> bool:
        """Whether each of the readers has something to take."""
        living = [each for each in self.subscriptions if not each.has_ended]
        return bool(living) and not any(each.has_room for each in living)


@dataclass
class _Source:
    """The history of one task, as the program that ran last keeps it.

    `rows`: by version, the rows that were read last up to it. A changelog in topics shows some of them again to those
    who read on from there. `paused`: what is not read to its end yet.
    `checked`: the stores that were compared with the program here, and why they cannot be read.
    """

    task: SavedTask
    history: TaskChangelog
    rows: dict[str | None, _Rows] = field(default_factory=dict)
    paused: list[_Reading] = field(default_factory=list)
    checked: dict[str, PenstockError | None] = field(default_factory=dict)

    def steps(self, plan: Restore) -> Iterator[tuple[Changes, str]]:
        """Yield the steps of a plan that begins at its base, without what has been there before."""
        if not isinstance(self.history, LogHistory):
            yield from plan.steps
            return
        # Readers share `rows`, so it stays as it is.
        before = {store: dict(rows) for store, rows in self.rows.get(plan.base, {}).items()}
        read = _Rows()

        def is_new(store: str, row: tuple[bytes, bytes | None]) -> bool:
            key, value = row
            known = before.get(store, {})
            if known.get(key, row) == value:
                return False
            known.pop(key, None)  # a later step may bring the entry back to what it was
            return True

        for changes, version in plan.steps:
            for store, rows in changes.items():
                read.setdefault(store, {}).update(rows)
            if is_version(version):  # readers behind one have read different parts: these rows may be new to some
                self.rows[version] = read
            yield {store: [row for row in rows if is_new(store, row)] for store, rows in changes.items()}, version

    def needs_rows(self, version: str | None) -> bool:
        """Return whether those who begin at a version would get its changes."""
        return version not in self.rows and isinstance(self.history, LogHistory)

    def forget(self, versions: Collection[str | None]) -> None:
        """Drop the rows of all versions but these, at which readers are."""
        self.rows = {version: rows for version, rows in self.rows.items() if version in versions}


class ChangesFeed:
    """Reads the changes of tasks in a thread, once for all readers of a task, while there are any.

    `look_around` is called at each look: what made the feed may have to close it.
    """

    def __init__(self, copies: Copies, look_around: Callable[[], None] = lambda: None) -> None:
        self._copies = copies
        self._look_around = look_around
        self._application = copies.application
        self._seconds = copies.world.seconds
        self._subscriptions: list[Subscription] = []
        self._sources: dict[str, _Source] = {}
        self._last_seen: dict[str, LastSeen] = {}
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

    def close(self, gap: str = "") -> None:
        """End all readers, with the code "gap" if a reason for one is given; idempotent."""
        with self._lock:
            self._has_closed = True
        if self._ticker is not None:
            self._ticker.resume()
            self._ticker.close()
        for each in self._subscriptions:
            each.end(gap_error(gap) if gap else _closed())
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
        self._look_around()
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
        subscriptions = self._fitting(source, subscriptions)
        for _ in range(_TRIES):
            self._resume(source, subscriptions)
            commit = self._last_commit(source.task)
            version = None if commit is None else commit.version
            by_version: dict[str | None, list[Subscription]] = {}
            for each in subscriptions:
                if each.read_to.get(task, version) != version and not self._gets_nothing(each):
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
                new = [each for each in subscriptions if task not in {*each.read_to, *each.beginnings}]
                if new and commit is not None and source.needs_rows(version):
                    self._read(source, version, commit, [])
                for each in new:
                    each.beginnings[task] = Beginning(commit, self._seconds())
                for each in subscriptions:
                    self._begin(source.task, each)
                source.forget({each.needs(task) for each in subscriptions})
                if failed is not None:
                    raise failed
                return
            except OvertakenError:
                continue

    def _fitting(self, source: _Source, subscriptions: Sequence[Subscription]) -> Sequence[Subscription]:
        """End readers of a store that the program here declares otherwise than it was saved; return the others.

        Rows of another kind have no key that is wanted: their changes would be passed over without a word.
        """
        for each in subscriptions:
            if each.store not in source.checked:
                source.checked[each.store] = self._refusal(each.store, source.task)
            if (error := source.checked[each.store]) is not None:
                each.end(error)
        return [each for each in subscriptions if source.checked[each.store] is None]

    def _refusal(self, store: str, task: SavedTask) -> PenstockError | None:
        kept = task.layouts.now.get(store)  # None: it comes when the program with it runs
        try:
            if kept is not None:
                check_declared(self._application, task, declared_store(self._application, store)[1], kept)
        except PenstockError as error:
            return error
        return None

    def _begin(self, task: SavedTask, subscription: Subscription) -> None:
        """Let a new reader follow a task, once the copy here has the commit to begin at: it reads the store next.

        A fresh answer may be of a version from up to two seconds before: the reader would miss what came in between.
        """
        if task.id in subscription.read_to:
            return
        beginning = subscription.beginnings[task.id]
        if beginning.commit is not None:
            has_commit = self._copies.has_commit(task, subscription.store, beginning.commit)
            if has_commit is False and self._seconds() - beginning.at < _COPY_SECONDS:
                return
        self._copies.note_followed(task, beginning.commit)
        subscription.begin(task.id, beginning.version)

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
            history = LogHistory(history, lambda version: self._is_last(saved, version), self._last_seen_of(task))
        self._sources[task] = _Source(saved, history)
        return self._sources[task]

    def _last_seen_of(self, task: str) -> LastSeen:
        return self._last_seen.setdefault(task, LastSeen(self._copies.world))

    def _last_commit(self, task: SavedTask) -> Commit | None:
        return self._last_seen_of(task.id).ask(lambda: self._copies.last_commit(task))

    def _is_last(self, task: SavedTask, version: str) -> bool:
        commit = self._last_commit(task)
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
        self._give(source, _Reading(subscriptions, source.steps(plan), commit))

    def _gets_nothing(self, subscription: Subscription) -> bool:
        """Return whether nothing is read for a reader now: it has ended, or takes the first parts of a version."""
        paused = [each for source in self._sources.values() for each in source.paused]
        return subscription.has_ended or any(subscription in each.subscriptions for each in paused)

    def _resume(self, source: _Source, subscriptions: Sequence[Subscription]) -> None:
        """Go on with what was paused; a failure leaves its readers where they are, to be read for afresh."""
        paused, source.paused = source.paused, []
        failed: Exception | None = None
        for each in paused:
            each.subscriptions = [one for one in each.subscriptions if one in subscriptions and not one.has_ended]
            if each.is_full:
                source.paused.append(each)
            elif each.subscriptions:
                try:
                    self._give(source, each)
                except OvertakenError:
                    continue
                except Exception as error:
                    failed = error
        if failed is not None:
            raise failed

    def _give(self, source: _Source, given: _Reading) -> None:
        """Give readers the changes of steps, and pause within a version while each has something to take.

        A reader that was ended within a version would begin with it again, and might never get beyond it.
        """
        subscriptions, commit = given.subscriptions, given.commit
        for changes, version in given.steps:
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
            if shown is None and given.is_full:
                source.paused.append(given)
                return

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
        each.end(gap_error(reason))


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
