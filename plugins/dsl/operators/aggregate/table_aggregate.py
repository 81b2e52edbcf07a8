"""TableAggregate and TableReduce: keep an aggregate for each group of a table's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.operator import Run
from penstock.record import Record

from ..table_store import TableOperator
from .aggregator import Aggregator


class TableAggregate(TableOperator):
    """Takes the old value out of the group's aggregate with `subtractor`, and puts the new one in with `adder`.

    The result has the latest timestamp of what went into it.
    """

    def __init__(
        self,
        initializer: Callable[[], Any],
        adder: Aggregator,
        subtractor: Aggregator,
        *,
        store: str,
        sends_old: bool = False,
    ) -> None:
        super().__init__(store=store, sends_old=sends_old)
        self._initializer = initializer
        self._adder = adder
        self._subtractor = subtractor

    def bind(self, context: ProcessorContext) -> Run:
        update, get, sends_old = self.compile_update(context), self.compile_get(context), self._sends_old
        add, subtract = self._adder.compile(context.node), self._subtractor.compile(context.node)
        initializer = self._initializer

        def run(record: Record) -> None:
            key, (value, old), timestamp, headers = record
            found = get(key)
            before = aggregate = None if found is None else found[0]
            touched = value is not None
            if old is not None and found is not None:
                aggregate, touched = subtract(key, old, aggregate), True
            if value is not None:
                aggregate = add(key, value, initializer() if aggregate is None else aggregate)
            if touched and found is not None and found[1] > timestamp:
                timestamp = found[1]
            update(key, aggregate, before if sends_old else None, timestamp, headers)

        return run


class TableReduce(TableOperator):
    """As TableAggregate, but the first value of a group is its aggregate."""

    def __init__(
        self,
        adder: Aggregator,
        subtractor: Aggregator,
        *,
        store: str,
        sends_old: bool = False,
    ) -> None:
        super().__init__(store=store, sends_old=sends_old)
        self._adder = adder
        self._subtractor = subtractor

    def bind(self, context: ProcessorContext) -> Run:
        update, get, sends_old = self.compile_update(context), self.compile_get(context), self._sends_old
        add, subtract = self._adder.compile(context.node), self._subtractor.compile(context.node)

        def run(record: Record) -> None:
            key, (value, old), timestamp, headers = record
            found = get(key)
            before = aggregate = None if found is None else found[0]
            touched = False
            if old is not None and found is not None:
                aggregate, touched = subtract(key, old, aggregate), True
            if value is not None:
                if aggregate is None:
                    aggregate = value
                else:
                    aggregate, touched = add(key, value, aggregate), True
            if touched and found is not None and found[1] > timestamp:
                timestamp = found[1]
            update(key, aggregate, before if sends_old else None, timestamp, headers)

        return run
