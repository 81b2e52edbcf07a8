"""Log lines that repeat: the first at once, then one a minute with the number since."""

from __future__ import annotations

import logging
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ManualClock
from penstock.support.repeats import EVERY_MS, Repeats


class Written(logging.Handler):
    """Keeps what one logger writes, with the time of a clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.lines: list[tuple[int, str]] = []
        self.logger = logging.Logger("repeats")
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((self._clock.now_ms(), record.getMessage()))


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.written = Written(self.clock)
        self.repeats = Repeats(self.clock.now_ms)

    def log(self, kind: str, number: int = 0) -> None:
        self.repeats.log(self.written.logger, logging.WARNING, kind, "%s %d", kind, number)

    def texts(self) -> list[str]:
        return [text for _, text in self.written.lines]


def counted(text: str) -> int:
    """How many lines the written one is for."""
    found = re.search(r"the last of (\d+) in", text)
    return 1 if found is None else int(found[1])


STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 100_000), st.booleans()), max_size=60)
"""What comes: the kind, how long after the one before (ms), and whether what is due is written in between."""


@given(STEPS)
def test_every_line_is_counted_once_and_a_kind_writes_one_a_minute(steps: list[tuple[str, int, bool]]) -> None:
    stage = Stage()
    for number, (kind, later_ms, looks) in enumerate(steps):
        stage.clock.advance(f"{later_ms}ms")
        if looks:
            stage.repeats.write_due()
        stage.log(kind, number)
    before_the_end = list(stage.written.lines)
    stage.repeats.write_rest()
    for kind in "ab":
        came = sum(each == kind for each, _, _ in steps)
        assert sum(counted(text) for _, text in stage.written.lines if text.startswith(kind)) == came
        times = [time for time, text in before_the_end if text.startswith(kind)]
        assert all(later - earlier >= EVERY_MS for earlier, later in pairwise(times))
    # The first of a kind is written when it comes, and the last one is shown at the latest at the end.
    for kind in "ab":
        numbers = [number for number, (each, _, _) in enumerate(steps) if each == kind]
        shown = [text for text in stage.texts() if text.startswith(kind)]
        if numbers:
            assert shown[0] == f"{kind} {numbers[0]}"
            assert shown[-1].startswith(f"{kind} {numbers[-1]}")


def test_the_number_is_written_though_nothing_more_comes() -> None:
    stage = Stage()
    for number in range(500):
        stage.log("bad", number)
    assert stage.texts() == ["bad 0"]
    stage.clock.advance("59s")
    stage.repeats.write_due()
    assert stage.texts() == ["bad 0"]
    stage.clock.advance("1s")
    stage.repeats.write_due()
    assert stage.texts() == ["bad 0", "bad 499 (the last of 499 in 60 s)"]
    stage.clock.advance("1m")
    stage.repeats.write_due()
    stage.log("bad", 500)
    assert stage.texts()[2:] == ["bad 500"], "after a quiet minute the next is a first one again"


def test_ten_minutes_of_bad_records_are_eleven_lines() -> None:
    stage = Stage()
    for number in range(6_000):
        stage.log("bad", number)
        stage.clock.advance("100ms")
    stage.repeats.write_rest()
    assert len(stage.texts()) == 11
    assert sum(map(counted, stage.texts())) == 6_000


@pytest.mark.parametrize("back_ms", [1, 3_600_000])
def test_a_clock_that_is_set_back_silences_nothing(back_ms: int) -> None:
    now = [5_000_000]
    clock = ManualClock()
    written = Written(clock)
    repeats = Repeats(lambda: now[0])
    for number in range(2):
        repeats.log(written.logger, logging.INFO, "again", "again %d", number)
        now[0] -= back_ms
    assert [text for _, text in written.lines] == ["again 0", "again 1"]
