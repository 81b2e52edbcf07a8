"""Fold: how an aggregation takes a value; as a count, by a reducer, by functions, or by the Columns of `agg`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock import TopologyError
from penstock.support.own_copy import own_copy

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
                    made = function(key, aggregate, value)
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


Part = str | Callable[[Any], Any] | None
"""The part of a value that is aggregated: a field by name, a function's result, or the value itself (None)."""


@dataclass(frozen=True)
class Column:
    """One aggregate of several. Its state begins as None, which also means that nothing was taken.

    `take` gets the state and a part of a value (None is left out), `remove` undoes it (None: it cannot), `merge` gets
    the states of two sessions, the earlier end first, and `result` makes the table's value.
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
    """Return the columns, and the options of the store that are `known`. Raises TopologyError for anything else."""
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
