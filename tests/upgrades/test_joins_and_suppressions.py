"""Another window of a join, another grace, another `until` of suppress: each record counts once, by what holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.plugins.dsl import tumbling, within

from .dsl_programs import Chosen, program
from .restarts import Restarts, Row

NARROW, WIDE = (Chosen(windows=within(size, grace="1s"), options={"retention": "1h"}) for size in ("2s", "10s"))


def values(sent: list[tuple[object, ...]]) -> list[object]:
    return [each[2] for each in sent]


def left(value: str, time: int) -> Row:
    return ("left", "a", value, time)


def right(value: str, time: int) -> Row:
    return ("right", "a", value, time)


@pytest.mark.parametrize("verb", ["join", "left_join", "outer_join"])
def test_each_record_is_joined_by_the_window_in_force(verb: str, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    assert values(restarts.start(program(verb, NARROW), [left("l0", 0), right("r5", 5_000)])) == (
        [] if verb == "join" else [b"l0+None"]
    )
    assert values(restarts.start(program(verb, WIDE), [left("l12", 12_000)])) == [b"l12+r5"]
    missed = [] if verb == "join" else [b"l30+None"]
    assert values(restarts.start(program(verb, NARROW), [left("l30", 30_000), left("l40", 40_000)])) == missed


@pytest.mark.parametrize("verb", ["left_join", "outer_join"])
@pytest.mark.parametrize(("first", "then"), [(NARROW, WIDE), (WIDE, NARROW)], ids=["wider", "narrower"])
def test_what_waits_for_a_match_leaves_once(verb: str, first: Chosen, then: Chosen, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    sent = restarts.start(program(verb, first), [left("l0", 0)])
    sent += restarts.start(program(verb, then), [("left", "b", "x", 8_000), right("r9", 9_000)])
    sent += restarts.start(program(verb, first), [left("end", 60_000), left("end", 90_000)])
    assert [each for each in values(sent) if b"l0" in bytes(str(each), "utf-8")] == (
        [b"l0+r9"] if then is WIDE else [b"l0+None"]
    )


def test_a_join_with_a_table_waits_by_the_grace_in_force(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    verb = "left_join with a table, grace"
    short, long = (Chosen(options={"grace": grace}) for grace in ("2s", "20s"))
    assert restarts.start(program(verb, short), [right("r0", 0), left("l1", 1_000)]) == []
    # The record waits on, and is then joined with the table as of its own time.
    assert restarts.start(program(verb, long), [right("r9", 9_000), left("l10", 10_000)]) == []
    assert values(restarts.start(program(verb, short), [left("l13", 13_000)])) == [b"l1+r0", b"l10+r9"]


@pytest.mark.parametrize("verb", ["suppress", "suppress, window_closes"])
def test_updates_that_wait_leave_once_by_the_time_in_force(verb: str, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    by_time, by_window = Chosen(until="2s"), Chosen(until="window_closes")
    sent = restarts.start(program(verb, by_time), [left("v", 1_000)])
    sent += restarts.start(program(verb, by_window), [left("v", 3_500), left("v", 5_500)])
    assert sent == []
    sent += restarts.start(program(verb, by_window), [left("v", 6_000)])
    assert values(sent) == [b"2"]
    sent += restarts.start(program(verb, by_time), [left("v", 60_000), left("v", 90_000)])
    assert values(sent) == [b"2", b"2", b"1"]


def test_idle_that_was_taken_out_counts_from_when_it_is_put_back(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    verb, without = "tumbling, on_close, idle", Chosen(emit={"emit": "on_close"})
    restarts.start(program(verb), [left("v", 1_000)])
    restarts.start(program(verb, without), [left("v", 70_000)])
    restarts.start(program(verb, without))
    # Half a minute of this start counts, and not the 200 s since the last record under `idle`.
    assert values(restarts.start(program(verb))) == [b"1"]
    assert values(restarts.start(program(verb), [left("v", 140_000)])) == [b"1"]


@pytest.mark.parametrize(("first", "then"), [("1s", "60s"), ("60s", "1s")], ids=["longer", "shorter"])
def test_a_suppressed_window_leaves_once_with_another_grace(first: str, then: str, tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    before, after = (Chosen(windows=tumbling("5s", grace=grace)) for grace in (first, then))
    sent = restarts.start(program("suppress, window_closes", before), [left("v", 0), left("v", 7_000)])
    sent += restarts.start(program("suppress, window_closes", after), [left("late", 1_000), left("v", 8_000)])
    sent += restarts.start(program("suppress, window_closes", before), [left("late", 2_000), left("v", 300_000)])
    assert [(each[1][:34], each[2]) for each in sent] == [
        (b"Windowed(key='a', start=0, end=500", b"1"),
        (b"Windowed(key='a', start=5000, end=", b"2"),
    ]
