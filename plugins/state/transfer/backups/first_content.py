"""FirstContent: fills a store of an application that does not run from rows, before its tasks use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

from penstock import (
    Application,
    Assignment,
    Commit,
    ConfigError,
    IncompatibleStateError,
    KeyValueStore,
    Lease,
    ListStore,
    Log,
    SessionStore,
    StateStore,
    StoreBuilder,
    SystemClock,
    TaskId,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
    WindowStore,
    WindowStoreSpec,
)
from penstock.plugins.engine.program.check import drop_stores
from penstock.plugins.engine.program.preparation import Prepared, check, prepare
from penstock.plugins.engine.program.saved_program import check_location, read_note, saved_subtopologies, saved_tasks
from penstock.plugins.engine.task import notes
from penstock.plugins.engine.task.commit import PendingCommit
from penstock.plugins.engine.task.locations import Places
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import Phases
from penstock.plugins.engine.task.task_worker import LastingTaskWorker
from penstock.plugins.state.copies.contents import declared_store, entries, open_store, reading_serdes
from penstock.plugins.state.copies.key_tasks import KeyTasks
from penstock.plugins.state.copies.replica import Replica

_PORTION = 50_000
_LEAST_TIME, _LAST_TIME = -(2**63), 2**63 - 1
_PUT_KINDS = ("key_value", "lru_map", "window", "session", "list")

Row = Mapping[str, Any]
"""`key` and `value` as objects of the store's serdes; `start` and `end` (ms) of windows and sessions; `timestamp` and
`headers` where values have them."""


class Filled(NamedTuple):
    """The number of rows put, and how many of them the store lacks.

    They had `expired`, were `replaced` by one of the same key, or `evicted` by later ones from a store of limited size.
    """

    rows: int
    expired: int
    replaced: int = 0
    evicted: int = 0


def fill_store(
    application: Application,
    log: Log,
    store: str,
    rows: Callable[[], Iterable[Row]],
    lease: Lease,
    *,
    task: str | None = None,
) -> Filled:
    """Fill an empty store, each row in the task of its key, or all in one `task`.

    `rows` is called twice, and returns the same: all are checked before the first is written. The application need not
    have run; then it begins at the positions of now, as `offset_reset` says. Until the end it refuses to start; after a
    kill, repeat it. Raises ConfigError for a kind that it cannot fill and for rows that have changed,
    IncompatibleStateError where the store has content, and what the log, the changelog and the serdes raise.
    """
    number, builder = declared_store(application, store)
    kind = getattr(builder, "kind", "key_value")
    if kind not in _PUT_KINDS:
        raise ConfigError(f"store {store!r} is of kind {kind!r}: only {', '.join(_PUT_KINDS)} can be filled from rows")
    mark = f"import of {store}"
    if notes.RESTORING.read(application.id, log) == mark:
        if _is_saved(application.id, log, store):  # else it was dropped after the kill
            drop_stores(application, log, lease, [store])
        notes.RESTORING.take_back(application.id, log)
    # What is refused leaves no note of its program, and makes no topic.
    checked = check(application, log)
    check_location(checked.application, checked.assignment, log, checked.now["identity"])
    _check_empty(checked.application, log, store, builder)
    placing = _Placing(checked.application, checked.assignment, number, builder, task)
    count = placing.check(rows())
    prepared = prepare(application, log)
    with ExitStack() as stack:
        filling = _Filling(prepared, log, number, builder, placing, stack)
        filling.open()
        notes.RESTORING.write(application.id, lease, mark)
        filled = filling.fill(rows(), lease.renew)
        if filled.rows != count:
            raise ConfigError(
                f"the rows of store {store!r} have changed: {count} rows were checked, and then {filled.rows} "
                f"{'was' if filled.rows == 1 else 'were'} there: repeat the import with a file that nobody writes to"
            )
        notes.RESTORING.take_back(application.id, log)
    return filled


def _is_saved(application_id: str, log: Log, store: str) -> bool:
    note = read_note(application_id, log)
    return bool(note) and any(store in each["stores"] for each in saved_subtopologies(note).values())


def _check_empty(application: Application, log: Log, store: str, builder: StoreBuilder) -> None:
    """Raise IncompatibleStateError for a store that a task of the last program has content of."""
    for task, saved in saved_tasks(application.id, log).items():
        if store not in saved.layouts.now or store in saved.dropped:
            continue
        directory = Places.of(application).replica(store, task)
        with Replica(application, task, log, directory, stores=[store]) as replica:
            while not replica.catch_up():
                continue
            if replica.version is None or next(replica.backend(store).range(store), None) is None:
                continue
            with closing(open_store(application, replica, builder)) as opened:
                _check_no_entry(application, task, opened)


def _check_no_entry(application: Application, task: str, store: StateStore) -> None:
    if next(entries(store), None) is not None:
        raise IncompatibleStateError(
            f"store {store.name!r} of application {application.id!r} has content in task {task}: give it up first "
            f"(`penstock state drop MODULE:ATTR {store.name}`)"
        )


class _Task(LastingTaskWorker):
    """A task that is open without its processors."""

    def open(self) -> None:
        """Bring its state to the last commit, or make the first one."""
        self._now = SystemClock().now_ms()
        self.prepare(self._now)
        self.restore()
        assert self._commits is not None
        saved = self._commits.last.engine_state
        self._stream_time: int = json.loads(saved).get("stream", -1) if saved else -1

    def store(self, name: str) -> StateStore:
        """Return a store."""
        assert self._state is not None
        return self._state.stores[name]

    def begin_ttl(self, timestamp: int | None) -> None:
        """Let the next puts expire a TTL after `timestamp` (ms); None: after now, by stream time or the clock."""
        assert self._state is not None
        now = self._stream_time if self._stream_time >= 0 else self._now
        self._state.set_clocks(now if timestamp is None else timestamp, self._now)

    def end_ttl(self) -> None:
        """Expire entries by the task's times."""
        assert self._state is not None
        self._state.set_clocks(self._stream_time, self._now)

    def commit_stores(self) -> None:
        """Commit the puts, at the positions of the last commit."""
        state, commits, committer = self._state, self._commits, self._committer
        assert state is not None and commits is not None and committer is not None
        self.end_ttl()
        state.flush()
        changes, last = state.changes(), commits.last
        commit = Commit(last.positions, state.new_version(last.version), last.engine_state)
        PendingCommit(state, committer, commit, [], changes, last, Phases(self._phases.now)).write()
        state.apply(changes, commit.version)
        commits.last = commit


