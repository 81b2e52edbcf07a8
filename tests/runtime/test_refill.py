"""Read-only stores: filled from a topic, read by others, and filled again from the topic where the copy is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    Processor,
    ProcessorContext,
    Record,
    StoreBuilder,
    Topology,
    TopologyError,
    check_compatible,
    key_value_store,
    run,
    skip,
)
from penstock.errors import PenstockError
from penstock.plugins.testing import TopologyTestDriver

from ..rotation import examples
from ..spark.surroundings import Surroundings

TEXTS: dict[str, Any] = {"key_serde": "str", "value_serde": "str"}
RATES = key_value_store("rates", **TEXTS)


class Fill(Processor):
    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.rates = context.get_store("rates")

    def process(self, record: Record) -> None:
        if record.value == "wrong":
            raise ValueError("wrong")
        self.rates.put(record.key, record.value)


class LookUp(Processor):
    """Forwards the rate of the record's key; counts the records of each key in a store of its own."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.rates, self.counts = context.get_store("rates"), context.get_store("counts")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(f"{self.rates.get(record.key)} {count}"))


def topology(rates: StoreBuilder = RATES, topic: str = "rates", look_up: Callable[[], Processor] = LookUp) -> Topology:
    counts = key_value_store("counts", key_serde="str", value_serde="int")
    return (
        Topology()
        .add_source("in", "in", **TEXTS)
        .add_read_only_store(rates, "rates-source", topic, "fill", Fill, **TEXTS)
        .add_processor("look-up", look_up, "in", stores=["rates", counts])
        .add_sink("out", "out", "look-up", **TEXTS)
    )


def lose_copy(driver: TopologyTestDriver) -> None:
    """Close the tasks, and delete what the stores of this host have."""
    driver.reopen()
    for copy in Path(str(driver.application.settings.data_dir)).rglob("lmdb"):
        shutil.rmtree(copy)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rates"), st.sampled_from("abc"), st.sampled_from(["1", "2", None, "wrong"])),
        st.tuples(st.just("in"), st.sampled_from("abc"), st.just("x")),
        st.sampled_from(["open again", "lose the copy"]),
    ),
    max_size=12,
)


@settings(max_examples=examples(25))
@given(STEPS)
def test_any_history(steps: list[Any]) -> None:
    rates: dict[str, str | None] = {}
    counts: dict[str, int] = {}
    with TopologyTestDriver(topology(), store_backend="lmdb", processing_handler=skip) as driver:
        for step in steps:
            if step == "open again":
                driver.reopen()
            elif step == "lose the copy":
                lose_copy(driver)
            else:
                topic, key, value = step
                driver.pipe(topic, key, value, 5)
                if topic == "in":
                    counts[key] = counts.get(key, 0) + 1
                    assert driver.read_all("out") == [Record(key, f"{rates.get(key)} {counts[key]}", 5)]
                elif value != "wrong":
                    rates[key] = value
        found = {key: value for key, value in rates.items() if value is not None}
        assert dict(driver.store("rates").all()) == found
        lose_copy(driver)
        assert dict(driver.store("rates").all()) == found


def test_it_is_not_in_the_changelog() -> None:
    (subtopology,) = topology().build().subtopologies
    assert {store.name: store.logged for store in subtopology.stores} == {"rates": False, "counts": True}


def test_a_crash_while_it_is_filled_again_leaves_no_half_store(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.plugins.runtime.local_state import refill

    monkeypatch.setattr(refill, "_PORTION_BYTES", 1)
    made = refill.Refill._portion
    left = [1]

    def portion(self: Any, *given: Any) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return made(self, *given)

    with TopologyTestDriver(topology(), store_backend="lmdb") as driver:
        for number in range(6):
            driver.pipe("rates", f"k{number}", str(number))
        lose_copy(driver)
        monkeypatch.setattr(refill.Refill, "_portion", portion)
        with pytest.raises(KeyboardInterrupt):
            driver.store("rates")
        left[0] = 100
        assert len(dict(driver.store("rates").all())) == 6


def test_one_that_a_deployment_moves_to_another_backend_where_local_state_is_behind(tmp_path: Path) -> None:
    with Surroundings(tmp_path) as surroundings:
        surroundings.create(**{"in": 1, "rates": 1, "out": 1})

        def run_on(machine: str, program: Topology) -> None:
            surroundings.put("in", [("a", "x", 2)])
            run(surroundings.application("app", program, engine="embedded", state_dir=machine))

        surroundings.put("rates", [("a", "1", 1)])
        in_memory = topology(key_value_store("rates", backend="memory", **TEXTS))
        for machine in ("one", "two"):
            run_on(machine, in_memory)
        run_on("one", topology())
        assert surroundings.values_by_key("out") == {"a": ["1 1", "1 2", "1 3"]}


def test_others_only_read_it() -> None:
    class Writes(LookUp):
        def process(self, record: Record) -> None:
            self.rates.put(record.key, "1")

    with (
        TopologyTestDriver(topology(look_up=Writes)) as driver,
        pytest.raises(PenstockError, match=r"'rates' is a read-only store: only its own processor may write it"),
    ):
        driver.pipe("in", "a", "x")


def test_wrong_use() -> None:
    with pytest.raises(TopologyError, match="'fill' fills a read-only store and can have no other store"):
        topology().connect("fill", "counts")
    with pytest.raises(TopologyError, match="source 'in' is in the topology and has its serdes"):
        topology().add_read_only_store(key_value_store("more"), "in", "in", "fill-more", Fill, **TEXTS)
    with pytest.raises(TopologyError, match="topic 'in' is already read by source 'in'"):
        topology().add_read_only_store(key_value_store("more"), "again", "in", "fill-more", Fill)
    with pytest.raises(TopologyError, match="read-only store 'rates' reads the internal topic 'r-repartition'"):
        (
            Topology()
            .add_source("in", "in")
            .add_internal_topic("r-repartition")
            .add_sink("to", "r-repartition", "in")
            .add_read_only_store(RATES, "from", "r-repartition", "fill", Fill)
            .build()
        )
    with pytest.raises(TopologyError, match="read-only store 'rates': there is already a store of that name"):
        topology().add_read_only_store(RATES, "again", "other", "fill-again", Fill)


def test_what_it_forwards_while_it_is_filled_again_goes_nowhere() -> None:
    class Passes(Fill):
        def process(self, record: Record) -> None:
            super().process(record)
            self.context.forward(record, to="out")

    program = (
        Topology()
        .add_source("rates", "rates", **TEXTS)
        .add_read_only_store(RATES, "rates", "rates", "fill", Passes)
        .add_sink("out", "passed", "fill", **TEXTS)
        .add_sink("copy", "copied", "rates", **TEXTS)
    )
    with TopologyTestDriver(program, store_backend="lmdb") as driver:
        driver.pipe("rates", "a", "1", 5)
        lose_copy(driver)
        assert dict(driver.store("rates").all()) == {"a": "1"}
        assert driver.read_all("passed") == driver.read_all("copied") == [Record("a", "1", 5)]


def test_a_change_of_the_topic_is_refused() -> None:
    before, after = topology().build().fingerprint(), topology(topic="courses").build().fingerprint()
    assert any("'rates' was filled from topic 'rates' and now is filled from topic 'courses'" in each
               for each in check_compatible(before, after))  # fmt: skip
    assert check_compatible(before, topology().build().fingerprint()) == []
