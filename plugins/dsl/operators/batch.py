"""MapValuesBatch: the processor of map_values_batch, whose function gets the values of many records at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock import Duration, ProcessorContext, Record, TopologyError, duration_ms
from penstock.operator import Run
from penstock.support.own_copy import IMMUTABLE, own_copy
from penstock.support.packages import check_installed

from .map import OfFunction

Form = Literal["list", "numpy", "pandas", "arrow"]
"""What a function of a batch gets: a list, a numpy array, a pandas Series or an Arrow array."""

_EXACT = 1 << 53
"""Floats have all integers up to this one."""


@dataclass(kw_only=True, eq=False)
class MapValuesBatch(OfFunction):
    """Forwards each record with its value of those that `function` returns for the values of a batch.

    `form`, `max_records`, `max_wait`: see `KStream.map_values_batch`.
    """

    holds_records = True

    form: Form
    max_records: int
    max_wait: Duration

    def bind(self, context: ProcessorContext) -> Run:
        send, function, with_key, form = context.send, self.function, self.with_key, _FORMS[self.form][1]

        def compute(records: Sequence[Record]) -> Sequence[Any]:
            values = form([record[1] for record in records])
            made = function(form([record[0] for record in records]), values) if with_key else function(values)
            results: Sequence[Any] = _distinct(_as_list(made))
            return results

        def emit(record: Record, value: Any) -> None:
            send((record[0], value, record[2], record[3]))

        return context.batched(compute, emit, self.max_records, self.max_wait)


def check_batch(verb: str, form: str, max_records: object, max_wait: Duration) -> dict[str, Any]:
    """Return the options of a batch. Raises TopologyError, ConfigError, or MissingPackageError for those of `form`."""
    if form not in _FORMS:
        raise TopologyError(f"{verb}: as_ is one of {', '.join(map(repr, _FORMS))}, found {form!r}")
    package = _FORMS[form][0]
    if package is not None:
        check_installed(f"{verb}(..., as_={form!r})", None, package)
    if type(max_records) is not int or max_records < 1:
        raise TopologyError(f"{verb}: max_records is a number of records from 1 on, found {max_records!r}")
    duration_ms(max_wait, "max_wait")
    return {"form": form, "max_records": max_records, "max_wait": max_wait}


def _as_list(made: Any) -> Any:
    """Return arrays and Series as lists of Python's objects, which serdes take; anything else as it is."""
    to_list = getattr(made, "to_pylist", None) or getattr(made, "tolist", None)
    return made if to_list is None else to_list()


def _distinct(values: Any) -> Any:
    """Return values of which no two are one object that can be changed: each record has its own."""
    if not isinstance(values, (list, tuple)) or all(type(value) in IMMUTABLE for value in values):
        return values
    seen: set[int] = set()
    kept = []
    for value in values:
        kept.append(own_copy(value) if id(value) in seen else value)
        seen.add(id(value))
    return kept


def _numpy(values: list[Any]) -> Any:
    """Return numbers, and lists of numbers of one shape, as an array of numbers; all else as one of objects.

    numpy would make texts of 1 and "a", cut a zero byte at the end, and round large integers among others.
    """
    import numpy

    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return numpy.array(values, numpy.int64)
        except OverflowError:
            pass
    elif kinds <= {bool} or (kinds <= {int, float} and _are_exact(values)):
        return numpy.array(values)
    elif kinds <= {list, tuple}:
        try:
            made = numpy.array(values)
        except ValueError:  # not of one shape
            pass
        else:
            if made.dtype.kind in "bif":
                return made
    array = numpy.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def _are_exact(values: list[Any]) -> bool:
    """Return whether integers among floats remain what they are as floats."""
    return not any(type(value) is int and abs(value) > _EXACT for value in values)


def _pandas(values: list[Any]) -> Any:
    """Return values of one type as pandas does, and others as objects: it would make nan of None beside numbers."""
    import pandas

    kinds = set(map(type, values))
    as_objects = len(kinds) > 1 and not (kinds == {int, float} and _are_exact(values))
    return pandas.Series(values, dtype=object if as_objects else None)


def _arrow(values: list[Any]) -> Any:
    import pyarrow

    return pyarrow.array(values)


_FORMS: dict[str, tuple[str | None, Callable[[list[Any]], Any]]] = {
    "list": (None, lambda values: values),
    "numpy": ("numpy", _numpy),
    "pandas": ("pandas", _pandas),
    "arrow": ("pyarrow", _arrow),
}
"""By form: the package that it needs, and what makes it of a list."""
