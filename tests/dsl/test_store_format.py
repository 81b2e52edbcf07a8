"""With `dsl_store_format="headers"` every store of the DSL keeps the headers of the record that wrote an entry."""

from __future__ import annotations

from typing import Any

from penstock import Application, ValueTimestampHeaders
from penstock.plugins.dsl import StreamsBuilder, sessions, sliding, tumbling
from penstock.plugins.testing import TopologyTestDriver

WINDOWS: dict[str, Any] = {
    "tumbling": tumbling("10ms", grace="1s"),
    "sliding": sliding("10ms", grace="1s"),
    "sessions": sessions(gap="10ms", grace="1s"),
}
STORES = ("table", "mapped", "to-table", "joined", "groups", "count", "reduce", "aggregate", *WINDOWS)
"""Kafka Streams 4.4.0 writes all of them in the form with headers, and leaves the headers empty."""


def test_every_store_keeps_headers() -> None:
    builder = StreamsBuilder()
    table, stream = builder.table("table", "table"), builder.stream("stream")
    table.map_values(str.upper, store="mapped")
    table.join(builder.table("other"), lambda one, two: one + two, store="joined")
    table.group_by(lambda value: value).count("groups")
    stream.to_table("to-table")
    grouped = stream.group_by_key()
    grouped.count("count")
    grouped.reduce(lambda one, two: one + two, "reduce")
    grouped.aggregate(str, lambda total, value: total + value, "aggregate")
    for name, window in WINDOWS.items():
        grouped.windowed_by(window).count(name)
    application = Application("app", builder, key_serde="str", value_serde="str", dsl_store_format="headers")
    with TopologyTestDriver(application) as driver:
        for topic in ("table", "other", "stream"):
            driver.pipe(topic, "k", "v", 5, (("from", topic.encode()), ("from", None)))
        for name in STORES:
            store = driver.store(name)
            rows = list(store.find_sessions("k", 0, 100) if name == "sessions" else store.all())
            origin = b"other" if name == "joined" else b"stream" if name in (*STORES[5:], "to-table") else b"table"
            assert [type(value) for _, value in rows] == [ValueTimestampHeaders], name
            assert rows[0][1].headers == (("from", origin), ("from", None)), name
