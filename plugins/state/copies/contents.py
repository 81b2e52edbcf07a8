"""Stores as processors see them, read at a copy's version: their entries, the text form of these, and their tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from copy import deepcopy
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any
from uuid import UUID

from penstock import (
    Application,
    BytesSerde,
    Commit,
    ConfigError,
    Log,
    PunctuationType,
    ReadOnlyKeyValueStore,
    ReadOnlyListStore,
    ReadOnlySessionStore,
    ReadOnlyVersionedKeyValueStore,
    ReadOnlyWindowStore,
    Serde,
    SerdeError,
    StateStore,
    StoreBackend,
    StoreBuilder,
    StoreError,
    StoreSpec,
    StoreUnavailableError,
    StrSerde,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedRecord,
)
from penstock.plugins.engine.program.preparation import check_restored
from penstock.plugins.engine.program.saved_program import SavedTask, saved_tasks
from penstock.plugins.engine.task.local_state.store_context import TaskStoreContext
from penstock.plugins.serdes.json_text import headers_to_json
from penstock.plugins.serdes.typed.read_back import field_names
from penstock.program.serdes import SerdeLike, resolve_serde
from penstock.store import Change as Row
from penstock.store.kept_store import KeptStore
from penstock.store.kinds.timers import TimerStore
from penstock.store.record_cache import CacheBudget, RecordCache
from penstock.store.specs import declared_serdes
from penstock.store.state_store import built_store
from penstock.stores.commit_buffer import CommitBuffer
from penstock.stores.kinds.plain import PlainStore
from penstock.stores.kinds.session import BucketSessionStore
from penstock.stores.kinds.versioned import VersionedStore
from penstock.stores.kinds.window import BucketWindowStore
from penstock.support.names import did_you_mean, index_name
from penstock.support.repeats import Repeats
from penstock.support.text_form import NoTextForm, to_json

from .replica import Replica

LATEST = 2**63 - 1
"""The end of time, in ms."""

KINDS_OF_TIMES = ("window", "session", "versioned")
"""The kinds of stores that have an entry of a key for each time, each in a row of its own."""

Entry = dict[str, Any]
"""An entry of a store: `key` and `value`, and what else its kind has.

`timestamp` and `headers` where values have them; `start` and `end` of windows and sessions; `timestamp` and `valid_to`
of versions (-1: the latest); `clock` and `at` of timers. All times are in ms.
"""


def declared_store(application: Application, name: str) -> tuple[int, StoreBuilder]:
    """Return a store in the changelog, and the number of its sub-topology. Raises ConfigError for another one."""
    stores = {store.name: (part.id, store) for part in application.program.subtopologies for store in part.stores}
    if name not in stores:
        advice = did_you_mean(name, stores) or f"it has: {', '.join(sorted(stores)) or 'none'}"
        raise ConfigError(f"the program of application {application.id!r} has no store {name!r}; {advice}")
    if not stores[name][1].logged:
        raise ConfigError(
            f"store {name!r} of application {application.id!r} is not in the changelog (logged=False, or it is filled "
            "from a topic), so only its task can read it"
        )
    return stores[name]


def tasks_with(application: Application, log: Log, store: str) -> Mapping[str, SavedTask]:
    """Return the tasks with a store, by id.

    Raises ConfigError if there are none, IncompatibleStateError for a part of a restore or an import, and what
    `declared_store` and `check_number` raise.
    """
    check_restored(application.id, log)
    number, _ = declared_store(application, store)
    every = saved_tasks(application.id, log)
    check_number(application, number, store, every)
    saved = {task: each for task, each in every.items() if task.startswith(f"{number}_")}
    if not saved:
        raise ConfigError(
            f"application {application.id!r} has saved no store {store!r} in the log "
            f"{application.settings.shown('log')}: it has not run there since its last reset; check --log and "
            "--data-dir"
        )
    return saved


def check_number(application: Application, subtopology: int, store: str, saved: Mapping[str, SavedTask]) -> None:
    """Raise ConfigError if the program that ran last has a store in a sub-topology of another number alone.

    Tasks and their keys are those of that program, and this one would be refused at its start.
    """
    numbers = {int(task.partition("_")[0]) for task, each in saved.items() if store in each.layouts.now}
    if numbers and subtopology not in numbers:
        raise ConfigError(
            f"store {store!r} of application {application.id!r} was saved in sub-topology {min(numbers)}, and the "
            f"program here has it in sub-topology {subtopology}: give the program that ran last; a new sub-topology "
            "has its place behind the old ones"
        )


def last_commits(application: Application, log: Log, tasks: Iterable[SavedTask]) -> Mapping[str, Commit]:
    """Return the last commits of tasks, read one right after the other. Raises StoreError if one has none."""
    commits = {}
    for task, commit in [(each.id, log.last_commit(application.id, each.id, each.partitions)) for each in tasks]:
        if commit is None:
            raise no_commit(application, task)
        commits[task] = commit
    return commits


def no_commit(application: Application, task: str) -> StoreError:
    """Return the error for a task that has not run."""
    return StoreError(
        f"task {task} of application {application.id!r} has no commit in the log "
        f"{application.settings.shown('log')}: it has not run yet"
    )


def reading_serdes(application: Application, store: StoreBuilder) -> Mapping[str, Serde[Any]]:
    """Return `key_serde` and `value_serde` of a store, as far as its kind has them: objects of the caller's own."""
    settings, what = application.settings, f"store {store.name!r}"
    return {
        name: resolve_serde(deepcopy(given), deepcopy(settings.state_serde), what, settings.of_plugins)
        for name, given in declared_serdes(store).items()
    }


