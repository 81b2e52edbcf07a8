"""The steps of a join of two tables by key, and how its result is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.context import ProcessorContext
from penstock.store import ValueAndTimestamp

from ...graph.materialized import Materialized
from ...graph.step import ProcessorStep
from ..reading import Get, StoreGetter, TableSource, ValueGetter
from .tables import TableJoin


def join_step(name: str, options: dict[str, Any], source: TableSource) -> ProcessorStep:
    """Return the step that joins the updates of `source` with the rows that the getter `other` reads."""
    getter: ValueGetter = options["other"]
    return ProcessorStep(
        name,
        TableJoin,
        {**options, "ignores_older": source.is_versioned, "sends_old": False},
        stores=lambda writer: getter.stores,
    )


class JoinedTable(TableSource):
    """The result of a join by key. Kafka Streams: KTableKTableJoinMerger."""

    def __init__(
        self,
        parents: tuple[TableSource, TableSource],
        steps: tuple[ProcessorStep, ...],
        kept: Materialized | None,
        view: ValueGetter,
    ) -> None:
        self._parents = parents
        self._steps = steps
        self._kept = kept
        self._view = view

    def getter(self) -> ValueGetter:
        """Return how the result is read: from its store, or by joining both rows."""
        return self._view if self._kept is None else StoreGetter(self._kept.name, history_ms=self._kept.history_ms)

    @property
    def is_versioned(self) -> bool:
        return self._kept is not None and self._kept.is_versioned

    def send_old_values(self, *, force: bool) -> bool:
        """Send what was joined before, which takes the values before of both tables."""
        for parent in self._parents:
            parent.send_old_values(force=True)
        for step in self._steps:
            step.options["sends_old"] = True
        return True


class JoinedGetter(ValueGetter):
    """Joins the rows of two tables. `kind` is "inner", "left" or "outer"."""

    def __init__(
        self, left: ValueGetter, right: ValueGetter, joiner: Callable[[Any, Any, Any], Any], kind: str
    ) -> None:
        self._left = left
        self._right = right
        self._joiner = joiner
        self._kind = kind

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._left.stores, *self._right.stores)))

    def open(self, context: ProcessorContext) -> Get:
        return self._joined(self._left.open(context), self._right.open(context))

    def open_sent(self, context: ProcessorContext) -> Get:
        return self._joined(self._left.open_sent(context), self._right.open_sent(context))

    def _joined(self, get_left: Get, get_right: Get) -> Get:
        joiner = self._joiner
        needs_left, needs_right = self._kind != "outer", self._kind == "inner"

        def joined(key: Any) -> ValueAndTimestamp | None:
            left, right = get_left(key), get_right(key)
            if (left is None and (needs_left or right is None)) or (right is None and needs_right):
                return None
            value = joiner(key, None if left is None else left[0], None if right is None else right[0])
            timestamp = max(-1 if left is None else left[1], -1 if right is None else right[1])
            return None if value is None else ValueAndTimestamp(value, timestamp)

        return joined
