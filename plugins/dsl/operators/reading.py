"""ValueGetter reads a table by key in a processor; TableSource answers verbs before the program is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock import ProcessorContext, SessionStore, StateStore, ValueAndTimestamp, ValueTimestampHeaders
from penstock.store.record_cache import Forwarding
from penstock.support.own_copy import own_copy

from ..graph.materialized import Materialized
from ..graph.names import is_same_key
from ..graph.serdes import Serdes
from ..graph.step import ProcessorStep, Step

Get = Callable[[Any], ValueAndTimestamp | None]
"""Returns the value of a key and its timestamp, or None."""


class RowsBefore:
    """Lets a getter read the rows as they were before the updates that are being forwarded."""

    def __init__(self) -> None:
        self._is_on = False
        self._forwardings: list[Forwarding] = []

    @property
    def is_on(self) -> bool:
        """Whether getters read the rows before."""
        return self._is_on

    def read(self, get: Get, key: Any, found: ValueAndTimestamp | None) -> ValueAndTimestamp | None:
        """Return what `get`, opened with this, had for a key, with any timestamp; `found` is what it has now."""
        if all(each.before is None for each in self._forwardings):
            return found
        self._is_on = True
        try:
            return get(key)
        finally:
            self._is_on = False

    def are_of_another(self, key: Any) -> bool:
        """Return whether an update of another key is being forwarded."""
        updates = [each.before for each in self._forwardings if each.before is not None]
        return any(not is_same_key(each[0], key) for each in updates)

    def of_store(self, store: StateStore, get: Get) -> Get:
        """Return the `get` of a store, which this switches."""
        forwarding = forwarding_of(store)
        self._forwardings.append(forwarding)

        def switched(key: Any) -> ValueAndTimestamp | None:
            before = forwarding.before if self._is_on else None
            if before is None or not is_same_key(before[0], key):
                return get(key)
            return None if before[1] is None else ValueAndTimestamp(own_copy(before[1]), -1)

        return switched


def forwarding_of(store: StateStore) -> Forwarding:
    """Return the shared Forwarding of a store's processor and the nodes below; it exists from now on."""
    if store.forwarding is None:
        store.forwarding = Forwarding()
    return store.forwarding


class ValueGetter(ABC):
    """Reads a table by key: from its store, or from the table it is made of. Kafka Streams: KTableValueGetterSupplier.

    It is an argument of the processors that use it, so it must be picklable.
    """

    @property
    @abstractmethod
    def stores(self) -> tuple[str, ...]:
        """The stores that a processor must be connected to."""

    @abstractmethod
    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        """Return the function that reads the table in one task.

        With `sent`, updates that wait in a record cache do not count. Joins of tables read so: if both rows change
        between two commits, each change then finds the other row as it was joined before, and old values are right.
        `before` is for joins of tables that one update may reach on two ways: it switches to the rows before.
        """

    @property
    def history_ms(self) -> int | None:
        """How far back `open_as_of` can look; None: the table has no versions, and it cannot be used."""
        return None

    def open_as_of(self, context: ProcessorContext) -> Callable[[Any, int], ValueAndTimestamp | None]:
        """Return the function that reads the table as of a time (ms)."""
        raise NotImplementedError


class TableSource(ABC):
    """The source of a table's updates. Kafka Streams: KTableProcessorSupplier."""

    @abstractmethod
    def getter(self) -> ValueGetter:
        """Return how the table is read. A table from a topic gets a store by this, if it has none."""

    @abstractmethod
    def send_old_values(self, *, force: bool) -> bool:
        """Let updates carry the value before; return whether they do. With `force`, the table gets a store for it."""

    @property
    def is_versioned(self) -> bool:
        """Whether some updates may be older than the latest one of their key, and are marked as such (KIP-914)."""
        return False

    @abstractmethod
    def writers(self) -> tuple[Step, ...]:
        """Return the steps whose processors write the stores by which the table is read."""

    @property
    @abstractmethod
    def expiring(self) -> str | None:
        """The store of previous values, if it has a `ttl`, so that rows expire without an update; else None."""


@dataclass(frozen=True)
class StoreGetter(ValueGetter):
    """Reads a table's own store, with or without headers, versioned or not. `kept_ms`: how long it keeps versions."""

    store: str
    kept_ms: int | None = None

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store,)

    @property
    def history_ms(self) -> int | None:
        return self.kept_ms

    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        """Return the store's own `get`: its entries begin with value and timestamp, whatever its kind."""
        store = context.get_store(self.store)
        get: Get = store.record_cache.sent if sent and store.record_cache is not None else store.get
        return get if before is None else before.of_store(store, get)

    def open_as_of(self, context: ProcessorContext) -> Callable[[Any, int], ValueAndTimestamp | None]:
        get: Callable[[Any, int], ValueAndTimestamp | None] = context.get_store(self.store).get
        return get


