"""What `emit="on_close"` keeps in memory: a note for each open window, however many records went into it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from penstock.plugins.dsl import StreamsBuilder, TimeWindows, sessions, sliding, tumbling
from penstock.plugins.dsl.operators.aggregate import open_windows
from penstock.plugins.dsl.operators.aggregate.windows import SessionWindows, SlidingWindows
from penstock.plugins.testing import TopologyTestDriver

Windows = TimeWindows | SlidingWindows | SessionWindows
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
    made_here = tracemalloc.Filter(True, str(Path(open_windows.__file__).parent / "*"))
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
