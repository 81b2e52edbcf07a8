"""The task of a topology inside a Spark pipeline, handed batches as Spark hands them: split, repeated, moved, taken
back."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Application,
    DeadLetter,
    Processor,
    Record,
    Retry,
    TaskId,
    TopicPartition,
    Topology,
    default_partitioner,
    key_value_store,
)
from penstock.errors import ChangelogError, ConfigError, IncompatibleStateError, ProcessingError
from penstock.plugins.changelogs.directory import DirectoryChangelog
from penstock.plugins.dsl import StreamsBuilder, tumbling
from penstock.plugins.engine.host.reports import Meter
from penstock.plugins.engine.host.slot_engine import HostInfo
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.report import DetailedCounts
from penstock.plugins.spark.dataframe.checkpoint import SourceOrder, StreamCommit, next_anchors, oldest_needed
from penstock.plugins.spark.dataframe.packing import Packer, Rows
from penstock.plugins.spark.dataframe.stream_engine import Outcome, StreamBatch, StreamCargo, StreamTask
from penstock.plugins.testing import TopologyTestDriver
from penstock.world import World

Row = tuple[Any, Any, int]
SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("time", pyarrow.int64()),
        ("headers", pyarrow.string()),
        ("order0", pyarrow.int64()),
    ]
)


class Tally(Processor):
    """Counts by key, tells the counts of all keys each second of stream time, and forgets those that lived 5 s."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")
        context.schedule("1s", self.tell, STREAM_TIME)

    def process(self, record: Record) -> None:
        if record.value == "poison":
            raise ValueError("cannot stand this")
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(f"{record.value}:{count}"))

    def tell(self, now: int) -> None:
        for key, count in self.counts.all():
            self.context.forward(Record(key, f"all:{count}", now))


def tally(supplier: Any = Tally, ttl: str | None = "5s") -> Topology:
    return (
        Topology()
        .add_source("in", "in", "more")
        .add_processor("tally", supplier, "in", stores=["counts"])
        .add_store(key_value_store("counts", key_serde="str", ttl=ttl))
        .add_sink("out", "out", "tally")
    )


def packed(rows: Iterable[Row], headers: Any = None, order: Iterable[int] | None = None) -> list[bytes]:
    """Rows as one chunk for one task, in an order that is not theirs."""
    found = list(rows)
    batch = pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array([None if key is None else key.encode() for key, _, _ in found], pyarrow.binary()),
            pyarrow.array([None if value is None else value.encode() for _, value, _ in found], pyarrow.binary()),
            pyarrow.array([time * 1000 for _, _, time in found], pyarrow.int64()),
            pyarrow.array(headers or [None] * len(found), pyarrow.string()),
            pyarrow.array(list(order or range(len(found))), pyarrow.int64()),
        ],
        schema=SCHEMA,
    )
    backwards = batch.take(pyarrow.array(range(len(found) - 1, -1, -1), pyarrow.int64()))
    chunks: list[bytes] = []
    for part in Packer("in", (7,), (7,))([backwards]):
        chunks += [chunk for chunk in part.column("chunk").to_pylist() if chunk is not None]
    return chunks


