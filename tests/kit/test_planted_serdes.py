"""The contract suite for serdes finds each of these planted bugs, and names the rule."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock.errors import SerdeError
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.serde import Serde


class Right(Serde[Any]):
    """Lists of small numbers as JSON; each planted bug is this one with something wrong."""

    def serialize(self, value: Any) -> bytes:
        if type(value) is not list or any(type(each) is not int for each in value):
            raise SerdeError(f"expected a list of int, found {value!r}")
        return json.dumps(value).encode()

    def deserialize(self, data: bytes) -> Any:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise SerdeError(f"expected JSON, found {data!r}") from error
        if type(value) is not list or any(type(each) is not int for each in value):
            raise SerdeError(f"expected a list of int, found {data!r}")
        return value


class Counting(Right):
    calls = 0

    def serialize(self, value: Any) -> bytes:
        self.calls += 1
        return super().serialize(value) + b" " * self.calls


class LeavesAMark(Right):
    failed = False

    def serialize(self, value: Any) -> bytes:
        try:
            return super().serialize(value) + b" " * self.failed
        except SerdeError:
            self.failed = True
            raise


class Unpicklable(Right):
    def __init__(self) -> None:
        self.function = lambda: None


class Caching(Right):
    def __init__(self) -> None:
        self.known: dict[bytes, Any] = {}

    def deserialize(self, data: bytes) -> Any:
        if data not in self.known:
            self.known[data] = super().deserialize(data)
        return self.known[data]


_numbers = itertools.count()


def column(function: Callable[[Serde[Any], Any], Any]) -> type[Right]:
    return type("Column", (Right,), {"deserialize_column": function})


def fast(function: Callable[[Right], Callable[[Any], Any]]) -> type[Right]:
    return type("Fast", (Right,), {"serializer": function})


def read(serde: Serde[Any], rows: Any) -> list[Any]:
    return [None if row is None else serde.deserialize(row) for row in rows]


def shared(serde: Serde[Any], rows: Any) -> list[Any]:
    known = {row: serde.deserialize(row) for row in rows if row is not None}
    return [known.get(row) for row in rows]


def lenient(serde: Serde[Any], rows: Any) -> list[Any]:
    try:
        return read(serde, rows)
    except SerdeError:
        return [None] * len(rows)


def emptying(serde: Serde[Any], rows: Any) -> list[Any]:
    found = read(serde, rows)
    rows.clear()
    return found


PLANTED: dict[str, tuple[type[Serde[Any]], str]] = {
    "bytearray": (
        type("Bug", (Right,), {"serialize": lambda s, v: bytearray(Right.serialize(s, v))}),
        "must return bytes",
    ),
    "tuple for a list": (
        type("Bug", (Right,), {"deserialize": lambda s, d: tuple(Right.deserialize(s, d))}),
        "came back",
    ),
    "loses the last": (type("Bug", (Right,), {"serialize": lambda s, v: Right.serialize(s, v)[:-1] + b"]"}), "."),
    "bytes depend on earlier calls": (Counting, "always the same bytes"),
    "bytes depend on failed calls": (LeavesAMark, "always the same bytes"),
    "cannot be pickled": (Unpicklable, "pickle"),
    "answers are shared": (Caching, "was changed"),
    "accepts anything": (
        type("Bug", (Right,), {"serialize": lambda s, v: repr(v).encode()}),
        "DID NOT RAISE|came back",
    ),
    "a TypeError for a wrong value": (
        type("Bug", (Right,), {"serialize": lambda s, v: json.dumps(sorted(v)).encode()}),
        ".",
    ),
    "column: wrong values": (column(lambda s, rows: read(s, rows)[::-1]), "deserialize_column returned"),
    "column: one object for equal rows": (column(shared), "deserialize_column returned"),
    "column: short": (column(lambda s, rows: [row for row in read(s, rows) if row is not None]), "values for"),
    "column: a tuple": (column(lambda s, rows: tuple(read(s, rows))), "must return a list"),
    "column: None as empty": (
        column(lambda s, rows: [each or [] for each in read(s, rows)]),
        "deserialize_column returned",
    ),
    "column: None for what cannot be read": (column(lenient), "deserialize refuses"),
    "column: changes its argument": (column(emptying), "changed the column"),
    "fast: other bytes": (fast(lambda s: lambda v: s.serialize(v) + b" "), "where serialize returns"),
    "fast: text": (fast(lambda s: lambda v: s.serialize(v).decode()), "where serialize returns"),
    "fast: bytearray": (fast(lambda s: lambda v: bytearray(s.serialize(v))), "where serialize returns"),
    "fast: accepts what is refused": (fast(lambda s: lambda v: json.dumps(v).encode()), "serialize refuses"),
    "immutable: a list": (type("Bug", (Right,), {"immutable_types": frozenset({list})}), "can be changed"),
    "immutable: a dict": (type("Bug", (Right,), {"immutable_types": frozenset({dict})}), "can be changed"),
    "checked: a list": (type("Bug", (Right,), {"checked_types": frozenset({list})}), "can be changed"),
    "immutable: refused": (type("Bug", (Right,), {"immutable_types": frozenset({int})}), "expected a list"),
    "form: another one each time": (
        type("Bug", (Right,), {"written_form": lambda s: f"Bug {next(_numbers)}"}),
        "written_form is",
    ),
    "form: not its own": (
        type("Bug", (Right,), {"unreadable": lambda s, form: f"{form} and now has another"}),
        "unreadable refuses",
    ),
    "bind: another serde": (
        type("Bug", (Right,), {"bind": lambda s, topic, *, is_key: PLANTED["tuple for a list"][0]()}),
        ".",
    ),
}


class TestRight(SerdeContract):
    serde = Right
    values = st.lists(st.integers(0, 99), max_size=4)
    refused = ("text", {"a": 1}, None, [1, "x"])


TESTS = [name for name in dir(SerdeContract) if name.startswith("test_")]


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    serde, rule = PLANTED[bug]
    suite = type("Suite", (TestRight,), {"serde": serde})()
    found: list[str] = []
    for name in TESTS:
        try:
            getattr(suite, name)()
        except (Exception, pytest.fail.Exception) as error:
            parts = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            found += [f"{name}: {type(each).__name__}: {each}" for each in parts]
            if any(re.search(rule, each) for each in found):
                return
    pytest.fail(f"no test of the suite names {rule!r}; it says {found}")
