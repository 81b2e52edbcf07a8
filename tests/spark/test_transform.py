"""DataFrame in, DataFrame out, on Spark: exactly once through kills and retries, chained with other operators, checked
when built."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark.sql.functions
import pytest

import penstock.spark
from penstock import Application, DeadLetter, Processor, Record, Settings, TaskId, Topology, key_value_store
from penstock.errors import ConfigError, RuntimeUnavailableError, TopologyError
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.shipping import pack
from penstock.plugins.serdes.registry.avro import AvroSerde
from penstock.plugins.spark import Records, interpreter, transform
from penstock.plugins.spark.dataframe.checkpoint import SourceOrder, StreamCommit
from penstock.plugins.spark.dataframe.stream_engine import StreamTask
from penstock.plugins.spark.dataframe.transform import local_directory
from penstock.plugins.spark.group_keys import group_key
from penstock.plugins.spark.sessions import tune
from penstock.record import TopicPartition

from ..processes import python
from ..rotation import by_turns
from ..waiting import wait_until
from . import apps
from .dataframe_driver import SCHEMA, Number, application, files, number, rate, start

Rows = list[tuple[str, str]]


@pytest.fixture
def session(spark: Any) -> Any:
    tuned = tune(spark, True, 2)
    tuned.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    return tuned


def write(directory: Path, name: int, rows: list[tuple[str, str, int]]) -> None:
    """Write a file of the source; its name and time say that it comes after the others."""
    lines = [
        json.dumps(
            {"key": key, "value": value, "timestamp": f"2026-01-01 00:{at // 60:02}:{at % 60:02}", "number": place}
        )
        for place, (key, value, at) in enumerate(rows)
    ]
    (directory / "in").mkdir(parents=True, exist_ok=True)
    path = directory / "in" / f"{name:03}.json"
    path.write_text("\n".join(lines))
    os.utime(path, (1_700_000_000 + name, 1_700_000_000 + name))


def some_files(directory: Path, count: int = 6) -> None:
    for name in range(count):
        write(directory, name, [(f"k{at % 7}", f"v{name}-{at}", 10 * name + at % 10) for at in range(40)])


def written(session: Any, directory: Path) -> Rows:
    return sorted((row.key, row.value) for row in session.read.json(str(directory / "out")).collect())


def state(session: Any, directory: Path, tasks: int = 3) -> dict[str, Any]:
    """What the stores of all tasks hold, by Spark's checkpoint and the changelog alone."""
    app = application(directory, state_dir="another-host")
    program = app.program
    fingerprint = program.fingerprint(program.resolve({"in": tasks}, "app"))
    query = json.loads((directory / "checkpoint" / "metadata").read_text())["id"]
    rows = session.read.format("statestore").load(str(directory / "checkpoint")).collect()
    commits = {row.key[0]: row.value.groupState if "groupState" in row.value else row.value for row in rows}
    found: dict[str, Any] = {}
    for partition in range(tasks):
        commit = StreamCommit.from_state(tuple(commits[group_key(TaskId(0, partition), 480)])[:2])
        task = StreamTask(
            app, TaskId(0, partition), [TopicPartition("in", partition)], fingerprint, ProcessResources(),
            stream=query, kept=9, has_timeouts=False, source_order=SourceOrder(),
        )  # fmt: skip
        task.run({}, 0, commit)
        assert task._state is not None
        for name, store in task._state.stores.items():
            found |= {f"{name} {key}": value for key, value in store.all()}  # type: ignore[attr-defined]
        task.close()
    return found


@pytest.fixture(scope="module")
def undisturbed(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Rows, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("undisturbed")
    session = tune(spark, True, 2)
    some_files(directory)
    start(session, files(session, directory), directory).awaitTermination()
    rows, kept = written(session, directory), state(session, directory)
    assert len(rows) == 240 and len(kept) == 14
    return rows, kept


def batches(directory: Path) -> int:
    return len([each for each in (directory / "checkpoint" / "commits").glob("*") if each.name.isdigit()])


def kill_after(directory: Path, kind: str, count: int) -> str:
    """Run a driver, and kill it and all its processes once the checkpoint has so many batches.

    Return what it and its task hosts have written to standard error.
    """
    with python("tests.spark.dataframe_driver", directory, kind) as process:
        wait_until(lambda: batches(directory) >= count or process.poll() is not None, f"{count} batches", 120)
        if process.poll() is not None:
            raise AssertionError(f"the driver ended: {process.communicate()[1][-3000:]}")
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=120)[1]


