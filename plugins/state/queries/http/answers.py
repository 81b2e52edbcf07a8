"""Answers: what each request returns, as data for JSON; called by threads that may wait."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import dropwhile, takewhile
from typing import Any, NamedTuple
from zlib import crc32

from penstock import Serde, StateStore, ValueAndTimestamp, ValueTimestampHeaders
from penstock.plugins.engine.program.saved_program import SavedTask
from penstock.plugins.serdes.json_text import dump_json
from penstock.plugins.state.copies.contents import (
    KINDS_OF_TIMES,
    LATEST,
    Entry,
    StoreText,
    entries,
    entries_of,
    version_entry,
)
from penstock.plugins.state.copies.key_tasks import may_wait
from penstock.program.serdes import resolve_serde
from penstock.store.specs import declared_serdes

from ..copies import Bounds, WouldWait, at_once
from ..queries import Queries
from ..stores import QueriedKeyValueStore, StoreReading, has_prefixes, keys_of, kind_of, queried_store, subscribed
from ..subscription import Subscription
from .guard import Refused, bad
from .parameters import MOST_ENTRIES, Page, Parameters, page_gone

Data = dict[str, Any]
MASKED = "***"
"""What the values of a masked store are shown as."""
_DEFAULT_ENTRIES = 100
MOST_MANY_BYTES = 64 << 20
"""The entries of several keys are not more than this, and one."""
MOST_PAGE_BYTES = 8 << 20
"""A page that has so much ends, whatever its limit."""
_NUMBER_BYTES = 8
_BY_KEY = ("key_value", "lru_map")
_QUICK_KINDS = ("key_value", "window", "versioned")
_VALUE_FIELDS = ("value", "headers")
_TIME_OF_KIND = {"window": "window", "as_of": "versioned"}
"""The parameter of `get` that is a time, and the kind of store that takes it."""


@dataclass(frozen=True)
class Followed:
    """A subscription; `shown` returns a change as data, `close` ends it."""

    subscription: Subscription
    shown: Callable[[Entry], Data]
    close: Callable[[], None]


class Answers:
    """Answers requests for the stores of an application.

    `names`: the stores that may be asked. `masked`: those of them whose values are not shown.
    """

    def __init__(self, queries: Queries, names: Sequence[str], masked: Sequence[str]) -> None:
        self._queries = queries
        self._names = frozenset(names)
        self._masked = frozenset(masked)
        self._texts = _Texts()
        self._own_secret = secrets.token_bytes()
        self._quick = {name for name in names if self._is_quick(name)}

    # ------------------------------------------------------------------ facts

    def stores(self) -> Data:
        """Return the stores that may be asked."""
        kinds = self._queries.stores()
        shown = [{"name": name, "kind": kinds[name], "masked": name in self._masked} for name in sorted(self._names)]
        return {"application": self._queries.application.id, "stores": shown}

    def store(self, name: str) -> Data:
        """Return a store, and the state of its copy in each task."""
        self._check(name)
        lags = [asdict(each) for each in self._queries.lags(name)]
        return {"name": name, "kind": self._queries.stores()[name], "masked": name in self._masked, "tasks": lags}

    def metadata(self, name: str, given: Parameters) -> Data:
        """Return which task has a key."""
        self._check(name)
        reading = self._queries.reading(name, Bounds(stale_ok=True, wait=0.0))
        found = self._queries.query_metadata_for_key(name, self._key(reading, given, "key"))
        lag = _without(asdict(found.lag), "task")
        return {"task": found.task, "partition": found.partition, **lag, "server": found.server, "copies": [lag]}

    def task_of(self, name: str, given: Parameters) -> str | None:
        """Return the one task that a request is for; None if it is for several. Raises Refused, and as `tasks_of`."""
        reading = self._reading(name, given)
        if given.text("key") is not None and reading.task is None:
            tasks = reading.tasks_of(self._key(reading, given, "key"))
            return tasks[0].id if len(tasks) == 1 else None
        return reading.task

    def followed(self, name: str, given: Parameters, task: str | None = None) -> tuple[list[str], float | None]:
        """Return what an answer of another server has to have for readers of changes here.

        As `at_least`, and within how many seconds the log has to have been asked (None: as ever). Of one task, or of
        all. Raises as `tasks`.
        """
        if given.flag("stale_ok"):
            return [], None
        reading = self._reading(name, given)
        found = [reading.copies.followed(each) for each in reading.tasks() if task in (None, each.id)]
        at_least = [
            f"{each.topic}:{each.partition}:{offset}"
            for follows in found
            if follows is not None
            for each, offset in follows.positions.items()
        ]
        return at_least, min((each.age for each in found if each is not None), default=None)

    def is_shown(self, name: str) -> bool:
        """Return whether a store may be asked, with its values."""
        return name in self._names and name not in self._masked

    def is_ready(self) -> bool:
        """Return whether every task of the stores can answer."""
        return all(map(self._queries.can_answer, self._names))

    # ------------------------------------------------------------------ entries

    def get_at_once(self, name: str, given: Parameters) -> Data:
        """Return the entry of a key as `get` does; raise WouldWait where that has to wait for something."""
        if name not in self._quick or given.flag("all_tasks"):
            raise WouldWait
        return at_once(lambda: self.get(name, given))

    def get(self, name: str, given: Parameters) -> Data:
        """Return the entry of a key, of a window of it, or as of a time. Raises Refused (404) if there is none."""
        reading = self._reading(name, given)
        key, kind = self._key(reading, given, "key"), kind_of(reading.builder)
        store: Any = queried_store(reading)
        for parameter, its_kind in _TIME_OF_KIND.items():
            if given.text(parameter) is not None and kind != its_kind:
                raise bad(f"{parameter}: store {name!r} is of the kind {kind!r}; only the kind {its_kind!r} takes it")
        if kind == "window":
            start = given.number("window", -1)
            if start < 0:
                raise bad("window: expected the start of the window in ms; `entries` has the windows of a time range")
            found = next(entries_of(store, key, start, start), None)
        elif kind == "versioned":
            # Not `entries_of`: versions that are valid in part of the history only answer for that part.
            version = store.get(key) if given.text("as_of") is None else store.get(key, given.number("as_of", LATEST))
            found = None if version is None else version_entry(key, version)
        elif kind in _BY_KEY:
            found = next(entries_of(store, key), None)
        else:
            raise bad(f"store {name!r} is of the kind {kind!r}, which has several entries of a key: ask for `entries`")
        if found is None:
            raise Refused(404, "not_found", f"store {name!r} has no value of this key")
        return self._shown(reading, found, given)

    def get_many(self, name: str, given: Parameters, keys: Sequence[Any]) -> Data:
        """Return the entry of each key; null for one that has no value. Raises Refused (413) for too much."""
        reading = self._reading(name, given)
        if kind_of(reading.builder) not in _BY_KEY:
            raise bad(f"store {name!r}: only key-value stores are asked for several keys at once")
        text = self._text(reading)
        wanted = [text.key_of_json(key) for key in keys]
        size = 0

        def shown(key: Any, value: Any) -> Data | None:
            nonlocal size
            if value is None:
                return None
            if size >= MOST_MANY_BYTES:
                raise Refused(413, "too_large", f"the entries have more than {MOST_MANY_BYTES:,} bytes: ask for fewer")
            data = self._shown(reading, _entry(key, value), given)
            size += sum(map(_size, data.values()))
            return data

        store = queried_store(replace(reading, timestamped=True))
        assert isinstance(store, QueriedKeyValueStore)
        return {"entries": store.get_many_as(wanted, shown)}

    def subscription(self, name: str, given: Parameters, after: str | None, notify: Callable[[], None]) -> Followed:
        """Return a subscription to changes of a store. Raises Refused.

        `after`: the id of the last event of an earlier one. `notify` is called in another thread.
        """
        reading = self._reading(name, given)
        scan = _Scan.of(self._text(reading), reading, given)
        keys = keys_of(reading, scan.key, scan.start, scan.end, scan.prefix)
        made = subscribed(reading, keys, scan.key, after, notify)
        return Followed(made, lambda entry: self._shown(reading, entry, given), lambda: reading.feed.remove(made))

    def page(self, name: str, given: Parameters) -> Data:
        """Return a page of entries, and the token of the next page; null at the end."""
        return self._page(
            name, given, given.page(self._secret(name)), given.number("limit", _DEFAULT_ENTRIES, 1, MOST_ENTRIES)
        )

    def pages(self, name: str, given: Parameters, size: int) -> Iterator[list[Data]]:
        """Yield pages of entries, up to `limit` (None: all) together; each is read when it is asked for."""
        page, left = given.page(self._secret(name)), given.number("limit", LATEST, 1)
        while left:
            found = self._page(name, given, page, min(size, left))
            yield found["entries"]
            left -= len(found["entries"])
            if found["page"] is None:
                return
            page = Page.of_token(found["page"], self._secret(name))

    def _page(self, name: str, given: Parameters, page: Page | None, limit: int) -> Data:
        reading = self._reading(name, given)
        scan = _Scan.of(self._text(reading), reading, given)
        tasks = list(scan.tasks)
        if page is not None:
            tasks = list(dropwhile(lambda task: task.id != page.task, tasks))
            if not tasks or _division(tasks[0]) != page.division:
                raise page_gone("it is of another query, or the application was resharded or reset since")
        found: list[Data] = []
        size = 0
        for task in tasks:
            after = page if page is not None and page.task == task.id else Page(task.id, _division(task))
            room = _Room(limit - len(found), MOST_PAGE_BYTES - size)
            part = reading.read(task, lambda store: self._part(reading, given, scan.rows(store, after), room))  # noqa: B023
            found += part.shown
            size += part.size
            if part.has_more:
                return {"entries": found, "page": scan.next_page(part.rows, after).token(self._secret(name))}
        return {"entries": found, "page": None}

    def _part(self, reading: StoreReading, given: Parameters, rows: Iterator[Entry], room: _Room) -> _Part:
        """Return the entries of one task that a page has room for; the first one of a page is never too large."""
        part = _Part()
        for entry in rows:
            if len(part.rows) >= room.entries or part.size >= room.size:
                part.has_more = True
                return part
            shown = self._shown(reading, entry, given)
            part.shown.append(shown)
            part.rows.append(_without(entry, *_VALUE_FIELDS))
            part.size += sum(map(_size, shown.values()))
        return part

    # ------------------------------------------------------------------ helpers

    def _secret(self, name: str) -> bytes:
        """Return what signs the pages of a store: a token has bytes of a key, and a key serde may run what it reads."""
        return hmac.digest(self._own_secret, name.encode(), "sha256")

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise Refused(404, "unknown_store", "there is no store of this name; GET /v1/stores lists them")

    def _is_quick(self, name: str) -> bool:
        """Return whether a key is found by a look or two, and the serdes of store and topic only compute.

        An LRU map reads the order of its keys first. Other serdes may ask a registry of schemas, or anybody.
        """
        application, store = self._queries.application, self._queries.declared(name)
        tasks = self._queries.key_tasks_of(name)
        return (
            kind_of(store) in _QUICK_KINDS
            and (tasks is None or tasks.only_compute)
            and not any(
                may_wait(resolve_serde(each, application.settings.state_serde, name, application.settings.of_plugins))
                for each in declared_serdes(store).values()
            )
        )

    def _reading(self, name: str, given: Parameters) -> StoreReading:
        self._check(name)
        return self._queries.reading(
            name,
            given.bounds(),
            timestamped=given.flag("timestamps"),
            task=given.text("task"),
            all_tasks=given.flag("all_tasks"),
        )

    def _key(self, reading: StoreReading, given: Parameters, name: str) -> Any:
        text = given.text(name)
        if text is None:
            raise bad(f"{name}: expected, and not given")
        return _key_of(text, self._text(reading), given)

    def _text(self, reading: StoreReading) -> StoreText:
        made, name = self._texts.made, reading.builder.name
        if name not in made:
            made[name] = StoreText(self._queries.application, reading.builder)
        return made[name]

    def _shown(self, reading: StoreReading, entry: Entry, given: Parameters) -> Data:
        name = reading.builder.name
        if not given.flag("timestamps") and "valid_to" not in entry:
            entry = _without(entry, "timestamp", "headers")
        if name not in self._masked:
            return self._text(reading).entry(entry)
        masked = {field: MASKED for field in _VALUE_FIELDS if entry.get(field) is not None}
        shown = self._text(reading).entry(_without(entry, *masked))
        return {field: masked.get(field, shown.get(field)) for field in entry}


class _Room(NamedTuple):
    """How many entries, and bytes, a page may still get."""

    entries: int
    size: int


@dataclass
class _Part:
    """The part of a page that is of one task. `rows`: the entries without their values, `shown`: as data for JSON."""

    rows: list[Entry] = field(default_factory=list)
    shown: list[Data] = field(default_factory=list)
    size: int = 0
    has_more: bool = False


def _size(data: Any) -> int:
    """Return about the size of data as JSON, in bytes."""
    if isinstance(data, str):
        return len(data)
    return _NUMBER_BYTES if data is None or isinstance(data, int | float) else len(dump_json(data))


@dataclass(frozen=True)
class _Scan:
    """The entries that a request asks for: of `key`, or of start <= key <= end whose keys begin with `prefix`."""

    tasks: Sequence[SavedTask]
    serde: Serde[Any]
    key: Any
    start: Any
    end: Any
    prefix: Any
    first: int
    last: int
    kind: str

    @classmethod
    def of(cls, text: StoreText, reading: StoreReading, given: Parameters) -> _Scan:
        """Return the request of the parameters. Raises Refused."""
        texts = {name: each for name in ("key", "start", "end", "prefix") if (each := given.text(name)) is not None}
        if len({"key", "prefix"} & set(texts)) and len(texts) > 1:
            raise bad("expected one of: key; prefix; start and end, or one of these two")
        if kind_of(reading.builder) not in KINDS_OF_TIMES and (times := {"from", "to"} & given.names()):
            raise bad(
                f"{', '.join(sorted(times))}: store {reading.builder.name!r} is of the kind "
                f"{kind_of(reading.builder)!r}, whose entries have no times"
            )
        if "prefix" in texts and not has_prefixes(text.key_serde):
            raise bad(f"prefix: store {reading.builder.name!r} has another key serde than str and bytes")
        keys = {name: _key_of(each, text, given) for name, each in texts.items()}
        tasks = reading.tasks_of(keys["key"]) if "key" in keys else reading.tasks()
        return cls(
            tasks,
            text.key_serde,
            keys.get("key"),
            keys.get("start"),
            keys.get("end"),
            keys.get("prefix"),
            given.number("from", 0),
            given.number("to", LATEST),
            kind_of(reading.builder),
        )

    def rows(self, store: StateStore, after: Page) -> Iterator[Entry]:
        """Yield the entries of a store in one task, behind the page before."""
        begin = None if after.key is None else self._known(after.key)
        if self.key is not None:
            rows = entries_of(store, self.key, self.first, self.last)
        else:
            start = next((each for each in (begin, self.start, self.prefix) if each is not None), None)
            rows = entries(store, start, self.end, self.first, self.last)
        is_behind, left = after.key is None, after.skipped
        for entry in rows:
            if self.prefix is not None and not entry["key"].startswith(self.prefix):
                return
            if not is_behind:
                rank = self._rank(entry)
                is_behind = self.serde.serialize(entry["key"]) != after.key or rank > after.rank
                left -= not is_behind and rank == after.rank
            if is_behind or left < 0:
                yield entry

    def _known(self, key: bytes) -> Any:
        try:
            return self.serde.deserialize(key)
        except Exception:  # a serde of another package may raise anything
            raise bad("page: it is of another query") from None

    def next_page(self, rows: Sequence[Entry], after: Page) -> Page:
        """Return the page behind entries of a task that a page began with."""
        if not rows:
            return after
        # Python calls some keys equal that are others, such as 1 and True, and a nan not equal to itself.
        serialize, rank = self.serde.serialize, self._rank(rows[-1])
        data = serialize(rows[-1]["key"])
        alike = takewhile(lambda entry: self._rank(entry) == rank and serialize(entry["key"]) == data, reversed(rows))
        count = sum(1 for _ in alike)
        goes_on = count == len(rows) and (data, rank) == (after.key, after.rank)
        return after._replace(key=data, rank=rank, skipped=count + (after.skipped if goes_on else 0))

    def _rank(self, entry: Entry) -> tuple[int, ...]:
        """Return the sort key of a key's entries, as its kind of store yields them.

        Those of one window that keeps duplicates, and of lists, are alike. Of windows only starts are in order: a
        window may end before an earlier one does.
        """
        if "valid_to" in entry:
            return (-entry["timestamp"],)
        if self.kind == "session":
            return (entry["end"], entry["start"])
        return (entry["start"],) if "start" in entry else ()


class _Texts(threading.local):
    """The text forms of stores, by name; each thread has its own, as a serde is used by one thread at a time."""

    def __init__(self) -> None:
        self.made: dict[str, StoreText] = {}


def _division(task: SavedTask) -> str:
    return f"{crc32(repr((task.identity, task.count, task.partitions)).encode()):08x}"


def _key_of(given_key: str, text: StoreText, given: Parameters) -> Any:
    if not given.flag("json_keys"):
        return text.key_of_text(given_key)
    try:
        data = json.loads(given_key)
    except (ValueError, RecursionError):
        raise bad("json_keys: expected keys as JSON") from None
    return text.key_of_json(data)


def _entry(key: Any, value: Any) -> Entry:
    if isinstance(value, ValueTimestampHeaders):
        return {"key": key, "value": value.value, "timestamp": value.timestamp, "headers": value.headers}
    if isinstance(value, ValueAndTimestamp):
        return {"key": key, "value": value.value, "timestamp": value.timestamp}
    return {"key": key, "value": value}


def _without(data: Data, *names: str) -> Data:
    return {name: value for name, value in data.items() if name not in names}
