"""The benchmarks run, on little data; what they measure is not judged here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bench import __main__ as command_line
from bench import (
    core,
    dataframe,
    figures,
    kafka,
    latency,
    latency_local,
    long_runs,
    many_tasks,
    model,
    peer,
    programs,
    quiet,
    restore,
    spark_local,
    stores,
    values,
)
from bench.latency_chart import chart
from bench.latency_client import PARTITIONS, Load
from bench.result import PERCENTILES, Table, percentiles_ms
from bench.steady import SteadyApplication
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .kafka.names import fresh_name
from .rotation import by_turns
from .waiting import wait_until


def test_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([]) == 0
    assert capsys.readouterr().out.split() == list(command_line.BENCHMARKS)


def test_core_count_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "RECORDS", 10_000)
    monkeypatch.setattr(core, "COMMIT", 5_000)
    monkeypatch.setattr(core, "REPEATS", 1)
    monkeypatch.setattr(core, "tune_garbage_collector", lambda: None)
    assert command_line.main(["core-count", "--json", str(tmp_path / "out.json")]) == 0
    [result] = json.loads((tmp_path / "out.json").read_text())
    assert result["name"] == "core-count"
    assert result["records_per_s"] > 0
    assert {"cpu_s_per_million", "peak_mb", "phases"} <= result.keys()


def test_values_are_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "VALUES", 10)
    monkeypatch.setattr(values, "REPEATS", 1)
    names = ["of(dataclass)", "of(pydantic dataclass)", "avro with a registry", "json", "msgpack"]
    rows = values.values().rows
    assert [row["serde"] for row in rows] == names
    assert len({row["bytes"] for row in rows if row["serde"] in names[:2] + names[3:4]}) == 1  # the same JSON


def test_a_model_on_batches_is_faster_than_on_one_record_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(model, "RECORDS", {True: 2_000, False: 100})
    monkeypatch.setattr(model, "COMMIT", 100)
    rows = {row["program"]: row["times_the_rate_of_one"] for row in model.model().rows}
    assert rows["map_values_batch"] > 10 and rows["BatchProcessor"] > 10
    assert rows["map_values"] == rows["Processor"] == 1


def test_windowed_counts_say_what_they_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in (
        ("RECORDS", 10_000),
        ("COMMIT", 5_000),
        ("REPEATS", 1),
        ("tune_garbage_collector", lambda: None),
    ):
        monkeypatch.setattr(core, name, small)
    result = core.core_windowed_count()
    assert result.records_per_s > 0
    assert list(result.notes) == ["keys", "windows", "timestamps", "changelog"]


def test_stores_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = stores.window_expiry(entries=20_000, windows=10).rows
    assert [row["records a commit"] for row in rows] == list(stores.COMMIT_SIZES)
    assert all(row["freed"] > 2_000 for row in rows)
    assert [row["entries"] for row in stores.commit_cost(entries=10_000).rows] == [10_000]
    for name, small in (
        ("FEW", 1_000),
        ("_in_a_process", lambda function, *args: function(*args)),
    ):
        monkeypatch.setattr(stores, name, small)
    rows = stores.store_size(entries=3_000, records=20_000, commit_records=5_000).rows
    assert [row["entries"] for row in rows] == [1_000, 3_000]
    assert all(row["records_per_s"] > 0 and row["private MB"] > 10 for row in rows)


def test_restores_are_measured() -> None:
    [row] = restore.restore(entries=1000, tasks=(2,), rounds=1, changelog="directory:changes", processes=(0,)).rows
    assert (row["tasks"], row["processes"], row["entries"]) == (2, 0, 1000)
    assert row["entries_per_s"] > 0


def test_an_option_that_a_benchmark_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["core-count", "--minutes", "1"])
    assert "core-count has no option --minutes" in capsys.readouterr().err


def test_a_table_is_an_object_for_each_row_and_its_failure_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "quiet", "batches": each, "reasons": {"moved": 1}, "p50": None} for each in (7, 800)]
    monkeypatch.setattr(quiet, "quiet", lambda batches, log="": Table("quiet", rows, "it grew" if batches > 1 else ""))
    assert command_line.main(["quiet", "--batches", "1", "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == rows
    assert command_line.main(["quiet", "--batches", "2"]) == 1
    assert capsys.readouterr().out.endswith("      800  moved 1    -\n  FAILED: it grew\n")


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        ([1000.0] * 20, True),
        ([1000.0, 1040.0] * 10, True),
        ([1000.0 + 10 * each for each in range(20)], False),
        ([1000.0 - 10 * each for each in range(20)], True),
        ([4.0, 5.0, 6.0], True),
    ],
    ids=["constant", "sawtooth", "growing", "shrinking", "few"],
)
def test_growth_that_is_not_flat_is_found(values: list[float], flat: bool) -> None:
    assert long_runs.is_flat("own_mb", long_runs.growth(values), values[-1]) is flat


def test_percentiles_are_those_of_all_that_was_measured() -> None:
    found = percentiles_ms([float(each) for each in range(1001)])
    assert found == {"p50_ms": 500.0, "p90_ms": 900.0, "p99_ms": 990.0, "p999_ms": 999.0, "max_ms": 1000.0}
    assert set(percentiles_ms([]).values()) == {None}


def test_latencies_are_drawn_with_a_line_for_each_side_that_was_measured() -> None:
    ours = {f"{each}_ms": 2.0 + number for number, each in enumerate(PERCENTILES)}
    theirs = {f"peer_{name}": 10 * value for name, value in ours.items()}
    rows = [{"name": "latency-<a>", **ours, **theirs}, {"name": "latency-b", **ours}, {"name": "quiet", "p50": 1.0}]
    drawn = ElementTree.fromstring(chart(rows))
    lines = [each.attrib["points"].split() for each in drawn.findall(".//{*}polyline")]
    assert [len(each) for each in lines] == [len(PERCENTILES)] * 3
    assert {"<a>", "b", "p99.9", "Java Kafka Streams"} <= {each.text for each in drawn.findall(".//{*}text")}
    with pytest.raises(ValueError, match="no row has p50_ms"):
        chart(rows[2:])


@by_turns(0, 5)
@pytest.mark.spark
def test_a_steady_application_is_measured_by_every_benchmark_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_local, "WARM_UP", 0.0)
    monkeypatch.setattr(long_runs, "LOOK", 0.1)
    with SteadyApplication(2) as running:
        row = many_tasks.measure("many-tasks", running, 2, 120)
        assert list(row)[:6] == ["name", "tasks", "seconds_per_batch", "descriptors", "threads", "reopenings"]
        assert row["tasks"] == row["opened"] == row["batches"] == 2
        assert row["seconds_per_batch"] > 0 and row["descriptors"] > 5 and row["threads"] > 1
        assert {"driver", "JVM", "source", "worker"} <= {each.kind for each in running.usage()}

        found = latency_local.measure("latency", running, 1, 1000)
        assert found["records"] == 1000 and not found["missing"]
        assert 0 < found["p50_ms"] <= found["p90_ms"] <= found["p99_ms"] <= found["p999_ms"] <= found["max_ms"]

        found = quiet.measure(running, 2)
        assert found["batches"] >= 2 and found["records"] > 0

        found = long_runs.measure_idle(running, 0.01, 0.0)
        assert found["cpu_percent"] == pytest.approx(sum(found["by_process"].values()), abs=0.1)

        [trickle] = long_runs.measure_trickle(running, 0.02, 0.5).rows
        assert trickle["lines"] and trickle["growth"].keys() >= {"own_mb", "threads", "checkpoint_files"}

        before = running.reopenings()["reopenings"]
        with running.openings_file.open("a") as file:
            file.write("0_0 1\n0_0 1\n")
        after = running.reopenings()
        assert after["reopenings"] == before + 2
    # The JVM lets `rm` delete its directories, which may end a moment after it.
    wait_until(lambda: not running.processes.processes(), "no process is left")


@by_turns(1, 5)
@pytest.mark.spark
def test_a_page_of_figures_has_each_case_and_keeps_its_text(tmp_path: Path) -> None:
    notes = {"peer records/s": 50, "peer CPU s per million": 7.0, "ratios": "1.9, 2.0, 2.1"}
    notes["records/s with start-up"] = "80, peer 45"
    rows = [
        {"name": "kafka-word-count", "records_per_s": 100.4, "cpu_s_per_million": 3.0, "ratio": 2.0, "notes": notes},
        {"name": "dataframe-operators", "operator": "transformWithState", "records_per_s": 21_000, "ratio": 12.1},
        {"name": "startup", "what": "drained run", "penstock run": 10.0, "Spark": 8.0, "ratio": 1.25},
    ]
    results, target = tmp_path / "figures.json", tmp_path / "figures.md"
    results.write_text(json.dumps(rows))
    target.write_text(f"# Figures\n\n{figures.MARK}\n\nthose of last year\n")
    assert figures.main([str(results), str(target)]) == 0
    text = target.read_text()
    assert text.startswith(f"# Figures\n\n{figures.MARK}\n\nMeasured on ")
    assert "last year" not in text
    for line in (
        "| word count (sentences) | 100 | 50 | **2.0** | 1.9, 2.0, 2.1 | 80, Java 45 | 3.0 | 7.0 |",
        "| transformWithState | 21,000 | 12.1 |",
        "| drained run | 10.0 | 8.0 | 1.25 |",
    ):
        assert line in text
    drawn = ElementTree.fromstring((tmp_path / "figures.svg").read_text())
    assert [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")][2:] == [
        "word count (sentences)",
        "100",
        "50",
    ]


def test_without_a_mark_or_figures_no_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, target = tmp_path / "figures.json", tmp_path / "figures.md"
    results.write_text("[]")
    target.write_text("# Figures\n")
    assert figures.main([str(results), str(target)]) == 2
    assert "has no line" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no figures: expected rows of kafka-count"):
        figures.page([])
    assert target.read_text() == "# Figures\n"


@pytest.mark.parametrize("name", dataframe.OPERATORS)
def test_operators_of_spark_and_ours_are_measured(name: str, spark: object) -> None:
    assert dataframe.operator_rate(name, batches=1, per_batch=100, session=spark) > 0


def test_the_dataframe_operator_is_measured_after_its_first_batches(spark: object) -> None:
    result = dataframe.measure(records=4_000, per_batch=1_000, settling=2, session=spark)
    assert result.notes["records measured"] == 2_000
    assert result.records_per_s > 0 and result.cpu_s_per_million > 0


@by_turns(2, 5)
@pytest.mark.spark
def test_spark_local_measures_all_batches_but_the_first(monkeypatch: pytest.MonkeyPatch, spark: object) -> None:
    result = spark_local.measure("small", programs.count_topology(), records=8_000, per_batch=2_000, session=spark)
    assert result.notes["records measured"] == 6_000
    assert {"read", "process", "changelog", "write", "spark"} <= result.phases.keys()


@by_turns(3, 5)
@pytest.mark.spark
def test_kafka_measures_from_topic_to_topic(broker: KafkaBroker) -> None:
    log = KafkaLog(broker.bootstrap)
    job = kafka.load(log, "word-count", 200, fresh_name("bench-in"))
    assert job.outputs == 2_000
    found = kafka.measure(broker, log, job, kafka.our_command(broker, job.program, "exactly_once"))
    assert found.rate > 0 and found.cpu_s_per_million > 0
    assert found.peak_mb > found.worker_mb > 10
    assert "process" in found.printed
    log.close()


def test_kafka_measures_outputs_that_come_at_once(broker: KafkaBroker) -> None:
    log = KafkaLog(broker.bootstrap)
    writes = (
        "from penstock.record import OutputBatch; from penstock.plugins.logs.kafka.log import KafkaLog;"
        f"KafkaLog('{broker.bootstrap}').append(OutputBatch('{{out}}', [b'k'] * 500, [b'v'] * 500, [1] * 500))"
    )
    found = kafka.measure(broker, log, kafka.Job("none", "none", 500, 500), [sys.executable, "-c", writes])
    assert found.rate >= found.total_rate > 0
    log.close()


ECHO = """
import sys
from confluent_kafka import Consumer, Producer, TopicPartition