def key_serde(application: Application, store: StoreBuilder) -> Serde[Any]:
    """Return the serde of a store's keys, of the caller's own. Raises ConfigError for a store whose kind has none."""
    return StoreText(application, store).key_serde


class _ReadingContext(TaskStoreContext):
    """The context of a store that is read beside its task; its serdes are its own, as one thread at a time uses one."""

    def serde(self, given: SerdeLike, store: str) -> Serde[Any]:
        return resolve_serde(deepcopy(given), deepcopy(self.state_serde), f"store {store!r}", self.config)


def open_store(application: Application, replica: Replica, store: StoreBuilder) -> StateStore:
    """Return a store at the version of the replica, to be read until its next `catch_up`. Raises as `store_over`."""
    kept, backend = replica.layout[store.name], replica.backend(store.name)
    return store_over(application, replica.saved, store, kept, backend, replica.commit)


def check_declared(application: Application, task: SavedTask, store: StoreBuilder, kept: KeptStore) -> None:
    """Raise ConfigError if a store was saved as one of another kind than declared, or without the index that it needs.

    Raises as `SavedTask.check_serdes`, too, and StoreUnavailableError for a store that was dropped since the last run.
    """
    if store.name in task.dropped:
        raise StoreUnavailableError(
            f"store {store.name!r} of application {application.id!r} was dropped, and starts empty with the next run: "
            "ask again then"
        )
    kind = store.kind if isinstance(store, StoreSpec) else "key_value"
    if kind != kept.kind:
        raise ConfigError(
            f"store {store.name!r} of application {application.id!r} was saved as one of kind {kept.kind!r}, and the "
            f"program declares it as {kind!r}: give the program that ran last"
        )
    if (store.traits.expires or store.traits.is_indexed) and not kept.has_index:
        raise ConfigError(
            f"store {store.name!r} of application {application.id!r} was saved without a ttl, and the program declares "
            "one: give the program that ran last, until this one has run"
        )
    task.check_serdes(store.name, reading_serdes(application, store))


def store_over(
    application: Application,
    task: SavedTask,
    store: StoreBuilder,
    kept: KeptStore,
    backend: StoreBackend,
    commit: Commit | None,
    now_ms: Callable[[], int] = lambda: 0,
) -> StateStore:
    """Return a store of a task, to be read, over a backend with its rows; close it afterwards.

    Rows have expired by the clocks of the task at `commit`, or by `now_ms` if that is later. Raises as
    `check_declared`.
    """
    check_declared(application, task, store, kept)
    settings = application.settings
    saved = json.loads(commit.engine_state) if commit is not None and commit.engine_state else {}
    stream_time, wall_clock = saved.get("stream", -1), saved.get("wall", 0)
    context = _ReadingContext(
        application.id,
        task.id,
        settings.state_serde,
        kept.fixed_options,
        lambda: stream_time,
        lambda: max(wall_clock, now_ms()),
        lambda reason, count: None,
        CommitBuffer(backend, index_name(store.name)) if kept.has_index else None,
        kept.expires,
        RecordCache(store.name, CacheBudget(0)),
        Repeats(lambda: wall_clock),
        settings.of_plugins,
    )
    return built_store(store, CommitBuffer(backend, store.name), context)


