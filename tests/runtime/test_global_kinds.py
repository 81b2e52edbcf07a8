"""Global stores of other kinds than key-value: filled by their processor, read by tasks, written by no task."""

from __future__ import annotations

import pytest

from penstock import (
    Application,
    Processor,
    Record,
    Topology,
    ValueTimestampHeaders,
    key_value_store,
    list_store,
    lru_map,
    versioned_store,
)
from penstock.plugins.testing import TopologyTestDriver


class Fill(Processor):
    """Puts each record into the store that its topic is named after."""

    def process(self, record: Record) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None
        store = self.context.get_store(metadata.topic)
        if metadata.topic == "versions":
            store.put(record.key, record.value, record.timestamp)
        elif metadata.topic == "lists":
            store.add(record.key, record.value)
        elif metadata.topic == "headers":
            store.put(record.key, ValueTimestampHeaders(*record[1:]))
        else:
            store.put(record.key, record.value)


class LookUp(Processor):
    def process(self, record: Record) -> None:
        context, key = self.context, record.key
        found = (
            context.get_store("versions").get(key, record.timestamp),
            context.get_store("lists").get(key),
            context.get_store("recent").get(key),
            context.get_store("headers").get(key),
        )
        context.forward(record.with_value(repr([None if each is None else list(each) for each in found])))
        for store in ("versions", "recent", "headers"):
            with pytest.raises(Exception, match=f"'{store}' is a global store"):
                context.get_store(store).put(key, "mine")
        with pytest.raises(Exception, match="'lists' is a global store"):
            context.get_store("lists").add(key, "mine")


@pytest.mark.parametrize("backend", ["memory", "lmdb"])
def test_tasks_read_global_stores_of_any_kind(backend: str) -> None:
    topology = (
        Topology().add_source("in", "in").add_processor("look-up", LookUp, "in").add_sink("out", "out", "look-up")
    )
    for store in (
        versioned_store("versions", history_retention="1s"),
        list_store("lists"),
        lru_map("recent", max_entries=1),
        key_value_store("headers", headers=True),
    ):
        topology.add_global_store(store, f"{store.name}-source", store.name, f"{store.name}-fill", Fill)
    with TopologyTestDriver(Application("app", topology, store_backend=backend)) as driver:
        for timestamp in (10, 20, 5000):
            driver.pipe("versions", "a" if timestamp < 5000 else "b", str(timestamp), timestamp=timestamp)
        for value in "xy":
            driver.pipe("lists", "a", value)
        for key in "ba":
            driver.pipe("recent", key, "r")
        driver.pipe("headers", "a", "v", 3, (("h", b"1"),))
        driver.pipe("in", "a", "?", timestamp=15)
        driver.pipe("in", "a", "?", timestamp=25)
        first, second = (eval(record.value) for record in driver.read_all("out"))
    others = [["x", "y"], ["r"], ["v", 3, (("h", b"1"),)]]
    assert first == [None, *others], "the version of then is gone"
    assert second == [["20", 20, -1], *others]
