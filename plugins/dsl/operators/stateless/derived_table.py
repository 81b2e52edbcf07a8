"""Tables without a store of their own: they are read through the tables that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.context import ProcessorContext
from penstock.processor import ValueTransformer
from penstock.store import ValueAndTimestamp

from ...graph.materialized import Materialized
from ...graph.step import ProcessorStep
from ..reading import Get, StoreGetter, TableSource, ValueGetter
from .table_transform_values import transformer_context

Compute = Callable[[Any, Any], Any]
"""(key, value) -> the value of a derived table."""


class DerivedTable(TableSource):
    """A table that a function makes of another one, row by row. Kafka Streams: KTableFilter, KTableMapValues.

    With a store it is read there; without one, `view` of the other table's getter reads it.
    """

    def __init__(
        self,
        step: ProcessorStep,
        parent: TableSource,
        kept: Materialized | None,
        view: Callable[[ValueGetter], ValueGetter],
    ) -> None:
        self._step = step
        self._parent = parent
        self._kept = kept
        self._view = view

    def getter(self) -> ValueGetter:
        if self._kept is not None:
            return StoreGetter(self._kept.name, history_ms=self._kept.history_ms)
        return self._view(self._parent.getter())

    @property
    def is_versioned(self) -> bool:
        """Whether its store keeps versions, or without a store, whether the other table's does."""
        return self._parent.is_versioned if self._kept is None else self._kept.is_versioned

    def send_old_values(self, *, force: bool) -> bool:
        """Send the value before: that in the store, or one made of the other table's."""
        if self._kept is not None or self._parent.send_old_values(force=force):
            self._step.options["sends_old"] = True
        return bool(self._step.options["sends_old"])


class ComputedGetter(ValueGetter):
    """Makes a table's value of that of another table."""

    def __init__(self, parent: ValueGetter, compute: Compute) -> None:
        self._parent = parent
        self._compute = compute

    @property
    def stores(self) -> tuple[str, ...]:
        return self._parent.stores

    @property
    def history_ms(self) -> int | None:
        return self._parent.history_ms

    def open(self, context: ProcessorContext) -> Get:
        return self._computed(self._parent.open(context))

    def open_sent(self, context: ProcessorContext) -> Get:
        return self._computed(self._parent.open_sent(context))

    def _computed(self, get: Get) -> Get:
        compute = self._compute

        def computed(key: Any) -> ValueAndTimestamp | None:
            found = get(key)
            value = None if found is None else compute(key, found[0])
            return None if found is None or value is None else ValueAndTimestamp(value, found[1])

        return computed

    def open_as_of(self, context: ProcessorContext) -> Callable[[Any, int], ValueAndTimestamp | None]:
        get, compute = self._parent.open_as_of(context), self._compute

        def computed(key: Any, time: int) -> ValueAndTimestamp | None:
            found = get(key, time)
            value = None if found is None else compute(key, found[0])
            return None if found is None or value is None else ValueAndTimestamp(value, found[1])

        return computed


class TransformedGetter(ValueGetter):
    """Makes a table's value with a transformer of its own, also where the other table has none."""

    def __init__(
        self,
        parent: ValueGetter,
        transformer: Callable[..., ValueTransformer],
        arguments: Mapping[str, Any],
        stores: tuple[str, ...],
    ) -> None:
        self._parent = parent
        self._transformer = transformer
        self._arguments = arguments
        self._stores = stores

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._parent.stores, *self._stores)))

    def open(self, context: ProcessorContext) -> Get:
        return self._transformed(context, self._parent.open(context))

    def open_sent(self, context: ProcessorContext) -> Get:
        return self._transformed(context, self._parent.open_sent(context))

    def _transformed(self, context: ProcessorContext, get: Get) -> Get:
        transformer = self._transformer(**self._arguments)
        transformer.init(transformer_context(context))

        def transformed(key: Any) -> ValueAndTimestamp | None:
            found = get(key)
            value = transformer.transform(key, None if found is None else found[0])
            return None if value is None else ValueAndTimestamp(value, -1 if found is None else found[1])

        return transformed
