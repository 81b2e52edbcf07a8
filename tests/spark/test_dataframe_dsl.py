"""A program of the DSL in a Spark pipeline: it answers as in the test driver, or is refused when it is built."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock import Application, ConfigError, TopologyError
from penstock.plugins.dsl import StreamsBuilder, sum_of, tumbling, within
from penstock.plugins.spark import Records, transform
from penstock.plugins.spark.sessions import tune
from penstock.plugins.testing import TopologyTestDriver

from .dataframe_driver import SCHEMA
from .test_transform import write

BATCHES: dict[str, Any] = {
    "prices": [[("a", "5", 0), ("b", "7", 0)], [("a", "6", 100), ("b", None, 130)]],
    "clicks": [
        [("a", "tea", 10), ("b", "cup", 20), ("a", "pot", 59), ("c", "bin", 61)],
        [("a", "tea", 118), ("b", "cup", 140), ("c", "bin", 200), ("a", "end", 900)],
    ],
}


def shop() -> StreamsBuilder:
    """A join with a table, windows that close, a suppression, a join of streams, and aggregates at once."""
    builder = StreamsBuilder()
    clicks, prices = builder.stream("clicks"), builder.table("prices", "prices")
    clicks.left_join(prices, lambda click, price: f"{click} for {price}").to("out")
    grouped = clicks.group_by_key()
    closed = grouped.windowed_by(tumbling("1m", grace="5s"), emit="on_close").count("by-minute")
    closed.to_stream(lambda key, n: key.key, with_key=True).map_values(lambda n: f"{n} in a minute").to(
        "out", key_serde="str", value_serde="str"
    )
    grouped.count("all").suppress("50s", name="held").to_stream().map_values(str).to("out")
    grouped.agg("sums", length=sum_of(len)).to_stream().map_values(str).to("out")
    pairs = clicks.filter(lambda click: click == "tea")
    pairs.join(clicks, lambda one, other: f"{one} and {other}", within("1m", grace="0s"), name="pairs").to("out")
    return builder


def by_key(found: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    rows = defaultdict(list)
    for key, value in found:
        rows[key].append(value)
    return {key: sorted(values) for key, values in rows.items()}


def test_it_answers_as_in_the_test_driver(spark: Any, tmp_path: Path) -> None:
    session = tune(spark, True, 2)
    app = Application("app", shop(), key_serde="str", value_serde="str", statestore_cache_max_bytes=0)
    with TopologyTestDriver(app) as driver:
        for number in range(2):
            rows = [(at, topic, key, value) for topic in BATCHES for key, value, at in BATCHES[topic][number]]
            for at, topic, key, value in sorted(rows, key=lambda row: row[:3]):
                driver.pipe(topic, key, value, 1_767_225_600_000 + 1_000 * at)
        expected = by_key((each.key, each.value) for each in driver.read_all("out"))
    found: list[Any] = []
    for number in range(2):  # the second start goes on from Spark's checkpoint
        for topic, batches in BATCHES.items():
            write(tmp_path / topic, number, batches[number])
        frames = {
            topic: Records(session.readStream.schema(SCHEMA).json(str(tmp_path / topic / "in")), order_by="number")
            for topic in BATCHES
        }
        out = transform(app.with_settings(data_dir=str(tmp_path)), frames, partitions=2)
        query = (
            out.writeStream.foreachBatch(lambda frame, _: found.extend((row.key, row.value) for row in frame.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert by_key((bytes(key).decode(), bytes(value).decode()) for key, value in found) == expected
    assert any("in a minute" in value for values in expected.values() for value in values)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda each: each.stream("in").group_by(len, name="lengths").count("n"),
            "topic 'lengths-repartition'.*key column",
        ),
        (
            lambda each: each.table("in").group_by(lambda row: row, name="rows").count("n"),
            "topic 'rows-repartition'.*key column",
        ),
        (lambda each: each.global_table("in", "names"), "global store 'names'.*Join the DataFrame"),
    ],
)
def test_what_needs_a_log_is_refused(write: Callable[[StreamsBuilder], Any], message: str) -> None:
    builder = StreamsBuilder()
    builder.stream("others").to("out")
    write(builder)
    with pytest.raises(TopologyError, match=message):
        transform(Application("app", builder), {}, partitions=2)


def test_a_changelog_in_the_log_is_refused_whatever_is_restored_from_it() -> None:
    app = Application("app", shop(), changelog="topic:", topology_optimization="all")
    with pytest.raises(ConfigError, match="setting 'changelog'.*'topic' does not do"):
        transform(app, {}, partitions=2)
