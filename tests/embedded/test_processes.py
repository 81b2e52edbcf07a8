"""The embedded engine with its tasks in task hosts of this machine: spread, replaced when they are lost, and ended."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock import Application, ConfigError, ProcessingError, Processor, Record, Summary, Topology, run
from penstock.plugins.engine.program.run_status import StatusTopic
from penstock.plugins.engine.run.progress import RunSummary

from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until
from .test_run import counts, has_written, records


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 4, "out": 4})
        yield made


def application(surroundings: Surroundings, topology: Topology, processes: int) -> Application:
    return surroundings.application("app", topology, engine="embedded", processes=processes, commit_interval="10ms")


def is_there(process: int) -> bool:
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def processes_of(summary: Summary) -> set[int]:
    assert isinstance(summary, RunSummary)
    return {host.process for host in summary.hosts}


def test_tasks_are_spread_and_their_hosts_end_with_the_run(surroundings: Surroundings) -> None:
    surroundings.put("in", records(60))
    summary = run(application(surroundings, apps.count(), 2))
    hosts = processes_of(summary)
    assert len(hosts) == 2 and os.getpid() not in hosts
    assert surroundings.values_by_key("out") == counts(60)
    assert not any(map(is_there, hosts))
    # From there the same tasks run in this process, and go back.
    surroundings.put("in", [(f"k{number % 7}", "v", number) for number in range(60, 80)])
    assert processes_of(run(application(surroundings, apps.count(), 0))) == {os.getpid()}
    surroundings.put("in", [(f"k{number % 7}", "v", number) for number in range(80, 100)])
    assert run(application(surroundings, apps.count(), 9)).records_in == 20
    assert surroundings.values_by_key("out") == counts(100)


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
@pytest.mark.parametrize("processes", [0, 1])
def test_temporary_files_that_something_cleans_away(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, processes: int, trigger: str
) -> None:
    """Systems delete there what was not used for some days: the run goes on."""
    surroundings.put("in", records(30))
    with tempfile.TemporaryDirectory() as scratch:
        monkeypatch.setattr(tempfile, "tempdir", scratch)
        with application(surroundings, apps.count(), processes).start(trigger) as running:
            wait_until(lambda: has_written(surroundings, 30))
            made = list(Path(scratch).glob("penstock-*"))
            assert bool(made) == bool(processes)
            for each in made:
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            surroundings.put("in", [(f"k{number % 7}", "v", number) for number in range(30, 60)])
            wait_until(lambda: has_written(surroundings, 60) or running.state == "failed")
    assert surroundings.values_by_key("out") == counts(60)


@pytest.mark.parametrize("trigger", ["0s", "continuous"])
def test_a_host_that_is_killed_is_replaced(surroundings: Surroundings, trigger: str) -> None:
    surroundings.put("in", records(30))
    status = StatusTopic(surroundings.log, "app")

    def processes() -> set[int]:
        found = status.read()
        return set() if found is None else {each.process for each in found.hosts}

    with application(surroundings, apps.count(), 2).start(trigger) as running:
        wait_until(lambda: has_written(surroundings, 30) and len(processes()) == 2)
        before = processes()
        os.kill(min(before), signal.SIGKILL)
        surroundings.put("in", [(f"k{number % 7}", "v", number) for number in range(30, 60)])
        wait_until(lambda: has_written(surroundings, 60) or running.state == "failed")
        summary = running.stop()
    assert surroundings.values_by_key("out") == counts(60)
    assert summary.workers_lost == 1
    assert summary.openings.get("host lost", 0) >= 1


class FailsInItsProcess(Processor):
    def process(self, record: Record) -> None:
        logging.getLogger("acme").warning("in process %d", os.getpid())
        raise ValueError("no")


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
def test_failures_and_log_lines_of_hosts_reach_the_engine(
    surroundings: Surroundings, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    surroundings.put("in", records(1))
    topology = Topology().add_source("in", "in").add_processor("bad", FailsInItsProcess, "in")
    with pytest.raises(ProcessingError, match=r"'bad'.*ValueError: no"):
        run(application(surroundings, topology, 1), trigger)
    lines = [each.getMessage() for each in caplog.records if each.name == "acme"]
    assert lines and "in process" in lines[0] and str(os.getpid()) not in lines[0]


def test_what_cannot_be_pickled_is_named_where_it_must_be_sent(surroundings: Surroundings) -> None:
    given = application(surroundings, apps.count(), 2).with_settings(user={"lock": threading.Lock()})
    with pytest.raises(ConfigError, match=r"cannot be sent to its task hosts \(setting 'user' > 'lock'\)"):
        run(given)
    assert run(given.with_settings(processes=0)).lag == 0
