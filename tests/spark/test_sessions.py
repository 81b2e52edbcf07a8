"""What is missing or does not fit is said before Spark starts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import ConfigError, RuntimeUnavailableError, Settings
from penstock.plugins.engine.run.order import Trigger
from penstock.plugins.spark import run
from penstock.plugins.spark.interpreter import explain
from penstock.plugins.spark.query import spark_trigger
from penstock.plugins.spark.runner import local_changelog
from penstock.plugins.spark.sessions import check_allocation, check_java, check_python_memory, is_cluster, tune

from . import apps
from .surroundings import Surroundings


def fake_java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java.parent


def test_a_missing_java_is_named_with_what_to_install(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    surroundings.create(**{"in": 1, "out": 1})
    with pytest.raises(RuntimeUnavailableError, match=r"no `java` on PATH; install .* 17 or later"):
        run(surroundings.application("app", apps.pipe()))


def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(fake_java(tmp_path, """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")))
    with pytest.raises(RuntimeUnavailableError, match=r"needs Java 17 or later, and .*java is version 11; install"):
        check_java()
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_292"\n')
    with pytest.raises(RuntimeUnavailableError, match=r"version 8; install"):
        check_java()


def test_a_new_java_and_one_that_does_not_say_are_let_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(fake_java(tmp_path, """echo 'openjdk version "21" 2023-09-19' >&2""")))
    check_java()
    (tmp_path / "release").write_text("IMPLEMENTOR=somebody\n")
    check_java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(RuntimeUnavailableError, match=rf"JAVA_HOME is '{tmp_path}', and there is no bin/java in it"):
        check_java()


def test_spark_connect_is_refused_with_the_way_out(surroundings: Surroundings) -> None:
    remote: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(RuntimeUnavailableError, match=r"Spark Connect.*classic SparkSession"):
        run(surroundings.application("app", apps.pipe()), session=remote)


@pytest.mark.parametrize(
    ("configuration", "refused"),
    [
        ({}, False),
        ({"enabled": "false"}, False),
        ({"enabled": "true"}, True),
        ({"enabled": "TRUE", "minExecutors": "2"}, True),
        ({"enabled": "true", "minExecutors": "2", "maxExecutors": "4"}, True),
        ({"enabled": "true", "minExecutors": "2", "maxExecutors": "2"}, False),
    ],
)
def test_executors_that_come_and_go_are_refused_with_what_to_set(configuration: dict[str, str], refused: bool) -> None:
    given = {f"spark.dynamicAllocation.{name}": value for name, value in configuration.items()}
    if not refused:
        check_allocation(given)
        return
    with pytest.raises(RuntimeUnavailableError, match=r"enabled=false and spark.executor.instances, or .* same number"):
        check_allocation(given)


def test_they_are_refused_before_the_lease(surroundings: Surroundings) -> None:
    class OnACluster:
        """As much of a session as is looked at before the lease is taken."""

        class sparkContext:
            master = "spark://m:7077"

            @staticmethod
            def getConf() -> Any:
                from types import SimpleNamespace

                return SimpleNamespace(getAll=lambda: [("spark.dynamicAllocation.enabled", "true")])

    session: Any = OnACluster()
    lease = surroundings.log.lease("app", "another driver", 60_000)
    with pytest.raises(RuntimeUnavailableError, match=r"spark.dynamicAllocation.enabled=true"):
        run(surroundings.application("app", apps.pipe()), session=session)
    lease.release()


def test_a_cluster_is_what_has_executors_beside_the_driver() -> None:
    assert not any(map(is_cluster, (None, "local", "local[2]", "local[*, 4]")))
    assert all(map(is_cluster, ("local-cluster[2,2,512]", "spark://m:7077", "yarn", "k8s://h")))


def test_triggers() -> None:
    assert spark_trigger(Trigger.of("available_now")) == {"availableNow": True}
    assert spark_trigger(Trigger.of("1m30s")) == {"processingTime": "90000 milliseconds"}
    with pytest.raises(ConfigError, match=r'trigger \'soon\': expected "available_now", "continuous" or a time'):
        Trigger.of("soon")
    with pytest.raises(ConfigError, match=r'until \'done\': expected "ends" or "drained"'):
        Trigger.of("available_now", "done")
    with pytest.raises(ConfigError, match=r"until 'drained': the trigger '1s' has no end; it goes with .available_now"):
        Trigger.of("1s", "drained")


def test_what_spark_says_is_told_without_its_stack() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 failed: ExecutorLostFailure\n\tat org.apache.spark.A.b(A.scala:3)\n"
        "Driver stacktrace:\n=== Streaming Query ===\nIdentifier: x"
    )
    assert explain(text) == "Job aborted due to stage failure: Task 0 failed: ExecutorLostFailure"
    python = (
        'Worker failed.\nTraceback (most recent call last):\n  File "x.py", line 3\nOSError: disk full\n\nat '
        "java.lang.X"
    )
    assert explain(python) == "OSError: disk full"
    assert explain("") == "no reason given"


def test_a_full_disk_counts_before_what_came_of_it() -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted\n\tat org.apache.spark.X\nTraceback (most recent call last):\n  "
        "File y\n"
        "EOFError\n\nCaused by: java.io.IOException: No space left on device\n\tat "
        "java.io.FileOutputStream.writeBytes\n"
    )
    assert explain(text, "/data/checkpoint/a") == (
        "java.io.IOException: No space left on device; the disk is full, or a quota or file size limit is reached: "
        "make room there, or set `checkpoint_dir` (now /data/checkpoint/a) or SPARK_LOCAL_DIRS to another directory"
    )
    assert "the limit of this process is" in explain("Cannot run program: error=24, Too many open files")


def test_importing_the_runtime_imports_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    program = "import sys, penstock.plugins.spark; sys.exit('pyspark' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_limit_of_pythons_address_space_is_refused() -> None:
    check_python_memory({"spark.executor.memoryOverhead": "2g"})
    with pytest.raises(RuntimeUnavailableError, match="pyspark.memory=2g .*set spark.executor.memoryOverhead"):
        check_python_memory({"spark.executor.pyspark.memory": "2g"})


@pytest.mark.parametrize(
    ("changelog", "log", "master", "warned"),
    [
        ("directory:changelog", "kafka:h:1", "spark://h:7077", True),
        ("directory:changelog", "kafka:h:1", "local[2]", False),
        ("directory:s3://bucket/changelog", "kafka:h:1", "spark://h:7077", False),
        ("topic:", "kafka:h:1", "yarn", False),
        ("directory:changelog", "local:log", "spark://h:7077", False),
    ],
)
def test_a_changelog_that_other_hosts_do_not_see_is_warned_of(
    changelog: str, log: str, master: str, warned: bool
) -> None:
    found = local_changelog(Settings(changelog=changelog, log=log), master)
    assert (found is not None) == warned
    assert found is None or ('changelog="topic:"' in found and master in found)


def test_settings_that_a_query_does_not_take_over_are_said_in_one_line(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.spark")
    tune(spark, True, 2)
    (line,) = (each for each in caplog.messages if "spark.sql.streaming." in each)
    assert "spark.sql.streaming.stateStore.encodingFormat=avro" in line
    assert "pollingDelay" not in line and "spark.sql.shuffle" not in line
