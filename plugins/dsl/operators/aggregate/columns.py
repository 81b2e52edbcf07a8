"""Columns: the ready aggregates of `agg`, such as `sum_of`, and several of them as one aggregate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from penstock import ProcessingError, TopologyError
from penstock.support.own_copy import IMMUTABLE, own_copy

from ...graph.functions import check_function

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
        return own_copy(_part(self.part, value))

    def merged(self, one: Any, other: Any) -> Any:
        """Return the state of two sessions."""
        return other if one is None else one if other is None else self.merge(one, other)

    def shown(self, state: Any) -> Any:
        """Return the table's value."""
        if state is None:
            return own_copy(self.empty)
        return state if self.result is None else self.result(state)


def _part(part: Part, value: Any) -> Any:
    if isinstance(part, str):
        return value[part] if isinstance(value, Mapping) else getattr(value, part)
    return value if part is None else part(value)


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
        [],
        lambda state: list(state[last]),  # an earlier program may have had a larger limit
    )


# ------------------------------------------------------------------ each value once


def histogram(part: Part = None) -> Column:
    """Count each value: a dict of numbers by value, in the order of processing; {} if there is nothing.

    Values are equal as in Python: 1, 1.0 and True are one, which has the form that came first; NaN equals NaN. They are
    keys of a dict, so a list or a dict as a value is an error of its record; and in JSON they are texts, so send others
    as msgpack, or map them. The dict is stored as a whole.
    """
    return _counting("histogram", part, {}, lambda state: dict(zip(*state, strict=True)), _add_key)


def count_distinct(part: Part = None) -> Column:
    """Count the different values, exactly; 0 if there is nothing. Equal values are those of `histogram`.

    All of them are stored, as a whole.
    """
    return _counting("count_distinct", part, 0, lambda state: len(state[0]), _add_value)


def collect_set(part: Part = None) -> Column:
    """Collect the different values in a list, in the order of processing; [] if there is nothing.

    Equal values are those of `histogram`; lists and dicts are values, too. The list is stored as a whole, with the
    number of times of each value.
    """
    return _counting("collect_set", part, [], lambda state: list(state[0]), _add_value)


Counted = tuple[list[Any], list[int]] | list[list[Any]]
"""Different values in the order of processing, and the number of times of each."""


def _counting(verb: str, part: Part, empty: Any, result: Callable[[Any], Any], take: Any) -> Column:
    return Column(_checked(verb, part), take, _merge_counted, empty, result, _remove_value)


def _add_key(state: Counted | None, value: Any) -> Counted:
    try:
        hash(value)
    except TypeError as error:
        raise ProcessingError(
            f"histogram: {value!r} cannot be a key of a dict; name a field of it, or use collect_set"
        ) from error
    return _add_value(state, value)


def _add_value(state: Counted | None, value: Any, times: int = 1) -> Counted:
    values, counts = ([], []) if state is None else state
    at = _position(values, value)
    if at is None:
        return [[*values, value], [*counts, times]]
    return [values, [*counts[:at], counts[at] + times, *counts[at + 1 :]]]


def _remove_value(state: Counted, value: Any) -> Counted | None:
    """Return the state without a value once; as it is without that value, which an older program has not counted."""
    values, counts = state
    at = _position(values, value)
    if at is None:
        return state
    if counts[at] > 1:
        return [values, [*counts[:at], counts[at] - 1, *counts[at + 1 :]]]
    return [[*values[:at], *values[at + 1 :]], [*counts[:at], *counts[at + 1 :]]] if len(values) > 1 else None


def _merge_counted(one: Counted, other: Counted) -> Counted:
    for value, times in zip(*other, strict=True):
        one = _add_value(one, value, times)
    return one


_NAN = object()
_SCALARS = IMMUTABLE - {float, Decimal}
"""Types whose values `list.index` compares as meant: NaN is not among them."""


def _position(values: list[Any], value: Any) -> int | None:
    """Return the position of an equal value; None if there is none."""
    if type(value) in _SCALARS or (type(value) is float and value == value):
        try:
            return values.index(value)
        except ValueError:
            return None
    form = _comparable(value)
    return next((at for at, each in enumerate(values) if _comparable(each) == form), None)


def _comparable(value: Any) -> Any:
    """Return a form of a value in which NaN equals NaN."""
    if isinstance(value, (float, Decimal)):
        return _NAN if value != value else value
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in value.items()}
    return type(value)(map(_comparable, value)) if type(value) in (list, tuple) else value


# ------------------------------------------------------------------ by rank


def top(n: int, part: Part = None, *, by: Part = None) -> Column:
    """Collect the `n` largest in a list, the largest first; [] if there is nothing.

    `by` is what is compared: a field, or a function of the value; without it, that is `part` itself. Of equal ones, the
    first that was processed is in front, and stays. A value whose `by` is None or NaN is left out. At most `n` parts
    are stored, each with its `by`. Of merged sessions, values of the earlier one are the first.
    """
    _check_number("top", n)

    def insert(state: list[Any] | None, found: list[Any]) -> list[Any]:
        kept = state or []
        at = len(kept)
        while at and kept[at - 1][0] < found[0]:
            at -= 1
        return [*kept[:at], found, *kept[at:]][:n] if at < n else kept

    return _ranking("top", part, by, insert, slice(n))