class Operator:
    """What Spark is to a task: it keeps the commit, repeats batches, and runs them anywhere."""

    def __init__(self, directory: Path, topology: Topology | None = None, **options: Any) -> None:
        self.directory = directory
        defaults = {"kept": 5, "has_timeouts": False, "source_order": SourceOrder(("in", "more"))}
        self.options = {**defaults, **options}
        given = {key: self.options.pop(key) for key in list(self.options) if key not in defaults}
        self.application = Application("app", topology or tally(), data_dir=str(directory), **given)
        self.known: StreamCommit | None = None
        self.counts = DetailedCounts()
        self.hosts = 0
        self.open: list[StreamTask] = []
        self.task = self.on_a_new_host()

    def on_a_new_host(self) -> StreamTask:
        """A task in another process, whose host has no copy of the state."""
        self.hosts += 1
        return self.in_a_new_process()

    def in_a_new_process(self) -> StreamTask:
        application = self.application.with_settings(state_dir=f"host-{self.hosts}")
        program = application.program
        counts = dict.fromkeys(program.topics(), 1)
        assignment = program.resolve(counts, "app")
        partitions = [TopicPartition(topic, 0) for topic in program.topics()]
        self.task = StreamTask(
            application,
            TaskId(0, 0),
            partitions,
            program.fingerprint(assignment, application.settings),
            ProcessResources(World(sleep=lambda seconds: None)),
            stream="query",
            **self.options,
        )
        self.open.append(self.task)
        return self.task

    def attempt(self, rows: Iterable[Row] = (), clock_ms: int = 0, **other: Iterable[Row]) -> Outcome:
        """An attempt at a batch, which counts for nothing yet."""
        chunks = {"in": packed(rows), **{topic: packed(each) for topic, each in other.items()}}
        return self.task.run(chunks, clock_ms, self.known)

    def batch(self, rows: Iterable[Row] = (), clock_ms: int = 0, **other: Iterable[Row]) -> list[Row]:
        """A batch that Spark commits."""
        outcome = self.attempt(rows, clock_ms, **other)
        self.known = StreamCommit.from_state(outcome.commit.to_state())
        self.counts += outcome.observed.counts
        return told(outcome)

    def state(self) -> dict[str, Any]:
        """What the store has by now, as a new host sees it."""
        application = self.application
        topology = application.topology
        assert isinstance(topology, Topology)
        reader = Operator(self.directory, topology, **self.options)
        reader.known, reader.hosts = self.known, self.hosts + 1000
        task = reader.in_a_new_process()
        task.run({}, 0, self.known)
        assert task._state is not None
        found = dict(task._state.stores["counts"].all())  # type: ignore[attr-defined]
        reader.close()
        return found

    def close(self) -> None:
        for task in self.open:
            task.close()


def told(outcome: Outcome) -> list[Row]:
    return [
        (None if key is None else key.decode(), None if value is None else value.decode(), timestamp)
        for batch in outcome.outputs
        for key, value, timestamp in zip(batch.keys, batch.values, batch.timestamps, strict=True)
    ]


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    yield made
    made.close()


# ---------------------------------------------------------------------- the law

steps = st.sampled_from(["go on", "repeat", "repeat elsewhere", "new process", "new host", "old process"])
keys = st.sampled_from(["a", "b", "c"])


@settings(max_examples=60)
@given(
    st.lists(st.tuples(keys, st.sampled_from(["x", "y", "z"]), st.integers(0, 900)), min_size=5, max_size=30),
    st.lists(st.tuples(st.integers(0, 5), steps), min_size=3, max_size=12),
)
def test_any_split_of_the_input_gives_what_the_test_driver_gives(given: list[Row], cuts: list[tuple[int, str]]) -> None:
    now, rows = 0, []
    for key, value, gap in given:
        now += gap
        rows.append((key, value, now))
    with TopologyTestDriver(tally()) as driver:
        for key, value, time in sorted(rows, key=lambda row: row[2]):
            driver.pipe("in", key, value, time)
        expected = [tuple(record[:3]) for record in driver.read_all("out")]
        state = dict(driver.store("counts").all())

    directory = Path(tempfile.mkdtemp())
    operator, found, left = Operator(directory), [], list(rows)
    try:
        for size, step in [*cuts, (len(rows), "go on")]:
            part, left = left[:size], left[size:]
            if step == "repeat":
                operator.attempt(part)
            elif step == "repeat elsewhere":
                operator.attempt(part)
                operator.on_a_new_host()
            elif step == "new process":
                operator.in_a_new_process()
            elif step == "new host":
                operator.on_a_new_host()
            elif step == "old process":
                operator.task = operator.open[0]
            found += operator.batch(part)
        assert found == expected
        assert operator.state() == state
        assert (operator.counts.records_in, operator.counts.records_out) == (len(rows), len(found))
        assert operator.counts.nodes["tally"] == {"in": len(rows), "out": len(found), "dropped": {}, "user": {}}
    finally:
        operator.close()
        shutil.rmtree(directory)