class _RowError(ValueError):
    """A row that cannot be put."""


class _Placing:
    """The rows of a store as they are checked, and the tasks of their keys."""

    def __init__(
        self, application: Application, assignment: Assignment, number: int, store: StoreBuilder, only: str | None
    ) -> None:
        self._application, self._store = application, store
        self._serdes = reading_serdes(application, store)
        self._only = only
        self.portions: list[int] = []
        """How many rows each portion has, as the check has found."""
        self._key_tasks = KeyTasks(application, number, store.name)
        own = {str(task): read for task, read in assignment.tasks.items() if task.subtopology == number}
        self._count = self._key_tasks.count(list(own.values()))
        if only is not None and only not in own:
            raise ConfigError(f"task {only}: store {store.name!r} is in the tasks {', '.join(own)}")

    def check(self, rows: Iterable[Row]) -> int:
        """Raise an error for a row that cannot be put; return the number of rows."""
        most, count, begun, size = self._application.settings.commit_bytes, 0, 0, 0
        for count, row in enumerate(rows, 1):
            for part in ("key", "value"):
                if part in row and row[part] is None:
                    raise ConfigError(f"row {count}: its {part} is null, and no store has one: leave the row out")
            try:
                _item(row, self._store)
                size += self._check_row(row)
                self.tasks_of(row)
            except KeyError as error:
                raise ConfigError(f"row {count}: it has no {error.args[0]!r}") from error
            except _RowError as error:
                raise ConfigError(f"row {count}: {error}") from error
            except ConfigError as error:
                raise ConfigError(f"row {count}: {error}: put all rows into one with --task") from error
            if count - begun == _PORTION or size >= most:
                self.portions.append(count - begun)
                begun, size = count, 0
        return count

    def _check_row(self, row: Row) -> int:
        """Return the bytes of a row's parts.

        Raises _RowError for a part that the store would refuse when it is put: until then, nothing is written.
        """
        size = 0
        for name, serde in self._serdes.items():
            part = name.removesuffix("_serde")
            try:
                size += len(serde.serialize(row[part]))
            except Exception as error:  # a serde of another package may raise anything
                raise _RowError(f"its {part} {str(row[part])[:40]!r}: {error or type(error).__name__}") from error
        kind = getattr(self._store, "kind", "key_value")
        times = ["start", "end"] if kind in ("window", "session") else []
        for name in times + ["timestamp"] * self._store.traits.timestamped:
            time = row[name]
            if type(time) is not int or not (_LEAST_TIME if name == "timestamp" else 0) <= time <= _LAST_TIME:
                raise _RowError(f"its {name} is {str(time)[:40]!r}: expected ms since the epoch, an int of 64 bits")
        if kind == "session" and row["end"] < row["start"]:
            raise _RowError(f"its end {row['end']} is before its start {row['start']}")
        if isinstance(self._store, WindowStoreSpec):
            _check_window(row, self._store)
        return size

    def tasks_of(self, row: Row) -> list[str]:
        """Return the tasks of a row. Raises ConfigError where they are unknown."""
        return [self._only] if self._only is not None else self._key_tasks.of(row["key"], self._count)


