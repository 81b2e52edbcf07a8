"""Comparisons of the contract suites, whose failures show the values and the rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LONGEST = 200


def expect(found: object, expected: object, rule: str) -> None:
    """Raise AssertionError with the rule, and where the two differ first, unless they are equal.

    >>> expect([b"a", b"b"], [b"a"], "a scan yields each key once")
    Traceback (most recent call last):
        ...
    AssertionError: a scan yields each key once: 2 entries instead of 1; entry 1 is b'b', expected nothing
    """
    if found != expected:
        raise AssertionError(f"{rule}: {_difference(found, expected)}")


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