bootstrap, source, target = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": source})
consumer.assign([TopicPartition(source, each, 0) for each in range(4)])
producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
while True:
    message = consumer.poll(0.1)
    if message is not None and message.error() is None and message.key() != b"77":
        producer.produce(target, b"1 " + message.value())
        producer.poll(0)
"""


def _load(broker: KafkaBroker, directory: Path) -> Load:
    """Return a load of 300 records over new topics; the last 200 are measured."""
    source, target = fresh_name("bench-in"), fresh_name("bench-out")
    log = KafkaLog(broker.bootstrap)
    log.create_topic(source, PARTITIONS)
    log.create_topic(target, PARTITIONS)
    log.close()
    return Load(broker.bootstrap, source, target, True, 200, 0.5, 1.0, 0, 5.0, str(directory / "milliseconds.npy"))


def test_the_clients_measure_what_comes_and_count_what_does_not(broker: KafkaBroker, tmp_path: Path) -> None:
    load = _load(broker, tmp_path)
    command = [sys.executable, "-c", ECHO, load.bootstrap, load.source, load.target]
    found = latency.measured_by_clients(command, load, tmp_path)
    assert found == {"sent": 304, "expected": 304, "received": 303}
    milliseconds = np.load(load.file)
    # The first of them is due when the warm-up is over, which a busy machine may shorten or prolong.
    assert 100 <= len(milliseconds) < 303
    assert milliseconds.min() > 0


def test_the_clients_end_with_the_application(broker: KafkaBroker, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 3\nsorry"):
        latency.measured_by_clients(
            [sys.executable, "-c", "print('sorry'); raise SystemExit(3)"], _load(broker, tmp_path), tmp_path
        )


@by_turns(4, 5)
@pytest.mark.spark
def test_latency_is_measured_beside_the_peer(broker: KafkaBroker) -> None:
    case = latency.CASES["word-count-exactly-once-100ms"]
    sides = case.sides if peer.peer_is_there() else (latency.OURS,)
    row = latency.LatencyBench(broker, 100.0, 1.0, "0s", warm_up=0.5).compare(case, sides)
    for side in sides:
        assert 0 < row[f"{side}p50_ms"] <= row[f"{side}p90_ms"] <= row[f"{side}p99_ms"]
        assert row[f"{side}p99_ms"] <= row[f"{side}p999_ms"] <= row[f"{side}max_ms"]
        assert 800 <= row[f"{side}records"] <= 1_100
        assert row[f"{side}missing"] == 0
    assert latency.THEIRS not in sides or row["ratio_p99"] == round(row["p99_ms"] / row["peer_p99_ms"], 2)
    assert "penstock" in str(latency.Latencies("latency", [row]))
