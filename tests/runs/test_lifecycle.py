"""States of runs, their listener, what an uncaught error does, and whether a run is alive and ready."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from penstock import (
    Application,
    ConfigError,
    PenstockError,
    ProcessingError,
    Processor,
    Record,
    StateChange,
    Topology,
    run,
)
from penstock.plugins.engine.program.run_status import Health, RunStatus, SlotHost, TaskStatus
from penstock.plugins.engine.run.order import FAILED, REBALANCING, RUNNING, STOPPED, STOPPING, Lifecycle

from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    with Surroundings(tmp_path / "data") as made:
        made.create(**{"in": 2, "out": 2})
        yield made


def application(surroundings: Surroundings, topology: Topology | None = None, **settings: Any) -> Application:
    return surroundings.application("app", topology or apps.count(), engine="embedded", **settings)


def opens_after(may_open: threading.Event) -> Topology:
    """Return a program whose tasks are open once the event is set."""

    class Waits(Processor):
        def init(self, context: Any) -> None:
            super().init(context)
            assert may_open.wait(60)

        def process(self, record: Record) -> None:
            return None

    return Topology().add_source("in", "in").add_processor("waits", Waits, "in")


@pytest.mark.parametrize("trigger", ["available_now", "0s", "continuous"])
def test_a_listener_is_called_with_each_state(surroundings: Surroundings, trigger: str) -> None:
    changes: list[StateChange] = []
    given = application(surroundings, state_listener=changes.append)
    if trigger == "available_now":
        run(given)
    else:
        with given.start(trigger) as running:
            wait_until(lambda: running.state == "running")
        assert running.state == "stopped"
    assert [(each.before, each.state) for each in changes] == [
        ("starting", "rebalancing"),
        ("rebalancing", "running"),
        ("running", "stopping"),
        ("stopping", "stopped"),
    ]
    assert {each.application_id for each in changes} == {"app"}


def test_a_run_rebalances_until_all_tasks_are_open(surroundings: Surroundings) -> None:
    may_open = threading.Event()
    given = application(surroundings, opens_after(may_open))
    with given.start() as running:
        wait_until(lambda: running.state == "rebalancing")
        may_open.set()
        wait_until(lambda: running.state == "running")


def test_a_failure_is_a_state_and_a_listener_that_fails_harms_nothing(surroundings: Surroundings) -> None:
    def fail(change: StateChange) -> None:
        states.append(change.state)
        raise ValueError("of the listener")

    states: list[str] = []
    surroundings.put("in", [("a", "1", 1)])
    with pytest.raises(ProcessingError):
        run(application(surroundings, failing(lambda value: True), state_listener=fail))
    assert states[-1] == "failed"


def test_no_state_follows_the_last_one() -> None:
    lifecycle = Lifecycle()
    for state, found in (
        (REBALANCING, REBALANCING), (RUNNING, RUNNING), (STOPPING, STOPPING), (RUNNING, STOPPING),
        (FAILED, FAILED), (STOPPED, FAILED), (REBALANCING, FAILED),
    ):  # fmt: skip
        lifecycle.enter(state)
        assert lifecycle.state == found


def failing(fails: Callable[[str], bool]) -> Topology:
    class Fails(Processor):
        def process(self, record: Record) -> None:
            if fails(record.value):
                raise ValueError(f"no {record.value}")
            self.context.forward(record)

    return Topology().add_source("in", "in").add_processor("bad", Fails, "in").add_sink("out", "out", "bad")


@pytest.mark.parametrize("trigger", ["available_now", "continuous"])
def test_a_task_is_replaced_and_nothing_is_lost(surroundings: Surroundings, trigger: str) -> None:
    left = {"2": 2}

    def fails(value: str) -> bool:
        left[value] = left.get(value, 0) - 1
        return left[value] >= 0

    errors: list[PenstockError] = []

    def decide(error: PenstockError) -> str:
        errors.append(error)
        return "replace_task"

    surroundings.put("in", [(f"k{number}", str(number), number) for number in range(10)])
    given = application(surroundings, failing(fails), uncaught_exception_handler=decide, commit_interval="10ms")
    if trigger == "available_now":
        summary = run(given)
    else:
        with given.start(trigger) as running:
            wait_until(lambda: len(surroundings.values_by_key("out")) == 10)
        summary = running.wait()
    assert {key: len(values) for key, values in surroundings.values_by_key("out").items()} == {
        f"k{number}": 1 for number in range(10)
    }
    assert len(errors) == 2 and all("'bad'" in str(each) and "no 2" in str(each) for each in errors)
    assert summary.openings.get("failed", 0) >= 1


def test_the_answer_to_an_error_is_checked(surroundings: Surroundings) -> None:
    surroundings.put("in", [("a", "1", 1)])
    for handler, kind, said in (
        (lambda error: "stop", ProcessingError, "no 1"),
        (lambda error: None, ConfigError, "'uncaught_exception_handler': it returned None, expected 'stop' or 'repl"),
    ):
        with pytest.raises(kind, match=said):
            run(application(surroundings, failing(lambda value: True), uncaught_exception_handler=handler))


# ------------------------------------------------------------------ health

NOW = 1_000_000
TASKS = (TaskStatus("0_0", 0, is_open=True), TaskStatus("0_1", 0, is_open=True))
STATUS = RunStatus(
    "app", "ann@node", "continuous", 0, NOW - 1_000, tasks=TASKS, phase="running", turned_ms=NOW - 500,
    hosts=(SlotHost(0, "node", 7, 2, 0, 0.0, 1, 1, NOW - 900),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "is_live", "is_ready", "reason"),
    [
        ({}, True, True, ""),
        ({"paused": (0, 2)}, True, False, "paused sub-topologies: 0, 2"),
        ({"phase": "", "turned_ms": None, "hosts": ()}, True, True, ""),  # of an earlier release
        ({"phase": "rebalancing", "tasks": (TASKS[0], TaskStatus("0_1", 0))}, True, False, "1 of 2 tasks are not open"),
        ({"phase": "starting", "tasks": (), "hosts": (), "turned_ms": None}, True, False, "is starting"),
        ({"turned_ms": NOW - 200_000}, True, True, ""),
        ({"turned_ms": NOW - 301_000}, False, False, "loop has made no turn for 301 s"),
        ({"hosts": (replace(STATUS.hosts[0], heard_ms=NOW - 21_000),)}, True, False, "slot 0 (node, process 7)"),
        ({"hosts": (replace(STATUS.hosts[0], heard_ms=NOW - 301_000),)}, False, False, "said nothing for 301 s"),
        ({"hosts": (replace(STATUS.hosts[0], heard_ms=NOW - 301_000),), "trigger": "10s"}, True, True, ""),
        ({"ended_ms": NOW - 2_000}, False, False, "the run is stopped"),
        ({"ended_ms": NOW - 2_000, "error": "no topic"}, False, False, "the run is failed: no topic"),
        ({"written_ms": NOW - 21_000}, False, False, "the run is lost"),
    ],
)
def test_whether_a_run_is_alive_and_ready(changes: Any, is_live: bool, is_ready: bool, reason: str) -> None:
    found = RunStatus.from_json(replace(STATUS, **changes).to_json()).health(NOW)
    assert (found.is_live, found.is_ready) == (is_live, is_ready)
    assert reason in found.reason and bool(found.reason) == (found != Health(True, True))


def asked(port: int, path: str) -> tuple[int, Any]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_endpoints_of_a_run_that_waits_on_the_same_machine(
    surroundings: Surroundings, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The port is the driver's, until that ends."""
    given = application(surroundings, metrics_port=free_port)
    with given.start() as first:
        wait_until(lambda: asked(free_port, "/health/ready")[0] == 200)
        waiting = given.start(wait=True)
        said = f"port {free_port} of 127.0.0.1 is in use now"
        wait_until(lambda: said in caplog.text or waiting.state != "starting")
        assert waiting.state == "starting", waiting.error
        first.stop()
    with waiting:
        wait_until(lambda: answers(free_port) and asked(free_port, "/health/ready")[0] == 200)
    assert not answers(free_port)


def test_a_start_that_is_given_up_leaves_nothing_that_runs(surroundings: Surroundings) -> None:
    """It would take the application over later, and until then a thread would hold up the end of the process."""
    given = application(surroundings)

    async def cancelled(waiting: Any) -> None:
        entering = asyncio.create_task(waiting.__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    with given.start():
        waiting: Any = given.start(wait=True)
        asyncio.run(cancelled(waiting))
        assert waiting.state == "stopped"
        interrupted: Any = given.start(wait=True)
        interrupted._run.has_started = Interrupted()
        with pytest.raises(KeyboardInterrupt), interrupted:
            pass
        assert interrupted.state == "stopped"


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_the_endpoints_of_a_run_that_opens_its_tasks(surroundings: Surroundings, free_port: int) -> None:
    may_open = threading.Event()
    with application(surroundings, opens_after(may_open), metrics_port=free_port).start() as running:
        wait_until(lambda: running.state == "rebalancing")
        assert asked(free_port, "/health/live")[0] == 200
        code, found = asked(free_port, "/health/ready")
        assert (code, found["live"], found["ready"], found["state"]) == (503, True, False, "rebalancing")
        may_open.set()
        wait_until(lambda: asked(free_port, "/health/ready")[0] == 200)
