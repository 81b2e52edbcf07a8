"""The contract suite for serdes varies surroundings and ends of ranges: it finds each of these planted bugs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock.plugins.testing.contracts.serde import SerdeContract

from . import planted_serde_surroundings as planted
from .test_planted_serdes import check_found


class TestCounts(SerdeContract):
    serde = planted.Counts
    values = st.integers(-(10**12), 10**12)
    refused = ("1", 1.0, None)


class TestLetters(SerdeContract):
    serde = planted.Letters
    values = st.text("abcdefgh", max_size=9)
    refused = (b"x", 1, None)


class TestMoments(SerdeContract):
    serde = planted.Moments
    values = st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)).map(lambda time: time.replace(tzinfo=UTC, fold=0))
    refused = ("1", 1, None, datetime(2020, 1, 1))


class TestPrices(SerdeContract):
    serde = planted.Prices
    values = st.integers(-9_999, 99_999).map(
        lambda units: Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -2))
    )
    refused = ("1", 1, None, Decimal("0.001"), Decimal("NaN"))


_parts = st.recursive(
    st.text("abc", max_size=3) | st.integers(0, 99),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=6,
)


class TestTrees(SerdeContract):
    serde = planted.Trees
    values = _parts
    refused = (b"x", 1.0, None, {1: 2})


class TestLines(SerdeContract):
    serde = planted.Lines
    values = st.builds(planted.Line, st.text("abc", max_size=3), st.lists(st.text("abc", max_size=3), max_size=3))
    refused = ("1", 1, None)


class TestSubjects(SerdeContract):
    serde = planted.Subjects
    values = st.text("abc", max_size=5)
    refused = (b"x", 1, None, "|")


ENDS, BEHIND, COLUMN = "ends_of_ranges", "behind_the_end", "column_of_one"
SURROUNDINGS, FREES, SHARED = "surroundings", "frees_what", "not_shared"
SETTING, FORM, BINDING = "another_setting", "only_its_own", "binding"
PLANTED: list[tuple[Any, Any, str, str]] = [
    (TestCounts, planted.CutsLargeInts, ENDS, "is not refused, and came back as"),
    (TestCounts, planted.LengthInOneByte, ENDS, "is not refused, and came back as"),
    (TestLetters, planted.LatinLetters, ENDS, "is not refused, and came back as"),
    (TestLetters, planted.CutsLongText, ENDS, "is not refused, and came back as"),
    (TestLetters, planted.StripsZeros, ENDS, "is not refused, and came back as"),
    (TestTrees, planted.CutsDeepTrees, ENDS, "is not refused, and came back as"),
    (TestMoments, planted.YearsOfFourDigits, ENDS, "is not refused, and came back as"),
    (TestCounts, planted.TextFormOfFloats, ENDS, "its text form"),
    (TestCounts, planted.ImmutableButRefused, "immutable", "too large"),
    (TestLetters, planted.FastForShortText, ENDS, "serializer.. wrote"),
    (TestLetters, planted.ReadsWhatIsBehind, BEHIND, "as if nothing were there"),
    (TestLetters, planted.ColumnsOf32768, COLUMN, "number 32768"),
    (TestMoments, planted.LocalTimes, SURROUNDINGS, "time zone"),
    (TestMoments, planted.TextFormInLocalTime, SURROUNDINGS, "time zone"),
    (TestPrices, planted.RoundsAsTheContextSays, SURROUNDINGS, "decimals have three digits"),
    (TestTrees, planted.UnsortedTrees, "equal_values", "made of other objects"),
    (TestCounts, planted.BuffersOfItsThread, SURROUNDINGS, "another thread calls"),
    (TestCounts, planted.ReadsItsSchemaFromHere, SURROUNDINGS, "the directory is another one"),
    (TestLetters, planted.RemembersForEver, FREES, "more objects"),
    (TestCounts, planted.OpensAtEachCall, FREES, "must free all descriptors"),
    (TestLines, planted.SharesItsLines, SHARED, "was changed"),
    (TestPrices, planted.FormWithoutItsSetting, SETTING, "accepts what is saved"),
    (TestCounts, planted.ReadsFormsOfOtherSettings, SETTING, "accepts what is saved"),
    (TestTrees, planted.ReadsFormsThatBeginAlike, FORM, "unreadable must say why"),
    (TestSubjects, planted.OneSubjectOfATopic, BINDING, "a new serde bound to that topic alone"),
    (TestSubjects, planted.LosesItsTopicOnTheWay, BINDING, "what was bound and then pickled"),
    (TestCounts, planted.ConfiguresItself, BINDING, "configure must not change the serde"),
]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while planted.OPENED:
        os.close(planted.OPENED.pop())


@pytest.mark.parametrize(
    ("suite", "serde", "test", "rule"), [pytest.param(*each, id=each[1].__name__) for each in PLANTED]
)
def test_a_planted_bug_is_found(suite: Any, serde: Any, test: str, rule: str) -> None:
    check_found(type("Suite", (suite,), {"serde": serde})(), test, rule)
