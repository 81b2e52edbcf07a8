"""The contract suite for serdes tries values near those of the suite: it finds each of these planted bugs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import strategies as st

from penstock.plugins.testing.contracts.serde import SerdeContract

from . import planted_serde_neighbours as planted
from .test_planted_serdes import check_found


class TestAmounts(SerdeContract):
    serde = planted.Amounts
    values = st.decimals(-(10**12), 10**12, places=4)


class TestDigits(SerdeContract):
    serde = planted.Digits
    values = st.decimals(-(10**12), 10**12, places=4)
    for_keys = False


class TestInstants(SerdeContract):
    serde = planted.Instants
    values = st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1), timezones=st.just(UTC))


class TestDays(SerdeContract):
    serde = planted.Days
    values = st.dates(date(1980, 1, 1), date(2025, 12, 31))


class TestComposed(SerdeContract):
    serde = planted.Composed
    values = st.text("abc\u00e9\u4e2d", max_size=6)


class TestPaths(SerdeContract):
    serde = planted.Paths
    values = st.lists(st.text("abc", min_size=1, max_size=3), max_size=3).map(lambda parts: "/" + "/".join(parts))


class TestLevels(SerdeContract):
    serde = planted.Levels
    values = st.integers(0, 999)


class TestPairs(SerdeContract):
    serde = planted.Pairs
    values = st.tuples(st.text("abc", max_size=3), st.integers(-9, 99))


BEFORE, FAST, WHERE, CLOCK = "earlier_values|equal_values", "fast_function", "surroundings", "machines_clock"
PLANTED: list[tuple[Any, Any, str, str]] = [
    (TestDigits, planted.RemembersByValue, BEFORE, "after"),
    (TestDigits, planted.RemembersByHash, BEFORE, "after"),
    (TestDigits, planted.RemembersByObject, BEFORE, "after"),
    (TestDigits, planted.RemembersTheLast, BEFORE, "after"),
    (TestComposed, planted.RemembersByLetters, BEFORE, "after"),
    (TestDigits, planted.RemembersWhatItReadByItsEnd, BEFORE, "after"),
    (TestComposed, planted.FastTakesAllText, FAST, "serialize refuses"),
    (TestComposed, planted.FastTakesSurrogates, FAST, "serialize refuses"),
    (TestLevels, planted.FastTakesBooleans, FAST, "serialize refuses"),
    (TestLevels, planted.FastCutsNumbers, FAST, "serialize refuses"),
    (TestInstants, planted.FastTakesLocalTimes, FAST, "serialize refuses"),
    (TestPairs, planted.FastTakesLists, FAST, "serialize refuses"),
    (TestPairs, planted.FastTakesMore, FAST, "serialize refuses"),
    (TestInstants, planted.NaiveIsLocal, WHERE, "time zone"),
    (TestInstants, planted.DatesAreLocalMidnight, WHERE, "time zone"),
    (TestInstants, planted.TextIsLocalTime, WHERE, "time zone"),
    (TestAmounts, planted.NumbersAreRounded, WHERE, "three digits"),
    (TestPaths, planted.PathsFromHere, WHERE, "directory"),
    (TestDays, planted.YearsAroundToday, CLOCK, "clock"),
    (TestDays, planted.NoDaysOfTheFuture, CLOCK, "clock"),
]


@pytest.mark.parametrize(
    ("suite", "serde", "test", "rule"), [pytest.param(*each, id=each[1].__name__) for each in PLANTED]
)
def test_a_planted_bug_is_found(suite: Any, serde: Any, test: str, rule: str) -> None:
    check_found(type("Suite", (suite,), {"serde": serde})(), test, rule)
