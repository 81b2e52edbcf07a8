"""Tables from topics: what their updates are, when they have a store, and the errors that a newcomer meets."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Application, TopologyError, key_value_store, versioned_store
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import TopologyTestDriver


def test_a_table_replaces_and_deletes() -> None:
    builder = StreamsBuilder()
    builder.table("in", "prices").to_stream().to("out")
    with TopologyTestDriver(builder) as driver:
        for key, value in (("a", "1"), ("a", "2"), (None, "3"), ("b", "4"), ("b", None)):
            driver.pipe("in", key, value, timestamp=7)
        assert [(each.key, each.value) for each in driver.read_all("out")] == [
            ("a", "1"),
            ("a", "2"),
            ("b", "4"),
            ("b", None),
        ]
        assert driver.dropped_records() == 1
        with driver.store("prices").all() as entries:
            assert [(key, tuple(value)) for key, value in entries] == [("a", ("2", 7))]


def test_a_versioned_table_drops_what_is_older_than_its_history() -> None:
    builder = StreamsBuilder()
    builder.table("in", versioned_store("prices", history_retention="10ms")).to_stream().to("out")
    with TopologyTestDriver(builder) as driver:
        for timestamp, value in ((100, "now"), (95, "before"), (80, "late")):
            driver.pipe("in", "a", value, timestamp=timestamp)
        assert [each.value for each in driver.read_all("out")] == ["now", "before"]
        assert driver.dropped_records() == 1
        assert driver.store("prices").get("a").value == "now"


def test_headers_may_be_kept_in_the_store() -> None:
    builder = StreamsBuilder()
    builder.table("in", "prices").to_stream().to("out")
    application = Application("app", builder, dsl_store_format="headers")
    with TopologyTestDriver(application, dsl_store_format="headers") as driver:
        driver.pipe("in", "a", "1", 5, (("from", b"x"),))
        assert tuple(driver.store("prices").get("a")) == ("1", 5, (("from", b"x"),))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "b"],), r"table: expected the name of one topic, found \['a', 'b'\]; write table\(TOPIC\)"),
        (("a", 3), "table: expected the name of a store or a declared one, found 3"),
        (("a", "a store"), "expected 1 to 249 letters"),
    ],
)
def test_errors_of_newcomers(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        StreamsBuilder().table(*arguments)


def test_options_of_a_declared_store_belong_to_its_declaration() -> None:
    with pytest.raises(TopologyError, match="cached belong to the declared store 'prices'; say it there"):
        StreamsBuilder().table("a", key_value_store("prices"), cached=True)
