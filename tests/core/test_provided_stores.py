"""Stores that a processor brings itself (KIP-401): declared, connected, shared, and refused where they do not fit."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from penstock import (
    Duration,
    Processor,
    Record,
    StoreBuilder,
    Topology,
    TopologyError,
    ValueTransformer,
    key_value_store,
)
from penstock.plugins.dsl import StreamsBuilder
from penstock.plugins.testing import MockProcessorContext, TopologyTestDriver


class Count(Processor):
    """Counts the records of each key in a store that it brings."""

    @classmethod
    def stores(cls, store: str = "counts", ttl: Duration | None = None) -> list[StoreBuilder]:
        return [key_value_store(store, ttl=ttl)]

    def __init__(self, store: str = "counts", ttl: Duration | None = None) -> None:
        self._store = store

    def process(self, record: Record) -> None:
        counts = self.context.get_store(self._store)
        counts.put(record.key, count := (counts.get(record.key) or 0) + 1)
        self.context.forward(record.with_value(count))


class CountValues(ValueTransformer):
    @classmethod
    def stores(cls) -> list[StoreBuilder]:
        return [key_value_store("counts")]

    def transform(self, key: Any, value: Any) -> int:
        counts = self.context.get_store("counts")
        counts.put(key, count := (counts.get(key) or 0) + 1)
        return int(count)


def topology(supplier: Any = Count, **options: Any) -> Topology:
    built = Topology().add_source("in", "in").add_processor("count", supplier, "in", **options)
    return built.add_sink("out", "out", "count", value_serde="int")


def counts(program: Any) -> list[Any]:
    with TopologyTestDriver(program, reopen_tasks=True) as driver:
        for _ in range(3):
            driver.pipe("in", "k", "v")
        return [record.value for record in driver.read_all("out")]


class Maker:
    """A supplier that is no class, and has stores."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self) -> Count:
        return Count(self._store)

    def stores(self) -> list[StoreBuilder]:
        return [key_value_store(self._store)]


SUPPLIERS: dict[str, tuple[Any, dict[str, Any], StoreBuilder]] = {
    "a class": (Count, {}, key_value_store("counts")),
    "a class with options": (Count, {"store": "visits", "ttl": "1d"}, key_value_store("visits", ttl="1d")),
    "a partial": (functools.partial(functools.partial(Count, "a"), ttl="1d"), {}, key_value_store("a", ttl="1d")),
    "a partial with options": (functools.partial(Count, store="a"), {"store": "b"}, key_value_store("b")),
    "an object": (Maker("made"), {}, key_value_store("made")),
    "a transformer": (CountValues, {}, key_value_store("counts")),
}


@pytest.mark.parametrize(("supplier", "options", "store"), SUPPLIERS.values(), ids=SUPPLIERS)
def test_a_store_that_is_brought_is_declared_and_connected(supplier: Any, options: Any, store: StoreBuilder) -> None:
    brought = topology(supplier, **options)
    assert counts(brought) == [1, 2, 3]
    declared = topology(lambda: Count(store.name), stores=[store])
    assert brought.build().describe() == declared.build().describe()
    assert brought.build().fingerprint() == declared.build().fingerprint(), "its state is that of a declared store"


def test_a_processor_of_an_installed_plugin_brings_its_store() -> None:
    built = Topology().add_source("in", "in")
    built.add_processor("once", "contrib.dedupe", "in", store="ids", window="1h")
    assert built.build().stores == {"ids": key_value_store("ids", ttl="1h")}


def test_two_processors_share_the_store_that_both_bring() -> None:
    built = topology().add_source("other", "other").add_processor("also", Count, "other")
    built.add_sink("also-out", "out-2", "also", value_serde="int")
    (subtopology,) = built.build().subtopologies
    assert [store.name for store in subtopology.stores] == ["counts"]
    with TopologyTestDriver(built) as driver:
        driver.pipe("in", "k", "v")
        driver.pipe("other", "k", "v")
        assert [record.value for record in driver.read_all("out-2")] == [2]
    assert "Processor: also (stores: [counts])" in built.build().describe()


