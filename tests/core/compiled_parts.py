"""What tests of compiled parts share: the same code without them, outcomes to compare, and unusual objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from types import BuiltinFunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from penstock import Record, ValueAndTimestamp
from penstock.compiled import records

needs_compiled = pytest.mark.skipif(records is None, reason="the record path is not compiled here")


def _python_of(value: Any) -> Any:
    """Return what an object of the compiled module stands for; the object itself if it is none of these."""
    if value is records:
        return None
    if type(value).__module__ == records.__name__:
        return value.__wrapped__
    return value


@contextmanager
def in_python() -> Iterator[None]:
    """Have what is made and called in this block do without compiled parts, as PENSTOCK_COMPILED=0 does."""
    replaced: list[tuple[Any, str, Any]] = []
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "penstock"]
    owners: list[Any] = [Record, *(each for each in modules if isinstance(each, ModuleType))]
    for owner in owners:
        if owner is records or owner.__name__ == "penstock.compiled":
            continue
        for name, value in list(vars(owner).items()):
            python = _python_of(value)
            if isinstance(value, BuiltinFunctionType) and value.__self__ is records:
                python = getattr(owner, value.__name__)  # `_rows` is `rows` in C, which the module has in Python
            if python is not value:
                replaced.append((owner, name, value))
                setattr(owner, name, python)
    assert replaced, "nothing here is compiled"
    try:
        yield
    finally:
        for owner, name, value in replaced:
            setattr(owner, name, value)


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, ...]:
    """Return what a call returns, or the type and the text of what it raises."""
    try:
        return "returned", call(*args, **options)
    except BaseException as error:
        return "raised", type(error), str(error)


# ------------------------------------------------------------------ unusual objects


class Text(str):
    pass


class Number(int):
    pass


class Data(bytes):
    pass


class Colour(StrEnum):
    RED = "red"


class Grade(IntEnum):
    ONE = 1


class Point(NamedTuple):
    x: Any
    y: Any


class LongRecord(Record):
    """A Record of a class of the user's, which may have fewer or more parts."""

    def __repr__(self) -> str:
        return f"LongRecord{tuple(self)}"


class Backwards(Record):
    """A Record that says other parts than it has."""

    def __getitem__(self, index: Any) -> Any:
        return tuple.__getitem__(self, 1 - index if index in (0, 1) else index)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[0], self[1], self[2], self[3]])


class NoHash:
    __hash__ = None  # type: ignore[assignment]


class FailsHash:
    def __hash__(self) -> int:
        raise ZeroDivisionError("hash")


class FailsEq:
    def __hash__(self) -> int:
        return hash("a")

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("eq")


class EqualsAll:
    def __init__(self, like: Any) -> None:
        self.like = like

    def __hash__(self) -> int:
        return hash(self.like)

    def __eq__(self, other: object) -> bool:
        return True


class FailsClass:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ZeroDivisionError("class")


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]


class OfUnhashable(metaclass=Unhashable):
    pass


class ExitsHash(type):
    def __hash__(cls) -> int:
        raise SystemExit("hash of a class")


class OfExitsHash(metaclass=ExitsHash):
    pass


class AnyIndex:
    def __index__(self) -> int:
        return 7


PLAIN = ["", "a", "b", "ä", "x" * 300, b"", b"a", b"\xff", b"y" * 300, 0, 1, -1, 255, 2**63 - 1, -(2**63), None, True]
ODD = [
    "\ud800", 2**63, -(2**63) - 1, 10**40, False, 1.0, -0.0, float("nan"), float("inf"), 1j, Text("a"), Number(1),
    Data(b"a"), bytearray(b"a"), memoryview(b"a"), Colour.RED, Grade.ONE, Point("a", 1), (), ("a",), ("a", 1, 2, ()),
    [], ["a"], {}, {"a": 1}, {1}, frozenset("a"), range(3), object, object(), int, NoHash(), FailsHash(), FailsEq(),
    EqualsAll("a"), EqualsAll(1), FailsClass(), OfUnhashable(), OfExitsHash(), AnyIndex(), lambda: None,
    ValueAndTimestamp("a", 1), ValueAndTimestamp(1, 1), ValueAndTimestamp(1, -1), ValueAndTimestamp(1, 2**63),
    ValueAndTimestamp(1, True), ValueAndTimestamp(1, 1.5), ValueAndTimestamp(None, 1), ValueAndTimestamp([1], 2),  # type: ignore[arg-type]
    ValueAndTimestamp("ä", 1), ValueAndTimestamp(OfUnhashable(), 1), Record("a", "a", 1),
]  # fmt: skip
"""The same objects in each call, so what two calls return can be compared by `is`."""
anything = st.integers(0, len(PLAIN) + len(ODD) - 1).map([*PLAIN, *ODD].__getitem__)
"""By their numbers, because hypothesis itself hashes and compares what it samples."""
TIMES = [
    0,
    1,
    5,
    10,
    2**62,
    2**63 - 1,
    2**63,
    -1,
    -(2**63),
    2**70,
    True,
    False,
    1.5,
    float("nan"),
    None,
    "5",
    Number(5),
]


def same(first: Any, second: Any) -> bool:
    """Return whether two results are of one type and equal, or one object; also of what cannot be compared."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, (tuple, list)):
        return (
            len(first) == len(second) and all(map(same, tuple.__iter__(first), tuple.__iter__(second)))
            if (isinstance(first, tuple))
            else len(first) == len(second) and all(map(same, first, second))
        )
    if isinstance(first, dict):
        return same(list(first.items()), list(second.items()))
    try:
        return bool(first == second)
    except BaseException:
        return False