def latest(n: int, part: Part = None, *, by: Part = None) -> Column:
    """Collect the last `n` in a list, the oldest first; [] if there is nothing.

    `by` is the time, or another order, in which they are compared: a field, or a function of the value; without it, the
    order of processing. Of equal ones, the last that was processed is the later one. A value whose `by` is None or NaN
    is left out. At most `n` parts are stored, each with its `by`. Of merged sessions, those of the later one are later.
    """
    _check_number("latest", n)
    if by is None:
        return replace(collect_of(limit=n), part=_checked("latest", part))

    def insert(state: list[Any] | None, found: list[Any]) -> list[Any]:
        kept = state or []
        at = len(kept)
        while at and kept[at - 1][0] > found[0]:
            at -= 1
        return [*kept[:at], found, *kept[at:]][-n:]

    return _ranking("latest", part, by, insert, slice(-n, None))


def max_by(part: Part = None, by: Part = None) -> Column:
    """Take the part of the value with the largest `by`, a field or a function of the value; None if there is nothing.

    Of equal ones it is the first that was processed, of merged sessions that of the earlier one. A value whose `by` is
    None or NaN is left out.
    """
    return _extreme("max_by", part, by, lambda one, other: other[0] > one[0])


def min_by(part: Part = None, by: Part = None) -> Column:
    """Take the part of the value with the smallest `by`, as `max_by` takes that with the largest."""
    return _extreme("min_by", part, by, lambda one, other: other[0] < one[0])


def _extreme(verb: str, part: Part, by: Part, is_better: Callable[[Any, Any], bool]) -> Column:
    if by is None:
        raise TopologyError(f'{verb}: say what to compare: {verb}("item", by="price"); of one field, use {verb[:3]}_of')

    def better(one: Any, other: Any) -> Any:
        return other if one is None or is_better(one, other) else one

    return Column(_ranked(verb, part, by), better, better, None, lambda state: state[1])


def _ranking(verb: str, part: Part, by: Part, insert: Callable[[Any, Any], list[Any]], shown: slice) -> Column:
    """Return the column; `shown` are the entries of a state that an earlier program may have made for a larger `n`."""

    def merge(one: list[Any], other: list[Any]) -> list[Any]:
        for each in other:
            one = insert(one, each)
        return one

    return Column(_ranked(verb, part, by), insert, merge, [], lambda state: [each for _, each in state[shown]])


def _ranked(verb: str, part: Part, by: Part) -> Callable[[Any], list[Any] | None]:
    """Return the function that makes [rank, part] of a value, or None if either is missing."""
    _checked(verb, part)
    _checked(verb, by)

    def ranked(value: Any) -> list[Any] | None:
        found = _part(part, value)
        rank = found if by is None else _part(by, value)
        return None if found is None or rank is None or rank != rank else [rank, found]

    return ranked


def _check_number(verb: str, n: Any) -> None:
    if type(n) is not int or n < 1:
        raise TopologyError(f"{verb}: expected a number of at least 1 first, found {n!r}; write {verb}(3, ...)")


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


def removable(columns: Columns, where: str) -> Columns:
    """Return columns of a grouped table. Raises TopologyError, naming `where`, for those that cannot be taken back."""
    wrong = [name for name, column in columns.by_name.items() if column.remove is None]
    if wrong:
        raise TopologyError(
            f"agg{where}: {', '.join(wrong)} cannot be taken back when a row changes or leaves its group; a grouped "
            "table has sum_of, count_of, mean_of, histogram, count_distinct and collect_set, and "
            "aggregate(initializer, adder, subtractor) for functions of your own, which may keep all rows of a group"
        )
    return columns


def columns_and_options(given: Mapping[str, Any], known: Collection[str]) -> tuple[Columns, dict[str, Any]]:
    """Return the columns, and the options of the store that are `known`. Raises TopologyError for anything else."""
    columns = {name: each for name, each in given.items() if isinstance(each, Column)}
    for name, each in given.items():
        if name not in columns and name not in known:
            raise TopologyError(
                f"agg: {name} is {each!r}, expected an aggregate; write {name}=sum_of(FIELD), or another of "
                f"{', '.join(_READY)}. Options of the store are {', '.join(known)}"
            )
    if not columns:
        raise TopologyError('agg: say what to aggregate; write agg("NAME", total=sum_of("amount"))')
    return Columns(columns), {name: each for name, each in given.items() if name not in columns}


_READY = (
    *("max_of", "min_of", "mean_of", "count_of", "first_of", "last_of", "collect_of", "collect_set"),
    *("count_distinct", "histogram", "top", "latest", "max_by", "min_by"),
)


def _checked(verb: str, part: Part) -> Part:
    if part is not None and not isinstance(part, str):
        check_function(verb, part, "value", what="field or function")
    return part


def _add(one: Any, other: Any) -> Any:
    return one + other
