"""The steps of a join of two tables by key, and how its result is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(eq=False)
class JoinedTable(TableSource):
    """The result of a join by key. Kafka Streams: KTableKTableJoinMerger."""

    parents: tuple[TableSource, TableSource]
    steps: tuple[ProcessorStep, ...]
    kept: Materialized | None
    view: ValueGetter

    def getter(self) -> ValueGetter:
        """Return how the result is read: from its store, or by joining both rows."""
        return self.view if self.kept is None else StoreGetter(self.kept.name, self.kept.history_ms)

    @property
    def is_versioned(self) -> bool:
        return self.kept is not None and self.kept.is_versioned

    def send_old_values(self, *, force: bool) -> bool:
        """Send what was joined before, which takes the values before of both tables."""
        for parent in self.parents:
            parent.send_old_values(force=True)
        for step in self.steps:
            step.options["sends_old"] = True
        return True


@dataclass(eq=False)
class JoinedGetter(ValueGetter):
    """Joins the rows of two tables. `kind` is "inner", "left" or "outer"."""

    left: ValueGetter
    right: ValueGetter
    joiner: Callable[[Any, Any, Any], Any]
    kind: str

    @property
    def stores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.left.stores, *self.right.stores)))

    def open(self, context: ProcessorContext, *, sent: bool = False) -> Get:
        get_left, get_right = self.left.open(context, sent=sent), self.right.open(context, sent=sent)
        joiner = self.joiner
        needs_left, needs_right = self.kind != "outer", self.kind == "inner"

        def joined(key: Any) -> ValueAndTimestamp | None:
            left, right = get_left(key), get_right(key)
            if (left is None and (needs_left or right is None)) or (right is None and needs_right):
                return None
            value = joiner(key, None if left is None else left[0], None if right is None else right[0])
            timestamp = max(-1 if left is None else left[1], -1 if right is None else right[1])
            return None if value is None else ValueAndTimestamp(value, timestamp)

        return joined
