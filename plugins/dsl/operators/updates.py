"""UpdatingOperator: the base of processors that write a store of their own and send its updates, sources of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock import Headers, ProcessorContext, StateStore, ValueAndTimestamp, ValueTimestampHeaders, VersionedStoreSpec
from penstock.operator import Run, new

from ..graph.materialized import TableStoreSpec
from ..graph.step import ProcessorStep
from ..graph.writer import Writer
from .table_store import TableOperator, waiting

Stored = Callable[[Any, int, Headers], Any]
"""Returns what a store keeps for an aggregate: with its timestamp, or with timestamp and headers."""

NULL_KEY, NULL_VALUE, LATE = "null_key", "null_value", "late"
"""Why aggregations drop records."""


@dataclass(kw_only=True, eq=False)
class UpdatingOperator(TableOperator):
    """A processor that puts aggregates into its store, named `store`, and sends what changed as a Change.

    With `keeps_headers`, the store keeps the last record's headers.
    """

    store: str
    keeps_headers: bool = False

    @property
    def _stored(self) -> Stored:
        return with_headers if self.keeps_headers else with_timestamp

    def _forward(self, context: ProcessorContext, store: StateStore) -> Run:
        """Return the function that sends an update at once, or does nothing if it leaves when the cache is flushed."""
        return self._emitter(context) if store.record_cache is None else waiting


def updating_step(
    name: str,
    supplier: Callable[..., UpdatingOperator],
    options: Mapping[str, Any],
    declare: Callable[[Writer], TableStoreSpec],
    *,
    needs_key_serde: bool = False,
) -> ProcessorStep:
    """Return the step of an UpdatingOperator with the store that `declare` returns.

    One that `needs_key_serde` gets that of the store, as well.
    """

    def late(writer: Writer) -> dict[str, Any]:
        store = declare(writer)
        keeps_headers = not isinstance(store, VersionedStoreSpec) and store.headers
        found: dict[str, Any] = {"store": store.name, **({"keeps_headers": True} if keeps_headers else {})}
        if needs_key_serde:
            found["key_serde"] = store.key_serde or writer.settings.state_serde
        return found

    return ProcessorStep(name, supplier, options, stores=lambda writer: (declare(writer),), late=late)


def with_timestamp(value: Any, timestamp: int, headers: Headers) -> Any:
    """Return the entry of a timestamped store. An aggregate of None is no entry."""
    return None if value is None else new(ValueAndTimestamp, (value, timestamp))


def with_headers(value: Any, timestamp: int, headers: Headers) -> Any:
    """Return the entry of a store with headers. An aggregate of None is no entry."""
    return None if value is None else new(ValueTimestampHeaders, (value, timestamp, headers))
