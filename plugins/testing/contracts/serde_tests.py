"""The settings of `SerdeContract`, and how its tests compare, copy and spoil values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from penstock import Serde

from .expectations import declared
from .serde_neighbours import neighbourhood, shape

ANY_TEXT = st.text(st.characters(), max_size=40)
"""Text with every code point, lone surrogates included."""


class SerdeTests:
    """The settings of `SerdeContract`."""

    serde: Callable[[], Serde[Any]] = declared("the serde's class, or a staticmethod that makes it")
    """Makes the serde: its class, or a `staticmethod`."""
    values: ClassVar[st.SearchStrategy[Any]] = declared("a hypothesis strategy of values that it holds")
    """Values that it holds and gives back as they were. A serde for keys, of which equal ones are one, may give back an
    equal Decimal or time with the same bytes: 1.5 for 1.50, or the instant in UTC."""
    refused: ClassVar[Sequence[Any]] = (object(),)
    """Values that it must refuse with a SerdeError."""
    foreign: ClassVar[st.SearchStrategy[bytes]] = st.binary(max_size=64)
    """Bytes that others wrote: each is read as something, or refused with a SerdeError."""
    in_one_process: ClassVar[bool] = False
    """Whether other processes cannot read it (True where a registry is a mock in this process)."""
    for_keys: ClassVar[bool] = True
    """Whether equal values have equal bytes in every process, as keys of stores need (False: the serde says so)."""
    keeps_order: ClassVar[bool] = False
    """Whether equal dicts whose entries have another order may have other bytes (True: the serde says so)."""
    changes_ends: ClassVar[bool] = False
    """Whether larger values of the same types may come back changed, and not be refused (True: the serde says so)."""
    ignores_the_rest: ClassVar[bool] = False
    """Whether bytes behind the end of a value are not looked at (True: the serde says so)."""
    other_settings: ClassVar[Sequence[Callable[[], Serde[Any]]]] = ()
    """Makes serdes of this class with other settings, which write or read other bytes."""

    @staticmethod
    def same(one: Any, other: Any) -> bool:
        """Return whether two values are the same to the serde's users; by default equal and of one type all through."""
        return same_value(one, other)

    def _is_back(self, serde: Serde[Any], read: Any, value: Any) -> bool:
        """Return whether `read` is what the value may come back as."""
        if self.same(read, value):
            return True
        if not self.for_keys or type(self).same is not SerdeTests.same or not same_value(read, value, exactly=False):
            return False
        return serde.serialize(read) == serde.serialize(value)

    def _are_alike(self, one: Any, other: Any) -> bool:
        """Return whether two readings of the same bytes are the same, each a value or the type of an error."""
        if isinstance(one, type) or isinstance(other, type):
            return one is other
        return self.same(one, other)

    def made(self) -> Serde[Any]:
        """Return a new serde."""
        return type(self).serde()

    # Each class that inherits these tests is an executor of its own, and that is the point of them.
    # Not at random: what the suite finds, it finds always.
    _each = settings(
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow], deadline=None, derandomize=True
    )
    _few = settings(_each, max_examples=25)

    def _samples(self, count: int) -> list[Any]:
        """Return some values, always the same."""
        found: list[Any] = []

        @settings(self._each, max_examples=count, phases=[Phase.generate])
        @given(self.values)
        def collect(value: Any) -> None:
            found.append(value)

        collect()
        return found

    def _neighbourhoods(self) -> list[list[Any]]:
        """Return some values of other types each, always the same, with those near them; a serde may refuse those."""
        by_shape = {shape(value): value for value in self._samples(60)}
        return [neighbourhood(value) for value in sorted(by_shape.values(), key=lambda value: len(shape(value)))[-4:]]


def _struct_fields(value: Any) -> Sequence[str]:
    return getattr(type(value), "__struct_fields__", ())


def same_value(one: Any, other: Any, *, exactly: bool = True) -> bool:
    """Return whether two values are equal and of one type, all through, with nan the same as nan and -0.0 not as 0.0.

    Exactly: Decimals have the same digits, and times the same zone.

    >>> same_value((1, [2]), (1, [2])), same_value((1,), [1]), same_value({1: 0.0}, {True: -0.0})
    (True, False, False)
    """
    if type(one) is not type(other):
        return False
    same = same_value if exactly else _equal_value
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        # In any order: a serde may sort the keys.
        if all(type(key) is str for key in (*one, *other)):
            return one.keys() == other.keys() and all(same(each, other[key]) for key, each in one.items())
        return same(set(map(_Pair, one.items())), set(map(_Pair, other.items())))
    if isinstance(one, set | frozenset):
        left = list(other)
        for each in one:
            found = next((index for index, candidate in enumerate(left) if same(each, candidate)), None)
            if found is None:
                return False
            del left[found]
        return not left
    if isinstance(one, Decimal) and (exactly or one.is_nan() or other.is_nan()):
        return str(one) == str(other)
    if isinstance(one, datetime) and exactly:
        # With a zone, what `fold` says is in the offset.
        return (one.isoformat(), one.tzinfo, one.tzname()) == (other.isoformat(), other.tzinfo, other.tzname()) and (
            one.tzinfo is not None or one.fold == other.fold
        )
    if isinstance(one, _Pair):
        return same(one.pair, other.pair)
    if one == other:
        return True
    # One may have a nan.
    names = [each.name for each in fields(one) if each.compare] if is_dataclass(one) else _struct_fields(one)
    return bool(names) and all(same(getattr(one, name), getattr(other, name)) for name in names)


_equal_value = partial(same_value, exactly=False)


class _Pair:
    """An entry of a dict, as a member of a set."""

    def __init__(self, pair: tuple[Any, Any]) -> None:
        self.pair = pair


def what_can_be_changed(value: Any) -> str:
    """Return which part of a value a program can change; "" for none. What begins with "_" is the value's own.

    >>> what_can_be_changed((1, ["a"])), what_can_be_changed((1, "a"))
    ("['a']", '')
    """
    if isinstance(value, list | dict | set | bytearray):
        return repr(value)
    if isinstance(value, type | Enum):
        return ""
    if isinstance(value, tuple | frozenset):
        return next(filter(None, map(what_can_be_changed, value)), "")
    slots = (each.__dict__.get("__slots__", ()) for each in type(value).__mro__)
    named = chain(getattr(value, "__dict__", ()), *((each,) if isinstance(each, str) else each for each in slots))
    for name in dict.fromkeys([*named, *_struct_fields(value)]):
        part = getattr(value, name, None)
        if name.startswith("_"):
            continue
        with suppress(Exception):  # it cannot be changed
            setattr(value, name, part)
            return f"{name} of {value!r}"
        if found := what_can_be_changed(part):
            return found
    return ""


def spoil(value: Any) -> None:
    """Change what can be changed in a value."""
    if isinstance(value, list):
        for each in value:
            spoil(each)
        value.append("spoiled")
    elif isinstance(value, tuple):
        for each in value:
            spoil(each)
    elif isinstance(value, dict):
        for each in value.values():
            spoil(each)
        value["spoiled"] = True
    elif isinstance(value, set):
        value.add("spoiled")
    elif isinstance(value, bytearray):
        value += b"spoiled"
    elif hasattr(value, "__dict__") and not isinstance(value, Enum | type):
        for name, each in list(vars(value).items()):
            spoil(each)
            with suppress(Exception):  # it cannot be changed
                setattr(value, name, "spoiled")
