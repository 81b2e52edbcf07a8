"""Changes: the entries of a store that commits change, for a reader of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock import (
    BytesSerde,
    ConfigError,
    Serde,
    StoreUnavailableError,
    StrSerde,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedRecord,
    Windowed,
)
from penstock.plugins.state.copies.contents import KINDS_OF_TIMES, Entry, key_serde
from penstock.stores.kinds.row_keys import key_in_row

from .reading import StoreReading, kind_of
from .subscription import Keys, Subscription, position_of, token_of

KINDS = ("key_value", "lru_map", *KINDS_OF_TIMES)
"""The kinds of stores whose changes can be followed: an entry of theirs is a row of the changelog."""


def keys_of(reading: StoreReading, key: Any, start: Any, end: Any, prefix: Any) -> Keys:
    """Return keys of a store: one, or a range. Raises ConfigError for ones that do not fit."""
    given = [each for each in (key, prefix) if each is not None]
    if len(given) > 1 or (given and (start, end) != (None, None)):
        raise ConfigError("changes: expected one of: key; prefix; start and end, or one of these two")
    serde = key_serde(reading.application, reading.builder)
    if prefix is not None and not has_prefixes(serde):
        raise ConfigError(f"store {reading.builder.name!r}: prefix is only for the key serdes str and bytes")
    try:
        first, last, beginning = (
            None if each is None else serde.serialize(each)
            for each in (start if key is None else key, end if key is None else key, prefix)
        )
    except Exception as error:  # a serde of another package may raise anything
        raise ConfigError(f"store {reading.builder.name!r}: its key serde refuses a key: {error}") from error
    return Keys(key_in_row(kind_of(reading.builder)), first, last, beginning or b"")


def has_prefixes(serde: Serde[Any]) -> bool:
    """Return whether the keys that begin with a text or bytes are those whose serialized form begins with its form.

    Others have a length or a mark in front of a text, or one behind it.
    """
    return isinstance(serde, (StrSerde, BytesSerde))


def subscribed(
    reading: StoreReading, keys: Keys, key: Any, after: str | None, notify: Callable[[], None]
) -> Subscription:
    """Return a subscription to the changes of a store, which its feed reads from now on. Raises as `tasks_of`.

    `key`: in the tasks of this key (None: in all). `after`: the token of the position from which on it has the changes.
    """
    builder = reading.builder
    if kind_of(builder) not in KINDS:
        raise ConfigError(
            f"store {builder.name!r} is of the kind {kind_of(builder)!r}: only changes of the kinds {', '.join(KINDS)} "
            "can be followed"
        )
    if not builder.logged or not reading.copies.has_changelog:
        raise ConfigError(
            f"store {builder.name!r} is not in the changelog (logged=False, or it is global): its changes are not there"
        )
    names = [each.id for each in (reading.tasks() if key is None else reading.tasks_of(key))]
    position = {} if after is None else position_of(after)
    if after is not None and position.keys() != set(names):
        raise ConfigError("the position of changes is of another query, or of another number of tasks")
    made = Subscription(builder.name, keys, names, position, notify)
    reading.feed.add(made)
    return made


class Changes(Iterator[tuple[Any, Any]]):
    """Iterates over the changes of a store, as tasks commit; close it, or use it in a `with` block.

    Each is a pair of a key and its new value, None if the entry was deleted. The key of a window or session is a
    Windowed. The value of a version is a VersionedRecord, in which None is a deletion and `valid_to` says nothing.
    `position` is text: with it as `after` another reader continues behind the last change that was taken. Waits for
    changes without end; `close` in another thread ends that.
    """

    def __init__(self, reading: StoreReading, subscription: Subscription, wake: threading.Event) -> None:
        self._reading = reading
        self._subscription = subscription
        self._wake = wake
        self._entries: Iterator[tuple[Any, Any]] = iter(())
        self._reached = subscription.position()
        self._has_closed = False

    @classmethod
    def of(cls, reading: StoreReading, keys: Keys, key: Any, after: str | None) -> Changes:
        """Begin to follow a store.

        Raises as `subscribed`, StoreUnavailableError if the log does not answer, and ChangesEndedError.
        """
        wake = threading.Event()
        subscription = subscribed(reading, keys, key, after, wake.set)
        until = time.monotonic() + reading.bounds.wait
        # Changes of one task wake it, too, while others have not begun.
        while not subscription.has_begun:
            wake.clear()
            if subscription.has_begun:
                break
            while subscription.has_ended:
                subscription.take()  # what waits, then it raises what has ended it
            if not wake.wait(max(0.0, until - time.monotonic())):
                reading.feed.remove(subscription)
                raise StoreUnavailableError(
                    f"store {reading.builder.name!r} of application {reading.application.id!r}: the log has not said "
                    "in time where its changes begin"
                )
        return cls(reading, subscription, wake)

    @property
    def position(self) -> str:
        """The place behind the commits of which all changes were taken."""
        return token_of(self._reached)

    def __next__(self) -> tuple[Any, Any]:
        """Return the next change. Raises ChangesEndedError, and StopIteration after `close`."""
        while not self._has_closed:
            found = next(self._entries, None)
            if found is not None:
                return found
            self._wake.clear()
            self._reached = self._subscription.position()
            timestamped = self._reading.timestamped
            taken = self._subscription.take()
            self._entries = iter([(_key_of(each), _value_of(each, timestamped)) for each in taken])
            if not taken and not self._has_closed:  # `close` may have come before `clear`
                self._wake.wait()
        raise StopIteration

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration; idempotent, and in any thread."""
        self._has_closed = True
        self._reading.feed.remove(self._subscription)
        self._wake.set()


def _key_of(entry: Entry) -> Any:
    return Windowed(entry["key"], entry["start"], entry["end"]) if "start" in entry else entry["key"]


def _value_of(entry: Entry, timestamped: bool) -> Any:
    value = entry["value"]
    if "valid_to" in entry:
        return VersionedRecord(value, entry["timestamp"])
    if not timestamped or "timestamp" not in entry:
        return value
    if "headers" in entry:
        return ValueTimestampHeaders(value, entry["timestamp"], entry["headers"])
    return ValueAndTimestamp(value, entry["timestamp"])
