"""A table of `emit="on_close"` that other verbs read by key: it has the windows that were sent, and no others."""

from __future__ import annotations

from operator import add
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application, Windowed
from penstock.plugins.dsl import StreamsBuilder, hopping, sessions, sliding, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

WINDOWS: dict[str, Any] = {
    "tumbling": tumbling("10ms", grace="5ms"),
    "hopping": hopping("10ms", "5ms", grace="5ms"),
    "sliding": sliding("10ms", grace="5ms"),
    "sessions": sessions("6ms", grace="5ms"),
}
KINDS = ("inner", "left", "left of the other", "outer")
STEP = st.tuples(
    st.sampled_from(["clicks", "views"]),
    st.sampled_from("ab"),
    st.integers(1, 9),
    st.sampled_from([0, 1, 2, 7]),
    st.sampled_from([0, 0, 3, 8]),
    st.booleans(),
)
"""Topic, key, value, by how much time moves on, by how much the record is late (ms), and whether the task is opened
again before it."""


def pair(of_clicks: int | None, of_views: int | None) -> int:
    return 1000 * (of_clicks or 0) + (of_views or 0)


def text(window: Windowed, value: Any) -> str:
    return f"{window.key}@{window.start}-{window.end}"


def joined(windows: Any, kind: str, emit: str, **kept: Any) -> StreamsBuilder:
    """Return a program that joins windows that are sent when they close with those of `emit`, and sums the pairs of
    each key. The rows of both tables go to topics, too. `kept` are options of the first table's store."""
    builder = StreamsBuilder()

    def table(topic: str, emit: str, **options: Any) -> Any:
        stream = builder.stream(topic, key_serde="str", value_serde="int")
        made = stream.group_by_key().windowed_by(windows, emit=emit).reduce(add, f"of-{topic}", **options)
        made.to_stream(text, with_key=True).to(f"sent-{topic}", key_serde="str", value_serde="int")
        return made

    clicks, views = table("clicks", "on_close", **kept), table("views", emit, retention="1h")
    both = {
        "inner": lambda: clicks.join(views, pair),
        "left": lambda: clicks.left_join(views, pair),
        "left of the other": lambda: views.left_join(clicks, lambda views, clicks: pair(clicks, views)),
        "outer": lambda: clicks.outer_join(views, pair),
    }[kind]()
    grouped = both.group_by(lambda window, _: window.key, with_key=True, key_serde="str", value_serde="int", name="g")
    grouped.reduce(add, lambda total, value: total - value, "sums").to_stream().to("sums", value_serde="int")
    return builder


def last(driver: TopologyTestDriver, topic: str) -> dict[str, int]:
    """Return the last value of each key of a topic, without those that were deleted."""
    found: dict[str, Any] = {record.key: record.value for record in driver.read_all(topic)}
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("emit", ["on_update", "on_close"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_a_join_reads_the_windows_that_were_sent(windows: Any, kind: str, emit: str, cached: bool) -> None:
    @settings(max_examples=examples(8))
    @given(steps=st.lists(STEP, max_size=40))
    def run(steps: list[tuple[str, str, int, int, int, bool]]) -> None:
        now = 100
        program = joined(windows, kind, emit, retention="1h", cached=cached)
        with TopologyTestDriver(program, statestore_cache_max_bytes=10_000 if cached else 0) as driver:
            for topic, key, value, passed, late, opened in steps:
                now += passed
                if opened:
                    driver.reopen()
                driver.pipe(topic, key, value, timestamp=now - late)
            clicks, views = last(driver, "sent-clicks"), last(driver, "sent-views")
            keys = {
                "inner": clicks.keys() & views.keys(),
                "left": clicks.keys(),
                "left of the other": views.keys(),
                "outer": clicks.keys() | views.keys(),
            }[kind]
            sums: dict[str, int] = {}
            for window in keys:
                key = window[0]
                sums[key] = sums.get(key, 0) + pair(clicks.get(window), views.get(window))
            found = last(driver, "sums")
            assert {key: total for key, total in found.items() if total} == sums

    run()


def test_windows_that_were_sent_stay_for_joins() -> None:
    with TopologyTestDriver(joined(WINDOWS["tumbling"], "inner", "on_update")) as driver:
        driver.pipe("clicks", "a", 1, timestamp=0)
        driver.pipe("clicks", "b", 1, timestamp=15)  # closes the window of a
        driver.pipe("clicks", "b", 1, timestamp=24)
        driver.pipe("views", "a", 2, timestamp=1)
        assert last(driver, "sums") == {"a": 1002}


def last_of_each(windows: Any, kind: str, sent: list[tuple[str, str, int, int]], caching: str, **options: Any) -> Any:
    """Return the rows of a join of windows and those that leave a suppression behind it. `caching`: of which tables."""
    builder = StreamsBuilder()
    clicks, views = (
        builder.stream(topic, key_serde="str", value_serde="int")
        .group_by_key()
        .windowed_by(windows)
        .reduce(add, f"of-{topic}", cached=topic in caching)
        for topic in ("clicks", "views")
    )
    both = getattr(clicks, kind)(views, pair, "both" if "both" in caching else None)
    both.to_stream(text, with_key=True).to("updates", key_serde="str", value_serde="int")
    closed = both.suppress("window_closes", idle="1h", name="closed")
    closed.to_stream(text, with_key=True).to("closed", key_serde="str", value_serde="int")
    with TopologyTestDriver(Application("app", builder), **options) as driver:
        driver.pipe_many(
            {each: [tuple(rest) for topic, *rest in sent if topic == each] for each in ("clicks", "views")}
        )
        driver.advance_wall_clock("1d")
        return last(driver, "updates"), last(driver, "closed")


@pytest.mark.parametrize("caching", ["clicks views", "views", "clicks both"])
@pytest.mark.parametrize("kind", ["join", "left_join", "outer_join"])
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_updates_that_wait_in_record_caches_find_windows_that_expire_meanwhile(
    windows: Any, kind: str, caching: str
) -> None:
    """A batch had records of a window, and of one that closes it: the last updates of the first found no other row."""

    @settings(max_examples=examples(8))
    @given(steps=st.lists(STEP, max_size=25), commit_every=st.integers(2, 30))
    @example(steps=[("clicks", "a", 1, 1, 0, False), ("views", "a", 2, 1, 0, False)] * 12, commit_every=30)
    def run(steps: list[tuple[str, str, int, int, int, bool]], commit_every: int) -> None:
        now, sent = 100, []
        for topic, key, value, passed, late, _ in steps:
            now += passed
            sent.append((topic, key, value, now - late))
        cached = last_of_each(windows, kind, sent, caching, commit_every=commit_every)
        assert cached == last_of_each(windows, kind, sent, caching, statestore_cache_max_bytes=0)

    run()