def keep(step: ProcessorStep, kept: Materialized, serdes: Serdes) -> None:
    """Give a step's processor its store, if there is one, beside those that it uses."""
    step.options["store"] = kept.name or None
    if kept.exists:
        before = step.stores
        step.stores = lambda writer: (*(() if before is None else before(writer)), kept.key_value(writer, serdes))


class WrittenTable(TableSource):
    """A table that processors write, each to the same store. They have an option `sends_old`."""

    def __init__(self, getter: ValueGetter, kept: Materialized, *steps: ProcessorStep) -> None:
        self._getter = getter
        self._kept = kept
        self._steps = steps

    def getter(self) -> ValueGetter:
        return self._getter

    @property
    def is_versioned(self) -> bool:
        return self._getter.history_ms is not None

    def writers(self) -> tuple[Step, ...]:
        return self._steps

    @property
    def expiring(self) -> str | None:
        return self._kept.expiring

    def send_old_values(self, *, force: bool) -> bool:
        """Let the processors send the store's previous values."""
        for step in self._steps:
            step.options["sends_old"] = True
        return True


class TopicTable(TableSource):
    """A table whose updates come from a topic, a stream or a foreign-key join. Kafka Streams: KTableSource.

    It gets its store only if the user named it, if something reads the table by key, or if something needs the value
    before. The step's processor is a TableUpdates.
    """

    def __init__(self, step: ProcessorStep, materialized: Materialized, known: Serdes) -> None:
        self._step = step
        self._materialized = materialized
        self._known = known
        if materialized.is_named:
            self._materialize()

    def getter(self) -> ValueGetter:
        """Return how the table is read; it has a store from now on."""
        self._materialize()
        return StoreGetter(self._materialized.name, self._materialized.history_ms)

    @property
    def is_versioned(self) -> bool:
        return self._materialized.is_versioned

    def writers(self) -> tuple[Step, ...]:
        return (self._step,)

    @property
    def expiring(self) -> str | None:
        return self._materialized.expiring

    def send_old_values(self, *, force: bool) -> bool:
        """Send the store's previous value, if there is a store, or if one is requested."""
        if not force and self._step.options["store"] is None:
            return False
        self._materialize()
        self._step.options["sends_old"] = True
        return True

    def _materialize(self) -> None:
        materialized, known = self._materialized, self._known
        self._step.options["store"] = materialized.name
        self._step.stores = lambda writer: (materialized.key_value(writer, materialized.serdes(known)),)


@dataclass(eq=False)
class WindowGetter(ValueGetter):
    """Reads a window or session store by windowed key. The timestamp of a session is its end."""

    store: str

    @property
    def stores(self) -> tuple[str, ...]:
        return (self.store,)

    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        store = context.get_store(self.store)
        cache = store.record_cache if sent else None
        if sent:
            context.waiting_windows.are_read = True
        if isinstance(store, SessionStore):
            find = store.fetch_session
            read: Get = _session((lambda windowed: find(*windowed)) if cache is None else cache.sent)
        else:
            fetch = store.fetch
            read = (lambda windowed: fetch(windowed[0], windowed[1])) if cache is None else cache.sent
        read = read if before is None else before.of_store(store, read)
        return _of_windows_sent(store, read, before) if sent else read


@dataclass(eq=False)
class ClosedWindowGetter(WindowGetter):
    """Reads the windows that have closed, of a table that sends each window when it closes.

    Kafka Streams' joins see the open ones of such a table, too, and so count rows that were never sent.
    """

    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        # A window that has closed does not change: what waits in a record cache was sent as well.
        read, store = super().open(context, before=before), context.get_store(self.store)
        forwarding_of(store)
        return _of_windows_sent(store, read, before)


def _of_windows_sent(store: StateStore, read: Get, before: RowsBefore | None) -> Get:
    """Return `read` of a store of windows, which finds those alone that were sent: see `Forwarding.is_sent`."""

    def read_sent(windowed: Any) -> ValueAndTimestamp | None:
        if (forwarding := store.forwarding) is None or (is_sent := forwarding.is_sent) is None:
            return read(windowed)
        update = forwarding.before if before is not None and before.is_on else None
        if update is not None and is_same_key(update[0], windowed):
            return read(windowed)  # as it was sent before
        return read(windowed) if is_sent(windowed) else None

    return read_sent


def _session(find: Callable[[Any], Any]) -> Get:
    def session(windowed: Any) -> ValueAndTimestamp | None:
        entry = find(windowed)
        if entry is None:
            return None
        value = entry[0] if isinstance(entry, ValueTimestampHeaders) else entry
        return ValueAndTimestamp(value, windowed[2])

    return session
