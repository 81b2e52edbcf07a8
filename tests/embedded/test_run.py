"""The embedded engine: records once each, restarts, triggers, stops, refusals, handles; all without Spark."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    Application,
    ConfigError,
    Log,
    LogError,
    ProcessingError,
    Processor,
    Record,
    Running,
    Topology,
    TopologyError,
    run,
)
from penstock.compiled import status
from penstock.errors import PluginError, RuntimeUnavailableError
from penstock.plugins.engine.host import continuous_engine
from penstock.plugins.engine.program import lease
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.program.preparation import resolve
from penstock.plugins.engine.program.run_status import RunStatus, StatusTopic
from penstock.plugins.engine.run import embedded, run_loop
from penstock.plugins.engine.run.progress import RunProgress

from ..processes import succeeds_in_a_fork
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until

TRIGGERS = ["available_now", "continuous", "0s"]


def records(count: int, keys: int = 7) -> list[tuple[str | None, str | None, int]]:
    return [(f"k{number % keys}", "v", number) for number in range(count)]


def counts(count: int, keys: int = 7) -> dict[str | None, list[str | None]]:
    """Return what a count forwards for `records(count)`: for each key 1, 2, 3 ..."""
    return {f"k{key}": [str(n + 1) for n in range(len(range(key, count, keys)))] for key in range(keys)}


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 4, "out": 4})
        yield made


def application(surroundings: Surroundings, topology: Topology | None = None, **settings: Any) -> Application:
    settings = {"engine": "embedded", "commit_interval": "10ms", **settings}
    return surroundings.application("app", topology or apps.count(), **settings)


def run_until(given: Any, trigger: str, enough: Callable[[], Any]) -> Any:
    with given.start(trigger) as running:
        wait_until(
            lambda: enough() or running.state not in ("starting", "rebalancing", "running"),
            "the application has done enough",
        )
    return running.wait()


def has_written(surroundings: Surroundings, records: int) -> bool:
    return sum(map(len, surroundings.values_by_key("out").values())) >= records


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_counts_continue_after_a_restart(surroundings: Surroundings, trigger: str) -> None:
    surroundings.put("in", records(100))
    given = application(surroundings)

    def process(expected: int) -> Any:
        if trigger == "available_now":
            return run(given, trigger)
        return run_until(given, trigger, partial(has_written, surroundings, expected))

    summary = process(100)
    assert (summary.records_in, summary.records_out, summary.lag, summary.tasks) == (100, 100, 0, 4)
    assert summary.stopped_by == (None if trigger == "available_now" else "stop")
    surroundings.put("in", [(f"k{number % 7}", "v", number) for number in range(100, 140)])
    assert process(140).records_in == 40
    assert surroundings.values_by_key("out") == counts(140)
    assert [host.process for host in summary.hosts] == [os.getpid()]


def test_any_trigger_continues_what_another_left(surroundings: Surroundings) -> None:
    given = application(surroundings)
    for number, trigger in enumerate(TRIGGERS * 2):
        rows = [(f"k{each % 7}", "v", each) for each in range(number * 20, number * 20 + 20)]
        surroundings.put("in", rows)
        end = (number + 1) * 20
        if trigger == "available_now":
            run(given)
        else:
            run_until(given, trigger, partial(has_written, surroundings, end))
    assert surroundings.values_by_key("out") == counts(120)


def test_repartition_topics_are_drained(surroundings: Surroundings) -> None:
    surroundings.put("in", [(None, f"v{number % 3}", number) for number in range(30)])
    assert run(application(surroundings, apps.count_by_value())).lag == 0
    assert sorted(map(len, surroundings.values_by_key("out").values())) == [10, 10, 10]


def test_status_and_progress_are_those_of_a_run(surroundings: Surroundings) -> None:
    surroundings.put("in", records(50))
    news: list[RunProgress] = []
    run(application(surroundings), on_progress=news.append)
    assert news[-1].records_in == 50 and news[-1].lag == 0
    status = StatusTopic(surroundings.log, "app").read()
    assert isinstance(status, RunStatus)
    assert (status.ended_by, status.records_in, len(status.tasks)) == ("done", 50, 4)


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_failing_application_raises(surroundings: Surroundings, trigger: str) -> None:
    class Fails(Processor):
        def process(self, record: Record) -> None:
            raise ValueError("no")

    surroundings.put("in", records(1))
    given = application(surroundings, Topology().add_source("in", "in").add_processor("bad", Fails, "in"))
    with pytest.raises(ProcessingError, match=r"task 0_\d.*'bad'.*ValueError: no"):
        run(given, trigger)
    running = given.start(trigger)
    with pytest.raises(ProcessingError, match="ValueError: no"):
        running.wait(60)
    assert running.state == "failed" and isinstance(running.error, ProcessingError)
    with pytest.raises(ProcessingError, match="ValueError: no"), given.start(trigger) as running:
        wait_until(lambda: running.state == "failed")


def test_what_is_no_application_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'expected an Application, found a Topology; write run\(Application\("ID", '):
        run(apps.count())  # type: ignore[arg-type]


def test_what_cannot_start_is_raised_where_the_block_is_entered(surroundings: Surroundings) -> None:
    given = application(surroundings, apps.count(source="gone"))
    with pytest.raises(TopologyError, match="'gone'"), given.start():
        pytest.fail("entered")


def test_a_second_driver_is_refused(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_TTL_SECONDS", 0.5)
    monkeypatch.setattr(lease, "_SPARE_SECONDS", 0.2)
    given = application(surroundings)
    with given.start(), pytest.raises(LogError, match="app"):
        run(given)
    run(given)  # the lease was given up


def test_a_second_driver_that_waits_takes_over(surroundings: Surroundings) -> None:
    given = application(surroundings)
    with given.start() as first:
        given.start(wait=True).stop()  # it has never run
        second = given.start(wait=True)
        surroundings.put("in", records(20))
        wait_until(lambda: has_written(surroundings, 20))
        assert second.state == "starting"
        first.stop()
    surroundings.put("in", [(f"k{number % 7}", "v", number) for number in range(20, 40)])
    with second:
        wait_until(lambda: has_written(surroundings, 40))
    assert surroundings.values_by_key("out") == counts(40)


def test_a_lost_lease_ends_the_run(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[LeaseKeeper] = []
    made = LeaseKeeper.__init__

    def note(self: LeaseKeeper, *args: Any) -> None:
        made(self, *args)
        kept.append(self)

    monkeypatch.setattr(LeaseKeeper, "__init__", note)
    running = application(surroundings).start()
    wait_until(lambda: running.state == "running")
    kept[0].lost = LogError("another driver runs it")
    with pytest.raises(LogError, match="another driver"):
        running.wait(60)


def test_async_with(surroundings: Surroundings) -> None:
    surroundings.put("in", records(20))

    async def serve() -> Running:
        async with application(surroundings).start() as running:
            while not has_written(surroundings, 20):
                await asyncio.sleep(0.01)
            assert running.state in ("rebalancing", "running")
        return running

    running = asyncio.run(serve())
    assert (running.state, running.error) == ("stopped", None)
    assert surroundings.values_by_key("out") == counts(20)


def test_an_error_of_the_block_goes_first(surroundings: Surroundings) -> None:
    with pytest.raises(KeyError), application(surroundings).start():
        raise KeyError("of the block")


def test_an_error_inside_a_service_is_in_its_log(surroundings: Surroundings, caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Processor):
        def process(self, record: Record) -> None:
            raise ValueError("no")

    surroundings.put("in", records(1))
    given = application(surroundings, Topology().add_source("in", "in").add_processor("bad", Fails, "in"))
    with suppress(ProcessingError), given.start("0s") as running:
        wait_until(lambda: running.state == "failed")
    (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert line.name == "penstock.runs" and "application 'app': the run has failed: " in line.getMessage()
    assert "ValueError: no" in line.getMessage() and line.exc_info is not None


def test_a_run_says_which_parts_are_compiled(surroundings: Surroundings, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "penstock.runs"), application(surroundings).start() as running:
        wait_until(lambda: running.state == "running")
    said = [each.getMessage() for each in caplog.records if "compiled parts" in each.getMessage()]
    assert said == ["compiled parts: " + ", ".join(f"{part}: {state}" for part, state in status().items())]


def test_a_handle_that_is_forgotten_is_stopped(surroundings: Surroundings) -> None:
    forgotten = [application(surroundings).start()]
    wait_until(lambda: forgotten[0].state == "running")
    ended = forgotten[0]._run.has_ended  # type: ignore[attr-defined]
    with pytest.warns(ResourceWarning, match="'app' was started and never stopped"):
        forgotten.clear()
    assert ended.wait(60)


def test_a_wait_that_takes_too_long(surroundings: Surroundings) -> None:
    with application(surroundings).start() as running, pytest.raises(TimeoutError, match="'app' still runs"):
        running.wait(0.01)


def test_no_signal_handler_and_no_log_handler(surroundings: Surroundings) -> None:
    import logging
    import signal

    def state() -> Any:
        root = logging.getLogger()
        return [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)], root.level, list(root.handlers)

    before = state()
    with application(surroundings).start():
        assert state() == before
    assert state() == before


def test_unknown_engines_and_options(surroundings: Surroundings) -> None:
    with pytest.raises(PluginError, match="setting 'engine'.*'embeded'.*Did you mean 'embedded'"):
        application(surroundings, engine="embeded")
    with pytest.raises(ConfigError, match=r"'master' is no option of the embedded engine.*setting 'engine'"):
        run(application(surroundings), master="local[2]")
    with pytest.raises(ConfigError, match="trigger 'soon'"):
        application(surroundings).start("soon")


def test_settings_of_spark_are_passed_over_and_noted(
    surroundings: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    """They may be in the program, or in the file that serves both engines."""
    caplog.set_level("INFO", "penstock")
    surroundings.put("in", records(5))
    assert run(application(surroundings, parallelism=7, checkpoint_dir="elsewhere")).records_in == 5
    said = [each.getMessage() for each in caplog.records if each.name == "penstock.embedded"]
    assert ["'parallelism'" in line and "'processes'" in line for line in said] == [True, False]
    assert ["'checkpoint_dir'" in line for line in said] == [False, True]
    assert not (surroundings.directory / "elsewhere").exists()


PROGRAM = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas"):
            raise ImportError(f"{name} is imported")
sys.meta_path.insert(0, Blocker())
from penstock import Application
from penstock.plugins.dsl import StreamsBuilder
from penstock import run
builder = StreamsBuilder()
builder.stream("in").group_by_key().count("counts").to_stream().map_values(str).to("out")
application = Application("app", builder, data_dir=sys.argv[1], engine="embedded", state_serde="str")
print(run(application).records_in)
if sys.argv[2:]:
    running = application.start()
    running._enter()
else:
    with application.start() as running:
        pass
spark = [name for name in sys.modules if name.startswith("penstock.plugins.spark.")]
assert set(spark) <= {"penstock.plugins.spark.settings"}, spark
"""


