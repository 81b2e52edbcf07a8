"""What pages show of a view: rates and lag on the drawing, and charts."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from penstock import Topology
from penstock.plugins.engine.program.lag import PartitionLag
from penstock.plugins.operate.console.views import chart, topology
from penstock.plugins.operate.console.watch import Interval, Rate, View

from ..core.programs import Pass


def test_a_drawing_has_rates_and_lag() -> None:
    program = Topology().add_source("source", "in").add_processor("p", Pass, "source").build()
    lag = [PartitionLag(f"0_{number}", "in", number, False, None, 9, number) for number in (3, 4)]
    page = topology(program, View("app", 0, lag=lag, interval=Interval(nodes={"source": Rate(5.0, 1234.0)})), [])
    notes = re.findall(r'class="note"[^>]*>([^<]*)', page["drawing"])
    assert sorted(notes) == ["1,234/s", "5.0/s · lag 7", "lag 7"]
    assert page["topics"] == [("in", 2, "7")]
    assert [row[:4] for row in page["nodes"]] == [("source", 0, "5.0/s", "1,234/s"), ("p", 0, "-", "-")]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.none() | st.floats(0, 1e12)), max_size=600))
def test_charts_stay_inside_their_box(points: list[tuple[int, float | None]]) -> None:
    points.sort(key=lambda point: point[0])
    drawn = str(chart("<lag>", points, "{:.0f}".format))
    places = [
        tuple(map(float, each.split(","))) for part in re.findall('points="([^"]*)"', drawn) for each in part.split()
    ]
    assert all(-0.1 <= x <= 300.1 and -0.1 <= y <= 70.1 for x, y in places)
    assert len(places) <= 2 * 240 and "<lag>" not in drawn
    assert bool(places) == any(value is not None for _, value in points)