# ---------------------------------------------------------------------- exactly once


@by_turns(0, 4)
def test_files_are_processed_once_through_a_kill_of_the_driver(
    session: Any, undisturbed: tuple[Rows, dict[str, Any]], tmp_path: Path
) -> None:
    some_files(tmp_path)
    said = kill_after(tmp_path, "files", 2)
    lines = re.findall(r"WARNING pipeline: task (0_\d), node 'number': the first of (k\d)$", said, re.MULTILINE)
    assert {key for _, key in lines} == {f"k{number}" for number in range(7)} and len(dict(lines)) > 1, said
    assert batches(tmp_path) < 6
    start(session, files(session, tmp_path), tmp_path).awaitTermination()
    assert written(session, tmp_path) == undisturbed[0]
    assert state(session, tmp_path) == undisturbed[1]


@by_turns(2, 4)
def test_the_rate_source_is_processed_once_through_a_kill(session: Any, tmp_path: Path) -> None:
    kill_after(tmp_path, "rate", 3)
    query = start(session, rate(session), tmp_path, processingTime="0 seconds")
    wait_until(lambda: batches(tmp_path) >= 6 or not query.isActive, "three more batches", 120)
    query.stop()
    assert query.exception() is None
    rows = written(session, tmp_path)
    numbers = sorted(int(value.partition(":")[0]) for _, value in rows)
    assert numbers == list(range(len(rows))) and len(rows) > 100
    assert {(key, value) for key, value in rows} == {(str(at % 10), f"{at}:{at // 10 + 1}") for at in numbers}


class DiesTwice(Number):
    """Kills its worker process at the 20th record of a file, in two batches."""

    def __init__(self, flags: str) -> None:
        self.flags = Path(flags)

    def process(self, record: Record) -> None:
        flag = self.flags / record.value
        if record.value in ("v1-20", "v3-20") and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().process(record)


def test_files_are_processed_once_through_kills_of_workers(
    session: Any, undisturbed: tuple[Rows, dict[str, Any]], tmp_path: Path
) -> None:
    some_files(tmp_path)
    app = Application("app", number(DiesTwice, flags=str(tmp_path)), data_dir=str(tmp_path))
    start(session, files(session, tmp_path), tmp_path, app).awaitTermination()
    assert (tmp_path / "v3-20").exists()
    assert written(session, tmp_path) == undisturbed[0]
    assert state(session, tmp_path) == undisturbed[1]


def test_another_host_goes_on_from_the_changelog(
    session: Any, undisturbed: tuple[Rows, dict[str, Any]], tmp_path: Path
) -> None:
    some_files(tmp_path, 3)
    for host in ("one", "other"):
        app = application(tmp_path, state_dir=host)
        start(session, files(session, tmp_path), tmp_path, app).awaitTermination()
        some_files(tmp_path)
    assert any((tmp_path / "other").iterdir())
    assert written(session, tmp_path) == undisturbed[0]
    assert state(session, tmp_path) == undisturbed[1]


def test_a_batch_that_is_evaluated_twice_gives_the_same_rows(session: Any, tmp_path: Path) -> None:
    some_files(tmp_path, 3)
    seen: list[tuple[Any, Any]] = []

    def look(frame: Any, number: int) -> None:
        # Without `persist` each of these runs the whole batch, the operator too.
        once, again = (sorted((bytes(row.key), bytes(row.value)) for row in frame.collect()) for _ in range(2))
        seen.append((once, again))

    out = transform(application(tmp_path), {"in": files(session, tmp_path)}, partitions=2, order_by="number")
    query = start_each(out, tmp_path, look)
    query.awaitTermination()
    assert [len(once) for once, _ in seen] == [40, 40, 40]
    assert all(once == again for once, again in seen)
    assert seen[2][0][-1] == (b"k6", b"v2-6:14")
    # Spark has the counts of the last evaluation.
    assert [(each["records_in"], each["counters"]["number.out"]) for each in observed(query)] == [(40, 40)] * 3


def run(frame: Any, directory: Path, each: Any = None, mode: str = "append", **trigger: Any) -> list[Any]:
    """Run a query to its end with what it needs beside `directory`; return its rows, those of the last batch in
    complete mode."""
    rows: list[Any] = []

    def collect(batch: Any, number: int) -> None:
        if mode == "complete":
            rows.clear()
        rows.extend(batch.collect())

    start_each(frame, directory, each or collect, mode, **trigger).awaitTermination()
    return rows