def test_a_store_that_the_node_names_takes_the_place_of_the_one_brought() -> None:
    declared = key_value_store("counts", value_serde="int", ttl="5m")
    assert topology(stores=[declared]).build().stores == {"counts": declared}
    by_name = Topology().add_source("in", "in").add_processor("first", Count, "in", ttl="5m")
    by_name.add_processor("count", Count, "in", stores=["counts"])
    assert by_name.build().stores == {"counts": key_value_store("counts", ttl="5m")}


def test_verbs_of_the_dsl_take_processors_that_bring_stores() -> None:
    for verb in ("process", "process_values"):
        builder = StreamsBuilder()
        getattr(builder.stream("in"), verb)(Count, store="visits").to("out", value_serde="int")
        assert counts(builder) == [1, 2, 3]
    builder = StreamsBuilder()
    builder.stream("in").process_values(CountValues).to("out", value_serde="int")
    assert counts(builder) == [1, 2, 3]
    builder = StreamsBuilder()
    builder.table("in").transform_values(CountValues).to_stream().to("out", value_serde="int")
    assert counts(builder) == [1, 2, 3]


def test_a_mock_context_takes_them() -> None:
    context = MockProcessorContext(*Count.stores())
    context.start(Count()).process(Record("k", "v", 0))
    assert context.values() == [1]


class NotAClassMethod(Count):
    def stores(self) -> list[StoreBuilder]:  # type: ignore[override]
        return []


class OneStore(Count):
    @classmethod
    def stores(cls, **options: Any) -> Any:  # type: ignore[override]
        return key_value_store("counts")


class Names(Count):
    @classmethod
    def stores(cls, **options: Any) -> Any:  # type: ignore[override]
        return ["counts"]


class OtherOptions(Count):
    @classmethod
    def stores(cls) -> list[StoreBuilder]:  # type: ignore[override]
        return []


class Raises(Count):
    @classmethod
    def stores(cls, **options: Any) -> list[StoreBuilder]:  # type: ignore[override]
        raise KeyError("store")


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (NotAClassMethod, {}, "NotAClassMethod.stores declares the stores that its processors bring, and is a @classmethod"),
    (OneStore, {}, "OneStore.stores returned KeyValueStoreSpec(name='counts'"),
    (Names, {}, "Names.stores returned ['counts'], expected a list of declared stores, for instance [key_value_store"),
    (OtherOptions, {"store": "a"}, "OtherOptions.stores is called with the options of the node, ['store'], as OtherOptions "
     "itself is: got an unexpected keyword argument 'store'; give it the same parameters, or **options"),
    (Raises, {}, "Raises.stores raised KeyError: 'store'"),
    (Count, {"ttl": "x"}, "Count.stores raised ConfigError: ttl of store 'counts': expected a timedelta or text"),
    (Count, {"store": "no/name"}, "Count.stores raised StoreError: key_value_store: a store's name is 1 to 249"),
]  # fmt: skip


@pytest.mark.parametrize(("supplier", "options", "message"), WRONG, ids=[case[0].__name__ for case in WRONG])
def test_stores_that_cannot_be_brought(supplier: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        topology(supplier, **options)
    assert str(caught.value).startswith("processor 'count': ")
    assert message in str(caught.value)


def test_a_store_that_two_bring_differently_is_refused() -> None:
    with pytest.raises(TopologyError) as caught:
        topology().add_processor("also", Count, "in", ttl="1h")
    assert str(caught.value) == (
        "processor 'also': its supplier brings store 'counts', which does not fit: store 'counts' is already in the "
        "topology, declared differently; choose another name, or connect the one there is by its name. To use the "
        "store of the topology instead, say stores=['counts']"
    )


@pytest.mark.parametrize("verb", ["add_global_store", "add_read_only_store"])
def test_what_fills_a_store_brings_no_other(verb: str) -> None:
    for store, fits in (("counts", True), ("others", False)):
        built = Topology().add_source("in", "in")
        if fits:
            getattr(built, verb)(key_value_store(store), "from", "topic", "fill", Count)
            continue
        with pytest.raises(TopologyError, match="its processor 'fill' brings store 'counts', and can have no other"):
            getattr(built, verb)(key_value_store(store), "from", "topic", "fill", Count)
