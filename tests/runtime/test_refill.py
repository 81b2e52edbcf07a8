"""Read-only stores: filled from a topic, read by others, and filled again from the topic where the copy is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    BatchProcessor,
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
from penstock.plugins.engine.task.local_state import refill
from penstock.plugins.engine.task.local_state.backends import OF_REPLICA
from penstock.plugins.testing import TopologyTestDriver
from penstock.store import Changes
from penstock.store import backend as store_backend
from penstock.stores.lmdb import LmdbBackend
from penstock.testing.simulation import SimulatedCluster

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


class FillInBatches(Fill, BatchProcessor):
    def process_batch(self, records: Sequence[Record]) -> None:
        for record in records:
            self.process(record)


class Nothing(Processor):
    def process(self, record: Record) -> None:
        """Do nothing."""


class LookUp(Processor):
    """Forwards the rate of the record's key; counts the records of each key in a store of its own."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.rates, self.counts = context.get_store("rates"), context.get_store("counts")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(f"{self.rates.get(record.key)} {count}"))


def topology(
    rates: StoreBuilder = RATES,
    topic: str = "rates",
    look_up: Callable[[], Processor] = LookUp,
    fill: type[Fill] = Fill,
) -> Topology:
    counts = key_value_store("counts", key_serde="str", value_serde="int")
    return (
        Topology()
        .add_source("in", "in", **TEXTS)
        .add_read_only_store(rates, "rates-source", topic, "fill", fill, **TEXTS)
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


@pytest.mark.parametrize("fill", [Fill, FillInBatches])
@settings(max_examples=examples(25))
@given(STEPS)
def test_any_history(fill: type[Fill], steps: list[Any]) -> None:
    rates: dict[str, str | None] = {}
    counts: dict[str, int] = {}
    with TopologyTestDriver(topology(fill=fill), store_backend="lmdb", processing_handler=skip) as driver:
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


class Interrupted(BaseException):
    """Ends the process of a test in the middle of a filling."""


def interrupt_write(monkeypatch: pytest.MonkeyPatch, number: int, *, after: bool) -> list[int]:
    """Let the process end before or after a write (from 0 on) to local state; return how many writes are made."""
    write, made = LmdbBackend.write, [0]

    def interrupted(backend: LmdbBackend, changes: Changes, previous: str | None, version: str) -> None:
        made[0] += 1
        if made[0] == number + 1 and not after:
            raise Interrupted
        write(backend, changes, previous, version)
        if made[0] == number + 1:
            raise Interrupted

    monkeypatch.setattr(LmdbBackend, "write", interrupted)
    return made


def state_of(driver: TopologyTestDriver) -> Path:
    """Return the directory with the local state of the driver's task."""
    [directory] = Path(str(driver.application.settings.data_dir)).rglob("0_0")
    return directory


@pytest.mark.parametrize("after", [False, True], ids=["before a write", "after a write"])
@pytest.mark.parametrize("copy", ["lost", "old"])
def test_a_filling_that_is_interrupted_is_made_again(
    copy: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refill, "_PORTION_BYTES", 1)
    monkeypatch.setattr(store_backend, "_PORTION", 2)
    with TopologyTestDriver(topology(), store_backend="lmdb") as driver:
        for number in range(3):
            driver.pipe("rates", f"k{number}", str(number))
        driver.pipe("in", "k1", "x")
        driver.reopen()
        shutil.copytree(state_of(driver), tmp_path / "old")
        driver.pipe("rates", "k1", None)
        driver.pipe("rates", "k2", "20")
        driver.pipe("rates", "k3", "3")
        driver.pipe("in", "k2", "x")
        state = state_of(driver)
        for number in count():
            if copy == "lost":
                lose_copy(driver)
            else:
                driver.reopen()
                shutil.rmtree(state)
                shutil.copytree(tmp_path / "old", state)
            with monkeypatch.context() as patched:
                writes = interrupt_write(patched, number, after=after)
                with suppress(Interrupted):
                    driver.store("rates")
            driver.reopen()
            assert dict(driver.store("rates").all()) == {"k0": "0", "k2": "20", "k3": "3"}, f"write {number}"
            assert dict(driver.store("counts").all()) == {"k1": 1, "k2": 1}
            if writes[0] <= number:
                break
        assert number > 4, "each of several writes is interrupted"


def test_rows_of_a_store_are_deleted_a_portion_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with TopologyTestDriver(topology(), store_backend="lmdb") as driver:
        for number in range(9):
            driver.pipe("rates", f"k{number}", "1")
        driver.reopen()
        (state_of(driver) / OF_REPLICA).touch()
        monkeypatch.setattr(store_backend, "_PORTION", 2)
        write, deleted = LmdbBackend.write, []

        def counted(backend: LmdbBackend, changes: Changes, previous: str | None, version: str) -> None:
            deleted.append(sum(value is None for _, value in changes.get("rates", ())))
            write(backend, changes, previous, version)

        monkeypatch.setattr(LmdbBackend, "write", counted)
        assert len(dict(driver.store("rates").all())) == 9
        assert max(deleted) == 2
        assert sum(deleted) == 9


def test_one_that_a_deployment_adds_is_filled_though_the_process_dies_after_the_first_commit() -> None:
    def before() -> Topology:
        return Topology().add_source("rates-source", "rates", **TEXTS).add_processor("fill", Nothing, "rates-source")

    def after() -> Topology:
        return Topology().add_read_only_store(RATES, "rates-source", "rates", "fill", Fill, **TEXTS)

    with SimulatedCluster(before(), hosts=1, partitions=1, **TEXTS) as cluster:
        cluster.pipe("rates", "a", "1")
        cluster.work()
        cluster.deploy(after())
        cluster.crash(cluster.hosts[0], after="commit")
        cluster.work()
        cluster.start(1)
        cluster.settle()
        cluster.check_state()


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


def test_entries_expire_as_when_they_were_put_first() -> None:
    """The store has the clocks of the task that fills it."""
    with TopologyTestDriver(topology(key_value_store("rates", ttl="1000s", **TEXTS)), store_backend="lmdb") as driver:
        driver.pipe("rates", "a", "1", timestamp=5_000_000)
        driver.pipe("in", "a", "x", timestamp=5_000_100)

        def rows() -> list[tuple[bytes, bytes]]:
            driver.reopen()
            with closing(LmdbBackend(state_of(driver) / "lmdb" / "0", ["rates"])) as copy:
                return list(copy.range("rates"))

        before = rows()
        lose_copy(driver)
        assert dict(driver.store("rates").all()) == {"a": "1"}
        assert rows() == before
        driver.pipe("in", "a", "x", timestamp=7_000_000)
        assert dict(driver.store("rates").all()) == {}


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
