"""Another emission of windows with verbs behind them that keep rows: each window counts once there, with its end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.plugins.dsl import StreamsBuilder, hopping, sessions, sliding, tumbling

from ..rotation import examples
from .restarts import Restarts, Row

WINDOWS: dict[str, Any] = {
    "tumbling": tumbling("5ms", grace="3ms"),
    "hopping": hopping("6ms", every="2ms", grace="1ms"),
    "sliding": sliding("3ms", grace="2ms"),
    "sessions": sessions(gap="2ms", grace="3ms"),
}
SHAPES = ("alone", "group", "itself", "join", "left_join", "outer_join")
ON_UPDATE = ("on_update", "on_update")
EMITS = st.tuples(*[st.sampled_from(["on_update", "on_close"])] * 2)
SENT = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(0, 30)), min_size=1, max_size=8
)
STARTS = st.lists(st.tuples(EMITS, SENT), min_size=2, max_size=5)


def program(windows: Any, shape: str, emits: tuple[str, str], *, cached: bool) -> StreamsBuilder:
    """Return a program that sends the rows of windows, or of a join of windows; or sums and counts of each key."""
    builder = StreamsBuilder()

    def counts(topic: str, emit: str) -> Any:
        grouped = builder.stream(topic, key_serde="str").group_by_key()
        return grouped.windowed_by(windows, emit=emit).count(f"of-{topic}", retention="1h", cached=cached)

    def joined(one: int | None, other: int | None) -> int:
        return 100 * (one or 0) + (other or 0)

    table = counts("left", emits[0])
    if shape == "itself":
        table = table.outer_join(table.map_values(lambda n: n + 1), joined)
    elif shape.endswith("join"):
        table = getattr(table, shape)(counts("right", emits[1]), joined)
    if shape == "alone":
        rows = table.to_stream(lambda window, n: f"{window.key} {window.start} {window.end}", with_key=True)
    else:
        by_key = table.group_by(
            lambda window, n: window.key, with_key=True, key_serde="str", value_serde="int", name="g"
        )
        rows = by_key.aggregate(
            lambda: [0, 0],
            lambda sums, n: [sums[0] + 1, sums[1] + n],
            lambda sums, n: [sums[0] - 1, sums[1] - n],
            "sums",
            cached=cached,
        ).to_stream()
    rows.map_values(lambda row: row and str(row)).to("out", key_serde="str", value_serde="str")
    return builder


def last_rows(windows: Any, shape: str, starts: list[tuple[tuple[str, str], list[tuple[str, str, int]]]]) -> Any:
    found: dict[Any, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        restarts = Restarts(Path(directory))
        for number, (emits, records) in enumerate(starts):
            rows: list[Row] = [(topic, key, "v", time) for topic, key, time in records]
            sent = restarts.start(program(windows, shape, emits, cached=bool(number % 2)), rows)
            found |= {key: value for _, key, value, _ in sent}
    return {key: value for key, value in found.items() if value not in (None, b"[0, 0]")}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", WINDOWS)
def test_each_window_counts_once_behind_another_emission(kind: str, shape: str) -> None:
    windows = WINDOWS[kind]

    @settings(max_examples=examples(8), deadline=None)
    @given(starts=STARTS)
    @example(starts=[(ON_UPDATE, [("left", "a", 1), ("right", "a", 1)]), (("on_close",) * 2, [("left", "a", 3)])])
    @example(starts=[(("on_close",) * 2, [("left", "a", 1)]), (("on_close", "on_update"), [("right", "a", 1)])])
    def run(starts: list[tuple[tuple[str, str], list[tuple[str, str, int]]]]) -> None:
        # At the end all windows are sent, also those that are open.
        closing = [(topic, "z", time) for topic in ("left", "right") for time in (90, 91)]
        starts = [*starts, (ON_UPDATE, closing)]
        expected = last_rows(windows, shape, [(ON_UPDATE, records) for _, records in starts])
        assert last_rows(windows, shape, starts) == expected

    run()
