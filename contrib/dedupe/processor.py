"""Dedupe: the processor named `contrib.dedupe`, which lets the first record of each id pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import KeyValueStore, Processor, ProcessorContext, Record


class Dedupe(Processor):
    """Forwards a record unless one of the same id came before.

    `store` names a connected key-value store, which keeps the ids; give it a `ttl` to forget them after a while of
    stream time. `by` returns a record's id (default: its key), which the store's key serde must take; a record whose id
    is None is forwarded. Counted in `metrics.user["duplicates"]`.

    >>> from penstock import Topology, key_value_store
    >>> from penstock.plugins.testing import TopologyTestDriver
    >>> seen = key_value_store("seen", ttl="1h")
    >>> topology = Topology().add_source("in", "orders").add_processor("once", "contrib.dedupe", "in", stores=[seen])
    >>> with TopologyTestDriver(topology.add_sink("out", "unique", "once")) as driver:
    ...     for minute in (0, 10, 90):
    ...         driver.pipe("orders", "o-1", f"minute {minute}", timestamp=minute * 60_000)
    ...     [record.value for record in driver.read_all("unique")]
    ['minute 0', 'minute 90']
    """

    def __init__(self, store: str = "seen", by: Callable[[Record], Any] | None = None) -> None:
        """Take the name of the store, and what returns a record's id."""
        self._store = store
        self._by = by

    def init(self, context: ProcessorContext) -> None:
        """Look up the store."""
        super().init(context)
        self._seen: KeyValueStore[Any, bool] = context.get_store(self._store)

    def process(self, record: Record) -> None:
        """Forward a record that is the first of its id."""
        identity = record.key if self._by is None else self._by(record)
        if identity is None or self._seen.put_if_absent(identity, True) is None:
            self.context.forward(record)
        else:
            self.context.metrics.user["duplicates"] += 1
