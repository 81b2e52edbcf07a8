"""Comparisons of the contract suites, whose failures show the values and the rule."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

_LONGEST = 200


class _UndeclaredError(AssertionError, AttributeError):
    """A suite lacks an attribute."""


class Declared:
    """An attribute that each suite has to set; until then, reading it raises an error that says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, suite: object, kind: type) -> Any:
        contracts = [each.__name__ for each in kind.__mro__[1:] if each.__name__.endswith("Contract")]
        raise _UndeclaredError(
            f"{kind.__name__}: a {next(iter(contracts), 'contract')} without `{self._name}`: set it in the class; it "
            f"is {self._what}"
        )


def declared(what: str) -> Any:
    """Return the default of an attribute that each suite has to set; `what` says in words what it is."""
    return Declared(what)


def expect(found: object, expected: object, rule: str = "") -> None:
    """Raise AssertionError with the rule, and where the two differ first, unless they are equal.

    Without a rule, it is the name of the calling test in words, and the line that calls this.

    >>> expect([b"a", b"b"], [b"a"], "a scan yields each key once")
    Traceback (most recent call last):
        ...
    AssertionError: a scan yields each key once: 2 entries instead of 1; entry 1 is b'b', expected nothing
    """
    if found != expected:
        raise AssertionError(f"{rule or _calling_line()}: {_difference(found, expected)}")


def check(holds: object) -> None:
    """Raise AssertionError with the name of the calling test in words, and the line, unless a condition holds."""
    if not holds:
        raise AssertionError(_calling_line())


def _calling_line() -> str:
    frame = sys._getframe(2)
    rule = frame.f_code.co_name.removeprefix("test").replace("_", " ").strip()
    return f"{rule}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"


def expect_no_descriptors(act: Callable[[], object], what: str) -> None:
    """Raise AssertionError if each `act` leaves more file descriptors of this process open, however often it is called.

    Other threads of the process open files as well, at some time; hence a growth counts only if it is seen three times.
    """
    for _ in range(3):
        counts = []
        for _ in range(6):
            act()
            counts.append(len(os.listdir("/proc/self/fd")))
        if counts[-1] <= max(counts[:3]):
            return
    raise AssertionError(f"{what} must free all descriptors; open after each: {counts}")


def _difference(found: Any, expected: Any) -> str:
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple):
        found, expected = dict(enumerate(found)), dict(enumerate(expected))
    if not isinstance(found, Mapping) or not isinstance(expected, Mapping):
        return f"found {shown(found)}, expected {shown(expected)}"
    absent = object()
    places = [key for key in [*expected, *found] if found.get(key, absent) != expected.get(key, absent)]
    if not places:
        return "equal entries in another order or type"
    place = places[0]
    if place in found and place in expected and isinstance(found[place], Mapping):
        return f"in {shown(place)} {_difference(found[place], expected[place])}"
    sizes = f"{len(found)} entries instead of {len(expected)}; " if len(found) != len(expected) else ""
    one, other = (shown(each[place]) if place in each else "nothing" for each in (found, expected))
    return f"{sizes}entry {shown(place)} is {one}, expected {other}"


def shown(value: object) -> str:
    """Return the value's repr, cut short."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
