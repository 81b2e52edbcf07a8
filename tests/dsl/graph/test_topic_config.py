"""Every verb with a store hands the settings of its changelog topic on."""

from __future__ import annotations

from typing import Any

from penstock import versioned_store
from penstock.dsl import StreamsBuilder, sessions, sliding, tumbling, within

GIVEN: Any = {"topic_config": {"segment.bytes": 5_000_000}}


def joined(total: str, value: str) -> str:
    return total + value


def test_every_store_has_the_settings_of_its_topic() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in").group_by_key()
    grouped.count("counts", **GIVEN)
    grouped.cogroup(joined).aggregate(str, "cogrouped", **GIVEN)
    grouped.windowed_by(tumbling("1m", grace="0s")).count("windowed", **GIVEN)
    grouped.windowed_by(sliding("1m", grace="0s")).count("sliding", **GIVEN)
    grouped.windowed_by(sessions(gap="1m", grace="0s")).count("sessions", **GIVEN)
    table, versions = builder.table("t", "table", **GIVEN), versioned_store("v", history_retention="1h", **GIVEN)
    table.map_values(str, "mapped", **GIVEN)
    table.suppress("1s", name="suppressed", **GIVEN)
    table.group_by(lambda value: (value, value)).count("grouped", **GIVEN)
    table.join(builder.table("u", "other", **GIVEN), lambda one, two: one, store="joined", **GIVEN)
    left = builder.stream("left")
    left.left_join(builder.stream("right"), lambda one, two: one, within("1s", grace="0s"), name="streams", **GIVEN)
    left.join(builder.table("w", versions), lambda one, two: one, grace="1s", name="delayed", **GIVEN)
    stores: dict[str, Any] = dict(builder.build().build().stores)
    assert len(stores) == 16
    assert {name for name, each in stores.items() if each.topic_config != {"segment.bytes": "5000000"}} == set()
