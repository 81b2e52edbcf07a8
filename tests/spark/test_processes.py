"""Drivers in processes of their own: a clean stop, a zombie that wakes up, and a standalone cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.hooks import registry
from penstock.plugins.spark import run

from ..processes import python
from ..waiting import wait_until
from . import apps
from .surroundings import Surroundings
from .test_run import counts, records

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


@contextmanager
def driver(surroundings: Surroundings, topology: str, trigger: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start a driver that ends with the block."""
    with python("tests.spark.driver", surroundings.directory, topology, trigger, *options) as process:
        yield process


def summary_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    return summary


def state_of(process: int) -> str:
    """A process's letter in ps; Z also for one that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_sigterm_ends_it_cleanly(surroundings: Surroundings) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    surroundings.put("in", records(50))
    with driver(surroundings, "count()", "0s") as process:
        wait_until(lambda: surroundings.values_by_key("out") or process.poll() is not None, "the first batch", 240)
        process.terminate()
        summary = summary_of(process)
    assert (summary["stopped_by"], summary["records_in"], summary["lag"]) == ("SIGTERM", 50, 0)
    assert surroundings.values_by_key("out") == counts(50)
    surroundings.log.lease("app", "a successor", 1_000).release()


def test_a_worker_that_froze_and_wakes_after_its_successor_changes_nothing(
    surroundings: Surroundings, spark: Any, tmp_path: Path
) -> None:
    surroundings.create(**{"in": 1, "out": 1})
    surroundings.put("in", [*records(50), ("k1", "freeze", 50), *records(80)[51:]])
    flag = tmp_path / "frozen"
    freezing = f"count(FreezesOnce, flag={str(flag)!r})"
    with driver(surroundings, freezing, "available_now") as process:
        wait_until(lambda: (flag.exists() and flag.read_text()) or process.poll() is not None, "a record froze it", 240)
        assert process.poll() is None, process.communicate()
        zombie = int(flag.read_text())
        wait_until(lambda: state_of(zombie) == "T", "the worker stands still")
    try:
        summary = run(surroundings.application("app", apps.count(apps.FreezesOnce, flag=str(flag))), session=spark)
        assert summary.records_in == 80
        before = surroundings.everything("app", "in", "out"), rows_of_store(surroundings)
        deltas = set(changelog_files(surroundings))
    finally:
        os.kill(zombie, signal.SIGCONT)
    wait_until(lambda: state_of(zombie) == "Z", "the zombie has found out")
    assert set(changelog_files(surroundings)) > deltas, "it tried: its delta is there, and nothing names it"
    assert (surroundings.everything("app", "in", "out"), rows_of_store(surroundings)) == before
    assert surroundings.values_by_key("out") == counts(80)


def changelog_files(surroundings: Surroundings) -> list[Path]:
    return list((surroundings.directory / "changelog").rglob("*.delta"))


def rows_of_store(surroundings: Surroundings) -> Any:
    """The version and content of the store `counts` of task 0_0, as another process reads them."""
    directory = max((surroundings.directory / "state" / "app" / "0_0" / "lmdb").iterdir())
    backend = registry().load("store backend", "lmdb")(directory, ["counts"], read_only=True)
    try:
        return backend.version(), list(backend.range("counts"))
    finally:
        backend.close()


SHIPPED = """
import logging
import os
from penstock import Processor, Topology

class Where(Processor):
    def process(self, record):
        logging.getLogger("shipped").warning("here")
        self.context.forward(record.with_value(str(os.getppid())))

def topology():
    return Topology().add_source("in", "in").add_processor("where", Where, "in").add_sink("out", "out", "where")
"""


def test_a_standalone_cluster_runs_an_application_that_is_shipped_to_it(
    surroundings: Surroundings, tmp_path: Path
) -> None:
    surroundings.create(**{"in": 4, "out": 4})
    surroundings.put("in", records(40))
    (tmp_path / "only_here").mkdir()
    (tmp_path / "only_here" / "shipped.py").write_text(SHIPPED)
    light = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    with cluster(tmp_path, light) as master:
        options = [
            f"master={master}", f"path={tmp_path / 'only_here'}", "module=shipped", "spark.executor.memory=512m",
            "spark.driver.host=127.0.0.1", f"spark.executor.extraJavaOptions={light}",
        ]  # fmt: skip
        with driver(surroundings, "topology()", "available_now", *options) as process:
            out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["records_in"] == 40
    workers = {value for values in surroundings.values_by_key("out").values() for value in values}
    assert len(workers) == 2, "both executors ran tasks"
    assert err.count("node 'where': here") == 40


@contextmanager
def cluster(tmp_path: Path, java_options: str, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1")) -> Iterator[str]:
    """Start a master and a worker of one core on each of the hosts, on free ports of loopback; yield the master's URL."""
    import pyspark

    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    environment = {
        **os.environ,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java_options,
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("SPARK_HOME", None)
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, role: str, host: str, *arguments: str) -> Path:
        output = tmp_path / f"{name}.log"
        package = "org.apache.spark.deploy"
        with output.open("w") as file:
            command = [
                launcher,
                f"{package}.{role}",
                "--host",
                host,
                "--port",
                "0",
                "--webui-port",
                "0",
                *arguments,
            ]
            started.append(
                subprocess.Popen(
                    command,
                    env={**environment, "SPARK_LOCAL_IP": host},
                    stdout=file,
                    stderr=file,
                    cwd=tmp_path,
                    start_new_session=True,
                )
            )
        return output

    def said(output: Path, pattern: str) -> str:
        found = wait_until(lambda: re.search(pattern, output.read_text()), f"{output.name} says {pattern}", 120)
        text: str = found[0]
        return text

    try:
        master = said(start("master", "master.Master", "127.0.0.1"), r"spark://127\.0\.0\.1:\d+")
        workers = [
            start(f"worker{number}", "worker.Worker", host, "--cores", "1", "--memory", "600m", "-d", str(tmp_path / f"w{number}"), master)
            for number, host in enumerate(hosts)
        ]  # fmt: skip
        for worker in workers:
            said(worker, "Successfully registered with master")
        yield master
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
