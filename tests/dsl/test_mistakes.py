"""Mistakes in DSL programs that are found: options, stores with one name, wrong results, orders of arguments."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    Application,
    PenstockError,
    Retry,
    Settings,
    TopologyError,
    ValueTransformer,
    key_value_store,
    versioned_store,
    window_store,
)
from penstock.errors import ProcessingError
from penstock.plugins.dsl import KStream, StreamsBuilder, hopping, sessions, sliding, sum_of, tumbling, within
from penstock.plugins.dsl.operators.aggregate.windows import TimeWindows, TumblingWindows
from penstock.plugins.testing import TopologyTestDriver

WINDOWS = tumbling("10ms", grace="0s")
SESSIONS = sessions(gap="10ms", grace="0s")


def grouped(builder: StreamsBuilder) -> Any:
    return builder.stream("in").group_by_key()


def rows(builder: StreamsBuilder) -> Any:
    return builder.table("in", "rows")


def add(aggregate: Any, value: Any) -> Any:
    return aggregate + value


def last(value: Any) -> Any:
    return value


OPTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "count": (lambda b: grouped(b).count("c", cache=False), "count.*'cache'.*did you mean 'cached'"),
    "reduce": (lambda b: grouped(b).reduce(add, "c", logd=False), "reduce.*'logd'.*did you mean 'logged'"),
    "aggregate": (lambda b: grouped(b).aggregate(int, add, "c", backed="lmdb"), "aggregate.*did you mean 'backend'"),
    "no store": (lambda b: grouped(b).count(cache=False), "count.*did you mean 'cached'"),
    "windowed": (lambda b: grouped(b).windowed_by(WINDOWS).count("c", retension="1h"), "did you mean 'retention'"),
    "sessions": (lambda b: grouped(b).windowed_by(SESSIONS).count("c", retension="1h"), "did you mean 'retention'"),
    "cogroup": (lambda b: grouped(b).cogroup(add).aggregate(int, "c", cache=1), "aggregate.*did you mean 'cached'"),
    "windows of a cogroup": (
        lambda b: grouped(b).cogroup(add).windowed_by(WINDOWS).aggregate(int, "c", retentio="1h"),
        "aggregate.*did you mean 'retention'",
    ),
    "table": (lambda b: b.table("in", "t", tll="1h"), "table.*did you mean 'ttl'"),
    "to_table": (lambda b: b.stream("in").to_table("t", value_sered="json"), "to_table.*did you mean 'value_serde'"),
    "filter": (lambda b: rows(b).filter(bool, "t", cache=False), "filter.*did you mean 'cached'"),
    "filter, no store": (lambda b: rows(b).filter(bool, cache=False), "filter.*did you mean 'cached'"),
    "map_values": (lambda b: rows(b).map_values(last, "t", cache=False), "map_values.*did you mean 'cached'"),
    "join": (lambda b: rows(b).join(b.table("o"), add, "t", cache=False), "join.*did you mean 'cached'"),
    "by foreign key": (
        lambda b: rows(b).join(b.table("o"), add, "t", foreign_key=last, cache=False),
        "join.*did you mean 'cached'",
    ),
    "groups of a table": (lambda b: rows(b).group_by(last).count("c", cache=False), "count.*did you mean 'cached'"),
    "declared": (lambda b: grouped(b).count(key_value_store("c"), cache=False), "count.*did you mean 'cached'"),
    "retention of a count": (lambda b: grouped(b).count("c", retention="1h"), "'retention'.*for windows.*ttl="),
    "ttl of windows": (lambda b: grouped(b).windowed_by(WINDOWS).count("c", ttl="1h"), "'ttl'.*retention="),
    "join of streams": (
        lambda b: b.stream("in").join(b.stream("o"), add, within("1s", grace="0s"), emit_intervall="1s"),
        "join.*did you mean 'emit_interval'",
    ),
}


@pytest.mark.parametrize("mistake", OPTIONS)
def test_a_misspelt_option_of_a_store_is_refused_with_the_nearest_one(mistake: str) -> None:
    write, message = OPTIONS[mistake]
    with pytest.raises(TopologyError, match=message):
        write(StreamsBuilder())


TWICE: dict[str, Callable[[StreamsBuilder], Any]] = {
    "aggregations": lambda b: (grouped(b).count("same", cached=False), grouped(b).count("same", cached=False)),
    "cached": lambda b: (grouped(b).count("same"), grouped(b).reduce(add, "same")),
    "tables": lambda b: (b.table("one", "same", cached=False), b.table("two", "same", cached=False)),
    "table and aggregation": lambda b: (b.table("one", "same"), grouped(b).count("same")),
    "global table": lambda b: (b.global_table("one", "same"), b.table("two", "same")),
    "windows": lambda b: [grouped(b).windowed_by(WINDOWS).count("same") for _ in range(2)],
    "filter": lambda b: (rows(b).filter(bool, "same"), grouped(b).count("same")),
    "cogroup": lambda b: (grouped(b).cogroup(add).aggregate(int, "same"), grouped(b).count("same")),
    "agg": lambda b: (grouped(b).agg("same", total=sum_of()), grouped(b).count("same")),
    "declared": lambda b: (
        grouped(b).count(key_value_store("same", cached=False)),
        grouped(b).count(key_value_store("same", cached=False)),
    ),
    "join of streams": lambda b: [
        b.stream("in").join(
            b.stream("o"),
            add,
            within("1s", grace="0s"),
            this_store=window_store("same", retention="1h", window_size="2s", retain_duplicates=True),
        )
        for _ in range(2)
    ],
}


@pytest.mark.parametrize("mistake", TWICE)
def test_two_verbs_cannot_have_stores_of_one_name(mistake: str) -> None:
    with pytest.raises(TopologyError, match=r"store 'same' is .* of an earlier \w+; .*choose another name"):
        TWICE[mistake](StreamsBuilder())


class Look(ValueTransformer):
    """Returns what a store has for the key."""

    def transform(self, key: Any, value: Any) -> Any:
        found = self.context.get_store("both").get(key)
        return None if found is None else found.value


def test_the_steps_of_one_verb_and_processors_share_a_store() -> None:
    builder = StreamsBuilder()
    counts = grouped(builder).cogroup(add).cogroup(builder.stream("two").group_by_key(), add).aggregate(str, "both")
    counts.to_stream().to("out", value_serde="json")
    builder.stream("asks").process_values(Look, stores=["both"]).to("answers")
    with TopologyTestDriver(Application("app", builder)) as driver:
        driver.pipe("in", "a", "1")
        driver.pipe("two", "a", "2")
        assert [each.value for each in driver.read_all("out")] == ["1", "12"]
        driver.pipe("asks", "a", "?")
        assert [each.value for each in driver.read_all("answers")] == ["12"]


TEXTS: dict[str, tuple[Callable[[KStream[Any, Any]], KStream[Any, Any]], str]] = {
    "flat_map_values": (lambda s: s.flat_map_values(str.upper), "returned the text 'AB'.*list.*map_values"),
    "bytes": (lambda s: s.flat_map_values(str.encode), "returned the bytes b'ab'.*list.*map_values"),
    "with key": (lambda s: s.flat_map_values(lambda k, v: v, with_key=True), "returned the text 'ab'"),
    "flat_map": (lambda s: s.flat_map(lambda v: v), r"returned the text 'ab'.*\(key, value\) pairs"),
}


@pytest.mark.parametrize("mistake", TEXTS)
def test_a_text_is_no_list_of_values(mistake: str) -> None:
    write, message = TEXTS[mistake]
    builder = StreamsBuilder()
    write(builder.stream("in")).to("out")
    with TopologyTestDriver(Application("app", builder)) as driver, pytest.raises(ProcessingError, match=message):
        driver.pipe("in", "a", "ab")


def of_table(aggregate: Callable[[Any], Any]) -> Callable[[StreamsBuilder], Any]:
    return lambda builder: aggregate(rows(builder).group_by(lambda value: value, name="by-value"))


def appended(aggregate: list[Any], value: Any) -> Any:
    aggregate.append(value)


def kept(aggregate: Any, value: Any) -> Any:
    return aggregate


DELETING: dict[str, Callable[[StreamsBuilder], Any]] = {
    "aggregate": lambda b: grouped(b).aggregate(list, appended, "none"),
    "with key": lambda b: grouped(b).aggregate(list, lambda k, a, v: a.append(v), "none", with_key=True),
    "windows": lambda b: grouped(b).windowed_by(WINDOWS).aggregate(list, appended, "none"),
    "sessions": lambda b: grouped(b).windowed_by(SESSIONS).aggregate(list, appended, lambda a, b: a + b, "none"),
    "cogroup": lambda b: grouped(b).cogroup(appended).aggregate(list, "none"),
    "reduce": lambda b: grouped(b).reduce(lambda aggregate, value: None, "none"),
    "groups of a table": of_table(lambda groups: groups.aggregate(list, appended, kept, "none")),
    "reduced table": of_table(lambda groups: groups.reduce(lambda aggregate, value: None, kept, "none")),
}


@pytest.mark.parametrize("mistake", DELETING)
def test_an_aggregator_that_only_returns_none_is_warned_of_once(mistake: str, caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    DELETING[mistake](builder)
    with TopologyTestDriver(Application("app", builder), partitions=2) as driver, caplog.at_level(logging.WARNING):
        for number in range(99):
            driver.pipe("in", f"k{number % 50}", "x", timestamp=number)
        assert "None" not in caplog.text
        for number in range(500):
            driver.pipe("in", f"k{number % 50}", "x", timestamp=number)
    told = [each.getMessage() for each in caplog.records if "None" in each.getMessage()]
    assert len(told) == 1, told
    assert re.search(r"node '\w+-AGGREGATE-|node '\w+-REDUCE-", told[0])
    assert re.search(r"first 100 results .* None.*None deletes.*return", told[0])


@pytest.mark.parametrize("result", [1, 0])
def test_an_aggregator_with_some_results_is_not_warned_of(result: int, caplog: pytest.LogCaptureFixture) -> None:
    builder = StreamsBuilder()
    grouped(builder).aggregate(int, lambda aggregate, value: result if value == "keep" else None, "some")
    with TopologyTestDriver(Application("app", builder)) as driver, caplog.at_level(logging.WARNING):
        driver.pipe("in", "a", "keep")
        for number in range(300):
            driver.pipe("in", f"k{number}", "x")
    assert "None" not in caplog.text


def javas(key: Any, value: Any, aggregate: Any) -> Any:
    aggregate.append(value)
    return aggregate


ORDERS: dict[str, tuple[Callable[[StreamsBuilder], Any], str]] = {
    "with key": (
        lambda b: grouped(b).aggregate(
            list, lambda key, value, total: total.append(value) or total, "t", with_key=True
        ),
        r"\(key, aggregate, value\)",
    ),
    "without": (
        lambda b: grouped(b).aggregate(list, lambda value, total: javas("", value, total), "t"),
        r"\(aggregate, value\)",
    ),
    "windows": (
        lambda b: grouped(b).windowed_by(WINDOWS).aggregate(list, javas, "t", with_key=True),
        r"\(key, aggregate, value\)",
    ),
    "cogroup": (
        lambda b: (
            grouped(b)
            .cogroup(lambda key, value, total: total.append(value) or total, with_key=True)
            .aggregate(list, "t")
        ),
        r"\(key, aggregate, value\)",
    ),
    "groups of a table": (
        of_table(lambda g: g.aggregate(list, javas, javas, "t", with_key=True)),
        r"\(key, aggregate, value\)",
    ),
}


@pytest.mark.parametrize("mistake", ORDERS)
def test_an_error_in_an_aggregator_says_in_which_order_it_gets_its_arguments(mistake: str) -> None:
    write, order = ORDERS[mistake]
    builder = StreamsBuilder()
    write(builder)
    message = rf"AttributeError: .* no attribute .append..*called with {order}.*Java.*\(key, value, aggregate\)"
    with TopologyTestDriver(Application("app", builder)) as driver, pytest.raises(ProcessingError, match=message):
        driver.pipe("in", "a", "x", timestamp=0)


def versions(builder: StreamsBuilder) -> Any:
    return builder.table("in", versioned_store("versions", history_retention="1m"))


@pytest.mark.parametrize(
    "write",
    [
        lambda b: versions(b).suppress("5s"),
        lambda b: versions(b).filter(bool).suppress("5s"),
        lambda b: versions(b).map_values(last).suppress("5s"),
    ],
)
def test_suppress_takes_no_table_with_versions(write: Callable[[StreamsBuilder], Any]) -> None:
    with pytest.raises(TopologyError, match=r"suppress: the table keeps versions.*map_values\(.*store="):
        write(StreamsBuilder())


def test_suppress_takes_a_store_without_versions_behind_one_with_them() -> None:
    builder = StreamsBuilder()
    versions(builder).map_values(last, store="latest").suppress("5s", name="slow").to_stream().to("out")
    builder.build()


@pytest.mark.parametrize(
    "table", [versions, lambda b: versions(b).filter(bool), lambda b: versions(b).map_values(last)]
)
def test_records_cannot_wait_longer_for_a_table_than_it_keeps_versions(table: Callable[[StreamsBuilder], Any]) -> None:
    builder = StreamsBuilder()
    stream, rows = builder.stream("records"), table(builder)
    stream.join(rows, add, grace="1m", name="in-time")
    with pytest.raises(TopologyError, match=r"grace='61s' is longer than the 60000 ms .*store 'versions'.*history_ret"):
        stream.join(rows, add, grace="61s", name="too-late")


LESS = timedelta(seconds=-30)


def _windowed(**options: Any) -> Any:
    return StreamsBuilder().stream("in").group_by_key().windowed_by(tumbling("1m", grace="0s"), **options)


@pytest.mark.parametrize(
    ("where", "make"),
    [
        ("tumbling: size", lambda: tumbling(LESS, grace="0s")),
        ("tumbling: grace", lambda: tumbling("1m", grace=LESS)),
        ("hopping: every", lambda: hopping("1m", every=LESS, grace="0s")),
        ("hopping: grace", lambda: hopping("1m", every="30s", grace=LESS)),
        ("sliding: grace", lambda: sliding("1m", grace=LESS)),
        ("sessions: gap", lambda: sessions(LESS, grace="0s")),
        ("sessions: grace", lambda: sessions("1m", grace=LESS)),
        ("windowed_by: idle", lambda: _windowed(emit="on_close", idle=LESS)),
        ("suppress: until", lambda: StreamsBuilder().table("in").suppress(LESS)),
        ("suppress: idle", lambda: StreamsBuilder().table("in").suppress("1m", idle=LESS)),
        ("within: grace", lambda: within("1m", grace=LESS)),
        ("within: difference", lambda: within(LESS, grace="1m")),
        ("Retry: delay", lambda: Retry(delay=LESS)),
        ("ttl of store 's'", lambda: key_value_store("s", ttl=LESS)),
        ("retention of store 's'", lambda: window_store("s", window_size="1m", retention=LESS)),
        ("history_retention of store 's'", lambda: versioned_store("s", history_retention=LESS)),
        ("setting 'commit_interval'", lambda: Settings(commit_interval=LESS)),
    ],
)
def test_a_negative_length_of_time_is_refused_where_it_is_written(where: str, make: Callable[[], object]) -> None:
    with pytest.raises(PenstockError, match=rf"^{where}(?=.*(0 or more|at least|0s or longer)).*days=-1"):
        make()


def _cogrouped(first: str | None, second: str | None) -> StreamsBuilder:
    builder = StreamsBuilder()
    one, two = (builder.stream(topic, key_serde=serde) for topic, serde in (("one", first), ("two", second)))
    counted = one.group_by_key().cogroup(lambda n, value: n + 1).cogroup(two.group_by_key(), lambda n, value: n + 1)
    counted.aggregate(int, "counts").to_stream().to("out", value_serde="json")
    return builder


def test_a_cogroup_of_keys_with_other_serdes_is_refused() -> None:
    """One key would be in two tasks, and have two counts."""
    with pytest.raises(TopologyError, match="cogroup: the keys of its first stream have the serde StrSerde, and those"):
        _cogrouped("str", "json")
    for first, second in (("str", "str"), (None, None), (None, "str")):
        _cogrouped(first, second).build()
    with pytest.raises(
        TopologyError, match="cogroup: the keys of its first stream have the serde JsonSerde, and those"
    ):
        Application("app", _cogrouped(None, "str"), key_serde="json")


@pytest.mark.parametrize("other", ["str", "json"])
def test_a_merge_counts_a_key_once_whatever_wrote_it(other: str) -> None:
    """Keys of two serdes go through a repartition topic; with one serde for both, they keep it."""
    builder = StreamsBuilder()
    one = builder.stream("one", key_serde="str", value_serde="str")
    two = builder.stream("two", key_serde=other, value_serde="json")
    one.merge(two).group_by_key(name="merged").count("counts").to_stream().to(
        "out", key_serde="str", value_serde="json"
    )
    application = Application("app", builder)
    assert bool(application.program.internal_topics) == (other == "json")
    with TopologyTestDriver(application, partitions=7) as driver:
        for number in range(20):
            driver.pipe("one", f"k{number}", "v")
            driver.pipe("two", f"k{number}", "v")
        found = {record.key: record.value for record in driver.read_all("out")}
    assert found == {f"k{number}": 2 for number in range(20)}


def test_two_windows_of_one_start_are_refused() -> None:
    class Twice(TumblingWindows):
        def windows_for(self, timestamp: int) -> Any:
            return [*super().windows_for(timestamp)] * 2

        compile = TimeWindows.compile

    builder = StreamsBuilder()
    builder.stream("in").group_by_key().windowed_by(Twice(10, 0)).count("counts")
    with (
        TopologyTestDriver(builder) as driver,
        pytest.raises(ProcessingError, match=r"Twice\.windows_for\(25\) returned"),
    ):
        driver.pipe("in", "k", "v", 25)