class _Filling:
    """Puts rows into the tasks, which `stack` closes."""

    def __init__(
        self, prepared: Prepared, log: Log, number: int, store: StoreBuilder, placing: _Placing, stack: ExitStack
    ) -> None:
        self._application, self._store, self._placing = prepared.application, store, placing
        self._tasks: dict[str, _Task] = {}
        resources = stack.enter_context(closing(ProcessResources()))
        for task, partitions in prepared.assignment.tasks.items():
            if task.subtopology == number:
                count = len(prepared.assignment.tasks)
                own = _Task(self._application, TaskId(*task), partitions, log, resources=resources, task_count=count)
                self._tasks[str(task)] = stack.enter_context(closing(own))

    def open(self) -> None:
        """Open the tasks. Raises IncompatibleStateError if a store has content, such as one that was parked."""
        for task, opened in self._tasks.items():
            opened.open()
            _check_no_entry(self._application, task, opened.store(self._store.name))

    def fill(self, rows: Iterable[Row], check_lease: Callable[[], None]) -> Filled:
        """Put all rows, and commit after each portion: of so many rows, or about `commit_bytes` and a row."""
        waiting, count, expired, replaced = iter(rows), 0, 0, 0
        portions = chain(self._placing.portions, repeat(_PORTION))
        kind, traits = getattr(self._store, "kind", "key_value"), self._store.traits
        may_expire = traits.expires or kind in ("window", "session")
        # With a ttl, a row that is replaced may have expired as well.
        has_duplicates = getattr(self._store, "retain_duplicates", False)
        keeps_each = kind == "list" or traits.expires or has_duplicates
        while portion := list(islice(waiting, next(portions))):
            count += len(portion)
            check_lease()
            used = set[str]()
            for row in portion:
                for task in self._placing.tasks_of(row):
                    used.add(task)
                    if traits.expires:
                        self._tasks[task].begin_ttl(row["timestamp"] if traits.timestamped else None)
                    store = self._tasks[task].store(self._store.name)
                    replaced += not keeps_each and _has(store, row, False)
                    _put(store, row, _item(row, self._store))
            for task in used if may_expire else ():
                self._tasks[task].end_ttl()
            for row in portion if may_expire else ():
                stores = [self._tasks[task].store(self._store.name) for task in self._placing.tasks_of(row)]
                expired += not any(_has(store, row, has_duplicates) for store in stores)
            for task in sorted(used):
                self._tasks[task].commit_stores()
        evicted = 0
        if kind == "lru_map":
            stores = [task.store(self._store.name) for task in self._tasks.values()]
            evicted = count - replaced - sum(1 for store in stores for _ in entries(store))
        return Filled(count, expired, replaced, evicted)


def _item(row: Row, store: StoreBuilder) -> Any:
    """Return the value of a row as the store takes it. Raises KeyError for a part that is missing."""
    value, kind = row["value"], getattr(store, "kind", "key_value")
    if kind in ("window", "session"):
        row["start"], row["end"]
    if getattr(store, "headers", False):
        return ValueTimestampHeaders(value, row["timestamp"], tuple(row.get("headers") or ()))
    return ValueAndTimestamp(value, row["timestamp"]) if store.traits.timestamped else value


def _check_window(row: Row, store: WindowStoreSpec) -> None:
    """Raise _RowError for a row that is of no window of its store, which keeps the start only."""
    start, end, expected = row["start"], row["end"], store.end_of(row["start"])
    found = f"its window is from {start} to {end}"
    remedy = "correct the row, leave it out, or declare the windows that the rows have"
    window_end = store.division.window_end
    if window_end is not None and window_end(start) is None:
        raise _RowError(
            f"{found}, and no window of store {store.name!r} starts at {start}: they are up to {store.window_size_ms} "
            f"ms long, and start where its program says: {remedy}"
        )
    if end != expected:
        raise _RowError(
            f"{found}, and the window of store {store.name!r} that starts at {start} ends at {expected}, after "
            f"{expected - start} ms: {remedy}"
        )


def _has(store: StateStore, row: Row, has_duplicates: bool) -> bool:
    """Return whether a store that may expire has the entry of a row, or another one with its key."""
    if isinstance(store, WindowStore):
        if has_duplicates:
            with store.fetch(row["key"], row["start"], row["start"]) as found:
                return next(found, None) is not None
        return store.fetch(row["key"], row["start"]) is not None
    if isinstance(store, SessionStore):
        return store.fetch_session(row["key"], row["start"], row["end"]) is not None
    assert isinstance(store, KeyValueStore)
    return store.get(row["key"]) is not None


def _put(store: StateStore, row: Row, value: Any) -> None:
    if isinstance(store, WindowStore):
        store.put(row["key"], value, row["start"])
    elif isinstance(store, SessionStore):
        store.put(Windowed(row["key"], row["start"], row["end"]), value)
    elif isinstance(store, ListStore):
        store.add(row["key"], value)
    else:
        assert isinstance(store, KeyValueStore)
        store.put(row["key"], value)