def entries_of(store: StateStore, key: Any, first: int = 0, last: int = LATEST) -> Iterator[Entry]:
    """Yield the entries of one key: windows that start, sessions that overlap, and versions valid, from first to last.

    Versions come with the latest first. Raises ConfigError for a kind of store that it cannot read.
    """
    if isinstance(store, ReadOnlyKeyValueStore):
        value = store.get(key)
        yield from _shown([] if value is None else [(key, value)], False)
    elif isinstance(store, ReadOnlyListStore):
        yield from _shown([(key, value) for value in store.get(key)], False)
    elif isinstance(store, ReadOnlySessionStore):
        yield from _shown(store.find_sessions(key, first, last), True)
    elif isinstance(store, ReadOnlyVersionedKeyValueStore):
        with store.get(key, first, last) as versions:
            for _, each in versions:
                yield version_entry(key, each)
    elif isinstance(store, TimerStore):
        yield from (entry for entry in entries(store) if entry["key"] == key)
    else:
        yield from entries(store, key, key, first, last)


def version_entry(key: Any, version: VersionedRecord) -> Entry:
    """Return a version of a key as an entry."""
    return {"key": key, "value": version.value, "timestamp": version.timestamp, "valid_to": version.valid_to}


def entries(
    store: StateStore, start: Any = None, end: Any = None, first: int = 0, last: int = LATEST
) -> Iterator[Entry]:
    """Yield all entries of start <= key <= end, in the order of the serialized keys; None is an open end.

    `first`, `last`: as `entries_of`. Raises ConfigError for timers with limits, and for kinds that it cannot read.
    """
    if isinstance(store, (ReadOnlyKeyValueStore, ReadOnlyListStore)):
        found: Any = store.range(start, end)
    elif isinstance(store, ReadOnlyWindowStore):
        found = store.fetch_range(start, end, first, last)
    elif isinstance(store, ReadOnlySessionStore):
        found = store.find_sessions_range(start, end, first, last)
    elif isinstance(store, TimerStore) and start is None and end is None:
        for clock in PunctuationType:
            with store.entries(clock) as timers:
                yield from ({"key": key, "clock": clock.name.lower(), "at": at} for key, at in timers)
        return
    elif isinstance(store, VersionedStore):
        for key, each in store.all_versions(start, end, first, last):
            yield version_entry(key, each)
        return
    else:
        raise _unknown(store)
    yield from _shown(found, isinstance(store, (ReadOnlyWindowStore, ReadOnlySessionStore)))


def changed_entries(store: StateStore, rows: Iterable[Row]) -> Iterator[tuple[bytes, Entry]]:
    """Yield changed rows of a window, session or versioned store with the key of the row and its entry.

    The value is None where the entry was deleted; so is `valid_to` of a version. Versions that have expired are left
    out. Raises ConfigError for another kind of store.
    """
    if isinstance(store, VersionedStore):
        for row_key, data in rows:
            if data is not None:
                key, each = store.entry_of(row_key, data)
                yield row_key, {"key": key, "value": each.value, "timestamp": each.timestamp, "valid_to": None}
    elif isinstance(store, (BucketWindowStore, BucketSessionStore)):
        for row_key, data in rows:
            yield row_key, next(_shown([store.entry_of(row_key, data)], True))
    else:
        raise _unknown(store)


def columns(store: StateStore, size: int, first: int = 0, last: int = LATEST) -> Iterator[Mapping[str, list[Any]]]:
    """Yield all entries as `entries` does, in portions of up to `size`, or about 8 MB: a list for each column."""
    if isinstance(store, PlainStore):
        for keys, values in store.portions(size):
            yield {"key": keys, **_columns_of_values(values)}
        return
    found = entries(store, first=first, last=last)
    while portion := list(_portion(found, size)):
        yield {name: [each[name] for each in portion] for name in portion[0]}


_PORTION_BYTES = 8 << 20
_SMALL = frozenset({type(None), bool, int, float, date, datetime, timedelta, Decimal, UUID})


def _portion(found: Iterator[Entry], size: int) -> Iterator[Entry]:
    """Yield the next entries, up to `size`, and none after they have about _PORTION_BYTES."""
    left = _PORTION_BYTES
    for each in islice(found, size):
        yield each
        left -= _about_bytes(each.get("value"), 4)
        if left <= 0:
            return


