"""Windows of unequal length end where `windows_for` says, at every place that makes a windowed key from its start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from penstock import Windowed
from penstock.plugins.dsl import KTable, StreamsBuilder, TimeWindowedSerde, TimeWindows, tumbling
from penstock.plugins.dsl.graph.serdes import Serdes
from penstock.plugins.dsl.operators.aggregate.aggregation_step import table_serdes
from penstock.plugins.dsl.operators.aggregate.windows import TumblingWindows
from penstock.plugins.testing import TopologyTestDriver

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3_600_000
CACHES = pytest.mark.parametrize("options", [{}, {"statestore_cache_max_bytes": 0}], ids=["cached", "uncached"])


def at(month: int, day: int, hour: int = 0) -> int:
    return int(datetime(2026, month, day, hour, tzinfo=BERLIN).timestamp() * 1000)


@dataclass(frozen=True)
class Days(TimeWindows):
    """Days of a time zone."""

    zone: ZoneInfo = BERLIN
    grace_ms: int = 0

    @property
    def size_ms(self) -> int:
        return 25 * HOUR

    def windows_for(self, timestamp: int) -> Sequence[tuple[int, int]]:
        first = datetime.fromtimestamp(timestamp / 1000, self.zone).replace(hour=0, minute=0, second=0, microsecond=0)
        start, end = (int(day.timestamp() * 1000) for day in (first, first + timedelta(days=1)))
        return ((start, end),)


VISITS = (at(3, 28, 12), at(3, 29, 12), at(10, 25, 12))
DAYS = [(at(3, 28), at(3, 29)), (at(3, 29), at(3, 30)), (at(10, 25), at(10, 26))]
HOURS = [24, 23, 25]


def counted(builder: StreamsBuilder, windows: Any = Days()) -> KTable[Any, int]:
    days: KTable[Any, int] = builder.stream("visits", key_serde="str").group_by_key().windowed_by(windows).count("days")
    return days


def pipe(driver: TopologyTestDriver) -> None:
    for time in VISITS:
        driver.pipe("visits", "anna", "x", timestamp=time)


def texts(table: KTable[Any, int]) -> None:
    table.to_stream(lambda day, _: f"{day.start} {day.end}", with_key=True).to("ends", value_serde="int")


def read(driver: TopologyTestDriver) -> list[tuple[int, int]]:
    return [(int(start), int(end)) for start, end in (key.split() for key, _ in driver.read_pairs("ends"))]


def test_the_days_are_uneven() -> None:
    assert [(end - start) // HOUR for start, end in DAYS] == HOURS


@CACHES
def test_updates_and_the_store(options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    texts(counted(builder))
    with TopologyTestDriver(builder, **options) as driver:
        store: Any = driver.store("days")
        for time, day in zip(VISITS, DAYS, strict=True):
            driver.pipe("visits", "anna", "x", timestamp=time)
            scans = (store.all(), store.fetch_all(day[0], day[0]), store.fetch_range("a", "b", day[0], day[0]))
            for rows in scans:
                with rows as found:
                    assert [tuple(key[1:]) for key, _ in found][-1] == day
        assert read(driver) == DAYS


@CACHES
def test_a_windowed_key_in_a_topic_of_the_application(options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    moved = counted(builder).to_stream().repartition("moved")
    moved.select_key(lambda day, _: f"{day.start} {day.end}", with_key=True).to("ends", value_serde="int")
    with TopologyTestDriver(builder, **options) as driver:
        pipe(driver)
        assert read(driver) == DAYS


@CACHES
def test_a_suppressed_day_leaves_at_its_end_with_its_end_also_after_a_restart(options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    texts(counted(builder).suppress("window_closes", name="closed"))
    with TopologyTestDriver(builder, **options) as driver:
        driver.pipe("visits", "anna", "x", timestamp=VISITS[1])  # the day of 23 hours
        driver.reopen()
        driver.pipe("visits", "anna", "x", timestamp=DAYS[1][1] - 1)
        assert read(driver) == []
        driver.pipe("visits", "anna", "x", timestamp=DAYS[1][1])
        assert read(driver) == [DAYS[1]]


def test_two_calendars_have_no_common_serde_of_keys() -> None:
    """Of windows of one length the length is all that a serde needs to know."""

    def key_serdes(one: Any, other: Any) -> bool:
        return table_serdes(Serdes("str"), one).key == table_serdes(Serdes("str"), other).key

    assert key_serdes(Days(), Days())
    assert not key_serdes(Days(), Days(ZoneInfo("America/New_York")))
    assert key_serdes(tumbling("5m", grace="0s"), TumblingWindows(300_000, 5))


def test_a_serde_of_windows_of_unequal_length() -> None:
    serde = TimeWindowedSerde("str", end_of=Days().end_of)
    for start, end in DAYS:
        day = Windowed("anna", start, end)
        assert serde.deserialize(serde.serialize(day)) == day
        assert serde.from_json(serde.to_json(day)) == day
    assert TimeWindowedSerde("str", 10, end_of=Days().end_of).deserialize(b"a" + bytes(8)) == Windowed("a", 0, 10)


class Weekdays(TumblingWindows):
    """Days of which the seventh counts with the sixth."""

    def windows_for(self, timestamp: int) -> Sequence[tuple[int, int]]:
        week, day = divmod(timestamp // self.length_ms, 7)
        start = (7 * week + min(day, 5)) * self.length_ms
        return ((start, start + self.length_ms * (1 + (day >= 5))),)


@CACHES
def test_a_subclass_of_windows_of_one_length_may_have_others(options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    texts(counted(builder, Weekdays(10, 100)))
    with TopologyTestDriver(builder, **options) as driver:
        for time in (41, 52, 63):
            driver.pipe("visits", "anna", "x", timestamp=time)
        assert read(driver) == [(40, 50), (50, 70), (50, 70)]