def test_counts_are_of_the_attempt_and_rows_of_the_state_after_it(tmp_path: Path) -> None:
    operator = Operator(tmp_path, tally(ttl=None))

    def attempt(*keys: str) -> tuple[int, int, int | None]:
        observed = operator.attempt([(key, "x", 1) for key in keys]).observed
        return observed.counts.records_in, observed.counts.restored, observed.state_rows

    with closing(operator):
        assert attempt("a", "b", "b") == attempt("a", "b", "b") == (3, 0, 2)
        operator.batch([("a", "x", 1), ("b", "x", 1)])
        operator.on_a_new_host()
        assert attempt("a", "d") == (2, 2, 3)


class Talks(Tally):
    def process(self, record: Record) -> None:
        logging.getLogger("pipeline").warning("%s came", record.value)
        super().process(record)


def test_log_lines_are_on_standard_error_with_task_and_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operator = Operator(tmp_path, tally(Talks))
    partitions = tuple(operator.task._inputs[number][0] for number in range(2))
    tasks = {7: (TaskId(0, 0), partitions)}
    cargo = StreamCargo(
        operator.application, tasks, operator.task._fingerprint, 5, False, SourceOrder(), logging.WARNING
    )
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    engine = cargo.engine(HostInfo("token", 0, "query", "first", Meter()))
    engine.handle(StreamBatch(7, {"in": packed([("a", "x", 1)])}, 0, None))
    logging.getLogger("pipeline").info("nobody wants this")
    logging.getLogger("pipeline").error("between two batches")
    engine.close()
    assert (root.level, root.handlers) == before
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" WARNING pipeline: task 0_0, node 'tally': x came")
    assert second.endswith(" ERROR pipeline: between two batches")


# ---------------------------------------------------------------------- what Spark may do


def test_a_batch_that_is_repeated_gives_the_same_rows(operator: Operator) -> None:
    first = operator.attempt([("a", "x", 1), ("b", "x", 1)])
    again = operator.attempt([("a", "x", 1), ("b", "x", 1)])
    assert told(first) == told(again)
    assert first.commit.version != again.commit.version
    # Spark may keep either.
    for kept in (first, again):
        operator.known = kept.commit
        assert ("a", "x:2", 2) in operator.batch([("a", "x", 2)])


def test_the_store_is_not_ahead_of_what_spark_has(operator: Operator) -> None:
    operator.batch([("a", "x", 1)])
    state = operator.task._state
    assert state is not None and operator.known is not None
    assert state.version != operator.known.version
    operator.attempt([("a", "x", 2)])
    assert state.version == operator.known.version


def test_a_batch_without_anything_commits_nothing(operator: Operator) -> None:
    operator.batch([("a", "x", 1)])
    before = operator.known
    operator.batch([], clock_ms=5)
    assert operator.known == before


def test_the_number_of_tasks_may_not_change(operator: Operator) -> None:
    operator.batch([("a", "x", 1)])
    assert operator.known is not None
    before = json.loads(json.dumps(operator.known.fingerprint))
    before["subtopologies"]["0"]["tasks"] = 4
    operator.known = replace(operator.known, fingerprint=before)
    operator.in_a_new_process()
    with pytest.raises(IncompatibleStateError, match="'app', task 0_0: it does not fit.*partitions=.*new checkpoint"):
        operator.batch([("a", "x", 2)])


class Numbers(Processor):
    """Counts by key in the store `counts`, if there is one."""

    def process(self, record: Record) -> None:
        said = record.value
        if self.context.config["user"].get("counts"):
            counts = self.context.get_store("counts")
            said = counts.put_if_absent(record.key, 0) or 0
            counts.put(record.key, said + 1)
        self.context.forward(record.with_value(str(said)))


