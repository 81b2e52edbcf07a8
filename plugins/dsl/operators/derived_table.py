"""Tables made of one other table, by a filter or a function of its rows: their processors, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from penstock import (
    ProcessingError,
    ProcessorContext,
    Record,
    ValueAndTimestamp,
    ValueTransformer,
    ValueTransformerContext,
)
from penstock.operator import Operator, Run, new
from penstock.support.callbacks import check_methods
from penstock.support.own_copy import own_copy

from ..graph.materialized import Materialized
from ..graph.step import ProcessorStep, Step
from .reading import Get, RowsBefore, StoreGetter, TableSource, ValueGetter
from .table_store import TableOperator

Keep = Callable[[Any, Any], Any]
"""(key, value, which is not None): whether a row stays."""


@dataclass(kw_only=True, eq=False)
class TableFilter(TableOperator):
    """Forwards updates of rows that `keep` accepts. A row that it no longer accepts is deleted.

    Where the value before is known, nothing is forwarded for a row that was not there, and is not; but of a table with
    versions a deletion may count at its own time, and of a table whose rows expire it may have been there
    (`forwards_all`).
    """

    forwards_last = True

    keep: Keep
    forwards_all: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        keep, sends_old = self.keep, self.sends_old
        skips = sends_old and not self.forwards_all
        if self.store is not None:
            update, get = self.compile_update(context), self.compile_get(context)

            def run_with_store(record: Record) -> None:
                key, change, timestamp, headers = record
                value = change[0] if change[0] is not None and keep(key, change[0]) else None
                before = get(key) if sends_old else None
                if before is None and value is None and skips:
                    return
                update(key, value, None if before is None else before[0], timestamp, headers)

            return run_with_store
        forward = context.send

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            value, old = change[0], change[1] if sends_old else None
            if value is not None and not keep(key, value):
                value = None
            if old is not None and not keep(key, old):
                old = None
            if value is None and old is None and skips:
                return
            forward((key, new(type(change), (value, old)), timestamp, headers))

        return run


class MappingOperator(TableOperator):
    """A processor that makes each value of a table by a function of key and value."""

    def compile_map(self, context: ProcessorContext, function: Callable[[Any, Any], Any], *, of_none: bool) -> Run:
        """Return the function that gets each update. `of_none`: `function` is also called for deletions."""
        sends_old, skips_none = self.sends_old, not of_none
        if self.store is not None:
            update, get = self.compile_update(context), self.compile_get(context)

            def run_with_store(record: Record) -> None:
                key, change, timestamp, headers = record
                value = None if change[0] is None and skips_none else function(key, change[0])
                before = get(key) if sends_old else None
                update(key, value, None if before is None else before[0], timestamp, headers)

            return run_with_store
        forward = context.send

        def run(record: Record) -> None:
            key, change, timestamp, headers = record
            value = None if change[0] is None and skips_none else function(key, change[0])
            old = None if not sends_old or (change[1] is None and skips_none) else function(key, change[1])
            forward((key, new(type(change), (value, old)), timestamp, headers))

        return run


@dataclass(kw_only=True, eq=False)
class TableMapValues(MappingOperator):
    """Forwards updates with what `function(key, value)` returns; a deletion stays one."""

    forwards_last = True

    function: Callable[[Any, Any], Any]

    def bind(self, context: ProcessorContext) -> Run:
        return self.compile_map(context, self.function, of_none=False)


@dataclass(kw_only=True, eq=False)
class ToStream(Operator):
    """Forwards the new value of each Change. With `gets_values`, the table sends new values in place of Changes."""

    forwards_each = forwards_last = True

    gets_values: bool = False

    def bind(self, context: ProcessorContext) -> Run:
        forward = context.send
        if self.gets_values:
            return forward

        def run(record: Record) -> None:
            forward((record[0], record[1][0], record[2], record[3]))

        return run


Compute = Callable[[Any, Any], Any]
"""(key, value) -> the value of a derived table."""


@dataclass(eq=False)
class DerivedTable(TableSource):
    """A table that a function makes of another one, row by row. Kafka Streams: KTableFilter, KTableMapValues.

    With a store it is read there; without one, `view` of the other table's getter reads it.
    """

    step: ProcessorStep
    parent: TableSource
    kept: Materialized
    view: Callable[[ValueGetter], ValueGetter]

    def getter(self) -> ValueGetter:
        if self.kept.exists:
            return StoreGetter(self.kept.name, self.kept.history_ms)
        return self.view(self.parent.getter())

    @property
    def is_versioned(self) -> bool:
        """Whether its store keeps versions, or without a store, whether the other table's does."""
        return self.kept.is_versioned if self.kept.exists else self.parent.is_versioned

    def writers(self) -> tuple[Step, ...]:
        return (self.step,) if self.kept.exists else self.parent.writers()

    @property
    def expiring(self) -> str | None:
        return self.kept.expiring if self.kept.exists else self.parent.expiring

    def send_old_values(self, *, force: bool) -> bool:
        """Send the value before: that in the store, or one made of the other table's."""
        if self.kept.exists or self.parent.send_old_values(force=force):
            self.step.options["sends_old"] = True
        return bool(self.step.options["sends_old"])


