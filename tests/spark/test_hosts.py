"""Task hosts under real Spark: whose they are, and that none is left, nor its place, after every way to end."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import Application, ProcessingError, Topology
from penstock.plugins.engine.task.temporary import remove_abandoned
from penstock.plugins.spark import RunProgress, RunSummary, query, run

from ..processes import is_alive
from ..rotation import of_today
from ..waiting import wait_until
from . import apps
from .surroundings import Surroundings
from .test_processes import driver, summary_of
from .test_runner import counts, records

pytestmark = pytest.mark.spark

TITLE = "penstock task host: application {!r}, slot "


def hosts(application_id: str, **environment: str) -> list[psutil.Process]:
    """The live task hosts of an application, with these variables in their environment."""
    found = []
    for each in psutil.process_iter():
        try:
            is_one = any(TITLE.format(application_id) in word for word in each.cmdline())
            if is_one and environment.items() <= each.environ().items():
                found.append(each)
        except (psutil.Error, OSError):
            continue
    return found


def places(processes: list[psutil.Process]) -> set[Path]:
    """The lock files that hosts hold, and the directories beside them."""
    locks = {
        Path(file.path) for each in processes for file in each.open_files() if "penstock-host-" in Path(file.path).name
    }
    return locks | {lock.with_suffix("") for lock in locks}


def fresh(name: str) -> str:
    return f"{name}-{secrets.token_hex(4)}"


class Run:
    """A run in a thread, until `stop`; as many batches as possible, if no trigger is given."""

    def __init__(self, application: Application, spark: Any, trigger: str = "0s") -> None:
        self.application = application
        self.trigger = trigger
        self.seen: list[psutil.Process] = []
        self.places: set[Path] = set()
        self._stop = threading.Event()
        self._summaries: list[RunSummary] = []
        self.error: BaseException | None = None
        self.news: list[RunProgress] = []
        self._thread = threading.Thread(target=self._run, args=(spark,))
        self._thread.start()

    def _run(self, spark: Any) -> None:
        try:
            on_progress = self.news.append
            self._summaries.append(
                run(self.application, self.trigger, session=spark, stop=self._stop, on_progress=on_progress)
            )
        except BaseException as error:
            self.error = error

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(lambda: condition() or not self._thread.is_alive(), what, 120)
        assert self._thread.is_alive(), self.error

    def look(self) -> None:
        """Note the hosts that run now, and their places."""
        self.seen = hosts(self.application.id)
        self.places = places(self.seen)

    def stop(self) -> RunSummary:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self._summaries[0]


@contextmanager
def running(application: Application, spark: Any, trigger: str = "0s") -> Iterator[Run]:
    made = Run(application, spark, trigger)
    try:
        yield made
    finally:
        made._stop.set()
        made._thread.join()


def is_daemon(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon pyspark.worker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(is_alive(each) for each in processes)


def has_all(where: Surroundings, topic: str) -> bool:
    return sum(map(len, where.read(topic).values())) == 50


# ---------------------------------------------------------------------- in the caller's session, which stays


def test_applications_and_logs_do_not_share_hosts_and_none_is_left(
    surroundings: Surroundings, spark: Any, tmp_path: Path
) -> None:
    """Two applications, and one of them on a second log, all at once in one session and one executor."""
    with Surroundings(tmp_path / "other") as other:
        mine, theirs = fresh("mine"), fresh("theirs")
        for each in (surroundings, other):
            each.create(**{"in": 2, "out": 2, "theirs": 2})
            each.put("in", records(50))
        pipe = Topology().add_source("in", "in").add_sink("theirs", "theirs", "in")
        with (
            running(surroundings.application(mine, apps.count()), spark) as first,
            running(surroundings.application(theirs, pipe), spark) as second,
            running(other.application(mine, apps.count()), spark) as third,
        ):
            for runs, where, topic in (
                (first, surroundings, "out"),
                (second, surroundings, "theirs"),
                (third, other, "out"),
            ):
                runs.wait(partial(has_all, where, topic), "all is done")
            for runs in (first, second, third):
                runs.look()
            assert len(second.seen) == 2
            assert {each.pid for each in first.seen} == {each.pid for each in third.seen}, "both have the same id"
            assert len(first.seen) == 4
            assert len(first.places | second.places) == 12
            assert all(each.exists() for each in first.places | second.places)
            assert not {each.pid for each in first.seen} & {each.pid for each in second.seen}
            summaries = [each.stop() for each in (first, second, third)]
            assert surroundings.values_by_key("out") == other.values_by_key("out") == counts(50)
    assert [(each.stopped_by, each.records_in, each.workers_lost) for each in summaries] == [("stop", 50, 0)] * 3
    assert all_gone(first.seen + second.seen), "the session stays, the hosts do not"
    assert not [each for each in first.places | second.places if each.exists()]


def test_hosts_are_gone_when_a_task_has_failed(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    name = fresh("fails")
    surroundings.put("in", records(20), 0)
    with running(surroundings.application(name, apps.count(apps.Poisoned)), spark) as runs:
        runs.wait(lambda: surroundings.values_by_key("out"), "the first batch")
        runs.look()
        assert len(runs.seen) == 2
        surroundings.put("in", [("a", "poison", 1)], 1)
        runs._thread.join(120)
        with pytest.raises(ProcessingError, match="cannot stand this"):
            runs.stop()
    assert all_gone(runs.seen)
    assert not [each for each in runs.places if each.exists()]


def test_a_run_that_is_stopped_before_its_first_batch_leaves_no_host(surroundings: Surroundings, spark: Any) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    name = fresh("early")
    with running(surroundings.application(name, apps.count()), spark) as runs:
        runs.wait(lambda: hosts(name), "a host starts")
        runs.stop()
    wait_until(lambda: all_gone(hosts(name)), "no host is left", 100)


def test_a_host_that_is_killed_in_a_batch_is_replaced_and_counted(
    surroundings: Surroundings, spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    flag, name = tmp_path / "died", fresh("dies")
    surroundings.put("in", [*records(50), ("k1", "die", 50)])
    seen: set[Path] = set()
    summary = run(
        surroundings.application(name, apps.count(apps.DiesOnce, flag=str(flag))),
        session=spark,
        on_progress=lambda _: seen.update(places(hosts(name))),
    )
    assert flag.exists()
    assert (summary.records_in, summary.workers_lost, summary.lag) == (51, 1, 0)
    assert any("was killed by SIGKILL" in line and "another one was started" in line for line in caplog.messages)
    # The run has ended by itself: nothing is left here either.
    assert not hosts(name)
    assert len(seen) == 4
    assert not [each for each in seen if each.exists()]


def test_hosts_and_workers_may_lose_pysparks_daemon(surroundings: Surroundings, spark: Any) -> None:
    """The workers outlive it, and Spark goes on using them: they start hosts that watch the JVM alone."""
    surroundings.create(**{"in": 2, "out": 2})
    surroundings.put("in", records(20))
    jvm = psutil.Process(spark._jvm.java.lang.ProcessHandle.current().pid())
    with running(surroundings.application(fresh("orphans"), apps.count()), spark) as runs:
        runs.wait(lambda: surroundings.values_by_key("out") == counts(20), "the first records")
        runs.look()
        assert len(runs.seen) == 2
        daemons = [each for each in jvm.children() if is_daemon(each)]
        assert daemons
        for each in daemons:
            each.kill()
        wait_until(lambda: all_gone(runs.seen), "the hosts have ended with the daemon", 60)
        surroundings.put("in", records(40)[20:])
        runs.wait(lambda: surroundings.values_by_key("out") == counts(40), "the rest")
        summary = runs.stop()
    assert summary.workers_lost >= 2
    assert summary.openings == {"first": 2, "host lost": 2}
    assert not hosts(runs.application.id)


def test_other_settings_replace_hosts_that_an_earlier_run_left(
    surroundings: Surroundings, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    name = fresh("again")
    surroundings.put("in", records(20))
    with monkeypatch.context() as patched:
        patched.setattr(query, "end_hosts", lambda *_: None)
        run(surroundings.application(name, apps.count()), session=spark)
    left = hosts(name)
    assert len(left) == 2
    surroundings.put("in", records(40)[20:])
    summary = run(surroundings.application(name, apps.count(), commit_interval="50ms"), session=spark)
    assert (summary.records_in, summary.workers_lost) == (20, 0)
    assert surroundings.values_by_key("out") == counts(40)
    assert all_gone(left)
    assert not hosts(name)


# ---------------------------------------------------------------------- retries


def test_a_stop_does_not_wait_for_a_retry(surroundings: Surroundings, spark: Any, tmp_path: Path) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    surroundings.put("in", [("a", "flaky", 1)], 0)
    surroundings.put("in", records(10), 1)
    flag = tmp_path / "flag"
    flag.touch()
    application = surroundings.application(
        fresh("retries"), apps.count(partial(apps.Flaky, str(flag))), processing_handler=apps.again_in_an_hour
    )
    with running(application, spark) as runs:
        runs.wait(lambda: surroundings.values_by_key("out") == counts(10), "the neighbour's records")
        surroundings.put("in", records(20)[10:], 1)
        runs.wait(lambda: surroundings.values_by_key("out") == counts(20), "and its next ones")
        summary = runs.stop()
    assert (summary.stopped_by, summary.lag, summary.workers_lost) == ("stop", 1, 0)
    assert not hosts(application.id)
    # Now it succeeds after three attempts, and a run that takes what there is does not end before.
    flag.write_text("3")
    application = application.with_settings(processing_handler=apps.again_at_once)
    summary = run(application, session=spark)
    assert (summary.records_in, summary.lag, flag.read_text()) == (1, 0, "0")
    assert surroundings.values_by_key("out") == {**counts(20), "a": ["1"]}


# ---------------------------------------------------------------------- drivers of their own


@pytest.fixture
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary directory of the drivers that a test starts: short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="h", ignore_cleanup_errors=True) as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield Path(directory)


@pytest.mark.parametrize("how", of_today(["SIGTERM", "driver killed", "JVM killed"], 4))
def test_nothing_is_left_of_a_driver(surroundings: Surroundings, own_tmp: Path, how: str) -> None:
    surroundings.create(**{"in": 2, "out": 2})
    surroundings.put("in", records(50))
    with driver(surroundings, "count()", "0s") as process:
        seen: list[psutil.Process] = []

        def has_hosts() -> bool:
            if surroundings.values_by_key("out") == counts(50):
                seen[:] = hosts("app", TMPDIR=str(own_tmp))
            return len(seen) == 2 or not _runs(process)

        wait_until(has_hosts, "its task hosts", 240)
        assert _runs(process), process.communicate()
        assert {each.ppid() for each in seen}.isdisjoint({os.getpid(), process.pid})
        jvm = next(each for each in psutil.Process(process.pid).children() if each.name().startswith("java"))
        if how == "driver killed":
            process.kill()
        elif how == "JVM killed":
            jvm.kill()
            _, said = process.communicate(timeout=240)
            assert "has ended by signal 9, SIGKILL" in said
        else:
            process.terminate()
            summary = summary_of(process)
            assert (summary["stopped_by"], summary["records_in"], summary["lag"]) == ("SIGTERM", 50, 0)
        wait_until(lambda: all_gone([*seen, jvm]), "hosts and JVM are gone", 60)
        wait_until(lambda: not list(own_tmp.glob("penstock-host-*")), "no place of a host is left", 30)
        if how == "driver killed":
            # What belonged to the driver is removed by the next start.
            remove_abandoned(own_tmp)
    assert not list(own_tmp.glob("penstock-*"))
    if how == "SIGTERM":
        surroundings.log.lease("app", "a successor", 1_000).release()


def _runs(process: Any) -> bool:
    return process.poll() is None
