"""Windows of the calendar: each time is in one of them, and they begin where the calendar of the zone says."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import TopologyError
from penstock.plugins.dsl import StreamsBuilder, calendar_windows
from penstock.plugins.dsl.operators.aggregate.calendar_windows import CalendarWindows
from penstock.plugins.testing import TopologyTestDriver

UNITS = ("day", "week", "month", "quarter", "year")
ZONES = st.sampled_from(sorted(available_timezones() - {"localtime"}))
DAY = 86_400_000
TIMES = st.integers(0, 4_102_444_800_000) | st.integers(0, 2**63 - 1)


def begins(day: date, unit: str) -> bool:
    """Return whether a window from Monday on begins with a day."""
    return {
        "day": True,
        "week": day.weekday() == 0,
        "month": day.day == 1,
        "quarter": day.day == 1 and day.month in (1, 4, 7, 10),
        "year": (day.month, day.day) == (1, 1),
    }[unit]


@given(unit=st.sampled_from(UNITS), zone=ZONES, times=st.lists(TIMES, min_size=1, max_size=6))
def test_each_time_is_in_one_window(unit: str, zone: str, times: list[int]) -> None:
    windows = pickle.loads(pickle.dumps(calendar_windows(unit, tz=zone, grace="0s")))
    found = windows.compile()
    for time in times:
        [(start, end)] = windows.windows_for(time)
        assert 0 <= start <= time < end
        assert end - start <= windows.size_ms
        assert windows.end_of(start) == end
        assert start + 1 == end or windows.end_of(start + 1) is None
        for other in (time, start, end - 1):
            assert list(found(other)) == [(start, end)]
        assert found(end)[0][0] == end
        assert list(found(time)) == [(start, end)]


@given(unit=st.sampled_from(UNITS), zone=ZONES, time=st.integers(0, 4_102_444_800_000))
def test_windows_begin_with_a_first_day_of_the_zone(unit: str, zone: str, time: int) -> None:
    [(start, end)] = calendar_windows(unit, tz=zone, grace="0s").windows_for(time)
    for edge in (start, end):
        if edge == 0:
            continue
        here, before = (datetime.fromtimestamp(each / 1000, ZoneInfo(zone)) for each in (edge, edge - 1))
        left_out = (here.date() - before.date()).days - 1  # as Samoa did on its way over the date line
        days = [here.date() - timedelta(days=back) for back in range(left_out + 1)]
        assert before.date() < here.date()
        assert any(begins(day, unit) for day in days)


@given(unit=st.sampled_from(UNITS), time=TIMES)
def test_the_calendar_repeats_itself_each_400_years(unit: str, time: int) -> None:
    windows, cycle = calendar_windows(unit, tz="UTC", grace="0s"), 146_097 * DAY
    [(start, end)] = windows.windows_for(time)
    if start:
        assert windows.windows_for(time + cycle) == ((start + cycle, end + cycle),)


def at(zone: str, *when: int) -> int:
    return int(datetime(*when, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("America/Sao_Paulo", date(2017, 10, 15), 23),  # its clocks went from 00:00 to 01:00
        ("America/Sao_Paulo", date(2018, 2, 17), 25),  # from 00:00 back to 23:00
        ("Australia/Lord_Howe", date(2026, 10, 4), 23.5),
        ("Asia/Kathmandu", date(2026, 1, 1), 24),
    ],
)
def test_days_on_which_clocks_change(zone: str, day: date, hours: float) -> None:
    noon = at(zone, day.year, day.month, day.day, 12)
    [(start, end)] = calendar_windows("day", tz=zone, grace="0s").windows_for(noon)
    assert (end - start) / 3_600_000 == hours


def test_a_day_that_a_zone_left_out_has_no_window() -> None:
    windows = calendar_windows("day", tz="Pacific/Apia", grace="0s")
    [(_, end)] = windows.windows_for(at("Pacific/Apia", 2011, 12, 29, 12))
    assert windows.windows_for(at("Pacific/Apia", 2011, 12, 31, 12)) == ((end, end + DAY),)


def test_clocks_that_are_put_back_over_midnight() -> None:
    """In St John's 00:01 became 23:01 of the day before: those times are of the new day, which has begun."""
    zone = "America/St_Johns"
    windows = calendar_windows("day", tz=zone, grace="0s")
    midnight = at(zone, 2010, 11, 7)
    for minute in range(0, 120):
        [(start, _)] = windows.windows_for(midnight + minute * 60_000)
        assert start == midnight


