"""The benchmarks run, on little data; what they measure is not judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command_line
from bench import core, kafka, programs, spark_local
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker

from .kafka.names import fresh_name


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


@pytest.mark.spark
def test_spark_local_measures_all_batches_but_the_first(monkeypatch: pytest.MonkeyPatch, spark: object) -> None:
    result = spark_local.measure("small", programs.count_topology(), records=8_000, per_batch=2_000, session=spark)
    assert result.notes["records measured"] == 6_000
    assert {"read", "process", "changelog", "write", "spark"} <= result.phases.keys()


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
