"""A standalone cluster: a master and two workers, each in a JVM of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.plugins.spark.launching import JAVA_OPTIONS, archive_options, launch_home
from penstock.plugins.spark.session import check_java
from penstock.plugins.testing.kafka_broker import KafkaBroker

from ..waiting import wait_until
from .surroundings import Surroundings
from .test_processes import driver, summary_of
from .test_run import counts, records

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("cluster")]

HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The options that a driver needs for the cluster."""
    import pyspark

    # macOS has one address of loopback.
    hosts = [host if can_bind(host) else HOSTS[0] for host in HOSTS]
    with pytest.MonkeyPatch.context() as patch:
        # Each of the many JVMs starts as that of a local session does: with the archive of classes, from where it is
        # valid.
        patch.delenv("SPARK_HOME", raising=False)
        java_options = f"{JAVA_OPTIONS} {archive_options(check_java())}"
        patch.setenv("SPARK_HOME", str(launch_home() or Path(pyspark.__file__).parent))
        with cluster(tmp_path_factory.mktemp("cluster"), hosts, java_options) as found:
            yield [
                f"master={found}", "spark.executor.memory=512m", "spark.driver.host=127.0.0.1",
                f"spark.executor.extraJavaOptions={java_options}", f"spark.driver.extraJavaOptions={java_options}",
            ]  # fmt: skip


def can_bind(host: str) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind((host, 0))
        except OSError:
            return False
    return True


SHIPPED = """
import logging
import os
from penstock import Processor, Topology

class Where(Processor):
    def process(self, record):
        logging.getLogger("shipped").warning("here")
        self.context.forward(record.with_value(str(os.getcwd())))

def topology():
    return Topology().add_source("in", "in").add_processor("where", Where, "in").add_sink("out", "out", "where")
"""


def test_a_standalone_cluster_runs_an_application_that_is_shipped_to_it(
    master: list[str], surroundings: Surroundings, tmp_path: Path
) -> None:
    surroundings.create(**{"in": 4, "out": 4})
    surroundings.put("in", records(40))
    (tmp_path / "only_here").mkdir()
    (tmp_path / "only_here" / "shipped.py").write_text(SHIPPED)
    shipped = [f"path={tmp_path / 'only_here'}", "module=shipped"]
    with driver(surroundings, "topology()", "available_now", *master, *shipped) as process:
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["records_in"] == 40
    workers = {value for values in surroundings.values_by_key("out").values() for value in values}
    assert len(workers) == 2, "both executors ran tasks"
    assert err.count("node 'where': here") == 40


@pytest.mark.broker
def test_a_speculative_attempt_shuts_out_the_one_that_lingers(master: list[str], tmp_path: Path) -> None:
    """Spark makes no second attempt on the host of the first."""
    if not can_bind(HOSTS[1]):
        pytest.skip("needs two addresses of loopback")
    flag = tmp_path / "lingers"
    with KafkaBroker() as broker, Surroundings(tmp_path / "data", f"kafka:{broker.bootstrap}") as surroundings:
        surroundings.create(**{"in": 4, "out": 4})
        surroundings.put("in", [*records(300), ("k6", "linger", 300), *records(400)[301:]])
        speculation = [
            f"log={surroundings.log_name}", "spark.speculation=true", "spark.speculation.quantile=0.5",
            "spark.speculation.multiplier=1.1", "spark.speculation.interval=100ms",
            "spark.speculation.minTaskRuntime=500ms",
        ]  # fmt: skip
        topology = f"count(LingersOnce, flag={str(flag)!r})"
        with driver(surroundings, topology, "available_now", *master, *speculation) as process:
            wait_until(lambda: flag.exists() or process.poll() is not None, "a task lingers", 240)
            # Only another attempt can bring its records to an end: the first one still waits.
            wait_until(
                lambda: sum(map(len, surroundings.values_by_key("out").values())) == 400 or process.poll() is not None,
                "another attempt did its work",
                240,
            )
            assert process.poll() is None or process.returncode == 0, process.communicate()[1]
            assert not Path(f"{flag}.awake").exists()
            Path(f"{flag}.release").touch()
            summary_of(process)
        assert surroundings.values_by_key("out") == counts(400)


@contextmanager
def cluster(directory: Path, hosts: Sequence[str], java_options: str) -> Iterator[str]:
    """Start a master and a worker of one core on each of the hosts, on free ports of loopback; yield the master's
    URL."""
    launcher = str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-class")
    environment = {
        **os.environ,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": java_options,
        "PYSPARK_PYTHON": sys.executable,
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, role: str, host: str, *arguments: str) -> Path:
        output = directory / f"{name}.log"
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
                    cwd=directory,
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
            start(
                f"worker{number}", "worker.Worker", host,
                "--cores", "1", "--memory", "600m", "-d", str(directory / f"w{number}"), master,
            )
            for number, host in enumerate(hosts)
        ]  # fmt: skip
        for worker in workers:
            said(worker, "Successfully registered with master")
        yield master
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
