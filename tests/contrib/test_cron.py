"""Schedules by cron expressions: due when the expression says, in its zone, once, also over a re-opening."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import STREAM_TIME, WALL_CLOCK_TIME, Processor, Record, Topology
from penstock.contrib.cron import cron
from penstock.errors import ConfigError, PenstockError
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver
from penstock.task.schedules import Schedules

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3_600_000


def at(*when: int, zone: ZoneInfo = BERLIN, fold: int = 0) -> int:
    return int(datetime(*when, tzinfo=zone, fold=fold).timestamp() * 1000)  # type: ignore[arg-type,misc]


CHANGES = st.sampled_from([at(2026, 3, 29, 0), at(2026, 10, 25, 0), at(2026, 6, 1, 0)])
EXPRESSIONS = st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 0,2,3 * * *", "0 2 * * sun", "15 2 29 * *"])


@example("30 2 * * *", at(2026, 10, 25, 0), 190, 0)  # 02:10, for the second time
@given(expression=EXPRESSIONS, day=CHANGES, minutes=st.integers(0, 6 * 60), later=st.integers(0, 6 * HOUR))
def test_from_everywhere_before_it_the_next_time_is_the_same(
    expression: str, day: int, minutes: int, later: int
) -> None:
    times, now = cron(expression, BERLIN), day + minutes * 60_000
    due = times.next_after(now)
    assert due is not None and due > now
    if now + later < due:
        assert times.next_after(now + later) == due
    assert (times.next_after(due) or 0) > due


def times(expression: str, first: int, last: int) -> list[int]:
    made, found = cron(expression, "Europe/Berlin"), [first]
    while (due := made.next_after(found[-1])) is not None and due < last:
        found.append(due)
    return found[1:]


def test_a_time_that_comes_twice_is_due_once_and_one_that_is_left_out_late() -> None:
    assert times("30 2 * * *", at(2026, 10, 24, 12), at(2026, 10, 27)) == [
        at(2026, 10, 25, 2, 30),
        at(2026, 10, 26, 2, 30),
    ]
    assert times("30 2 * * *", at(2026, 3, 28, 12), at(2026, 3, 31)) == [at(2026, 3, 29, 3), at(2026, 3, 30, 2, 30)]
    assert len(times("*/30 * * * *", at(2026, 10, 25, 0) - 1, at(2026, 10, 26, 0))) == 50


def test_behind_the_calendar_nothing_is_due() -> None:
    assert cron("0 9 * * *").next_after(2**60) is None
    assert cron("0 9 * * *").next_after(253_402_300_799_000) is None


class Daily(Processor):
    """Forwards the time at which it is called."""

    expression = "0 9 * * mon-fri"
    clock = WALL_CLOCK_TIME

    def init(self, context: Any) -> None:
        super().init(context)
        self.handle = context.schedule(cron(self.expression, tz=BERLIN), self.report, self.clock)

    def process(self, record: Record) -> None:
        if record.value == "cancel":
            self.handle.cancel()

    def report(self, now: int) -> None:
        self.context.forward(Record(None, str(now), max(now, 0)))


def topology(kind: type[Processor] = Daily) -> Topology:
    return Topology().add_source("in", "in").add_processor("daily", kind, "in").add_sink("out", "out", "daily")


@pytest.mark.parametrize("reopen", [False, True])
def test_it_is_called_at_nine_on_weekdays_and_once_when_it_was_away(reopen: bool) -> None:
    friday = at(2026, 10, 23, 8)
    with TopologyTestDriver(topology(), reopen_tasks=reopen, initial_wall_clock_ms=friday) as driver:
        driver.pipe("in", "k", "v")
        driver.advance_wall_clock("59m")
        assert driver.read_values("out") == []
        driver.advance_wall_clock("1m")
        assert driver.read_values("out") == [str(at(2026, 10, 23, 9))]
        driver.advance_wall_clock("2d")
        assert driver.read_values("out") == []
        driver.advance_wall_clock("4d")
        assert len(driver.read_values("out")) == 1
        driver.pipe("in", "k", "cancel")
        driver.advance_wall_clock("9d")
        assert driver.read_values("out") == []


def opened(expression: str, now: int, saved: dict[str, Any]) -> Schedules:
    """Return the schedules of a task that is opened at a time with what was saved."""
    schedules, processor = Schedules(saved, lambda: None), Daily()
    schedules.begin("daily", processor)
    schedules.add(
        "daily", cron(expression, BERLIN), processor.report, WALL_CLOCK_TIME, None, None, now=now, room=lambda: 4_000
    )
    schedules.end("daily")
    return schedules


@pytest.mark.parametrize(
    ("expression", "hour", "due"),
    [
        ("0 9 * * *", 2, 9),
        ("0 7 * * *", 2, 7),
        ("30 9 * * *", 2, 9.5),
        ("0 13 * * *", 12, 9),  # it was due while nothing ran
    ],
)
def test_another_expression_counts_from_its_next_time_on(expression: str, hour: int, due: float) -> None:
    midnight = at(2026, 10, 22)
    before = opened("0 9 * * *", midnight + HOUR, {})
    after = opened(expression, midnight + hour * HOUR, {"timers": before.to_data()})
    assert after.next_due(WALL_CLOCK_TIME) == midnight + due * HOUR


def test_stream_time_may_drive_it() -> None:
    class ByRecords(Daily):
        clock = STREAM_TIME

    with TopologyTestDriver(topology(ByRecords)) as driver:
        driver.pipe("in", "k", "v", timestamp=at(2026, 10, 22, 12))
        driver.read_values("out")
        driver.pipe("in", "k", "v", timestamp=at(2026, 10, 23, 8))
        assert driver.read_values("out") == []
        driver.pipe("in", "k", "v", timestamp=at(2026, 10, 23, 9))
        assert driver.read_values("out") == [str(at(2026, 10, 23, 9))]


def test_a_mock_context_shows_when_it_is_due() -> None:
    context = MockProcessorContext()
    context.wall_clock = at(2026, 10, 23, 8)
    context.start(Daily())
    (captured,) = context.punctuators
    assert (captured.interval_ms, captured.due_ms) == (0, at(2026, 10, 23, 9))


@pytest.mark.parametrize(
    ("expression", "tz", "message"),
    [
        ("0 9 * *", "UTC", "expected five fields, minute hour day month weekday, found '0 9 \\* \\*'"),
        ("0 0 9 * * *", "UTC", "expected five fields"),
        (9, "UTC", "expected five fields, .* found 9"),
        ("61 * * * *", "UTC", "'61 .*': Bad minute"),
        ("0 9 30 2 *", "UTC", "'0 9 30 2 .*': Bad day-of-month"),
        ("0 9 * * *", "Europe/Brelin", "no time zone 'Europe/Brelin' is known here"),
        ("0 9 * * *", 5, "tz: expected the name of a time zone, or a tzinfo, found 5"),
    ],
)
def test_an_expression_that_is_none_is_refused(expression: Any, tz: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cron(expression, tz)


class OwnTimes:
    """What `answer` returns."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.next_after = answer

    def __repr__(self) -> str:
        return "own times"