def changed(operator: Operator, *, counts: bool = True, settings: Any = None, **options: Any) -> None:
    """Go on with a program whose store `counts` has other options, or which has none."""
    topology = Topology().add_source("in", "in").add_processor("p", Numbers, "in")
    if counts:
        topology.add_store(key_value_store("counts", **{"key_serde": "str", **options}), "p")
    topology.add_sink("out", "out", "p")
    given = {"data_dir": str(operator.directory), "user": {"counts": counts}, **(settings or {})}
    operator.application = Application("app", topology, **given)
    operator.in_a_new_process()


def test_what_a_program_may_change(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    changed(operator, counts=False)
    operator.batch([("a", "x", 1)])
    changed(operator)  # a first store
    assert operator.batch([("a", "x", 2)]) == [("a", "0", 2)]
    operator.on_a_new_host()
    assert operator.batch([("a", "x", 3)]) == [("a", "1", 3)]
    changed(operator, backend="memory")
    assert operator.batch([("a", "x", 4)]) == [("a", "2", 4)]
    changed(operator)
    assert operator.batch([]) == []
    operator.in_a_new_process()
    assert operator.batch([("a", "x", 5)]) == [("a", "3", 5)]
    for options, said in (
        ({"logged": False}, "'counts' was in the changelog"),
        ({"value_serde": "int"}, "'counts' was written with value_serde"),
        ({"settings": {"state_serde": "json"}}, "'counts' was written with value_serde"),
    ):
        changed(operator, **options)
        with pytest.raises(IncompatibleStateError, match=f"{said}.*new checkpoint"):
            operator.batch([("a", "x", 6)])
    changed(operator, ttl="1h")
    assert operator.batch([("a", "x", 7)]) == [("a", "4", 7)]
    changed(operator)
    with pytest.raises(IncompatibleStateError, match="'counts' had a TTL and now has none"):
        operator.batch([("a", "x", 8)])
    operator.close()


def windows(operator: Operator, *, in_front: bool = False, size: str = "5s") -> None:
    """Go on with a program that counts by windows, and sends each when it closes."""
    builder = StreamsBuilder()
    stream = builder.stream("in")
    if in_front:
        stream = stream.peek(lambda value: None)
    counts = stream.group_by_key().windowed_by(tumbling(size, grace="0s"), emit="on_close").count("counts")
    counts.to_stream(lambda key, n: f"{key.key}{key.start}", with_key=True).map_values(str).to("out", value_serde="str")
    operator.application = Application("app", builder, data_dir=str(operator.directory))
    operator.in_a_new_process()


def test_windows_go_on_with_a_verb_in_front_and_not_with_another_size(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    windows(operator)
    assert operator.batch([("a", "1", 1_000), ("a", "1", 6_000)]) == [("a0", "1", 1_000)]
    windows(operator, in_front=True)
    # The first one is late; it is the last one that closes a window.
    assert operator.batch([("a", "1", 2_000), ("a", "1", 12_000)]) == [("a5000", "1", 6_000)]
    windows(operator, size="1s")
    with pytest.raises(IncompatibleStateError, match="'counts' has tumbling windows of 5000 ms and now gets"):
        operator.batch([("a", "1", 13_000)])
    operator.close()


def test_going_back_as_far_as_spark_may(tmp_path: Path) -> None:
    operator = Operator(tmp_path, tally(ttl=None), changelog_grace="0s", kept=5, state_cleanup_delay="1d")
    history: list[tuple[StreamCommit, int]] = []
    filler = "v" * 300_000
    for number in range(1, 41):
        operator.batch([(f"{filler}{number % 3}", "x", 0), ("a", "x", 0)])
        assert operator.known is not None
        history.append((operator.known, number))
        for commit, _ in history[-5:]:
            DirectoryChangelog(str(tmp_path / "changelog"), "app", "0_0.query").restore(commit.version, None)
    files = [path.name for path in tmp_path.glob("changelog/app/*/*")]
    assert sum(name.endswith("snapshot") for name in files) >= 1
    assert len(files) < 35, "the changelog is never cleaned"
    for commit, number in history[-5:]:
        operator.known = commit
        operator.on_a_new_host()
        assert ("a", f"x:{number + 1}", 0) in operator.batch([("a", "x", 0)])
    operator.close()


@given(st.integers(1, 50), st.integers(1, 400))
def test_anchors_cover_what_spark_keeps_and_not_much_more(kept: int, batches: int) -> None:
    anchors: tuple[str, ...] = ()
    for number in range(1, batches + 1):
        version = f"{number:012d}-aa"
        anchors = next_anchors(anchors, version, kept)
        oldest = oldest_needed(anchors, version, kept)
        assert len(anchors) <= 3
        if oldest is None:
            assert number <= kept
        else:
            assert kept <= number - int(oldest[:12]) < 2 * kept


# ---------------------------------------------------------------------- order, time, errors


def test_rows_are_processed_by_timestamp_order_and_content() -> None:
    rows = [("a", "late", 5), ("a", "second", 3), ("a", "first", 3), ("b", None, 3)]
    chunks = packed(rows, order=[0, 2, 1, 1])
    batch = Rows(TopicPartition("in", 0), chunks, 10).take(10)
    assert list(batch.values) == [b"first", None, b"second", b"late"]
    assert list(batch.timestamps) == [3, 3, 3, 5] and list(batch.offsets) == [10, 11, 12, 13]
    assert batch.headers is None


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.text(max_size=9)), st.one_of(st.none(), st.text(max_size=5))), min_size=1
    )
)
def test_every_row_goes_to_the_partition_of_its_key(given: list[tuple[str | None, str | None]]) -> None:
    rows = [(None if key is None else key.encode(), None if value is None else value.encode()) for key, value in given]
    columns = [pyarrow.array(column, pyarrow.binary()) for column in zip(*rows, strict=True)]
    none, numbers = pyarrow.nulls(len(rows), pyarrow.string()), pyarrow.array(range(len(rows)), pyarrow.int64())
    batch = pyarrow.RecordBatch.from_arrays([*columns, numbers, none, numbers], schema=SCHEMA)
    found = []
    for part in Packer("in", (5, 6, 7), ())([batch]):
        for group, chunk in zip(part.column("group").to_pylist(), part.column("chunk").to_pylist(), strict=True):
            taken = Rows(TopicPartition("in", group - 5), [chunk], 0).take(len(rows))
            for key, value in zip(taken.keys, taken.values, strict=True):
                hashed = crc32(value or b"").to_bytes(4, "big") if key is None else key
                assert default_partitioner(hashed, 3) == group - 5
                found.append((key, value))
    assert Counter(found) == Counter(rows)


