"""The record cache: of several updates of a key in a store, a listener gets the last one, when the cache is flushed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..record import Headers, Record, Windowed
from ..support.own_copy import own_copy

_new = tuple.__new__  # a NamedTuple's own constructor is a Python function
_ENTRY_BYTES = 200
"""Bytes of an entry beside its key and value."""


class Change(NamedTuple):
    """An update of a key: its new value and the one it had at the last flush; None is no value."""

    new: Any
    old: Any


class SourceRecord(NamedTuple):
    """A record as it was read; without key, value and headers if no error handler needs them."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int = -1


class RecordContext(NamedTuple):
    """The record that was being processed when a store was written: the context in which its update is forwarded."""

    timestamp: int = -1
    headers: Headers = ()
    source: SourceRecord | None = None
    """None in a punctuator."""


class Forwarding:
    """The update of a store that the nodes below are processing: `before` has the key and its old value.

    The store has been written by then, so a node that the update reaches on two ways finds the new row before it got
    the update on both. Here it finds the old one.

    `is_sent`, if not None: whether the row of a key was sent already. Others are not in the table that the nodes below
    know: those of windows that are open, and are sent when they close.

    `close`: functions that close the windows that end at a time (ms) or before: each of them of one processor of the
    store. A node below calls them when windows have left it. `times`: functions that return the time (ms) of a
    processor that sends its windows only when records close them, so a node below has not seen that time.
    """

    __slots__ = ("before", "close", "is_sent", "times")

    def __init__(self) -> None:
        self.before: tuple[Any, Any] | None = None
        self.is_sent: Callable[[Any], bool] | None = None
        self.close: list[Callable[[int], None]] = []
        self.times: list[Callable[[], int]] = []

    def announcing(self, send: Callable[[Any], Any]) -> Callable[[Any], None]:
        """Return `send` for the store's processor, whose records have Changes with old values; it sets `before`.

        A subclass of Change is an update that leaves the latest row as it is.
        """

        def announced(record: Any) -> None:
            if type(record[1]) is Change:
                self.send(send, record, record[1][1])
            else:
                send(record)

        return announced

    def send(self, send: Callable[[Any], Any], record: Any, old: Any) -> None:
        """Call `send` with a record whose previous value was `old`."""
        outer, self.before = self.before, (record[0], own_copy(old))
        try:
            send(record)
        finally:
            self.before = outer


FlushListener = Callable[[Record], None]
"""Gets a record: the key, a Change as its value, and timestamp and headers of the record that wrote the key last."""

Emit = Callable[[str, FlushListener, Record, SourceRecord | None], None]
"""(node, listener, record, source): calls the listener on behalf of its node."""


_NEVER = 2**63 - 1


class WaitingWindows:
    """The windows that have updates in the record caches of one task, where joins of tables read windows.

    Such a join needs the rows of a window until its last update is forwarded, and rows expire when a window closes. So
    an operator whose time closes a window of `first_end` (ms) or later calls `flush` before: it forwards all updates.
    """

    __slots__ = ("are_read", "first_end", "flush")

    def __init__(self) -> None:
        self.are_read = False
        self.first_end = _NEVER
        """The earliest end of these windows, or an earlier time; the largest time if there are none."""
        self.flush: Callable[[], None] = lambda: None

    def forget(self) -> None:
        """Record that no update waits any more."""
        self.first_end = _NEVER


@dataclass
class CacheBudget:
    """Bytes of the record caches of one task: the maximum, and the present number. `windows`: those with updates."""

    max_bytes: int
    used_bytes: int = 0
    windows: WaitingWindows = field(default_factory=WaitingWindows)


