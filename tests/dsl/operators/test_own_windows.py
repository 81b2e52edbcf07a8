"""What identifies windows of a user's own: all attributes. And late records of sliding windows that none takes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cache, partial
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from penstock.plugins.dsl import StreamsBuilder, TimeWindows, sliding
from penstock.plugins.testing import TopologyTestDriver


class Own(TimeWindows):
    size_ms = 10

    def __init__(self, value: Any, grace_ms: int = 0) -> None:
        self.value = value
        self.grace_ms = grace_ms

    def windows_for(self, timestamp: int) -> Sequence[tuple[int, int]]:
        return ((timestamp, timestamp + 10),)


@dataclass(frozen=True)
class Calendar:
    zone: ZoneInfo
    holidays: frozenset[str] = field(default_factory=frozenset)


@dataclass
class Calls:
    first: int

    def __call__(self, day: int) -> int:
        return self.day(day)

    def day(self, day: int) -> int:
        return day - self.first


class InSlots(TimeWindows):
    __slots__ = ("zone",)
    size_ms, grace_ms = 10, 0

    def __init__(self, zone: ZoneInfo) -> None:
        self.zone = zone

    def windows_for(self, timestamp: int) -> Sequence[tuple[int, int]]:
        return ((timestamp, timestamp + 10),)


BERLIN, TOKYO = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (BERLIN, TOKYO),
        (UTC, timezone(timedelta(hours=1))),
        (timedelta(hours=1), timedelta(hours=2)),
        ((1, 2), (1, 3)),
        ((1,), [1]),
        (Decimal("1.5"), Decimal("1.50")),
        (None, 0),
        ({"a": BERLIN}, {"a": TOKYO}),
        (Calendar(BERLIN), Calendar(TOKYO)),
        (Calendar(BERLIN), Calendar(BERLIN, frozenset({"2026-01-01"}))),
        (np.int64(5), np.int64(10)),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array(["2026-01-01"], "datetime64[D]"), np.array(["2026-01-02"], "datetime64[D]")),
        (deque([BERLIN]), deque([TOKYO])),
        (re.compile("a"), re.compile("b")),
        (range(3), range(4)),
        (partial(int, base=2), partial(int, base=8)),
        (Calls(1), Calls(2)),
        (Calls(1).day, Calls(2).day),
    ],
    ids=repr,
)
def test_another_attribute_is_another_form(one: Any, other: Any) -> None:
    assert Own(one).form != Own(other).form
    assert Own(one).form == Own(one, grace_ms=5).form


class Zone(tzinfo):
    """A time zone of a user's own, which shows its address only."""

    def __init__(self, hours: int) -> None:
        self.hours = hours

    def utcoffset(self, at: datetime | None) -> timedelta:
        return timedelta(hours=self.hours)

    def tzname(self, at: datetime | None) -> str:
        return "own"

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta()


def test_a_time_zone_without_a_repr_has_one_form_in_every_process() -> None:
    assert Own(Zone(1)).form == Own(Zone(1)).form != Own(Zone(2)).form


def test_windows_that_refer_to_themselves_have_a_form() -> None:
    windows, others = Own([1]), Own([2])
    for each in (windows, others):
        each.value.append(each)
    assert windows.form != others.form


def test_functions_are_told_apart_by_name() -> None:
    assert Own(cache(len)).form == Own(len).form == f"windows of {__name__}.Own(value=len)"


def test_an_object_that_shows_its_address_has_one_form() -> None:
    assert Own(deque([Zone(1)])).form == Own(deque([Zone(1)])).form


def test_attributes_in_slots_count() -> None:
    assert InSlots(BERLIN).form != InSlots(TOKYO).form


def test_the_form_of_plain_attributes_stays() -> None:
    assert Own(5).form == f"windows of {__name__}.Own(value=5)" and Own("a").form.endswith("Own(value='a')")


def test_a_set_has_one_form_in_any_order() -> None:
    names = [f"2026-01-{day:02}" for day in range(1, 29)]
    assert Own(frozenset(names)).form == Own(frozenset(reversed(names))).form
    assert Own({"b": 1, "a": 2}).form == Own({"a": 2, "b": 1}).form


@pytest.mark.parametrize("emit", ["on_update", "on_close"])
def test_a_record_that_no_sliding_window_takes_is_late(emit: Any) -> None:
    builder = StreamsBuilder()
    windows = builder.stream("in").group_by_key().windowed_by(sliding("10ms", grace="0s"), emit=emit, late="late")
    windows.aggregate(list, lambda seen, value: [*seen, value], "all", retention="1h")
    with TopologyTestDriver(builder) as driver:
        for key, time in (("a", 100), ("b", 120), ("a", 112), ("c", 115), ("b", 115), ("c", 105)):
            driver.pipe("in", key, f"{key}{time}", time)
        late = driver.read_values("late")
        taken = {value for _, entry in driver.store("all").all() for value in entry[0]}
        # Each record is in a window, or late.
        assert taken | set(late) == {"a100", "b120", "a112", "c115", "b115", "c105"}
        assert taken.isdisjoint(late) and "c115" in late
