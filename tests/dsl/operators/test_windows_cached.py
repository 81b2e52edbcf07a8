"""Aggregations over windows answer the same with and without a record cache, also at the end of the grace."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application
from penstock.plugins.dsl import SessionWindows, StreamsBuilder, hopping, sessions, sliding, tumbling
from penstock.plugins.testing import TopologyTestDriver

from ...rotation import examples

Sent = tuple[str, str, int]
"""(topic, key, timestamp)"""

WINDOWS = st.sampled_from(
    [
        sessions(gap="1ms", grace="1ms"),
        sessions(gap="3ms", grace="0s"),
        sessions(gap="2ms", grace="4ms"),
        sliding("1ms", grace="0s"),
        sliding("2ms", grace="0s"),
        sliding("1ms", grace="3ms"),
        tumbling("5ms", grace="2ms"),
        hopping("4ms", every="3ms", grace="3ms"),
    ]
)
SENT = st.lists(
    st.tuples(st.sampled_from(["one", "two"]), st.sampled_from(["a", "long" * 100]), st.integers(0, 12)), max_size=12
)


def latest(windows: Any, records: list[Sent], *, several: bool, cache_bytes: int) -> list[dict[Any, Any]]:
    """Return for each record the last update of each window, without those that delete what was never sent."""
    builder = StreamsBuilder()
    one, two = (builder.stream(topic).group_by_key() for topic in ("one", "two"))
    if several:
        merger: dict[str, Any] = (
            {"merger": lambda one, other: one + other} if isinstance(windows, SessionWindows) else {}
        )
        both = one.cogroup(lambda n, value: n + 1).cogroup(two, lambda n, value: n + 1)
        table = both.windowed_by(windows).aggregate(int, "n", **merger)
    else:
        table = one.windowed_by(windows).count("n")
    table.to_stream(lambda key, n: f"{key.key} {key.start} {key.end}", with_key=True).to("out", value_serde="json")
    application = Application("app", builder, statestore_cache_max_bytes=cache_bytes)
    found, sent = [], set()
    with TopologyTestDriver(application) as driver:
        for topic, key, timestamp in records:
            driver.pipe(topic, key, "x", timestamp=timestamp)
            updates = {each.key: (each.value, each.timestamp) for each in driver.read_all("out")}
            found.append({name: update for name, update in updates.items() if update[0] is not None or name in sent})
            sent |= {name for name, (value, _) in updates.items() if value is not None}
    return found


@settings(max_examples=examples(60), deadline=None)
@given(WINDOWS, SENT, st.booleans())
@example(sessions(gap="1ms", grace="1ms"), [("one", "b", 2), ("one", "a", 0)], False)
@example(sessions(gap="1ms", grace="1ms"), [("one", "b", 2), ("one", "a", 0)], True)
@example(tumbling("5ms", grace="2ms"), [("one", "b", 12), ("two", "a", 0)], True)
@example(sliding("2ms", grace="0s"), [("one", "b", 12), ("two", "a", 0)], True)
def test_a_record_cache_loses_no_update_of_a_window(windows: Any, records: list[Sent], several: bool) -> None:
    cached = latest(windows, records, several=several, cache_bytes=1_000_000)
    assert cached == latest(windows, records, several=several, cache_bytes=0)