class Jumps(tzinfo):
    """A zone whose clocks jump from 23:30 of 1970-01-05 to 00:30."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        assert moment is not None
        local = moment.replace(tzinfo=None)
        is_after = local >= datetime(1970, 1, 6, 0, 30) or (local >= datetime(1970, 1, 5, 23, 30) and moment.fold)
        return timedelta(hours=bool(is_after))

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, moment: datetime | None) -> str:
        return "Test/Jumps"

    def fromutc(self, moment: datetime) -> datetime:
        return moment + timedelta(hours=moment.replace(tzinfo=None) >= datetime(1970, 1, 5, 23, 30))


def test_clocks_that_jump_from_before_midnight_leave_no_time_out() -> None:
    """No zone has done that since 1970; windows stay one after the other."""
    windows = CalendarWindows("day", Jumps(), "monday", 0)
    jump = 5 * DAY - 30 * 60_000
    [(start, end)] = windows.windows_for(jump - 1)
    assert (start, end) == (4 * DAY, 5 * DAY)
    assert windows.windows_for(jump) == ((start, end),)
    assert windows.windows_for(end) == ((end, 6 * DAY - 3_600_000),)


def test_weeks_begin_on_a_day() -> None:
    sunday = calendar_windows("week", tz=UTC, week_begins="sunday", grace="0s")
    [(start, end)] = sunday.windows_for(at("UTC", 2026, 12, 1))
    assert (start, end) == (at("UTC", 2026, 11, 29), at("UTC", 2026, 12, 6))


def test_counts_of_months_go_on_when_they_are_over() -> None:
    builder = StreamsBuilder()
    months = calendar_windows("month", tz="Europe/Berlin", grace="0s")
    counts = builder.stream("visits").group_by_key().windowed_by(months, emit="on_close").count("counts")
    counts.to_stream(lambda key, count: tuple(key), with_key=True).to("out", key_serde="msgpack")
    zone = "Europe/Berlin"
    with TopologyTestDriver(builder) as driver:
        for day in (1, 28):
            driver.pipe("visits", "anna", "x", timestamp=at(zone, 2026, 2, day))
        driver.pipe("visits", "anna", "x", timestamp=at(zone, 2026, 3, 31, 23))
        driver.pipe("visits", "anna", "x", timestamp=at(zone, 2026, 4, 1))
        store = driver.store("counts")
        found = [store.fetch("anna", at(zone, 2026, month, 1)).value for month in (3, 4)]
        assert found == [1, 1]
        assert driver.read_pairs("out") == [
            (("anna", at(zone, 2026, 2, 1), at(zone, 2026, 3, 1)), 2),
            (("anna", at(zone, 2026, 3, 1), at(zone, 2026, 4, 1)), 1),
        ]


NOWHERE = type("Nowhere", (tzinfo,), {})()
"""A time zone without a name."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "fortnight", "tz": "UTC"}, "unit is one of 'day', 'week', 'month', 'quarter', 'year', found 'fort"),
        ({"unit": "day", "tz": "Europe/Brelin"}, "no time zone 'Europe/Brelin' is known here: .* pip install tzdata"),
        ({"unit": "day", "tz": 1}, "tz: expected the name of a time zone, or a tzinfo, found 1"),
        ({"unit": "day", "tz": NOWHERE}, "tz is the name of a time zone, a ZoneInfo with a name, or a datetime.time"),
        ({"unit": "week", "tz": "UTC", "week_begins": "Sunday"}, "week_begins is one of 'monday'"),
        (
            {"unit": "day", "tz": "UTC", "grace": None},
            'say how long .* calendar_windows\\("day", tz="Europe/Berlin", gra',
        ),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        calendar_windows(**{"grace": "0s", **options})  # type: ignore[arg-type]


def test_the_form_names_the_zone_and_no_object() -> None:
    days = [calendar_windows("day", tz=tz, grace="0s").form for tz in ("UTC", UTC, timezone(timedelta(hours=2)))]
    assert days == ["calendar days in UTC", "calendar days in UTC", "calendar days in UTC+02:00"]
    assert calendar_windows("week", tz="UTC", grace="0s").form == "calendar weeks from monday in UTC"
