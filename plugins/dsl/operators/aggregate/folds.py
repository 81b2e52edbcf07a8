"""Fold: how an aggregation takes a value; as a count, by a reducer, by functions, or by the Columns of `agg`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.support.own_copy import IMMUTABLE, own_copy

from ...graph.functions import check_aggregator, check_function, check_initializer
from ...graph.serdes import KnownSerde

_log = logging.getLogger("penstock.dsl")

Take = Callable[[Any, Any, Any], Any]
"""(key, value, aggregate) -> the next aggregate."""

_LOOKED_AT = 100
_WITH_KEY, _WITHOUT_KEY = (
    f"it is called with {arguments}; in Java an Aggregator gets (key, value, aggregate)"
    for arguments in ("(key, aggregate, value)", "(aggregate, value)")
)


class Aggregator:
    """A user's aggregator, adder, subtractor or reducer: a function of (aggregate, value), or with the key before them.

    `may_delete`: to return None each time is no sign of a mistake. An instance is shared by the tasks of a process, so
    that what looks like a mistake is said once.
    """

    def __init__(self, function: Callable[..., Any], *, with_key: bool = False, may_delete: bool = False) -> None:
        self.function = function
        self._with_key = with_key
        self._may_delete = may_delete
        self._warned = False

    def compile(self, node: str) -> Take:
        """Return the function for one task. An error of the user's function gets a note with the order of arguments."""
        function, count_none = self.function, self._counting(node)
        looks = not self._may_delete

        if self._with_key:

            def take(key: Any, value: Any, aggregate: Any) -> Any:
                nonlocal looks
                try:
                    # The store's row is that of the key as it is, whatever the function does to its argument.
                    made = function(key if type(key) in IMMUTABLE else own_copy(key), aggregate, value)
                except Exception as error:
                    error.add_note(_WITH_KEY)
                    raise
                if made is None:
                    looks = looks and count_none()
                else:
                    looks = False
                return made
        else:

            def take(key: Any, value: Any, aggregate: Any) -> Any:
                nonlocal looks
                try:
                    made = function(aggregate, value)
                except Exception as error:
                    error.add_note(_WITHOUT_KEY)
                    raise
                if made is None:
                    looks = looks and count_none()
                else:
                    looks = False
                return made

        return take

    def compile_reducer(self, node: str) -> Take:
        """Return the function for one task, in which the first value is the first aggregate."""
        function, count_none = self.function, self._counting(node)
        looks = not self._may_delete

        def take(key: Any, value: Any, aggregate: Any) -> Any:
            nonlocal looks
            if aggregate is None:
                return value
            try:
                made = function(aggregate, value)
            except Exception as error:
                error.add_note("it is called with (aggregate, value)")
                raise
            if made is None:
                looks = looks and count_none()
            else:
                looks = False
            return made

        return take

    def _counting(self, node: str) -> Callable[[], bool]:
        """Return a function that counts results of None. It returns False once it has warned: counting can stop."""
        found = 0

        def count_none() -> bool:
            nonlocal found
            found += 1
            if found < _LOOKED_AT:
                return True
            if not self._warned:
                self._warned = True
                _log.warning(
                    "node %r: the first %d results of its aggregator are None, and None deletes the row, so the table "
                    "stays empty: the aggregator has to return the next aggregate, also if it changes its argument as "
                    "list.append does",
                    node,
                    _LOOKED_AT,
                )
            return False

        return count_none


class Fold(ABC):
    """A form of aggregation; an argument of its processor. `verb` is for messages, `prefix` for names of nodes."""

    verb: ClassVar[str] = "aggregate"
    prefix: ClassVar[str] = "KSTREAM-AGGREGATE-"

    def value_serde(self, values: KnownSerde) -> KnownSerde:
        """Return the serde of the aggregates of a stream whose values have the serde `values`; None: not known."""
        return None

    @abstractmethod
    def initial(self) -> Any:
        """Return the aggregate of no values."""

    @abstractmethod
    def compile_take(self, node: str) -> Take:
        """Return the function that takes a value into an aggregate, for a task's `node`."""

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        """Return the aggregate of two sessions."""
        raise NotImplementedError


@dataclass(frozen=True)
class Counting(Fold):
    """Counts."""

    verb = "count"

    def value_serde(self, values: KnownSerde) -> KnownSerde:
        return "int"

    def initial(self) -> int:
        return 0

    def compile_take(self, node: str) -> Take:
        return lambda key, value, aggregate: aggregate + 1

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        return one + other


@dataclass(frozen=True)
class Reducing(Fold):
    """Combines values by `reducer`, a function of the aggregate and a value; the first one is the first aggregate."""

    verb = "reduce"
    prefix = "KSTREAM-REDUCE-"

    reducer: Aggregator

    def value_serde(self, values: KnownSerde) -> KnownSerde:
        return values

    def initial(self) -> None:
        return

    def compile_take(self, node: str) -> Take:
        return self.reducer.compile_reducer(node)

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        return other if one is None else self.reducer.function(one, other)


@dataclass(frozen=True)
class Aggregating(Fold):
    """Combines values by `aggregator`, beginning with the aggregate of `initializer`.

    The `merger` gets two aggregates, and with `merges_with_key` the key before them.
    """

    initializer: Callable[[], Any]
    aggregator: Aggregator
    merger: Callable[..., Any] | None = None
    merges_with_key: bool = False

    def initial(self) -> Any:
        # An initializer may return one object each time, and the aggregator may change it.
        return own_copy(self.initializer())

    def compile_take(self, node: str) -> Take:
        return self.aggregator.compile(node)

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        assert self.merger is not None
        if not self.merges_with_key:
            return self.merger(one, other)
        return self.merger(key if type(key) in IMMUTABLE else own_copy(key), one, other)  # as in Aggregator


def reducing(reducer: Callable[[Any, Any], Any]) -> Reducing:
    """Return the fold of `reduce`. Raises TopologyError for a reducer that cannot be called."""
    check_function("reduce", reducer, "aggregate", "value", what="reducer")
    return Reducing(Aggregator(reducer))


def aggregating(initializer: Callable[[], Any], aggregator: Callable[..., Any], *, with_key: bool) -> Aggregating:
    """Return the fold of `aggregate`. Raises TopologyError for functions that cannot be called."""
    check_initializer("aggregate", initializer)
    check_aggregator("aggregate", aggregator, with_key=with_key)
    return Aggregating(initializer, Aggregator(aggregator, with_key=with_key))


def check_merger(merger: Any, *, with_key: bool) -> None:
    """Refuse a function that cannot be called with two aggregates. Raises TopologyError."""
    check_function("aggregate", merger, *(("key",) if with_key else ()), "aggregate", "aggregate", what="merger")