@dataclass(eq=False)
class ComputedGetter(ValueGetter):
    """Makes a table's value of that of another table."""

    parent: ValueGetter
    compute: Compute

    @property
    def stores(self) -> tuple[str, ...]:
        return self.parent.stores

    @property
    def history_ms(self) -> int | None:
        return self.parent.history_ms

    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        get, compute = self.parent.open(context, sent=sent, before=before), self.compute

        def computed(key: Any) -> ValueAndTimestamp | None:
            found = get(key)
            value = None if found is None else compute(key, found[0])
            return None if found is None or value is None else ValueAndTimestamp(value, found[1])

        return computed

    def open_as_of(self, context: ProcessorContext) -> Callable[[Any, int], ValueAndTimestamp | None]:
        get, compute = self.parent.open_as_of(context), self.compute

        def computed(key: Any, time: int) -> ValueAndTimestamp | None:
            found = get(key, time)
            value = None if found is None else compute(key, found[0])
            return None if found is None or value is None else ValueAndTimestamp(value, found[1])

        return computed


@dataclass(eq=False)
class TransformedGetter(ValueGetter):
    """Makes a table's value with a transformer of its own, which has `used` stores, also where the other has none."""

    parent: ValueGetter
    transformer: Callable[..., ValueTransformer]
    arguments: Mapping[str, Any]
    used: tuple[str, ...]

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.parent.stores, *self.used)))

    def open(self, context: ProcessorContext, *, sent: bool = False, before: RowsBefore | None = None) -> Get:
        get = self.parent.open(context, sent=sent, before=before)
        transformer = self.transformer(**self.arguments)
        transformer.init(transformer_context(context))

        def transformed(key: Any) -> ValueAndTimestamp | None:
            found = get(key)
            value = own_copy(transformer.transform(key, None if found is None else found[0]))
            return None if value is None else ValueAndTimestamp(value, -1 if found is None else found[1])

        return transformed


class TableTransformValues(MappingOperator):
    """Forwards updates with what the transformer returns, which is also called for deletions.

    Without a store and with `sends_old`, the transformer is called for the value before as well.
    """

    def __init__(
        self,
        transformer: Callable[..., ValueTransformer],
        arguments: Mapping[str, Any],
        *,
        store: str | None = None,
        sends_old: bool = False,
    ) -> None:
        super().__init__(store=store, sends_old=sends_old)
        self._transformer = transformer(**arguments)
        check_methods("transform_values", self._transformer)

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self._transformer.init(transformer_context(context))

    def bind(self, context: ProcessorContext) -> Run:
        transform = self._transformer.transform
        # A transformer may return what it keeps.
        return self.compile_map(context, lambda key, value: own_copy(transform(key, value)), of_none=True)

    def close(self) -> None:
        self._transformer.close()


def transformer_context(context: ProcessorContext) -> ValueTransformerContext:
    """Return the context for a ValueTransformer that runs inside another node: one that cannot forward."""
    return cast(ValueTransformerContext, _NoForward(context))


class _NoForward:
    def __init__(self, context: ProcessorContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        if name in ("forward", "send"):
            raise ProcessingError("transform_values: a ValueTransformer returns its value, and cannot forward")
        return getattr(self._context, name)
