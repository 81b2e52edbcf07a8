"""Tables whose source topic is the changelog of their store (`reuse_ktable_source_topics`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Application, TopologyError, versioned_store
from penstock.errors import IncompatibleStateError, PenstockError
from penstock.plugins.dsl import KTable, StreamsBuilder
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import OutputBatch, TopicPartition

from ...processes import opened_workers

REUSE = {"topology_optimization": "reuse_ktable_source_topics", "changelog": "topic:"}
COMPACTED = {"cleanup.policy": "compact"}


def program() -> StreamsBuilder:
    """Look rows up in a table, count its rows by value, and pass on the records of the table's topic."""
    builder = StreamsBuilder()
    builder.stream("rows").to("copied")
    table = builder.table("rows", "table")
    builder.stream("in").left_join(table, lambda value, row: f"{value}:{row}").to("joined")
    table.group_by(lambda row: row, name="by-row").count("counts").to_stream().map_values(str).to("counted")
    return builder


class World:
    """A memory log and the disk of one host."""

    def __init__(self, directory: Path, config: dict[str, str] | None = None) -> None:
        self.log = MemoryLog()
        self.directory = directory
        self.now = 0
        for topic in ("in", "rows", "copied", "joined", "counted"):
            self.log.create_topic(topic, 1, (COMPACTED if config is None else config) if topic == "rows" else None)

    def application(self, builder: StreamsBuilder | None = None, **given: Any) -> Application:
        made = {"log": "memory:x", "data_dir": str(self.directory), "key_serde": "str", "value_serde": "str"}
        return Application("app", builder or program(), **made | REUSE | given)

    def feed(self, topic: str, key: str, value: str | None) -> None:
        self.now += 1
        values = [None if value is None else value.encode()]
        self.log.append(OutputBatch(topic, [key.encode()], values, [self.now], None, [[0]]))

    def run(self, ends: dict[str, int] | None = None, **given: Any) -> None:
        """Start the application, process what there is up to `ends`, and stop."""
        with opened_workers(self.application(**given), self.log) as workers:
            for worker in workers:
                to = self.log.end_offsets(worker.partitions)
                worker.run_batch({each: (ends or {}).get(each.topic, end) for each, end in to.items()}, 0)

    def read(self, topic: str) -> list[tuple[str, str]]:
        found = read(self.log, TopicPartition(topic, 0))
        return [((each.key or b"").decode(), (each.value or b"").decode()) for each in found]

    def lose_host(self) -> None:
        shutil.rmtree(self.directory / "state", ignore_errors=True)


_KEYS, _VALUES = st.sampled_from("abc"), st.sampled_from(["x", "y", None])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), _KEYS, _VALUES),
        st.tuples(st.just("in"), _KEYS, st.just("v")),
        st.sampled_from(["process", "process all but one", "lose the host", "lose the host", "compact"]),
    ),
    max_size=20,
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_STEPS, cache=st.sampled_from([0, 1000]), backend=st.sampled_from(["lmdb", "memory"]))
def test_any_history(tmp_path_factory: pytest.TempPathFactory, steps: list[Any], cache: int, backend: str) -> None:
    """Each look-up finds the row as of its time, also where the table was restored while later rows waited."""
    world = World(tmp_path_factory.mktemp("world"))
    rows: dict[str, str | None] = {}
    waiting: list[Any] = []
    joined: list[tuple[str, str]] = []
    ends = {"rows": 0, "in": 0}

    def process(number: int) -> None:
        for topic, key, value in waiting[:number]:
            ends[topic] += 1
            if topic == "rows":
                rows[key] = value
            else:
                joined.append((key, f"{value}:{rows.get(key)}"))
        del waiting[:number]
        for _ in range(2):  # what goes through the repartition topic is read in the next batch
            world.run(dict(ends), statestore_cache_max_bytes=cache, store_backend=backend)
        assert world.read("joined") == joined

    for step in [*steps, "lose the host", "process"]:
        if isinstance(step, tuple):
            world.feed(*step)
            waiting.append(step)
        elif step == "lose the host":
            world.lose_host()
        elif step == "compact":
            # Compaction may delete rows that are overwritten by ones which were not processed yet.
            process(len(waiting))
            world.log.maintain(10**15)
        else:
            process(max(0, len(waiting) - (step != "process")))
    values = [value for value in rows.values() if value is not None]
    counted = {key: int(count) for key, count in world.read("counted")}
    assert {key: count for key, count in counted.items() if count} == {each: values.count(each) for each in values}
    assert not any("table" in topic for topic in world.log.topics())
    world.log.close()


