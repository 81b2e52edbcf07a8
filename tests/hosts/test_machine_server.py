"""MachineServer: one server of queries for the task hosts of a machine, found, lost and ended as these are."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import TopicPartition, run
from penstock.plugins.engine.host import slot_engine
from penstock.plugins.engine.host.application_engine import ApplicationEngine
from penstock.plugins.engine.host.place import ProcessId, started_at
from penstock.plugins.engine.host.reports import Meter, SlotMessage, SlotPlan
from penstock.plugins.engine.host.slot_engine import HostInfo, SlotCargo, SlotRequest
from penstock.plugins.engine.run.slots import Slots
from penstock.plugins.spark.watching import NotedServers
from penstock.plugins.state.queries import machine_server
from penstock.plugins.state.queries.http.guard import Address
from penstock.plugins.state.queries.http.server import ServerOptions
from penstock.plugins.state.queries.machine_server import MachineServer, MachineServerCargo
from penstock.plugins.state.queries.noted_servers import TaskServer, noted_server, task_servers

from ..leases import brief_lease
from ..processes import is_alive
from ..queries.served import ask
from ..spark import apps
from ..spark.surroundings import Surroundings
from ..waiting import wait_until


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surroundings]:
    monkeypatch.setattr(machine_server, "_LEASE_SECONDS", 1.5)
    with tempfile.TemporaryDirectory(prefix="h") as short, Surroundings(tmp_path / "data") as made:
        monkeypatch.setattr(tempfile, "tempdir", short)
        made.create(**{"in": 2, "out": 2})
        made.put("in", [("a", "v", 0), ("b", "v", 1), ("a", "v", 2)])
        yield made
        wait_until(lambda: not [each for each in Path(short).iterdir() if each.is_dir()], "the server has ended")


def server_of(surroundings: Surroundings, port: int = 0, **settings: Any) -> MachineServer:
    """Return the end of a task host; it runs here."""
    application = surroundings.application("app", apps.count(), engine="embedded", **settings)
    cargo = pickle.dumps(MachineServerCargo(application, ServerOptions(Address("127.0.0.1", port))))
    me = ProcessId(os.getpid(), started_at(os.getpid()), "the test")
    return MachineServer(cargo, application, HostInfo("token", 0, "", "first", Meter(), watched=[me]))


def value_of(url: str, key: str) -> Any:
    status, found = ask(url, "/v1/stores/counts/get", given={"key": key})
    return found["value"] if status == 200 else status


def process_of(url: str) -> psutil.Process:
    port = int(url.rpartition(":")[2])
    found = psutil.net_connections("tcp")
    return psutil.Process(
        next(each.pid for each in found if each.status == psutil.CONN_LISTEN and each.laddr[1:] == (port,))
    )


def test_hosts_share_a_server_that_is_replaced_and_ends_after_them(surroundings: Surroundings) -> None:
    run(surroundings.application("app", apps.count(), engine="embedded"))
    first, second = server_of(surroundings), server_of(surroundings)
    try:
        url = first.url(60)
        assert second.url(60) == url
        assert value_of(url, "a") == 2 and value_of(url, "x") == 404
        process = process_of(url)
        assert "server of queries: application 'app'" in " ".join(process.cmdline())
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(process) and answers(url), "another one has its port")
        first.close()
        assert value_of(url, "b") == 1
        successor = process_of(url)
    finally:
        first.close()
        second.close()
    wait_until(lambda: not is_alive(successor), "no host needs it")


def answers(url: str) -> bool:
    try:
        return bool(value_of(url, "a") == 2)
    except OSError:
        return False


def test_a_machine_with_other_local_state_has_a_server_of_its_own(
    surroundings: Surroundings, caplog: pytest.LogCaptureFixture
) -> None:
    one = server_of(surroundings)
    port = int(one.url(60).rpartition(":")[2])
    two = server_of(surroundings, state_dir="another")
    taken = server_of(surroundings, port, state_dir="a-third")
    try:
        assert two.url(60) not in ("", one.url())
        assert taken.url(60) == ""
        assert f"setting 'queries' 127.0.0.1:{port} cannot be opened" in caplog.text
        one.close()
        wait_until(lambda: taken.url() == f"http://127.0.0.1:{port}", "the address is free")
    finally:
        for each in (one, two, taken):
            each.close()


def test_the_first_batch_says_where_the_server_is(surroundings: Surroundings) -> None:
    application = surroundings.application("app", apps.count(), engine="embedded")
    run(application)
    cargo = pickle.dumps(MachineServerCargo(application, ServerOptions(Address("127.0.0.1", 0))))
    tasks = {f"0_{number}": (TopicPartition("in", number),) for number in range(2)}
    me = ProcessId(os.getpid(), started_at(os.getpid()), "the test")
    slot = SlotCargo(ApplicationEngine, application, tasks, "", 0, companions=(partial(MachineServer, cargo),))
    engine = slot.engine(HostInfo("token", 0, "", "first", Meter(), watched=[me]))
    try:
        message = engine.handle(SlotRequest(SlotPlan(0, "", 0), {}, "0@here/1/2/3"))
        assert value_of(message.server, "a") == 2
        slots = Slots({0: list(tasks), 1: []})
        slots.take(SlotMessage.from_json(message.to_json()))
        noted = NotedServers("app", brief_lease(surroundings.log), "http://driver:1", {0: list(tasks), 1: []})
        noted.write(slots)
        own = TaskServer("http://driver:1", socket.gethostname())
        beside = TaskServer(message.server, "here", tuple(tasks))
        assert task_servers("app", surroundings.log) == [beside, own]
        slots.move([0])
        noted.write(slots)
        assert task_servers("app", surroundings.log) == [own]
        with noted_server(application, surroundings.log, brief_lease(surroundings.log)):
            assert task_servers("app", surroundings.log) == [], "they are of a run that was killed"
    finally:
        engine.close()


def test_tasks_give_way_and_the_server_keeps_its_priority(
    surroundings: Surroundings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = tmp_path / "autogroup"  # not that of the tests
    monkeypatch.setattr(slot_engine, "_AUTOGROUP", session)
    application = surroundings.application("app", apps.count(), engine="embedded", queries="127.0.0.1:0")
    run(surroundings.application("app", apps.count(), engine="embedded"))
    cargo = pickle.dumps(MachineServerCargo(application, ServerOptions(Address("127.0.0.1", 0))))
    tasks = {"0_0": (TopicPartition("in", 0),)}
    me = ProcessId(os.getpid(), started_at(os.getpid()), "the test")

    def serve() -> tuple[int, int]:
        """Return the priority of this thread, which is a task host's, and of the server."""
        beside = (partial(MachineServer, cargo),)
        slot = SlotCargo(ApplicationEngine, application, tasks, str(tmp_path), 30, companions=beside, gives_way=True)
        engine = slot.engine(HostInfo("token", 0, "", "first", Meter(), watched=[me]))
        try:
            message = engine.handle(SlotRequest(SlotPlan(0, "", 0), {}, "0@here/1/2/3"))
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), process_of(message.server).nice()
        finally:
            engine.close()

    with ThreadPoolExecutor(1) as of_host:  # priorities are those of threads
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert of_host.submit(serve).result() == (own + slot_engine.NICE, own)
    wait_until(lambda: session.exists() and session.read_text() == str(slot_engine.NICE))