def test_headers_and_nulls_travel(operator: Operator) -> None:
    headers = (("trace", b"1"), ("trace", None), ("ü", b""))
    json_of_spark = '[{"key":"trace","value":"MQ=="},{"key":"trace"},{"key":"ü","value":""},null]'
    chunks = packed([("a", None, 1), (None, "x", 2)], headers=[json_of_spark, None])
    batch = Rows(TopicPartition("in", 0), chunks, 0).take(10)
    assert (batch.keys, batch.values, batch.headers) == ([b"a", None], [None, b"x"], [headers, ()])


def test_topics_are_merged_by_time_without_waiting(operator: Operator) -> None:
    found = operator.batch([("a", "one", 1), ("a", "four", 4)], more=[("a", "two", 2), ("a", "five", 5)])
    assert [value for _, value, _ in found if not value.startswith("all")] == ["one:1", "two:2", "four:3", "five:4"]
    assert ("a", "six:5", 6) in operator.batch([("a", "six", 6)])


class Topics(Processor):
    def process(self, record: Record) -> None:
        metadata = self.context.record_metadata
        assert metadata is not None
        self.context.forward(record.with_value(metadata.topic))


def test_topics_larger_than_a_chunk_are_merged_by_time(tmp_path: Path) -> None:
    topology = (
        Topology().add_source("in", "in", "more").add_processor("topics", Topics, "in").add_sink("o", "o", "topics")
    )
    operator = Operator(tmp_path, topology)
    few = [("a", "x", 4 * number) for number in range(6_000)]
    many = [("a", "x", number) for number in range(25_000)]
    found = operator.batch(few, more=many)
    assert [time for _, _, time in found] == sorted(time for _, _, time in few + many)
    assert found[:3] == [("a", "in", 0), ("a", "more", 0), ("a", "more", 1)]
    operator.close()


