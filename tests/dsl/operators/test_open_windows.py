"""What `emit="on_close"` keeps in memory: a note for each open window, however many records went into it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application
from penstock.plugins.dsl import StreamsBuilder, TimeWindows, hopping, sessions, sliding, tumbling
from penstock.plugins.dsl.operators import closing
from penstock.plugins.dsl.operators.aggregate import windowed_operator
from penstock.plugins.dsl.operators.aggregate.windows import SessionWindows, SlidingWindows
from penstock.plugins.dsl.operators.closing import Note, OpenWindows
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

Windows = TimeWindows | SlidingWindows | SessionWindows
Step = tuple[Any, str, int, bool]
"""Key, value, timestamp (ms), and whether the task is opened again before the record."""
RECORDS, KEYS = 150, 3


def counting(windows: Windows) -> StreamsBuilder:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key_serde="str", value_serde="str").group_by_key()
    counts = clicks.windowed_by(windows, emit="on_close").count("n")
    counts.to_stream(lambda window, _: window.key, with_key=True).to("counts", value_serde="int")
    return builder


def bytes_kept(windows: Windows, step: int) -> int:
    """Return what operators keep of RECORDS records `step` ms apart, after as many before; no window closes."""
    with TopologyTestDriver(counting(windows)) as driver:

        def pipe(first: int) -> None:
            for n in range(first, first + RECORDS):
                driver.pipe("clicks", f"key {n % KEYS}", "x", timestamp=10_000_000 + n * step)

        pipe(0)
        tracemalloc.start()
        try:
            pipe(RECORDS)
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
    made_here = tracemalloc.Filter(True, str(Path(closing.__file__).parent / "*"))
    return sum(trace.size for trace in snapshot.filter_traces([made_here]).traces)


CASES: dict[str, tuple[Any, int]] = {
    "sessions that grow": (sessions("1h", grace="0s"), 10),
    "sessions of one time": (sessions("1h", grace="0s"), 0),
    "sliding windows of one time": (sliding("1h", grace="0s"), 0),
    "tumbling windows": (tumbling("1h", grace="0s"), 10),
}


@pytest.mark.parametrize(("windows", "step"), CASES.values(), ids=CASES.keys())
def test_memory_is_bounded_by_the_open_windows(windows: Windows, step: int) -> None:
    assert bytes_kept(windows, step) / RECORDS < 20


class Watched(OpenWindows):
    """Checks at each record that no more is remembered than windows are open."""

    made: ClassVar[list[Watched]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.most = 0
        self.made.append(self)

    def check(self) -> None:
        sent_to = self._values.get("closed_to", -1)
        assert self._notes.keys() <= {which for end, which, _ in self._scan(sent_to) if end > sent_to}
        self.most = max(self.most, len(self._notes))
        assert len(self._order) <= 2 * self.most + 64


class ReadsTheStore(OpenWindows):
    """Remembers nothing: at each record it reads from the store what has closed since the record before."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.next_end = self._values["next_end"] = -1

    def add(self, end: int, which: Any, key: Any = None) -> None:
        pass

    def merge(self, merged: Iterable[Any], end: int, which: Any, key: Any) -> None:
        pass

    def take(self, until: int) -> list[Note]:
        sent_to, self._values["closed_to"] = self._values.get("closed_to", -1), until
        return sorted((note for note in self._scan(sent_to) if sent_to < note[0] <= until), key=itemgetter(0, 1))


def joined(key: str, aggregate: str, value: str) -> str | None:
    """Return an aggregate, or None, which deletes it."""
    return None if value == "x" else aggregate + value


def sent(windows: Windows, steps: list[Step], how: type[OpenWindows], *, kept: str | None = None) -> list[Any]:
    """Return what is emitted for each record."""
    deletes = any(value == "x" for _, value, _, _ in steps)  # the note of a window whose row is gone may stay
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key_serde="json", value_serde="str").group_by_key()
    closing: Any = clicks.windowed_by(windows, emit="on_close")
    merger = [lambda key, one, other: one + other] if isinstance(windows, SessionWindows) else []
    options = {} if kept is None else {"retention": kept}
    table = closing.aggregate(str, joined, *merger, "n", value_serde="str", with_key=True, **options)
    table.to_stream(lambda window, _: [window.key, window.start, window.end], with_key=True).to(
        "out", key_serde="json", value_serde="str"
    )
    with (
        patch.object(windowed_operator, "OpenWindows", how),
        TopologyTestDriver(Application("app", builder)) as driver,
    ):
        found = []
        for key, value, timestamp, opens in steps:
            if opens:
                driver.reopen()
            driver.pipe("clicks", key, value, timestamp=timestamp)
            if how is Watched and not deletes:
                Watched.made[-1].check()
            found.append([(each.key, each.value, each.timestamp) for each in driver.read_all("out")])
        return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from([1, 1.0, "a"]),
        st.sampled_from("abcdefx"),
        st.integers(0, 60),
        st.integers(0, 5).map(lambda number: number == 5),
    ),
    max_size=30,
)
ANY = st.sampled_from(
    [
        (sessions("3ms", grace="0s"), None),
        (sessions("2ms", grace="15ms"), None),
        (sessions("2ms", grace="5ms"), "40ms"),
        (sessions("0s", grace="8ms"), None),
        (sliding("2ms", grace="10ms"), None),
        (sliding("5ms", grace="0s"), "40ms"),
        (hopping("6ms", every="2ms", grace="9ms"), None),
    ]
)


@settings(max_examples=examples(80), deadline=None)
@given(ANY, STEPS)
@example((sessions("2ms", grace="15ms"), None), [("a", "a", at, False) for at in (0, 6, 3, 2, 4, 30, 29, 60)])
@example((sessions("2ms", grace="5ms"), "40ms"), [("a", "a", at, False) for at in (39, 47, 40, 49)])
@example((sessions("2ms", grace="5ms"), "40ms"), [("a", "a", at, at == 40) for at in (39, 47, 40, 49)])
def test_windows_are_emitted_as_if_all_of_them_were_looked_at(
    windows: tuple[Windows, str | None], steps: list[Step]
) -> None:
    of, kept = windows
    assert sent(of, steps, Watched, kept=kept) == sent(of, steps, ReadsTheStore, kept=kept)


@settings(max_examples=examples(80), deadline=None)
@given(ANY, STEPS)
@example((sessions("2ms", grace="5ms"), None), [("a", "a", at, False) for at in (39, 47, 40, 60)])
@example((sessions("1ms", grace="1ms"), None), [("a", "a", at, False) for at in (13, 16, 14, 13, 27)])
@example((sessions("5ms", grace="1ms"), None), [("a", "a", at, False) for at in (27, 30, 33, 42, 36, 33, 56)])
def test_a_longer_retention_changes_no_result(windows: tuple[Windows, str | None], steps: list[Step]) -> None:
    """A window that has closed, and is still in the store, takes no record and is not sent again."""
    found = sent(windows[0], steps, OpenWindows)
    assert sent(windows[0], steps, OpenWindows, kept="1h") == found


def test_sessions_that_become_one_leave_one_note() -> None:
    apart = [("a", "a", 4 * n, False) for n in range(100)]
    between = [("a", "a", 4 * n + 2, False) for n in range(100)]
    steps = [*apart, *between, ("a", "b", 2_000, False)]
    assert sent(sessions("2ms", grace="1s"), steps, Watched)[-1] == [(["a", 0, 398], "a" * 200, 398)]
    assert len(Watched.made[-1]._notes) == 1