def start_each(frame: Any, directory: Path, each: Any, mode: str = "append", **trigger: Any) -> Any:
    return (
        frame.writeStream.foreachBatch(each)
        .outputMode(mode)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def observed(query: Any) -> list[dict[str, Any]]:
    """What Spark's progress says of each batch of an operator."""
    found = [each.observedMetrics.get("penstock") for each in query.recentProgress]
    return [each.asDict() for each in found if each is not None]


# ---------------------------------------------------------------------- what Spark sees


class Grades(Number):
    """Drops what is empty, and has a counter of its own."""

    def process(self, record: Record) -> None:
        if not record.value:
            self.context.metrics.drop("empty")
            return
        self.context.metrics.user["graded"] += 1
        super().process(record)


def test_counts_of_an_operator_are_observed_metrics(session: Any, tmp_path: Path) -> None:
    write(tmp_path, 0, [("a", "x", 1), ("b", "", 2), ("c", "y", 3)])
    write(tmp_path, 1, [("a", "z", 4), ("a", "z", 4)])
    app = Application("app", number(Grades), data_dir=str(tmp_path))
    for schema in (None, {"out": "string"}):
        rows: list[Any] = []
        out = transform(app, {"in": files(session, tmp_path)}, partitions=2, order_by="number", schema=schema)
        query = start_each(out, tmp_path / str(schema), lambda frame, number, rows=rows: rows.extend(frame.collect()))
        query.awaitTermination()
        assert [row.topic for row in rows] == ["out"] * 4 and len(out.columns) == 5 + bool(schema)
        first, second = observed(query)
        counters = first.pop("counters")
        assert first == {
            "records_in": 3, "records_out": 2, "dropped": 1, "commits": 2, "restored": 0, "lag": None, "state_rows": 4
        }  # fmt: skip
        counters = {name: count for name, count in counters.items() if name.startswith("number")}
        assert counters == {"number.in": 3, "number.out": 2, "number.dropped.empty": 1, "number.user.graded": 2}
        assert (second["records_in"], second["dropped"], second["state_rows"]) == (2, 0, 4)


# ---------------------------------------------------------------------- in a pipeline


def test_it_stands_between_other_operators(session: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import col, count, split

    for name in range(2):
        write(tmp_path, name, [("a", "x", 1), ("a", "x", 1), ("b", "y", 2), ("c", "z", 3)])
    names = session.createDataFrame([("a", "anna"), ("b", "bert")], "key string, name string")
    before = files(session, tmp_path).where("key != 'c'").dropDuplicates(["key", "value"])
    out = transform(application(tmp_path), {"in": before}, partitions=2)
    after = (
        out.withColumn("key", col("key").cast("string"))
        .join(names, "key")
        .groupBy("name", split(col("value").cast("string"), ":")[1].alias("which"))
        .agg(count("*").alias("rows"))
    )
    found = run(after, tmp_path, mode="complete")
    assert sorted(map(tuple, found)) == [("anna", "1", 1), ("bert", "1", 1)]


def test_two_of_them_and_two_branches_of_one_are_refused_in_a_query(session: Any, tmp_path: Path) -> None:
    some_files(tmp_path, 1)
    first = transform(application(tmp_path), {"in": files(session, tmp_path)}, partitions=2)
    with pytest.raises(ConfigError, match="come from another transform.*Combine.*second query"):
        transform(application(tmp_path), {"in": first}, partitions=2)
    several = "(?s)Multiple applyInPandasWithStates are not supported.*'app', once in a query: .*use foreachBatch"
    branches = first.where("key = 'k1'").union(first.where("key = 'k2'"))
    with pytest.raises(Exception, match=several):
        run(branches, tmp_path)
    session.conf.set("spark.sql.streaming.unsupportedOperationCheck", "false")
    with pytest.raises(Exception, match="unsupportedOperationCheck=false: .*leave it at true.*foreachBatch"):
        run(branches, tmp_path / "unchecked")
    assert not list(tmp_path.glob("state/**/*.mdb")), "no row was processed"


def test_queries_of_one_program_have_states_of_their_own(session: Any, tmp_path: Path) -> None:
    some_files(tmp_path, 2)
    out = transform(application(tmp_path), {"in": files(session, tmp_path)}, partitions=2, order_by="number")
    found = [sorted((row.key, row.value) for row in run(out, tmp_path / name)) for name in ("one", "other")]
    assert found[0] == found[1] and len(found[0]) == 80


def test_sources_keep_their_offsets_in_whatever_order_they_are_given(session: Any, tmp_path: Path) -> None:
    topology = Topology().add_source("in", "one", "two").add_sink("out", "out", "in")
    app = Application("app", topology, data_dir=str(tmp_path))

    def counted(rows: int) -> Records:
        frame = session.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
        return Records(frame, value=(col("value") + 1000 * rows).cast("string"))

    def batch(*topics: str, **options: Any) -> None:
        sources = {topic: counted({"one": 2, "two": 5}[topic]) for topic in topics}
        found.extend(int(row.value) for row in run(transform(app, sources, partitions=1, **options), tmp_path))

    from pyspark.sql.functions import col

    found: list[int] = []
    batch("two", "one")
    batch("one", "two")
    assert sorted(found) == [*range(2000, 2004), *range(5000, 5010)]
    with pytest.raises(Exception, match=r"order 'one', 'two'.*source_order=\['one', 'two'\]"):
        batch("one", "two", source_order=["two", "one"])
    batch("one", "two")
    # Nothing lost, nothing twice: the refused start has planned a batch, which now runs with the right order.
    ones = [each for each in sorted(found) if each < 5000]
    assert sorted(found) == [*range(2000, 2000 + len(ones)), *range(5000, 5000 + len(found) - len(ones))]
    assert len(found) > 14
    with pytest.raises(ConfigError, match="source_order is a list that has each topic .*'one', 'two'.*'three'"):
        batch("one", "two", source_order=["one", "three"])
    with pytest.raises(ConfigError, match="source_order is a list .*found {'"):
        batch("one", "two", source_order={"one", "two"})


class Rekeys(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_headers((*record.headers, ("seen", b"1"))))


def two_subtopologies() -> Topology:
    topology = number()
    topology.add_source("others", "others", value_serde="int").add_processor("rekeys", Rekeys, "others")
    return topology.add_sink("copies", "copies", "rekeys", value_serde="int")


def test_a_batch_of_a_plain_dataframe(session: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import col, expr, lit

    frame = session.createDataFrame(
        [("a", "x", 2, 0), ("a", "y", 1, 0), ("b", "z", 1, 0), (None, "w", 7, 0)],
        SCHEMA.replace("timestamp timestamp", "at long"),
    )
    others = Records(
        session.createDataFrame([("a", 7), ("b", None)], "key string, n int"),
        key=col("key").cast("binary"),
        value=expr("unhex(lpad(hex(n), 16, '0'))"),
        timestamp=lit("2026-01-01").cast("timestamp"),
        headers=expr(
            "array(struct('h' as key, cast('v' as binary) as value), struct('n' as key, cast(null as binary) as value))"
        ),
    )
    app = Application("app", two_subtopologies(), data_dir=str(tmp_path), processing_handler=DeadLetter("rejected"))
    out = transform(app, {"in": Records(frame, timestamp="at"), "others": others}, partitions=3)
    found = {(row.topic, row.key and bytes(row.key), row.value and bytes(row.value)) for row in out.collect()}
    assert found == {
        ("out", b"a", b"y:1"), ("out", b"a", b"x:2"), ("out", b"b", b"z:1"), ("rejected", None, b"w"),
        ("copies", b"a", (7).to_bytes(8, "big")), ("copies", b"b", None),
    }  # fmt: skip
    (copy,) = out.where("topic = 'copies' and value is not null").collect()
    assert [tuple(each) for each in copy.headers] == [("h", b"v"), ("n", None), ("seen", b"1")]
    assert copy.timestamp == datetime(2026, 1, 1)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- the wall clock


def test_the_wall_clock_ticks_by_spark_timeouts(session: Any, tmp_path: Path) -> None:
    write(tmp_path, 0, [("a", "x", 1)])
    app = Application("app", apps.real_ticks(), data_dir=str(tmp_path))
    out = transform(app, {"in": files(session, tmp_path)}, partitions=2, wall_clock=True)
    seen: list[Any] = []
    query = (
        out.writeStream.foreachBatch(lambda frame, number: seen.append(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        wait_until(lambda: len([rows for rows in seen if rows]) >= 3 or not query.isActive, "three ticks", 120)
        assert query.exception() is None
    finally:
        query.stop()
    ticks = [row for rows in seen for row in rows]
    # Both tasks tick, one of which never had a row.
    assert {bytes(row.key) for row in ticks} == {b"tick"} and any(len(rows) == 2 for rows in seen)


# ---------------------------------------------------------------------- refused when built


def refused(topology: Topology, message: str, kind: type[Exception] = TopologyError, **settings: Any) -> None:
    with pytest.raises(kind, match=message):
        transform(Application("app", topology, **settings), {}, partitions=2)


def test_what_needs_a_log_is_refused() -> None:
    refused(
        apps.count_by_value(),
        "'app' cannot run as an operator.*sink 'by-value-sink' and source 'by-value' exchange.*topic "
        "'by-value-repartition'.*key column",
    )
    table = Topology().add_global_store(key_value_store("names"), "names", "people", "fill", Rekeys)
    refused(table.add_source("in", "in").add_sink("out", "out", "in"), "global store 'names'.*topic 'people'.*Join")
    refused(
        Topology().add_source("all", pattern="a.*").add_sink("out", "out", "all"), "source 'all'.*pattern 'a.*'.*Name"
    )
    partitioned = Topology().add_source("in", "in").add_sink("out", "out", "in", partitioner=lambda *given: 0)
    refused(partitioned, "sink 'out' has a partitioner.*Leave it out")
    unlogged = apps.count().add_store(key_value_store("unlogged", logged=False), "count")
    refused(unlogged, "store 'unlogged' is not logged.*logged=True")
    refused(apps.count(), "setting 'changelog'.*'memory'.*directory:s3", ConfigError, changelog="memory:x")


def test_a_second_name_that_functions_of_pyspark_do_not_hide() -> None:
    assert penstock.spark.apply_topology is penstock.spark.transform is transform
    assert not hasattr(pyspark.sql.functions, "apply_topology")


def test_sources_must_match() -> None:
    app = Application("app", apps.pipe())
    for given, message in (
        ({}, "source 'in' reads topic 'in', for which there is no DataFrame; there is: none. Pass one"),
        ({"in": 1, "inn": 2}, "no source reads topic 'inn'.*did you mean 'in'"),
        ([1], "expected a mapping of topics to DataFrames, found list"),
        ({"in": 1}, "topic 'in': expected a DataFrame or Records.*found 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            transform(app, given, partitions=2)  # type: ignore[arg-type]
    for wrong in (0, True, "4"):
        with pytest.raises(ConfigError, match="partitions is a whole number above 0"):
            transform(app, {"in": 1}, partitions=wrong)  # type: ignore[dict-item, arg-type]
    with pytest.raises(ConfigError, match="expected an Application, found"):
        transform(apps.pipe(), {}, partitions=2)  # type: ignore[arg-type]


def test_columns_must_fit(session: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import col, expr

    app = Application("app", apps.pipe(), data_dir=str(tmp_path))
    frame = session.createDataFrame(
        [(1, "v", "t", [1], {"a": 1})], "key int, value string, at string, headers array<int>, m map<string,int>"
    )
    good = frame.selectExpr("value", "timestamp_millis(5) as timestamp")
    for given, message in (
        (
            good.withColumn("key", col("value").cast("int")),
            "topic 'in': its key is of type int, and the key serde 'str' of source 'in' cannot write that.*cast",
        ),
        (
            Records(frame, key="value"),
            "topic 'in' has no column 'timestamp' for its timestamp; it has: key, value, at.*Records",
        ),
        (Records(frame, key="value", timestamp="at"), "its timestamp is of type string, expected timestamp or bigint"),
        (Records(frame, key="value", timestamp="key"), "its headers are of type array<int>, expected array<struct"),
        (Records(frame, key=5), "key: expected the name of a column or an expression, found 5"),  # type: ignore[arg-type]
        (Records(good, order_by="nope"), "has no column 'nope' for its order.*order_by"),
        (
            Records(frame, key="value", value=col("nope") + 1),
            "no column .* for its value; it has: key, value.*Records.*Spark says: .*nope",
        ),
        (
            Records(frame.drop("headers"), key="value", timestamp="key", order_by=["m"]),
            "order_by has 'm' of type map<string,int>, by which rows cannot be sorted",
        ),
        (Records(good, order_by=[col("value").desc()]), "order_by has Column<'value DESC.*leave asc.* and desc.* out"),
        (Records(good, order_by=[expr("interval '1' year")]), "of type interval year, by which rows cannot be sorted"),
        (Records(good, order_by=[expr("make_interval(1)")]), "of type interval, by which rows cannot be sorted"),
        (Records(good, order_by=[expr("parse_json('1')")]), "of type variant, by which rows cannot be sorted"),
    ):
        with pytest.raises(ConfigError, match=message):
            transform(app, {"in": given}, partitions=2)
    some_files(tmp_path, 1)
    two = Application("app", two_subtopologies())
    with pytest.raises(ConfigError, match="DataFrame of topic 'others' is no stream.*readStream"):
        transform(two, {"in": files(session, tmp_path), "others": Records(good)}, partitions=2)


def test_columns_are_found_as_spark_finds_names(session: Any, tmp_path: Path) -> None:
    app = Application("app", apps.pipe(), data_dir=str(tmp_path))
    schema = "KEY string, Value string, TimeStamp long, HEADERS array<struct<Key:string,VALUE:binary>>, Number int"
    frame = session.createDataFrame([("a", "second", 5, [("h", b"v")], 2), ("a", "first", 5, None, 1)], schema)
    rows = transform(app, {"in": Records(frame, order_by="number")}, partitions=1).collect()
    assert [(row.key and bytes(row.key), bytes(row.value)) for row in rows] == [(b"a", b"first"), (b"a", b"second")]
    assert [tuple(each) for each in rows[1].headers] == [("h", b"v")]
    for column in ("key", "value", "timestamp", "headers", "number"):
        several = Records(frame.selectExpr("*", f"{column} as {column}"), order_by="NUMBER")
        with pytest.raises(ConfigError, match="topic 'in' has several columns.*: (.*), (.*). Rename") as raised:
            transform(app, {"in": several}, partitions=1)
        found = re.search(": (\\w+), (\\w+). Rename", str(raised.value))
        assert found is not None and found[1] != found[2] and {each.lower() for each in found.groups()} == {column}
    with pytest.raises(ConfigError, match="has no column 'a.b' for its key; it has: KEY, .*in backquotes: `a.b`$"):
        transform(app, {"in": Records(frame.selectExpr("*", "key as `a.b`"), key="a.b")}, partitions=1)
    # A function without parentheses, which Spark's `col` finds, is no column.
    with pytest.raises(ConfigError, match="has no column 'user' for its key; it has: KEY, Value"):
        transform(app, {"in": Records(frame, key="user")}, partitions=1)


def test_columns_are_found_in_their_case_where_spark_is_case_sensitive(session: Any, tmp_path: Path) -> None:
    app = Application("app", apps.pipe(), data_dir=str(tmp_path))
    session.conf.set("spark.sql.caseSensitive", "true")
    frame = session.createDataFrame(
        [("a", "upper", "lower", 5)], "KEY string, VALUE string, value string, timestamp long"
    )
    (row,) = transform(app, {"in": frame}, partitions=1).collect()
    assert (row.key, bytes(row.value)) == (None, b"lower")
    with pytest.raises(ConfigError, match="has no column 'key' for its key; it has: KEY, VALUE, value, timestamp"):
        transform(app, {"in": Records(frame, key="key")}, partitions=1)
    headers = frame.selectExpr("*", "array(struct('h' as KEY, VALUE)) as headers")
    with pytest.raises(ConfigError, match="its headers are of type array<struct<KEY:string,VALUE:string>>, expected"):
        transform(app, {"in": headers}, partitions=1)


def test_a_registry_that_is_down_is_found_when_the_frame_is_made(session: Any, tmp_path: Path) -> None:
    avro = AvroSerde('"string"', registry={"url": "http://127.0.0.1:1", "max.retries": 0})
    topology = Topology().add_source("in", "in", value_serde=avro)
    app = Application("app", topology, data_dir=str(tmp_path))
    frame = session.createDataFrame([("v", 5)], "value string, at long")
    with pytest.raises(
        ConfigError, match="source 'in', values of topic 'in': serde 'avro': schema registry http://127"
    ):
        transform(app, {"in": Records(frame, timestamp="at")}, partitions=2)
    # It has no part in typed values.
    typed = Records(frame.selectExpr("struct(value) as value", "at"), timestamp="at")
    app = Application("app", topology.add_sink("out", "out", "in", value_serde=avro), data_dir=str(tmp_path))
    transform(app, {"in": typed}, partitions=2, schema={"out": "value string"})


def test_no_secret_gets_into_the_plan(session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped: list[Any] = []

    def noted(cargo: Any) -> bytes:
        shipped.append(cargo)
        return pack(cargo)

    module = importlib.import_module("penstock.plugins.spark.dataframe.transform")
    monkeypatch.setattr(module, "pack", noted)
    some_files(tmp_path, 1)
    app = application(tmp_path, clients={"sasl.password": "hunter2"})
    transform(app, {"in": files(session, tmp_path)}, partitions=2)
    assert len(shipped) == 1 and b"hunter2" not in pack(shipped[0])
    assert b"hunter2" in pack(app)


def test_another_number_of_tasks_is_refused(session: Any, tmp_path: Path) -> None:
    some_files(tmp_path, 1)
    start(session, files(session, tmp_path), tmp_path).awaitTermination()
    write(tmp_path, 1, [("k1", "one", 1)])
    out = transform(application(tmp_path), {"in": files(session, tmp_path)}, partitions=5)
    writer = out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    # The message is first, but for what Spark says itself.
    start_of_it = (
        r"\A[^\n]*An exception was thrown from the Python worker:\s+penstock\.errors\.IncompatibleStateError: "
    )
    message = start_of_it + r"application 'app', task 0_\d.*partitions=.*new checkpoint"
    with pytest.raises(Exception, match=message) as raised:
        writer.trigger(availableNow=True).start().awaitTermination()
    assert "\nIn the task host:\nTraceback" in str(raised.value)


class Fails(Processor):
    def process(self, record: Record) -> None:
        raise ValueError("cannot stand this")


def test_an_error_begins_with_its_message_and_a_timestamp_out_of_range_with_its_row(
    session: Any, tmp_path: Path
) -> None:
    from pyspark.sql.functions import lit

    topology = Topology().add_source("in", "in", key_serde="int32").add_processor("fails", Fails, "in")
    app = Application("app", topology, data_dir=str(tmp_path))
    frame = session.createDataFrame([("v",)], "value string")
    for key, at, message, traceback in (
        (
            7, 5, r"\A.*\n.*ProcessingFailed: application 'app', task 0_0, node 'fails'.*ValueError: cannot stand this",
            'raise ValueError("cannot stand this")',
        ),
        (1 << 40, 5, r"\A.*\n.*SerdeError: topic 'in', key: serde 'int32': 1099511627776 does not fit", "Traceback"),
        (7, 2**63 - 1, rf"topic 'in': its timestamp is {2**63 - 1} ms in a row with the key 7, expected", ""),
    ):  # fmt: skip
        with pytest.raises(Exception, match=message) as raised:
            transform(app, {"in": Records(frame, key=lit(key), timestamp=lit(at))}, partitions=1).collect()
        assert traceback in str(raised.value)


def test_what_run_checks_of_a_session_is_checked(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = Application("app", apps.pipe(), data_dir=str(tmp_path))
    frame = session.createDataFrame([("a", "v", 5)], "key string, value string, timestamp long")
    context = session.sparkContext
    with monkeypatch.context() as other:
        other.setattr(context, "_jsc", None)
        with pytest.raises(RuntimeUnavailableError, match="topic 'in' belongs to a SparkSession that was stopped"):
            transform(app, {"in": frame}, partitions=1)
    with monkeypatch.context() as other:
        other.setattr(context, "pythonExec", "python-of-nobody")
        other.setattr(interpreter, "_checked", set())
        with pytest.raises(RuntimeUnavailableError, match="there is no such command.*before the session is made"):
            transform(app, {"in": frame}, partitions=1)
    with monkeypatch.context() as other:
        memory = context.getConf().set("spark.executor.pyspark.memory", "1g")
        other.setattr(context, "getConf", lambda: memory)
        with pytest.raises(RuntimeUnavailableError, match="spark.executor.pyspark.memory=1g limits"):
            transform(app, {"in": frame}, partitions=1)


def test_a_changelog_that_executors_may_not_share_is_named() -> None:
    settings = Settings(data_dir="/data")
    assert local_directory(settings, "local[2]") is None
    assert local_directory(Settings(changelog="directory:s3://bucket/folder"), "spark://host:7077") is None
    warning = local_directory(settings, "spark://host:7077")
    assert warning is not None and "data_dir='/data'" in warning and "spark://host:7077: unless" in warning