class Clocked(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule("10s", lambda now: context.forward(Record("tick", "", now)), WALL_CLOCK_TIME)

    def process(self, record: Record) -> None:
        self.context.forward(record)
        self.context.commit()


def clocked() -> Topology:
    return Topology().add_source("in", "in").add_processor("clock", Clocked, "in").add_sink("out", "out", "clock")


def test_the_wall_clock_is_the_batchs(tmp_path: Path) -> None:
    operator = Operator(tmp_path, clocked(), has_timeouts=True)
    assert operator.batch([("a", "x", 1), ("b", "x", 2)], clock_ms=1_000) == [("a", "x", 1), ("b", "x", 2)]
    operator.on_a_new_host()
    assert operator.attempt([], clock_ms=10_999).next_tick == 11_000
    assert operator.batch([], clock_ms=11_000) == [("tick", "", 11_000)]
    assert operator.attempt([], clock_ms=11_000).next_tick == 21_000
    operator.close()


def test_the_wall_clock_needs_timeouts(tmp_path: Path) -> None:
    operator = Operator(tmp_path, clocked())
    with pytest.raises(ConfigError, match=r"task 0_0: node 'clock' schedules by the wall clock.*wall_clock=True"):
        operator.batch([("a", "x", 1)])


def test_an_error_counts_for_nothing(operator: Operator) -> None:
    operator.batch([("a", "x", 1)])
    with pytest.raises(
        ProcessingError, match="node 'tally', at topic 'in' partition 0 offset 2: ValueError: cannot stand"
    ):
        operator.batch([("a", "x", 2), ("a", "poison", 3)])
    assert ("a", "x:2", 2) in operator.batch([("a", "x", 2)])


def test_a_dead_letter_is_a_row(tmp_path: Path) -> None:
    operator = Operator(tmp_path, processing_handler=DeadLetter("rejected"))
    outcome = operator.attempt([("a", "poison", 1), ("a", "x", 2)])
    (dead,) = (batch for batch in outcome.outputs if batch.topic == "rejected")
    assert (dead.keys, dead.values) == ([b"a"], [b"poison"]) and dead.headers is not None
    assert ("a", "x:1", 2) in told(outcome)
    operator.close()


class FailsTwice(Tally):
    failures = 0

    def process(self, record: Record) -> None:
        if record.value == "shaky" and FailsTwice.failures < 2:
            FailsTwice.failures += 1
            raise ValueError("not now")
        super().process(record)


def test_a_retry_starts_the_batch_again(tmp_path: Path) -> None:
    FailsTwice.failures = 0
    operator = Operator(tmp_path, tally(FailsTwice), processing_handler=Retry(3))
    found = operator.batch([("a", "x", 1), ("a", "shaky", 2)])
    assert [row for row in found if not row[1].startswith("all")] == [("a", "x:1", 1), ("a", "shaky:2", 2)]
    assert FailsTwice.failures == 2
    operator.close()


def test_a_call_that_is_made_again_is_made_in_its_batch(tmp_path: Path) -> None:
    """Spark may have no other batch, and no timeout to make one."""
    failures = Counter[str]()

    async def fail_twice(value: str) -> str:
        failures[value] += 1
        if failures[value] < 3:
            raise OSError("the service is away")
        return value

    builder = StreamsBuilder()
    function: Any = fail_twice
    builder.stream("in").map_values_async(function, retries=Retry(3, "20ms"), max_pending=1, name="look").to("out")
    operator = Operator(tmp_path, builder.build(), source_order=SourceOrder(("in",)))
    assert operator.batch([("a", "x", 1), ("b", "y", 2)]) == [("a", "x", 1), ("b", "y", 2)]
    operator.close()


def test_a_batch_ends_with_the_results_of_calls_behind_a_record_cache_or_a_batch(tmp_path: Path) -> None:
    """The commit let them go, and then nobody waited for the calls."""

    async def upper(value: str) -> str:
        return value.upper()

    builder = StreamsBuilder()
    function: Any = upper
    stream: Any = builder.stream("in")
    for name in ("one", "other"):
        batched = stream.to_table(f"of-{name}").to_stream().map_values_batch(lambda values: [f"{v}b" for v in values])
        stream = batched.map_values_async(function, name=name)
    stream.to("out")
    operator = Operator(tmp_path, builder.build(), source_order=SourceOrder(("in",)))
    assert operator.batch([("a", "x", 1), ("a", "y", 2)]) == [("a", "YBB", 2)]
    operator.close()


def test_a_commit_of_another_release_is_refused() -> None:
    version, commit = StreamCommit("attempt", "000000000000-aa").to_state()
    with pytest.raises(IncompatibleStateError, match="another release.*new checkpoint"):
        StreamCommit.from_state((version, commit.replace('"format":2', '"format":3')))


def test_another_order_of_sources_is_refused_before_any_row(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.batch([("a", "x", 1)])
    operator.options["source_order"] = SourceOrder(("more", "in"))
    for _ in range(2):
        operator.in_a_new_process()
        with pytest.raises(IncompatibleStateError, match=r"task 0_0: .*in the order 'in', 'more'.*=\['in', 'more'\]"):
            operator.attempt([("a", "poison", 2)])
    operator.options["source_order"] = SourceOrder(("in", "more"), is_given=True)
    operator.in_a_new_process()
    assert operator.batch([("a", "y", 2)]) == [("a", "y:2", 2)]
    operator.close()


def test_a_commit_without_the_order_of_sources_needs_it_from_the_user(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.batch([("a", "x", 1)])
    assert operator.known is not None
    # As releases wrote it that did not know the order.
    version, text = operator.known.to_state()
    fields = {**json.loads(text), "format": 1}
    del fields["source_order"], fields["application"]
    operator.known = StreamCommit.from_state((version, json.dumps(fields)))
    operator.in_a_new_process()
    with pytest.raises(IncompatibleStateError, match=r"did not save.*source_order=\[\.\.\.\].*newer than.*'commits'"):
        operator.attempt([("a", "poison", 2)])
    operator.options["source_order"] = SourceOrder(("more", "in"), is_given=True)
    operator.in_a_new_process()
    assert operator.batch([("a", "y", 2)]) == [("a", "y:2", 2)]
    assert (operator.known.source_order, operator.known.application) == (("more", "in"), "app")
    operator.close()


def test_lost_state_names_the_checkpoint_and_its_application_id(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.batch([("a", "x", 1)])
    before = operator.application
    operator.application = Application("renamed", tally(), data_dir=str(tmp_path))
    operator.on_a_new_host()
    with pytest.raises(IncompatibleStateError, match="query query was made with the application id 'app'.*use that id"):
        operator.attempt([("a", "y", 2)])
    operator.application = before
    shutil.rmtree(tmp_path / "changelog")
    operator.on_a_new_host()
    with pytest.raises(ChangelogError, match="query query, which.* id 'app', needs .*version 0.*with a new checkpoint"):
        operator.attempt([("a", "y", 2)])
    operator.close()
