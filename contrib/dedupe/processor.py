"""Dedupe: the processor named `contrib.dedupe`, which lets the first record of each id pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import (
    STREAM_TIME,
    Duration,
    KeyValueStore,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    StoreBuilder,
    key_value_store,
)


class Dedupe(Processor):
    """Forwards a record unless one of the same id arrived before.

    `by` returns a record's id (default: its key); a record whose id is None is forwarded. Ids are kept in a key-value
    store named `store`, which the processor brings, and are forgotten after `window` of `clock` (None: never): stream
    time, or WALL_CLOCK_TIME. With `prolong`, a duplicate begins the window anew, so an id passes again only after
    `window` without one. A store of that name in `stores=` takes the place of the processor's, with its own serdes,
    `ttl` and `ttl_clock`. Duplicates are counted in `metrics.user["duplicates"]`.

    Arrival decides, not the timestamp: an older record of a known id is a duplicate. The window of a late record's id
    begins at the clock's time then, not at the record's timestamp.

    >>> from penstock import Topology
    >>> from penstock.testing import TopologyTestDriver
    >>> topology = Topology().add_source("in", "orders").add_processor("once", "contrib.dedupe", "in", window="1h")
    >>> with TopologyTestDriver(topology.add_sink("out", "unique", "once")) as driver:
    ...     for minute in (0, 10, 90):
    ...         driver.pipe("orders", "o-1", f"minute {minute}", timestamp=minute * 60_000)
    ...     [record.value for record in driver.read_all("unique")]
    ['minute 0', 'minute 90']
    """

    @classmethod
    def stores(
        cls,
        store: str = "seen",
        by: Callable[[Record], Any] | None = None,
        window: Duration | None = None,
        clock: PunctuationType = STREAM_TIME,
        prolong: bool = False,
    ) -> list[StoreBuilder]:
        return [key_value_store(store, ttl=window, ttl_clock=clock)]

    def __init__(
        self,
        store: str = "seen",
        by: Callable[[Record], Any] | None = None,
        window: Duration | None = None,
        clock: PunctuationType = STREAM_TIME,
        prolong: bool = False,
    ) -> None:
        """Take the name of the store, and what returns a record's id; `window` and `clock` are the store's."""
        self._store = store
        self._by = by
        self._prolong = prolong

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._seen: KeyValueStore[Any, bool] = context.get_store(self._store)

    def process(self, record: Record) -> None:
        """Forward a record that is the first of its id."""
        identity = record.key if self._by is None else self._by(record)
        if identity is None or self._seen.put_if_absent(identity, True) is None:
            self.context.forward(record)
        else:
            if self._prolong:
                self._seen.put(identity, True)
            self.context.metrics.user["duplicates"] += 1
