"""Folds: how an aggregation begins, takes a value, and merges two aggregates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.support.own_copy import own_copy

from ...graph.functions import check_aggregator, check_function, check_initializer
from ...graph.serdes import KnownSerde
from .aggregator import Aggregator, Take


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
        return self.merger(key, one, other) if self.merges_with_key else self.merger(one, other)


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
