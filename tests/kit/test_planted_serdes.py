"""The contract suite for serdes finds each of these planted bugs, and names the rule."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from penstock.errors import SerdeError
from penstock.plugins.testing.contracts.serde import SerdeContract
from penstock.serde import Serde

from . import planted_serdes as planted


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
    "another value_type": (
        type("Bug", (Right,), {"value_type": dict[str, int]}),
        "value_type is dict.*of which",
    ),
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
    "form: keys not its own": (
        type("Bug", (Right,), {"unfindable": lambda s, form: f"{form} and now has another"}),
        "unfindable refuses",
    ),
    "form: keys of everybody": (type("Bug", (Right,), {"unfindable": lambda s, form: ""}), "unfindable must refuse"),
    "bind: another serde": (
        type("Bug", (Right,), {"bind": lambda s, topic, *, is_key: PLANTED["tuple for a list"][0]()}),
        ".",
    ),
}


TESTS_OF = {
    "column": "column(?!_of_thousands)",
    "fast": "fast_function",
    "form": "written_form",
    "immutable": "immutable",
    "checked": "checked",
}
"""By the first word of a planted bug: which tests are tried; by default all that start no other process."""


class TestRight(SerdeContract):
    serde = Right
    values = st.lists(st.integers(0, 99), max_size=4)
    refused = ("text", {"a": 1}, None, [1, "x"])


class TestWords(SerdeContract):
    serde = planted.Words
    values = st.frozensets(st.text(max_size=8), max_size=6)
    refused = ("text", {"a": 1}, None, frozenset([1]))


_numbers_of_any_type = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.just(-0.0)


class TestNumbers(SerdeContract):
    serde = planted.Numbers
    values = _numbers_of_any_type | st.lists(_numbers_of_any_type, max_size=5)
    refused = ("text", {"a": 1}, None, [1, "x"])


class TestSortedKeys(SerdeContract):
    serde = planted.SortedKeys
    values = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4)
    refused = ("text", {"a": 1}, None, [1, "x"])


class TestPlaces(SerdeContract):
    serde = planted.Places
    values = st.builds(planted.Place, st.text(max_size=5), st.integers(-9, 9))
    refused = ("text", {"a": 1}, None, [1, "x"])


class OpenPlaces(TestPlaces):
    __test__ = False  # its serde is a planted one
    serde = planted.ChangeablePlaces
    values = st.builds(planted.OpenPlace, st.text(max_size=5), st.integers(-9, 9))


class ListsOfWords(SerdeContract):
    serde = planted.PickledParts
    values = st.lists(st.sampled_from(["first", "second"]), max_size=4)
    refused = ("text", {"a": 1}, None, [1])
    foreign = st.sampled_from([b"", b"not a pickle"])


SAME, EQUAL, BOUND = "another_process", "equal_values", "binding"
IN_SUITES: list[tuple[Any, Any, str, str]] = [
    (TestWords, planted.OrderOfASet, SAME, "is written"),
    (TestWords, planted.HashesOfWords, SAME, "is written"),
    (TestWords, planted.CodesOfWords, SAME, "is refused: SerdeError"),
    (TestWords, planted.ProcessInBytes, SAME, "is written"),
    (TestWords, planted.FormByHash, SAME, "written_form is"),
    (TestWords, planted.FormById, SAME, "written_form is"),
    (TestWords, planted.FormOfASet, SAME, "written_form is"),
    (TestWords, planted.FormReadHereOnly, SAME, "unreadable refuses"),
    (TestWords, planted.ReadsEveryForm, "written_form", "must say why"),
    (ListsOfWords, planted.PickledParts, EQUAL, "made of other objects"),
    (TestNumbers, planted.RemembersEqualValues, EQUAL, "which is equal and differs"),
    (TestNumbers, planted.RemembersInTheFastFunction, EQUAL, "which is equal and differs"),
    (TestNumbers, planted.RemembersAfterReading, EQUAL, "was written"),
    (TestNumbers, planted.LosesTheSignOfZero, "comes_back|equal_values", "-0.0"),
    (TestNumbers, planted.IntsStayInts, "was_read", "a key that was read must have the same bytes"),
    (TestNumbers, planted.SortsItsArgument, "not_changed", "must not change its value"),
    (TestNumbers, planted.BindsItself, BOUND, "bind must not change the serde itself"),
    (TestNumbers, planted.BoundOnesShareTheirTopic, BOUND, "bind must not change"),
    (TestNumbers, planted.FormOfTheLastTopic, BOUND, "bind must not change the written form"),
    (OpenPlaces, planted.ChangeablePlaces, "checked", "name of OpenPlace.* can be changed"),
    (TestNumbers, planted.ColumnsOfSomeThousands, "thousands", "for number 40"),
    (TestNumbers, planted.ColumnsInPages, "thousands", "for number 1000"),
    (TestNumbers, planted.ColumnsByEqualRows, "thousands", "where deserialize returns"),
]


@pytest.mark.parametrize(
    ("suite", "serde", "test", "rule"), [pytest.param(*each, id=each[1].__name__) for each in IN_SUITES]
)
def test_a_planted_bug_is_found_by_its_test(suite: Any, serde: Any, test: str, rule: str) -> None:
    check_found(type("Suite", (suite,), {"serde": serde})(), test, rule)


def check_found(suite: SerdeContract, tests: str, rule: str) -> None:
    """Run tests until one fails as the rule says."""
    found: list[str] = []
    for each in failures(suite, tests):
        found.append(each)
        if re.search(rule, each, re.DOTALL):
            return
    pytest.fail(f"no test named {rule!r}; the suite says {found}")


def failures(suite: SerdeContract, tests: str) -> Iterator[str]:
    """Yield what each test says that fails and whose name has `tests`."""
    for name in [each for each in dir(SerdeContract) if each.startswith("test_") and re.search(tests, each)]:
        test = getattr(suite, name)
        marks = [each for each in getattr(test, "pytestmark", []) if each.name == "parametrize"]
        if hasattr(test, "hypothesis"):
            test = without_shrinking(suite, test)
        for value in marks[0].args[1] if marks else [None]:
            try:
                test(value) if marks else test()
            except (Exception, pytest.fail.Exception) as error:
                parts = error.exceptions if isinstance(error, ExceptionGroup) else [error]
                yield from (f"{name}: {type(each).__name__}: {each}" for each in parts)


def without_shrinking(suite: SerdeContract, test: Any) -> Callable[[], None]:
    """Return a test of the suite that ends with its first failure: which one is the smallest does not matter here."""
    few = settings(suite._each, phases=[Phase.generate], report_multiple_bugs=False)
    return partial(few(given(st.data())(test.hypothesis.inner_test)), suite)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    serde, rule = PLANTED[bug]
    tests = TESTS_OF.get(bug.partition(":")[0], "^(?!.*(another_process|thousands))")
    check_found(type("Suite", (TestRight,), {"serde": serde})(), tests, rule)
