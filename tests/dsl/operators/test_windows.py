"""Aggregations by windows against a naive recomputation; windows that close, idle input, late records, and mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import Application, ConfigError, TopologyError, Windowed, session_store, window_store
from penstock.plugins.dsl import (
    KStream,
    KTable,
    StreamsBuilder,
    TimeWindows,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)
from penstock.plugins.testing import TopologyTestDriver
from penstock.stores.kinds.window import BucketWindowStore

from ...rotation import examples

Update = tuple[Any, Any, int]
Write = Callable[[KStream[Any, Any]], KTable[Any, Any]]


class Uneven(TimeWindows):
    """Windows of 10 and 20 ms, in turn, with a gap of 5 ms after each pair."""

    grace_ms = 3
    size_ms = 20

    def windows_for(self, timestamp: int) -> Sequence[tuple[int, int]]:
        base, place = timestamp - timestamp % 35, timestamp % 35
        return [(base + start, base + end) for start, end in ((0, 10), (10, 30)) if start <= place < end]


class Endless(TimeWindows):
    """Windows without a grace: a mistake."""

    size_ms = 1

    def windows_for(self, timestamp: int) -> Sequence[tuple[int, int]]:
        return ((timestamp, timestamp + 1),)


SHORT = tumbling("10ms", grace="0s")
LONG = "long" * 100
KEYS = st.sampled_from(["a", LONG, None])
TIMES = st.integers(0, 24) | st.sampled_from([30, 40, 2000])
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.just(1), TIMES), max_size=15)
TIME_WINDOWS = st.sampled_from(
    [
        tumbling("10ms", grace="0s"),
        tumbling("10ms", grace="5ms"),
        hopping("12ms", every="4ms", grace="6ms"),
        hopping("10ms", every="3ms", grace="0s"),
        Uneven(),
        unlimited(start=7),
    ]
)
DRIVERS = st.fixed_dictionaries(
    {"reopen_tasks": st.booleans(), "dsl_store_format": st.sampled_from(["default", "headers"])}
)


def updates(write: Write, records: list[Any], **options: Any) -> list[Update]:
    """Return (key, value, timestamp) of what comes out of a table that is made of a stream."""
    builder = StreamsBuilder()
    table = write(builder.stream("in", value_serde="json"))
    seen = table.to_stream().map(lambda key, value: (str(key.key), [*key[1:], value]), with_key=True)
    seen.to("out", key_serde="str", value_serde="json")
    options = {"statestore_cache_max_bytes": 0, **options}
    with TopologyTestDriver(Application("app", builder), **options) as driver:
        for key, value, timestamp in records:
            driver.pipe("in", key, value, timestamp=timestamp)
        return [(Windowed(each.key, *each.value[:2]), each.value[2], each.timestamp) for each in driver.read_all("out")]


def naive(windows: TimeWindows, records: list[Any], *, on_close: bool) -> list[Update]:
    """Return what counts by windows send: all windows in a dict, looked through at each record."""
    rows: dict[Windowed, tuple[int, int]] = {}
    emitted: set[Windowed] = set()
    found: list[Update] = []
    now = -1
    for key, _, timestamp in records:
        if key is None:
            continue
        now = max(now, timestamp)
        closed = now - windows.grace_ms
        for start, end in windows.windows_for(timestamp):
            if end > closed:
                window = Windowed(key, start, end)
                count, at = rows.get(window, (0, timestamp))
                rows[window] = count + 1, max(at, timestamp)
                if not on_close:
                    found.append((window, *rows[window]))
        if on_close:
            due = sorted(
                (each for each in rows if each.end <= closed and each not in emitted), key=lambda w: (w[1], w[0])
            )
            found += ((each, *rows[each]) for each in due)
            emitted.update(due)
    return found


@settings(max_examples=examples(40), deadline=None)
@given(TIME_WINDOWS, RECORDS, st.booleans(), DRIVERS)
@example(tumbling("10ms", grace="0s"), [("a", 1, 10), ("a", 1, 9)], False, {})
def test_counts_by_windows(windows: TimeWindows, records: list[Any], on_close: bool, options: dict[str, Any]) -> None:
    emit = "on_close" if on_close else "on_update"
    made = updates(lambda each: each.group_by_key().windowed_by(windows, emit=emit).count("n"), records, **options)
    assert made == naive(windows, records, on_close=on_close)


def latest(found: list[Update]) -> dict[Windowed, Any]:
    """Return the table that updates make."""
    rows = {window: value for window, value, _ in found}
    return {window: value for window, value in rows.items() if value is not None}


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 12), RECORDS, DRIVERS)
@example(5, [("a", 1, 7), ("a", 1, 12)], {})
def test_sliding_windows_have_all_that_is_near(length: int, records: list[Any], options: dict[str, Any]) -> None:
    windows = sliding(f"{length}ms", grace="1h")
    made = updates(lambda each: each.group_by_key().windowed_by(windows).count("n"), records, **options)
    times = {key: [at for k, v, at in records if k == key and v is not None] for key in ("a", LONG)}
    expected = {}
    for key, all_of_key in times.items():
        for start in {max(0, at - length) for at in all_of_key} | {at + 1 for at in all_of_key}:
            inside = sum(start <= at <= start + length for at in all_of_key)
            if inside:
                expected[Windowed(key, start, start + length)] = inside
    assert latest(made) == expected


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 15), RECORDS, DRIVERS)
@example(5, [("a", 1, 0), ("a", 1, 10), ("a", 1, 5)], {})
def test_sessions_are_clusters(gap: int, records: list[Any], options: dict[str, Any]) -> None:
    windows = sessions(gap=f"{gap}ms", grace="1h")
    made = updates(
        lambda each: (
            each.group_by_key().windowed_by(windows).aggregate(int, lambda a, v: a + 1, lambda a, b: a + b, "n")
        ),
        records,
        **options,
    )
    expected: dict[Windowed, int] = {}
    for key in ("a", LONG):
        times = sorted(at for k, _, at in records if k == key)
        clusters: list[list[int]] = []
        for at in times:
            if clusters and at - clusters[-1][-1] <= gap:
                clusters[-1].append(at)
            else:
                clusters.append([at])
        expected |= {Windowed(key, each[0], each[-1]): len(each) for each in clusters}
    assert latest(made) == expected


@pytest.mark.parametrize("kept", ["default", "shortest", "declared"])
@pytest.mark.parametrize("emit", ["on_update", "on_close"])
@pytest.mark.parametrize("grace", [0, 2])
@pytest.mark.parametrize("windows", [sessions, sliding])
def test_a_window_is_kept_as_long_as_it_takes_records(windows: Any, grace: int, emit: str, kept: str) -> None:
    """Records of another key move the time to the last ms at which the window still takes one."""
    made = windows("5ms", grace=f"{grace}ms")
    shortest = f"{made.retention_ms}ms"
    declare = session_store if windows is sessions else partial(window_store, window_size="5ms")
    store: Any = declare("n", retention=shortest) if kept == "declared" else "n"
    options: Any = {"retention": shortest} if kept == "shortest" else {}
    last = 25 + grace
    records = [("a", 1, 20), ("b", 1, last - 1), ("b", 1, last), ("a", 1, 25), ("z", 1, 1000)]
    found = updates(lambda each: each.group_by_key().windowed_by(made, emit=emit).count(store, **options), records)
    assert latest(found)[Windowed("a", 20, 25)] == 2


@pytest.mark.parametrize("grace", [0, 2])
@pytest.mark.parametrize("windows", [sessions, sliding])
def test_a_window_leaves_a_suppression_when_it_takes_no_more_records(windows: Any, grace: int) -> None:
    made, last = windows("5ms", grace=f"{grace}ms"), 25 + grace
    records = [("a", 1, 20), ("b", 1, last), ("a", 1, 25), ("a", 1, 25), ("z", 1, 1000), ("z", 1, 2000)]
    writes: tuple[Write, ...] = (
        lambda each: each.group_by_key().windowed_by(made).count("n").suppress("window_closes"),
        lambda each: each.group_by_key().windowed_by(made, emit="on_close").count("n"),
    )
    suppressed, closed = (updates(write, records) for write in writes)
    assert (("a", 20, 25), 3, 25) in closed
    assert sorted(suppressed) == sorted(closed)


def test_a_sliding_window_behind_one_that_has_closed_has_its_records() -> None:
    windows = sliding("5ms", grace="0s")
    records = [("a", 1, 24), ("b", 1, 29), ("b", 1, 30), ("a", 1, 29), ("a", 1, 30)]
    found = updates(lambda each: each.group_by_key().windowed_by(windows).count("n"), records)
    assert latest(found)[Windowed("a", 25, 30)] == 2


def naive_sessions(gap: int, grace: int, records: list[Any]) -> list[Update]:
    """Return what counts by sessions send: all sessions in a dict, looked through at each record."""
    rows: dict[Windowed, int] = {}
    found: list[Update] = []
    now = newest = -1
    for key, _, at in records:
        if key is None:
            continue
        now = max(now, at)
        near = [
            each
            for each in sorted(rows, key=lambda each: (each.end, each.start))
            if each.key == key and each.end >= at - gap and each.start <= at + gap and each.end >= newest - gap - grace
        ]
        session = Windowed(key, min([at, *(each.start for each in near)]), max([at, *(each.end for each in near)]))
        if session.end < now - gap - grace:
            continue
        count = 1 + sum(rows[each] for each in near)
        if session != (key, at, at):
            for each in near:
                del rows[each]
                found.append((each, None, each.end))
        rows[session] = count
        newest = max(newest, session.end)
        found.append((session, count, session.end))
    return found


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 5), st.integers(0, 6), RECORDS, DRIVERS)
@example(2, 0, [("a", 1, 0), ("a", 1, 2), ("b", 1, 3), ("a", 1, 1)], {})
@example(2, 0, [("a", 1, 4), ("b", 1, 2), ("b", 1, 1)], {})
def test_counts_by_sessions(gap: int, grace: int, records: list[Any], options: dict[str, Any]) -> None:
    windows = sessions(gap=f"{gap}ms", grace=f"{grace}ms")
    made = updates(lambda each: each.group_by_key().windowed_by(windows).count("n"), records, **options)
    assert made == naive_sessions(gap, grace, records)


ANY_WINDOWS = st.sampled_from(
    [
        tumbling("10ms", grace="4ms"),
        hopping("12ms", every="4ms", grace="0s"),
        sliding("6ms", grace="5ms"),
        sessions(gap="7ms", grace="3ms"),
    ]
)


@settings(max_examples=examples(25), deadline=None)
@given(ANY_WINDOWS, RECORDS, DRIVERS)
@example(sessions(gap="7ms", grace="3ms"), [("a", 1, 40), ("b", 1, 30), ("b", 1, 23)], {})
def test_a_window_that_closes_is_emitted_once_with_all_that_is_in_it(
    windows: Any, records: list[Any], options: dict[str, Any]
) -> None:
    """A record far in the future closes all; what is emitted is what the updates had said before."""
    records = [*records, ("z", 0, 1_000_000)]

    def counts(stream: KStream[Any, Any], emit: str = "on_update") -> KTable[Any, Any]:
        table: KTable[Any, Any] = stream.group_by_key().windowed_by(windows, emit=emit).count("n")
        return table

    closed = updates(lambda each: counts(each, "on_close"), records, **options)
    updated = updates(counts, records, **options)
    suppressed = updates(lambda each: counts(each).suppress("window_closes"), records, **options)
    final = {window: value for window, value in latest(updated).items() if window.key != "z"}
    for found in (closed, suppressed):
        assert len(found) == len({window for window, _, _ in found})
        assert {window: value for window, value, _ in found if window.key != "z"} == final


def test_windows_are_looked_for_only_when_one_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    scans = []
    original = BucketWindowStore.fetch_all

    def counted(store: Any, time_from: int, time_to: int) -> Any:
        scans.append((time_from, time_to))
        return original(store, time_from, time_to)

    monkeypatch.setattr(BucketWindowStore, "fetch_all", counted)
    records = [("ab"[number % 2], 1, number) for number in range(30)]
    made = updates(
        lambda each: each.group_by_key().windowed_by(tumbling("10ms", grace="0s"), emit="on_close").count("n"), records
    )
    assert [value for _, value, _ in made] == [5, 5, 5, 5]
    # What is open is read once after the task was opened; then only the window that is due.
    assert scans == [(0, 2**63 - 1), (0, 0), (10, 10)]


def test_windows_close_while_nothing_arrives() -> None:
    for reopen in False, True:
        builder = StreamsBuilder()
        clicks = builder.stream("in").group_by_key()
        counts = clicks.windowed_by(tumbling("10s", grace="0s"), emit="on_close", idle="20s").count("n")
        counts.to_stream(lambda key, n: f"{key.key}@{key.start}", with_key=True).to("out", key_serde="str")
        with TopologyTestDriver(Application("app", builder), reopen_tasks=reopen) as driver:
            driver.pipe("in", "a", "x", timestamp=3_000)
            for _ in range(3):
                driver.advance_wall_clock("5s")
            assert driver.read_all("out") == []
            driver.advance_wall_clock("5s")
            assert [(each.key, each.value) for each in driver.read_all("out")] == [("a@0", 1)]
            driver.pipe("in", "a", "x", timestamp=4_000)  # late by now
            driver.pipe("in", "a", "x", timestamp=23_500)
            driver.advance_wall_clock("1h")
            assert [(each.key, each.value) for each in driver.read_all("out")] == [("a@20000", 1)]


@pytest.mark.parametrize(
    ("windows", "late"), [(tumbling("10ms", grace="0s"), ["2"]), (sessions(gap="5ms", grace="0s"), ["2"])]
)
def test_late_records_go_to_a_stream_of_their_own(windows: Any, late: list[str]) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    counts = grouped.windowed_by(windows, late=lambda lost: lost.map_values(str.upper).to("late")).count("n")
    counts.to_stream(lambda key, n: key.key, with_key=True).to("out", key_serde="str", value_serde="json")
    with TopologyTestDriver(Application("app", builder)) as driver:
        for value, timestamp in (("1", 0), ("x", 50), ("2", 4)):
            driver.pipe("in", "a", value, timestamp=timestamp)
        assert [each.value for each in driver.read_all("late")] == late
        assert [each.value for each in driver.read_all("out")] == [1, 1]
        assert driver.dropped_records() == 1


def _late_values(make: Write) -> list[Any]:
    """Return the values of the topic `late` for three dictionaries, of which the last is late."""
    builder = StreamsBuilder()
    make(builder.stream("in", value_serde="json"))
    with TopologyTestDriver(Application("app", builder)) as driver:
        for timestamp in (0, 50, 4):
            driver.pipe("in", "a", {"at": timestamp}, timestamp=timestamp)
        return [each.value for each in driver.read_all("late")]


def _copied(stream: KStream[Any, Any]) -> KStream[Any, Any]:
    return stream.map_values(lambda value: dict(value))


@pytest.mark.parametrize(
    "make",
    [
        lambda stream: stream.group_by_key().windowed_by(SHORT, late="late").count("n"),
        lambda stream: _copied(stream).group_by_key(value_serde="json").windowed_by(SHORT, late="late").count("n"),
        lambda stream: (
            _copied(stream).group_by(lambda v: "b", value_serde="json").windowed_by(SHORT, late="late").count("n")
        ),
        lambda stream: (
            _copied(stream)
            .group_by_key()
            .windowed_by(SHORT, late="late")
            .reduce(lambda one, other: other, "n", value_serde="json")
        ),
    ],
)
def test_a_topic_of_late_records_has_the_serde_of_the_stream(make: Write) -> None:
    assert _late_values(make) == [{"at": 4}]


@pytest.mark.parametrize("group", [lambda s: s.group_by_key(), lambda s: s.group_by(lambda value: "b")])
def test_a_topic_of_late_records_whose_serde_is_not_known_is_refused(group: Callable[..., Any]) -> None:
    message = r"late=.late.*serde of the values is not known.*group_by.*value_serde=.*aggregation of store .n."
    with pytest.raises(TopologyError, match=message):
        _late_values(lambda stream: group(_copied(stream)).windowed_by(SHORT, late="late").count("n"))


def test_a_cached_store_sends_the_last_update_of_each_commit() -> None:
    windows = hopping("10ms", every="5ms", grace="0s")
    records = [("a", 1, 7), ("a", 1, 8)]
    cached = updates(
        lambda each: each.flat_map_values(lambda v: [v, v]).group_by_key().windowed_by(windows).count("n"),
        records,
        statestore_cache_max_bytes=1_000_000,
    )
    assert [value for _, value, _ in cached] == [2, 2, 4, 4]


def test_a_cogroup_has_an_aggregator_for_each_stream() -> None:
    builder = StreamsBuilder()
    orders, returns = (builder.stream(topic, value_serde="json").group_by_key() for topic in ("orders", "returns"))
    stock = orders.cogroup(lambda total, n: total - n).cogroup(returns, lambda total, n: total + n)
    stock.aggregate(int, "stock").to_stream().to("out", value_serde="json")
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.pipe("orders", "a", 5)
        driver.pipe("returns", "a", 2)
        assert [each.value for each in driver.read_all("out")] == [-5, -3]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: tumbling("5m"), r'tumbling: say how long .* tumbling\("5m", grace="1m"\), or grace="0s"'),
        (lambda: hopping("5m", every="1m"), r'hopping\("10m", every="1m", grace="1m"\)'),
        (lambda: sliding("0s", grace="0s"), "sliding: difference"),
        (lambda: sliding("5m"), r'sliding\("5m", grace="1m"\)'),
        (lambda: sessions(gap="5m"), r'sessions\(gap="30m", grace="1m"\)'),
        (lambda: tumbling("0s", grace="0s"), r"tumbling: size is at least 1 ms"),
        (lambda: tumbling(300, grace="0s"), r"tumbling: size: expected a timedelta or text"),  # type: ignore[arg-type]
        (lambda: hopping("1m", every="2m", grace="0s"), r"hopping: every='2m' is longer than the windows"),
    ],
)
def test_mistakes_with_windows(write: Callable[[], Any], message: str) -> None:
    with pytest.raises((TopologyError, ConfigError), match=message):
        write()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda each: each.windowed_by(Endless()), r"Endless does not say how long .* write grace_ms = 0"),
        (lambda each: each.windowed_by("5m"), r'windowed_by: expected windows, found .5m.; write tumbling\("5m"'),
        (lambda each: each.windowed_by(tumbling("5m", grace="0s"), emit="close"), r'emit is "on_update" or "on_close"'),
        (lambda each: each.windowed_by(tumbling("5m", grace="0s"), idle="5s"), r'needs emit="on_close"'),
        (lambda each: each.windowed_by(sessions(gap="5m", grace="0s")).aggregate(int, max, 3), r"expected a merger"),
        (
            lambda each: each.windowed_by(tumbling("5m", grace="1m")).count("n", retention="5m"),
            r"count: store 'n' keeps windows for 300000 ms, and with their grace they take 360000 ms",
        ),
        (
            lambda each: each.windowed_by(tumbling("5m", grace="1m")).count(
                window_store("n", retention="6m", window_size="1m")
            ),
            r"count: store 'n' needs window_size=300000ms",
        ),
        (lambda each: each.count().suppress("window_closes"), r'for tables of windows, .* suppress\(until="10s"\)'),
        (lambda each: each.count().suppress("5s", when_full="stop"), r"needs max_records= or max_bytes="),
        (lambda each: each.count().suppress("5s", max_records=1, when_full="drop"), r'"emit_early" or "stop"'),
        (
            lambda each: (
                each.windowed_by(tumbling("5m", grace="0s"))
                .count()
                .suppress("window_closes", max_bytes=1, when_full="emit_early")
            ),
            r"may not leave before it closes",
        ),
        (lambda each: each.cogroup(lambda a, v: a).cogroup("x", max), r"cogroup: expected a grouped stream"),
    ],
)
def test_mistakes_with_verbs(write: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        write(StreamsBuilder().stream("in").group_by_key())


@pytest.mark.parametrize("emit", ["on_update", "on_close"])
def test_a_retention_of_the_windows_and_their_grace_is_enough(emit: str) -> None:
    for windows in (tumbling("30m", grace="5m"), sessions(gap="30m", grace="5m")):
        builder = StreamsBuilder()
        grouped = builder.stream("in").group_by_key()
        grouped.windowed_by(windows, emit=emit).count("n", retention="35m")
        assert "n" in builder.build().build().stores