def _about_bytes(value: Any, depth: int) -> int:
    """Return how long the texts and bytes of a value are together, with a few bytes for each other part."""
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if not depth or type(value) in _SMALL:
        return 8
    parts: Iterable[Any] = value if isinstance(value, (list, tuple, set, frozenset)) else ()
    if isinstance(value, dict):
        parts = chain(value, value.values())
    elif names := field_names(type(value)):
        parts = (getattr(value, name, None) for name in names)
    return 8 + sum(_about_bytes(each, depth - 1) for each in parts)


def _columns_of_values(values: list[Any]) -> Mapping[str, list[Any]]:
    if values and isinstance(values[0], (ValueAndTimestamp, ValueTimestampHeaders)):
        names = ("value", "timestamp", "headers")
        return {name: list(column) for name, column in zip(names, zip(*values, strict=True), strict=False)}
    return {"value": values}


def _unknown(store: StateStore) -> ConfigError:
    return ConfigError(f"store {store.name!r}: a {type(store).__name__} cannot be read in this way")


def _shown(found: Any, is_windowed: bool) -> Iterator[Entry]:
    with closing(found) if hasattr(found, "close") else nullcontext():
        for key, value in found:
            entry = {"key": key.key, "start": key.start, "end": key.end} if is_windowed else {"key": key}
            if isinstance(value, ValueTimestampHeaders):
                entry |= {"value": value.value, "timestamp": value.timestamp, "headers": value.headers}
            elif isinstance(value, ValueAndTimestamp):
                entry |= {"value": value.value, "timestamp": value.timestamp}
            else:
                entry["value"] = value
            yield entry


class StoreText:
    """Keys and entries of a store as JSON data; one thread at a time uses it, and its serdes are its own."""

    def __init__(self, application: Application, store: StoreBuilder) -> None:
        self._name = store.name
        serdes = reading_serdes(application, store)
        self._serdes = {name.removesuffix("_serde"): serde for name, serde in serdes.items()}

    @property
    def key_serde(self) -> Serde[Any]:
        """The serde of the keys. Raises ConfigError for a store whose kind has none."""
        if "key" not in self._serdes:
            raise ConfigError(f"store {self._name!r} is of a kind without a key serde: its keys cannot be read here")
        return self._serdes["key"]

    def key_of_json(self, data: Any) -> Any:
        """Return the key that has this text form. Raises ConfigError if it fits not."""
        return self._key(data, self.key_serde.key_from_json)

    def key_of_text(self, text: str) -> Any:
        """Return the key that a text means: itself for the serdes str and bytes, else JSON, in the text form.

        Text that is not JSON is a string. Bytes that are no text have the tag `!bytes`. Raises ConfigError if it does
        not fit.
        """
        return self._key(text, self._of_text)

    def _of_text(self, text: str) -> Any:
        serde = self.key_serde
        if isinstance(serde, StrSerde):
            return serde.deserialize(text.encode())
        data = _json_or_text(text)
        if isinstance(serde, BytesSerde) and not (isinstance(data, dict) and data.keys() == {"!bytes"}):
            return serde.deserialize(text.encode())
        return serde.key_from_json(data)

    def _key(self, given: Any, read: Callable[[Any], Any]) -> Any:
        kind = type(self.key_serde).__name__
        try:
            if (key := read(given)) is not None:
                return key
            raise SerdeError("no key is null")
        except Exception as error:  # a serde of another package may raise anything
            shown = repr(given)
            shown = shown if len(shown) <= 100 else shown[:100] + "..."
            raise ConfigError(
                f"key {shown} does not fit the key serde {kind} of store {self._name!r}: {error}"
            ) from error

    def entry(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as JSON data. Raises NoTextForm."""
        return {name: self._part(name, value) for name, value in entry.items()}

    def columns(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the columns of entries as JSON data. Raises NoTextForm."""
        return {name: [self._part(name, value) for value in column] for name, column in columns.items()}

    def _part(self, name: str, value: Any) -> Any:
        if name not in ("key", "value"):
            return headers_to_json(value) if name == "headers" else value
        if value is None:
            return None
        try:
            return self._serdes[name].to_json(value) if name in self._serdes else to_json(value)
        except NoTextForm as error:
            raise NoTextForm(f"store {self._name!r}, {name}: {error}") from error


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return text


def _no_json(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")