class RecordCache:
    """The updates of one store since the last flush, for the one listener of the store.

    The store itself is written at once; only forwarding waits. At a flush, keys leave in the order in which they were
    last put. It happens at each commit, and when the task's budget is used up, but not within another flush of this
    cache. With a budget of 0 each update is forwarded at once. Semantics: Kafka Streams' CachingKeyValueStore and
    NamedCache.
    """

    def __init__(self, store: str, budget: CacheBudget) -> None:
        self.store = store
        self.node: str | None = None
        self.listener: FlushListener | None = None
        self.context: Callable[[], RecordContext] = RecordContext
        """Returns the record that is processed now."""
        self.emit: Emit = lambda node, listener, record, source: listener(record)
        self.thaw: Callable[[Any, Any], Any] | None = None
        """Mutable values are kept as bytes; this decodes them."""
        self.sent: Callable[[Any], Any] = _nothing_sent
        """Returns the entry of a key (Windowed for window and session stores) as the listener knows it: without an
        update that waits. A store sets it."""
        self.entries_expire = False
        """Whether an entry may be gone without a put: then a deletion is forwarded also where nothing was before."""
        self.has_timestamps = False
        """Whether values have timestamps of their own: then updates are forwarded with these."""
        self.windows = budget.windows
        self._budget = budget
        self._updates: dict[Any, _Update] = {}
        self._leaving: dict[Any, _Update] = {}
        """Updates of the present flush that were not forwarded yet. The nodes below may fill another cache meanwhile,
        and what that forwards has to find the rows of these keys as they were sent."""
        self._bytes = 0

    def listen(self, node: str, listener: FlushListener) -> None:
        """Set the listener, and the node on whose behalf it is called."""
        self.node, self.listener = node, listener

    def has(self, which: Any) -> bool:
        """Return whether an update of a key waits for the next flush."""
        return which in self._updates

    @property
    def is_flushing(self) -> bool:
        """Whether a flush has updates that it did not forward yet."""
        return bool(self._leaving)

    def unsent(self, which: Any) -> _Update | None:
        """Return the first update of a key that was not forwarded; None if the listener knows the store's entry."""
        return self._leaving.get(which) or self._updates.get(which)

    def note(self, which: Any, key: Any, new: Any, old: Any, size: int) -> None:
        """Add an update, after the store was written.

        `which` tells keys apart, and `key` is what the listener gets. `old` is the previous value; ignored if an
        update of the key already waits. `size` is about how many bytes key and value have. The source record is kept,
        and counts, too: when forwarding fails, it is the dead letter.
        """
        context, budget = self.context(), self._budget
        if (source := context[2]) is not None:
            _, _, _, raw_key, raw_value, _, _ = source
            size += len(raw_key or b"") + len(raw_value or b"")
        before = self._updates.pop(which, None)
        if before is None:
            added = size + _ENTRY_BYTES
        else:
            _, _, old, size_before, _ = before
            added = size - size_before
        self._bytes += added
        budget.used_bytes += added
        if (windows := self.windows).are_read and type(key) is Windowed and key[2] < windows.first_end:
            windows.first_end = key[2]
        # At the end: the order is that of the last put.
        self._updates[which] = _new(_Update, (key, new, old, size, context))
        if budget.used_bytes > budget.max_bytes and not self._leaving:
            self.flush()

    def flush(self) -> bool:
        """Forward what waits; return whether anything did. What that puts into this store waits for the next flush."""
        leaving = self._leaving = self._updates
        self._updates = {}
        self._add(-self._bytes)
        updates = list(leaving.items())
        try:
            for which, update in updates:
                del leaving[which]
                new = update.new if self.thaw is None else self.thaw(update.key, update.new)
                if new is None and update.old is None and not self.entries_expire:
                    continue  # put and deleted since the last flush: as if it had never been there
                context = update.context
                at = new.timestamp if self.has_timestamps and new is not None else context.timestamp
                assert self.node is not None and self.listener is not None
                record = Record(update.key, Change(new, update.old), at, context.headers)
                self.emit(self.node, self.listener, record, context.source)
        finally:
            leaving.clear()
        return bool(updates)

    def discard(self) -> None:
        """Drop the waiting updates: the commit failed."""
        self._updates.clear()
        self._add(-self._bytes)

    def _add(self, size: int) -> None:
        self._bytes += size
        self._budget.used_bytes += size


def _nothing_sent(key: Any) -> Any:
    raise NotImplementedError


class _Update(NamedTuple):
    key: Any
    new: Any
    old: Any
    size: int
    context: RecordContext
