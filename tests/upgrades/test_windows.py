"""Other windows, another grace, another emission over a store: refused, or continued without a loss or a double."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import IncompatibleStateError
from penstock.plugins.dsl import StreamsBuilder, calendar_windows, hopping, sessions, sliding, tumbling, unlimited
from penstock.plugins.engine.program.check import drop_stores

from ..leases import brief_lease
from .dsl_programs import ON_CLOSE, PLAIN, Chosen, Days, program
from .restarts import Restarts, Row, phases

FIVE = tumbling("5s", grace="1s")
OTHER_WINDOWS = {
    "a longer size": (FIVE, tumbling("10s", grace="1s")),
    "a shorter size": (FIVE, tumbling("1s", grace="1s")),
    "hopping": (FIVE, hopping("5s", every="1s", grace="1s")),
    "sliding": (FIVE, sliding("5s", grace="1s")),
    "another advance": (hopping("6s", every="2s", grace="1s"), hopping("6s", every="3s", grace="1s")),
    "another difference": (sliding("3s", grace="1s"), sliding("4s", grace="1s")),
    "another gap": (sessions(gap="2s", grace="1s"), sessions(gap="3s", grace="1s")),
    "another start": (unlimited(), unlimited(start=3)),
    "windows of one's own": (FIVE, Days(1_000)),
    "others of one's own": (Days(1_000), Days(1_000, 3_000)),
    "the calendar of another zone": (
        calendar_windows("day", tz="Europe/Berlin", grace="1s"),
        calendar_windows("day", tz="UTC", grace="1s"),
    ),
}
SAME_WINDOWS = {
    "hopping by their size": (FIVE, hopping("5s", every="5s", grace="1s")),
    "the grace of one's own": (Days(1_000), Days(2_000)),
}
KINDS: dict[str, Any] = {
    "tumbling": lambda grace: tumbling("5s", grace=grace),
    "hopping": lambda grace: hopping("6s", every="2s", grace=grace),
    "sliding": lambda grace: sliding("3s", grace=grace),
    "sessions": lambda grace: sessions(gap="2s", grace=grace),
}


@pytest.mark.parametrize("change", OTHER_WINDOWS)
@pytest.mark.parametrize("verb", ["tumbling", "cogroup, tumbling", "suppress, window_closes"])
def test_other_windows_over_a_store_are_refused(verb: str, change: str, tmp_path: Path) -> None:
    before, after = (Chosen(windows=each) for each in OTHER_WINDOWS[change])
    restarts = Restarts(tmp_path)
    restarts.start(program(verb, before), phases()[0])
    saved = restarts.saved()
    with pytest.raises(IncompatibleStateError, match="store 'kept' .* give it another name"):
        restarts.start(program(verb, after))
    assert restarts.saved() == saved
    restarts.start(program(verb, before), phases()[1])
    stores = ["kept", "wait-store"] if verb.startswith("suppress") else ["kept"]
    drop_stores(restarts.application(program(verb, after)), restarts.log, brief_lease(restarts.log), stores)
    restarts.start(program(verb, after))


def test_updates_that_wait_are_of_the_windows_above(tmp_path: Path) -> None:
    before, after = Chosen(), Chosen(windows=tumbling("10s", grace="1s"), store="another")
    restarts = Restarts(tmp_path)
    restarts.start(program("suppress, window_closes", before), phases()[0])
    with pytest.raises(IncompatibleStateError, match="store 'wait-store' .* give it another name"):
        restarts.start(program("suppress, window_closes", after))


@pytest.mark.parametrize("change", SAME_WINDOWS)
def test_the_same_windows_said_in_another_way_continue(change: str, tmp_path: Path) -> None:
    before, after = (Chosen(windows=each) for each in SAME_WINDOWS[change])
    restarts = Restarts(tmp_path)
    restarts.start(program("tumbling", before), phases()[0])
    restarts.start(program("tumbling", after), phases()[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("emit", "first", "then"),
    [
        pytest.param({}, "1s", "60s", id="on_update, longer"),
        pytest.param(ON_CLOSE, "1s", "60s", id="on_close, longer"),
        pytest.param({}, "60s", "1s", id="on_update, shorter"),
        pytest.param(ON_CLOSE, "60s", "1s", id="on_close, shorter"),
    ],
)
def test_a_window_that_has_closed_stays_so_with_another_grace(
    kind: str, emit: dict[str, str], first: str, then: str, tmp_path: Path
) -> None:
    before, after = (
        Chosen(windows=KINDS[kind](each), emit=emit, options={"retention": "1h"}) for each in (first, then)
    )
    restarts = Restarts(tmp_path)
    # The window of the second record closes under the first grace, or under the second one.
    sent = restarts.start(program("tumbling", before), rows(0, 1_000, 20_000))
    sent += restarts.start(program("tumbling", after), rows(1_500))
    sent += restarts.start(program("tumbling", before), rows(1_700, 21_000))
    sent += restarts.start(program("tumbling", after), rows(300_000))
    sent += restarts.start(program("tumbling", PLAIN if not emit and kind == "tumbling" else after), rows(1_800))
    values = [value for _, key, value, time in sent if time < 10_000]
    if first == "1s":
        assert b"3" not in values, "a late record was counted in a window that had closed"
    assert b"5" not in values
    if emit:
        doubles = {each: n for each, n in Counter(key for _, key, _, _ in sent).items() if n > 1}
        assert not doubles


def rows(*times: int) -> list[Row]:
    return [("left", "a", "v", time) for time in times]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", [0, 1], ids=["on_update first", "on_close first"])
def test_another_emission_loses_and_repeats_no_window(kind: str, turn: int, tmp_path: Path) -> None:
    windows = KINDS[kind]("1s")
    control, changed = Restarts(tmp_path / "control"), Restarts(tmp_path / "changed")
    updates, finals = Chosen(windows=windows), Chosen(windows=windows, emit=ON_CLOSE)
    all_rows = [*phases(), rows(400_000), rows(500_000)]
    expected: dict[bytes, bytes] = {}
    found: dict[bytes, bytes] = {}
    final: list[bytes] = []
    for number, some in enumerate(all_rows):
        is_final = number % 2 != turn
        updated = control.start(program("tumbling", updates), some)
        # The windows of the last record are open at the end.
        expected |= {key: value for _, key, value, time in updated if time < 500_000}
        sent = changed.start(program("tumbling", finals if is_final else updates), some)
        found |= {key: value for _, key, value, _ in sent}
        if is_final:
            # What is sent at its close was not sent at its close before, nor had it closed when updates were sent.
            final += [key for _, key, value, _ in sent if value != b"None"]  # else an open session that was sent before
            assert max(Counter(final).values(), default=0) <= 1
    done = {key: value for key, value in expected.items() if value != b"None"}
    assert {key: found.get(key) for key in done} == done


def two(*stores: str) -> StreamsBuilder:
    """Return a program with a windowed count of one stream for each store."""
    builder = StreamsBuilder()
    left = builder.stream("left")
    for store in stores:
        counts = left.group_by_key().windowed_by(FIVE).count(store)
        counts.to_stream().map(lambda key, n: (key.key, str(n)), with_key=True).to("out", value_serde="str")
    return builder


def test_a_store_that_was_dropped_has_no_times(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    restarts.start(two("a", "b"), [("left", "k", "v", 100_000)])
    drop_stores(restarts.application(two("a", "b")), restarts.log, brief_lease(restarts.log), ["a"])
    assert restarts.start(two("a", "b"), [("left", "k", "v", 1_000)]) == [("out", b"k", b"1", 1_000)]


def test_a_parked_store_keeps_its_times(tmp_path: Path) -> None:
    restarts = Restarts(tmp_path)
    restarts.start(two("a", "b"), [("left", "k", "v", 100_000)])
    restarts.start(two("a"))
    assert restarts.start(two("a", "b"), [("left", "k", "v", 1_000)]) == []
