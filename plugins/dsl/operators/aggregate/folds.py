"""Folds: how an aggregation begins, takes a value, and merges two aggregates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .aggregator import Aggregator, Take


class Fold(ABC):
    """What all forms of an aggregation share; an argument of its processor."""

    @abstractmethod
    def initial(self) -> Any:
        """Return what an aggregate begins with."""

    @abstractmethod
    def compile_take(self, node: str) -> Take:
        """Return the function that takes a value into an aggregate, for a task's `node`."""

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        """Return the aggregate of two sessions."""
        raise NotImplementedError


@dataclass(frozen=True)
class Counting(Fold):
    """Counts."""

    def initial(self) -> int:
        return 0

    def compile_take(self, node: str) -> Take:
        return lambda key, value, aggregate: aggregate + 1

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        return one + other


@dataclass(frozen=True)
class Reducing(Fold):
    """Combines values by `reducer`, a function of the aggregate and a value; the first one is the first aggregate."""

    reducer: Aggregator

    def initial(self) -> None:
        return

    def compile_take(self, node: str) -> Take:
        return self.reducer.compile_reducer(node)

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        return other if one is None else self.reducer.function(one, other)


@dataclass(frozen=True)
class Aggregating(Fold):
    """Combines values by `aggregator`, beginning with what `initializer` makes.

    The `merger` gets two aggregates, and with `merges_with_key` the key before them.
    """

    initializer: Callable[[], Any]
    aggregator: Aggregator
    merger: Callable[..., Any] | None = None
    merges_with_key: bool = False

    def initial(self) -> Any:
        return self.initializer()

    def compile_take(self, node: str) -> Take:
        return self.aggregator.compile(node)

    def merged(self, key: Any, one: Any, other: Any) -> Any:
        assert self.merger is not None
        return self.merger(key, one, other) if self.merges_with_key else self.merger(one, other)