@pytest.mark.parametrize("forgets", [False, True])
def test_no_spark_no_java_no_pandas(surroundings: Surroundings, forgets: bool) -> None:
    """Where the service forgets to stop the run, the end of the process does, and gives up the lease."""
    surroundings.put("in", records(10))
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PROGRAM, str(surroundings.directory), *(["forget"] if forgets else [])],
        env={name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": "/nowhere"},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "10\n"), done.stderr
    assert ("ResourceWarning" in done.stderr) == forgets
    surroundings.log.lease("app", "the test", 1000).release()


def test_a_fork_of_a_service(surroundings: Surroundings) -> None:
    def is_refused(call: Callable[[], object]) -> None:
        with pytest.raises(RuntimeUnavailableError, match="was forked"):
            call()

    with application(surroundings).start() as running:
        for call in (running.wait, lambda: running.state, lambda: running.error, application(surroundings).start):
            assert succeeds_in_a_fork(partial(is_refused, call))
        surroundings.put("in", records(5))
        wait_until(lambda: has_written(surroundings, 5))


def test_a_stop_by_the_event(surroundings: Surroundings) -> None:
    stop = threading.Event()
    stop.set()
    assert run(application(surroundings), "continuous", stop=stop).stopped_by == "stop"
    with pytest.raises(TopologyError, match="'gone'"):
        run(application(surroundings, apps.count(sink="gone")), "continuous", stop=stop)


@pytest.mark.parametrize("trigger", ["continuous", "0s"])
def test_a_topic_that_comes_later_is_read(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch, trigger: str
) -> None:
    monkeypatch.setattr(run_loop, "_REASSIGN_SECONDS", 0.05)
    topology = Topology().add_source("in", pattern=re.compile("in.*")).add_sink("out", "out", "in")
    with application(surroundings, topology).start(trigger) as running:
        surroundings.put("in", records(3))
        wait_until(lambda: has_written(surroundings, 3))
        surroundings.create(**{"in-2": 6})
        surroundings.put("in-2", records(4))
        wait_until(lambda: has_written(surroundings, 7) or running.state == "failed")
    assert has_written(surroundings, 7)


def test_a_topic_counts_as_gone_when_two_lists_lack_it(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking, looks = {1, 3}, 0

    def look(application: Application, log: Log) -> Any:
        nonlocal looks
        looks += 1
        if looks in lacking or not lacking:
            raise TopologyError("the log has no topic 'in' (source 'in')")
        return resolve(application, log)

    monkeypatch.setattr(run_loop, "_REASSIGN_SECONDS", 0.05)
    monkeypatch.setattr(run_loop, "resolve", look)
    running = application(surroundings).start("continuous")
    wait_until(lambda: looks > 4 or running.state == "failed")
    surroundings.put("in", records(3))
    wait_until(lambda: has_written(surroundings, 3) or running.state == "failed")
    assert running.state != "failed"
    lacking.clear()
    with pytest.raises(TopologyError, match="no topic 'in'"):
        running.wait(60)


def test_a_processor_that_does_not_return_is_named(surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "STUCK_SECONDS", 1.5)
    monkeypatch.setattr(continuous_engine, "_CLOSE_SECONDS", 0.1)
    released = threading.Event()

    class Sits(Processor):
        def process(self, record: Record) -> None:
            released.wait()

    surroundings.put("in", records(1))
    given = application(surroundings, Topology().add_source("in", "in").add_processor("sits", Sits, "in"))
    try:
        with pytest.raises(RuntimeUnavailableError, match=r"made no turn for .*node 'sits'.*does not return"):
            run(given, "continuous")
    finally:
        released.set()


def test_a_port_that_is_taken(surroundings: Surroundings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"'metrics_port': port {port} of 127.0.0.1 cannot be opened"):
            run(application(surroundings, metrics_port=port))