def scheduled(times: Any, **options: Any) -> Topology:
    class Own(Daily):
        def init(self, context: Any) -> None:
            Processor.init(self, context)
            context.schedule(times, self.report, WALL_CLOCK_TIME, **options)

    return topology(Own)


@pytest.mark.parametrize(
    ("times", "options", "message"),
    [
        (
            OwnTimes(lambda time: time),
            {},
            r"own times.next_after\(0\) returned 0, expected a later time in ms",
        ),
        (OwnTimes(lambda time: "soon"), {}, r"returned 'soon', expected"),
        (
            OwnTimes(lambda time: time + 1),
            {"start": 5},
            "own times says when it is due, so .* no start",
        ),
    ],
)
def test_times_that_cannot_be_are_refused(times: Any, options: dict[str, Any], message: str) -> None:
    with (
        pytest.raises(ConfigError, match=f"node 'daily': .*{message}"),
        TopologyTestDriver(scheduled(times, **options), initial_wall_clock_ms=0),
    ):
        pass


def test_times_of_ones_own_may_end() -> None:
    ends = OwnTimes(lambda time: next((each for each in (10, 20) if each > time), None))
    with TopologyTestDriver(scheduled(ends), reopen_tasks=True) as driver:
        for _ in range(3):
            driver.pipe("in", "k", "v")
            driver.advance_wall_clock("10ms")
        assert driver.read_values("out") == ["10", "20"]


def test_they_are_scheduled_in_init() -> None:
    class Late(Processor):
        def process(self, record: Record) -> None:
            self.context.schedule(cron("0 9 * * *"), self.report, WALL_CLOCK_TIME)

        def report(self, now: int) -> None:
            pass

    with TopologyTestDriver(topology(Late)) as driver, pytest.raises(PenstockError, match="schedule them in init"):
        driver.pipe("in", "k", "v")
