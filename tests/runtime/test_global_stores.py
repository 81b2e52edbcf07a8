"""Global stores: every partition of a topic, one copy a host, in step with the batch's planned ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    DeadLetter,
    Processor,
    PunctuationType,
    Record,
    Retry,
    StoreError,
    Topology,
    UnknownTopicError,
    key_value_store,
    skip,
)
from penstock.plugins.engine.task.local_state.global_stores import GlobalStores
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing import TopologyTestDriver
from penstock.record import OutputBatch, TopicPartition
from penstock.world import World

from ..rotation import examples
from .faults import produced


class Table(Processor):
    """Keeps the last value; "raise" raises."""

    def process(self, record: Record) -> None:
        if record.value == "raise":
            raise ValueError("as asked")
        self.context.get_store("table").put(record.key, record.value)


class LookUp(Processor):
    def process(self, record: Record) -> None:
        found = self.context.get_store("table").get(record.key)
        self.context.forward(record.with_value(f"{record.value}={found}"))


def topology(look_up: type[Processor] = LookUp) -> Topology:
    return (
        Topology()
        .add_global_store(key_value_store("table", key_serde="str"), "table-source", "table", "table-fill", Table)
        .add_source("in", "in")
        .add_processor("look-up", look_up, "in")
        .add_sink("out", "out", "look-up")
    )


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    log = MemoryLog()
    log.create_topic("table", 3)
    log.create_topic("dead", 1)
    yield log
    log.close()


def application(directory: Path, backend: str = "lmdb", **settings: Any) -> Application:
    return Application("app", topology(), log="memory:", data_dir=str(directory), store_backend=backend, **settings)


def fill(log: MemoryLog, *rows: tuple[str, str | None]) -> None:
    keys: list[bytes | None] = [key.encode() for key, _ in rows]
    log.append(
        OutputBatch("table", keys, [None if value is None else value.encode() for _, value in rows], [0] * len(rows))
    )


def contents(stores: GlobalStores) -> dict[str, str]:
    return dict(stores.stores["table"].all())  # type: ignore[attr-defined]


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.sampled_from("xy"), st.booleans()), max_size=12))
def test_it_is_the_table_of_its_topic_at_any_time(steps: list[tuple[str, str | None, bool]]) -> None:
    expected: dict[str, str] = {}
    with TopologyTestDriver(topology(), partitions={"table": 3}) as driver:
        for key, value, looked in steps:
            driver.pipe("table", key, value)
            expected[key] = value or ""
            if value is None:
                del expected[key]
            if looked:
                driver.pipe("in", key, "?")
                answer = driver.read("out")
                assert answer is not None and answer.value == f"?={expected.get(key)}"
        assert dict(driver.store("table").all()) == expected


def test_two_processes_share_one_copy_and_see_what_the_other_read(tmp_path: Path, log: MemoryLog) -> None:
    app = application(tmp_path, "memory")
    first, second = (GlobalStores(app, tmp_path) for _ in range(2))
    fill(log, ("a", "1"), ("b", "1"))
    first.update(log, {}, 0)
    assert contents(first) == {"a": "1", "b": "1"}
    assert first.stores["table"].get("a") == "1"  # type: ignore[attr-defined]  # now held as an object
    fill(log, ("a", "2"))
    second.update(log, {}, 0)
    first.update(log, {}, 0)
    assert contents(first) == contents(second) == {"a": "2", "b": "1"}
    first.close()
    second.close()


def test_it_survives_on_disk_and_goes_on_from_its_position(tmp_path: Path, log: MemoryLog) -> None:
    app = application(tmp_path)
    fill(log, ("a", "1"))
    first = GlobalStores(app, tmp_path)
    first.update(log, {}, 0)
    first.close()
    for partition in range(3):
        at = TopicPartition("table", partition)
        log.purge(at, log.end_offsets([at])[at])
    fill(log, ("b", "1"))
    again = GlobalStores(app, tmp_path)
    again.update(log, {}, 0)
    assert contents(again) == {"a": "1", "b": "1"}
    again.close()


def test_it_is_read_up_to_the_planned_ends_only(tmp_path: Path, log: MemoryLog) -> None:
    stores = GlobalStores(application(tmp_path, "memory"), tmp_path)
    fill(log, ("a", "1"), ("a", "2"))
    (at,) = (
        each for each, end in log.end_offsets([TopicPartition("table", number) for number in range(3)]).items() if end
    )
    stores.update(log, {at: 1}, 0)
    assert contents(stores) == {"a": "1"}
    stores.update(log, {}, 0)
    assert contents(stores) == {"a": "2"}
    stores.close()


def test_tasks_may_not_write_it() -> None:
    class Writing(Processor):
        def process(self, record: Record) -> None:
            self.context.get_store("table").put(record.key, "mine")

    with TopologyTestDriver(topology(Writing)) as driver:
        with pytest.raises(
            Exception, match="store 'table' is a global store: only its own processor may write it"
        ) as raised:
            driver.pipe("in", "a", "?")
        assert isinstance(raised.value.__cause__, StoreError)


def test_it_is_there_when_processors_are_made(tmp_path: Path, log: MemoryLog) -> None:
    class Early(LookUp):
        def init(self, context: Any) -> None:
            super().init(context)
            self.at_first = context.get_store("table").get("a")

        def process(self, record: Record) -> None:
            self.context.forward(record.with_value(self.at_first))

    for topic in ("in", "out"):
        log.create_topic(topic, 1)
    fill(log, ("a", "1"))
    app = Application("app", topology(Early), log="memory:", data_dir=str(tmp_path), store_backend="memory")
    log.append(OutputBatch("in", [b"k"], [b"v"], [0]))
    resources = ProcessResources()
    source = TopicPartition("in", 0)
    (task_id,) = app.program.resolve({"table": 3, "in": 1, "out": 1}, "app").tasks
    worker = TaskWorker(app, task_id, [source], log, resources=resources)
    worker.run_batch({source: 1}, 0)
    assert produced(log) == [("k", "1", 0)]
    worker.close()
    resources.close()


def test_its_topic_must_be_there(tmp_path: Path) -> None:
    stores = GlobalStores(application(tmp_path, "memory"), tmp_path)
    with pytest.raises(
        UnknownTopicError,
        match="global store 'table': topic 'table' does not exist; create it: penstock topics create table",
    ):
        stores.update(MemoryLog(), {}, 0)
    stores.close()


def test_a_failure_leaves_it_as_it_was(tmp_path: Path, log: MemoryLog) -> None:
    stores = GlobalStores(application(tmp_path, "memory"), tmp_path)
    fill(log, ("a", "1"))
    stores.update(log, {}, 0)
    fill(log, ("a", "2"), ("a", "raise"))
    for _ in range(2):
        with pytest.raises(
            Exception, match=r"node 'table-fill', at topic 'table' partition \d offset 2: ValueError: as asked"
        ):
            stores.update(log, {}, 0)
        assert contents(stores) == {"a": "1"}
    stores.close()


def test_skipping_drops_the_record_only(tmp_path: Path, log: MemoryLog) -> None:
    stores = GlobalStores(application(tmp_path, "memory", processing_handler=skip), tmp_path)
    fill(log, ("a", "1"), ("a", "raise"), ("a", "3"))
    stores.update(log, {}, 0)
    assert contents(stores) == {"a": "3"}
    stores.close()


def test_retries_end_and_dead_letters_are_sent(tmp_path: Path, log: MemoryLog) -> None:
    app = application(tmp_path, "memory", processing_handler=Retry(2, "20ms", DeadLetter("dead")))
    waits: list[float] = []
    resources = ProcessResources(World(sleep=waits.append))
    fill(log, ("a", "1"), ("a", "raise"), ("a", "3"))
    resources.update_globals(app, log, {}, 0)
    assert dict(resources.globals_of(app).stores["table"].all()) == {"a": "3"}  # type: ignore[attr-defined]
    assert waits == [0.02, 0.02]
    assert produced(log, "dead") == [("a", "raise", 0)]
    resources.close()


@pytest.mark.parametrize("clock", [STREAM_TIME, WALL_CLOCK_TIME])
def test_entries_expire_by_the_topics_stream_time_or_the_batchs_clock(
    tmp_path: Path, log: MemoryLog, clock: PunctuationType
) -> None:
    def table(**options: Any) -> Application:
        topology = Topology().add_source("in", "in").add_processor("look-up", LookUp, "in").add_global_store(
            key_value_store("table", key_serde="str", **options), "table-source", "table", "table-fill", Table
        )  # fmt: skip
        return Application("app", topology, log="memory:", data_dir=str(tmp_path), store_backend="lmdb")

    def fill_at(timestamp: int, key: str) -> None:
        log.append(OutputBatch("table", [key.encode()], [b"1"], [timestamp]))

    expiring = table(ttl="80ms", ttl_clock=clock)
    one, other = (GlobalStores(expiring, tmp_path) for _ in range(2))
    fill_at(100, "a")
    one.update(log, {}, 100)
    fill_at(105, "b")
    for each in (one, other):
        each.update(log, {}, 105)
        assert contents(each) == {"a": "1", "b": "1"}
    fill_at(181, "c")
    for each in (other, one):
        each.update(log, {}, 181)
        assert contents(each) == {"b": "1", "c": "1"}
    one.close()
    other.close()
    again = GlobalStores(expiring, tmp_path)
    again.update(log, {}, 182)
    assert contents(again) == {"b": "1", "c": "1"}
    again.close()
    without = GlobalStores(table(), tmp_path)
    without.update(log, {}, 10**6)
    assert contents(without) == {"a": "1", "b": "1", "c": "1"}, "built again"
    without.close()
