"""The benchmarks run, on little data; what they measure is not judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command_line
from bench import core, programs, spark_local


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