def test_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    """What was skipped is skipped again; a handler that fails now fails with the topic and the offset."""
    from penstock import fail, skip

    world = World(tmp_path)
    world.feed("rows", "a", "1")
    world.feed("rows", "a", "no number")

    def numbers() -> StreamsBuilder:
        builder = StreamsBuilder()
        table = builder.table("rows", "table", value_serde="json")
        builder.stream("in").join(table, lambda value, row: f"{value}:{row}").to("joined")
        return builder

    world.run(builder=numbers(), deserialization_handler=skip)
    world.lose_host()
    world.feed("in", "a", "v")
    with pytest.raises(PenstockError, match=r"rows-0, offset 1|rows.*offset 1"):
        world.run(builder=numbers(), deserialization_handler=fail)
    world.run(builder=numbers(), deserialization_handler=skip)
    assert world.read("joined") == [("a", "v:1")]


def test_from_a_changelog_of_its_own_and_back(tmp_path: Path) -> None:
    """The first change fills the store from its topic; the second is refused: nothing has the content."""
    world = World(tmp_path)
    for value in ("x", "y"):
        world.feed("rows", "a", value)
    world.run(topology_optimization="none")
    assert "app-table-changelog" in world.log.topics()
    end = world.log.end_offsets([TopicPartition("app-table-changelog", 0)])
    world.feed("rows", "b", "z")
    for key in "ab":
        world.feed("in", key, "v")
    world.run()
    assert world.read("joined") == [("a", "v:y"), ("b", "v:z")]
    assert world.log.end_offsets(list(end)) == end
    with pytest.raises(IncompatibleStateError, match="store 'table' was filled from topic 'rows'.*has one of its own"):
        world.run(topology_optimization="none")
    world.lose_host()
    world.feed("in", "a", "w")
    world.run()
    assert world.read("joined")[-1] == ("a", "w:y")


def test_a_topic_that_loses_rows_is_refused(tmp_path: Path) -> None:
    for config in ({"retention.ms": "1000"}, {"cleanup.policy": "compact,delete", "retention.ms": "1000"}):
        world = World(tmp_path, config)
        with pytest.raises(TopologyError, match="'table' is restored from topic 'rows'.*cleanup.policy to compact"):
            world.run()
        world.run(topology_optimization="merge_repartition_topics,single_store_self_join")
    World(tmp_path, {}).run()


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda each: each.table("rows", "table"), {"changelog": "directory:changelog"}),
        (lambda each: each.table("rows", "table"), {"topology_optimization": "merge.repartition.topics"}),
        (lambda each: each.table("rows", "table"), {"offset_reset": "latest"}),
        (lambda each: each.table("rows", "table", offset_reset="1d"), {}),
        (lambda each: each.table("rows", "table", ttl="1d"), {}),
        (lambda each: each.table("rows", versioned_store("table", history_retention="1d")), {}),
        (lambda each: each.table("rows").filter(lambda row: row != "x", store="filtered"), {}),
        (lambda each: each.stream("rows").to_table("table"), {}),
    ],
)
def test_stores_with_a_changelog_of_their_own(
    tmp_path: Path, make: Callable[[StreamsBuilder], Any], given: dict[str, Any]
) -> None:
    """Those whose content does not follow from the last value of each key, or from the whole topic."""
    builder = StreamsBuilder()
    make(builder)
    (subtopology,) = World(tmp_path).application(builder, **given).program.subtopologies
    assert not subtopology.read_only_stores
    assert [each.logged for each in subtopology.stores] == [True]


def test_the_description_says_where_a_store_is_restored_from(tmp_path: Path) -> None:
    """As text it is Kafka Streams' own, which says nothing about changelogs."""
    world = World(tmp_path)
    reused, logged = (world.application(topology_optimization=each).program for each in ("all", "none"))
    assert reused.describe() == logged.describe()
    stores = {each["name"]: each for each in json.loads(reused.to_json())["stores"]}
    assert (stores["table"]["logged"], stores["table"]["filled_from"]) == (False, "rows")
    assert (stores["counts"]["logged"], stores["counts"]["filled_from"]) == (True, None)


def test_a_store_of_that_name_with_other_content_is_filled_afresh(tmp_path: Path) -> None:
    def filtered(builder: StreamsBuilder) -> KTable[Any, Any]:
        return builder.stream("rows").filter(lambda row: row != "x").to_table("table")

    def joined(table: Callable[[StreamsBuilder], KTable[Any, Any]]) -> StreamsBuilder:
        builder = StreamsBuilder()
        builder.stream("in").left_join(table(builder), lambda value, row: f"{value}:{row}").to("joined")
        return builder

    world = World(tmp_path)
    world.feed("rows", "a", "x")
    world.run(builder=joined(filtered))
    world.feed("in", "a", "v")
    world.run(builder=joined(lambda builder: builder.table("rows", "table")))
    assert world.read("joined") == [("a", "v:x")]
