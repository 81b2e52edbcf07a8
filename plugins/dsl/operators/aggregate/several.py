"""Columns: several aggregates at once, as a dict; what `agg` takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from penstock import TopologyError
from penstock.support.own_copy import own_copy

from ...graph.functions import check_function

Part = str | Callable[[Any], Any] | None
"""The part of a value that is aggregated: a field by name, a function's result, or the value itself (None)."""


@dataclass(frozen=True)
class Column:
    """One aggregate of several. Its state begins as None, which also means that nothing was taken.

    `take` gets the state and what is taken of a value, `merge` the states of two sessions, the earlier end first.
    `result` makes what the table has of the state. A part of None is left out. `remove` gets the state and what was
    taken of a value before; None: it cannot be undone.
    """

    part: Part
    take: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]
    empty: Any = None
    result: Callable[[Any], Any] | None = None
    remove: Callable[[Any, Any], Any] | None = None

    def taken(self, state: Any, value: Any) -> Any:
        """Return the state with a value in it."""
        found = self._part_of(value)
        return state if found is None else self.take(state, found)

    def removed(self, state: Any, value: Any) -> Any:
        """Return the state without a value that was in it."""
        found = self._part_of(value)
        return state if found is None or state is None or self.remove is None else self.remove(state, found)

    def _part_of(self, value: Any) -> Any:
        """Return the part of a value, of which other columns may keep the same: so each has its own."""
        part = self.part
        if isinstance(part, str):
            return own_copy(value[part] if isinstance(value, Mapping) else getattr(value, part))
        return own_copy(value if part is None else part(value))

    def merged(self, one: Any, other: Any) -> Any:
        """Return the state of two sessions."""
        return other if one is None else one if other is None else self.merge(one, other)

    def shown(self, state: Any) -> Any:
        """Return the table's value."""
        if state is None:
            return self.empty
        return state if self.result is None else self.result(state)


def sum_of(part: Part = None) -> Column:
    """Add up; 0 if there is nothing."""
    return Column(
        _checked("sum_of", part),
        lambda state, value: value if state is None else state + value,
        _add,
        0,
        remove=lambda state, value: state - value,
    )


def count_of(part: Part = None) -> Column:
    """Count the values that are not None."""
    return Column(
        _checked("count_of", part),
        lambda state, value: (state or 0) + 1,
        _add,
        0,
        remove=lambda state, value: state - 1,
    )


def max_of(part: Part = None) -> Column:
    """Take the largest; None if there is nothing."""
    return Column(_checked("max_of", part), lambda state, value: value if state is None else max(state, value), max)


def min_of(part: Part = None) -> Column:
    """Take the smallest; None if there is nothing."""
    return Column(_checked("min_of", part), lambda state, value: value if state is None else min(state, value), min)


def first_of(part: Part = None) -> Column:
    """Take the first one that was processed; None if there is nothing."""
    return Column(
        _checked("first_of", part), lambda state, value: value if state is None else state, lambda one, other: one
    )


def last_of(part: Part = None) -> Column:
    """Take the last one that was processed; None if there is nothing. Of merged sessions, that of the later one."""
    return Column(_checked("last_of", part), lambda state, value: value, lambda one, other: other)


def mean_of(part: Part = None) -> Column:
    """Take the arithmetic mean; None if there is nothing."""
    return Column(
        _checked("mean_of", part),
        lambda state, value: [value, 1] if state is None else [state[0] + value, state[1] + 1],
        lambda one, other: [one[0] + other[0], one[1] + other[1]],
        result=lambda state: state[0] / state[1],
        remove=lambda state, value: None if state[1] == 1 else [state[0] - value, state[1] - 1],
    )


def collect_of(part: Part = None, *, limit: int | None = None) -> Column:
    """Collect in a list, in the order of processing; with `limit`, the last so many. The list is stored as a whole."""
    if limit is not None and limit < 1:
        raise TopologyError(f"collect_of: limit is at least 1, found {limit}")
    last = slice(None if limit is None else -limit, None)
    return Column(
        _checked("collect_of", part),
        lambda state, value: [*(state or ()), value][last],
        lambda one, other: [*one, *other][last],
        (),
        list,
    )


@dataclass(frozen=True)
class Columns:
    """Several columns by name; the aggregate is a dict of their states."""

    by_name: Mapping[str, Column]

    def initial(self) -> dict[str, Any]:
        """Return the states of nothing."""
        return dict.fromkeys(self.by_name)

    def taken(self, states: Mapping[str, Any], value: Any) -> dict[str, Any]:
        """Return the states with a value in them."""
        return {name: column.taken(states.get(name), value) for name, column in self.by_name.items()}

    def removed(self, states: Mapping[str, Any], value: Any) -> dict[str, Any]:
        """Return the states without a value that was in them."""
        return {name: column.removed(states.get(name), value) for name, column in self.by_name.items()}

    def merged(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
        """Return the states of two sessions."""
        return {name: column.merged(one.get(name), other.get(name)) for name, column in self.by_name.items()}

    def shown(self, states: Mapping[str, Any] | None) -> Any:
        """Return the table's value: a dict, or None for a deletion."""
        if states is None:
            return None
        return {name: column.shown(states.get(name)) for name, column in self.by_name.items()}


def removable(columns: Columns) -> Columns:
    """Return columns of a grouped table. Raises TopologyError for those that cannot be taken back."""
    wrong = [name for name, column in columns.by_name.items() if column.remove is None]
    if wrong:
        raise TopologyError(
            f"agg: {', '.join(wrong)} cannot be taken back when a row changes or leaves its group; a grouped table has "
            "sum_of, count_of and mean_of, and aggregate(initializer, adder, subtractor) for functions of your own"
        )
    return columns


def columns_and_options(given: Mapping[str, Any], known: Collection[str]) -> tuple[Columns, dict[str, Any]]:
    """Return checked columns, and options of the store, whose names are `known`: a column is an aggregate.

    Raises TopologyError for what is neither.
    """
    columns = {name: each for name, each in given.items() if isinstance(each, Column)}
    for name, each in given.items():
        if name not in columns and name not in known:
            raise TopologyError(
                f"agg: {name} is {each!r}, expected an aggregate; write {name}=sum_of(FIELD), or max_of, min_of, "
                f"mean_of, count_of, first_of, last_of, collect_of. Options of the store are {', '.join(known)}"
            )
    if not columns:
        raise TopologyError('agg: say what to aggregate; write agg("NAME", total=sum_of("amount"))')
    return Columns(columns), {name: each for name, each in given.items() if name not in columns}


def _checked(verb: str, part: Part) -> Part:
    if part is not None and not isinstance(part, str):
        check_function(verb, part, "value", what="field or function")
    return part


def _add(one: Any, other: Any) -> Any:
    return one + other
