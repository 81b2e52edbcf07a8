"""Task hosts as processes: found, started, lost, ended; and who is kept out."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import secrets
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from penstock.errors import ConfigError, PenstockError, RuntimeUnavailableError
from penstock.plugins.engine.host import client as client_module
from penstock.plugins.engine.host import place as place_module
from penstock.plugins.engine.host.client import BOOTSTRAP, Busy, HostClient, HostSpec, end_hosts, receive, send
from penstock.plugins.engine.host.place import Life, Place, ProcessId, started_at
from penstock.plugins.engine.task.temporary import remove_abandoned
from tests.processes import Child
from tests.waiting import wait_until

from .engines import Obedient

Maker = Callable[..., HostClient]


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory of this test alone, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="h") as directory:
        monkeypatch.setenv("TMPDIR", directory)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


@pytest.fixture
def make(short_tmp: Path) -> Iterator[Maker]:
    clients: list[HostClient] = []

    def maker(
        key: str = "", name: str = "a", watched: ProcessId | None = None, lease_seconds: float = 60.0
    ) -> HostClient:
        cargo = pickle.dumps(Obedient(name))
        me = watched or ProcessId(os.getpid(), started_at(os.getpid()), "the test")
        made = HostClient(
            HostSpec(
                key or secrets.token_hex(8), 3, hashlib.sha256(cargo).hexdigest(), cargo, "application 'a'", (me,), "",
                lease_seconds=lease_seconds,
            )
        )  # fmt: skip
        clients.append(made)
        return made

    yield maker
    for each in clients:
        each.close()
    end_hosts([each.spec.key for each in clients], "the test has ended")

    def is_clean() -> bool:
        # A host that was killed leaves its place; any later process removes it once the kernel has released the lock.
        remove_abandoned(short_tmp)
        return not list(short_tmp.iterdir())

    wait_until(is_clean, "nothing is left")


def pid(client: HostClient) -> int:
    return int(client.call(("pid",), "first")[0])


def wait_for_end(process: int) -> None:
    wait_until(lambda: not ProcessId(process).is_there() or started_at(process) == "")


def test_a_host_is_started_once_and_keeps_running(make: Maker) -> None:
    client = make()
    process, name, reason, status = client.call(("pid",), "first")
    assert (name, reason) == ("a", "first")
    assert process not in (os.getpid(), 0)
    assert (status.process, status.slot) == (process, 3)
    assert status.rss_bytes > 1 << 20
    assert status.threads > 1
    assert client.call(("pid",), "other")[:3] == (process, "a", "first")
    client.close()
    again = make(client.spec.key)
    assert pid(again) == process


def test_a_host_collects_garbage_once_it_has_started(make: Maker) -> None:
    client = make()
    pid(client)
    assert client.call(("collects garbage",), "first") is True


def test_of_many_that_start_one_at_once_all_find_the_same(make: Maker) -> None:
    key = secrets.token_hex(8)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: pid(make(key)), range(4)))
    assert len(set(found)) == 1


def test_a_lost_host_is_replaced_and_the_loss_is_told(make: Maker) -> None:
    client = make()
    process = pid(client)
    os.kill(process, signal.SIGKILL)
    successor, _, reason, _ = client.call(("pid",), "first")
    assert successor != process
    assert reason == "host lost"
    [loss] = client.take_losses()
    assert f"slot 3 (process {process}) was killed" in loss.text and loss.process == process
    assert client.take_losses() == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        (signal.SIGSEGV, "was killed by SIGSEGV (Segmentation fault"),
        (signal.SIGABRT, "was killed by SIGABRT (Aborted"),
    ],
)
def test_the_signal_that_killed_a_host_is_named(make: Maker, number: signal.Signals, said: str) -> None:
    client = make()
    os.kill(pid(client), number)
    pid(client)
    assert [str(each).partition(") ")[2][: len(said)] for each in client.take_losses()] == [said]


def test_a_host_that_the_kernel_killed_for_its_memory_is_named(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = [5]
    monkeypatch.setattr(client_module, "memory_kills", lambda: kills[0])
    client = make()
    first = pid(client)
    os.kill(first, signal.SIGKILL)
    second = pid(client)
    kills[0] += 1
    assert pid(client) == second, "the kernel killed another process"
    os.kill(second, signal.SIGKILL)
    third = pid(client)
    kills[0] += 1
    os.kill(third, signal.SIGKILL)
    pid(client)
    killed = "was killed by SIGKILL: by the kernel for want of memory, by kill -9, or it called os._exit"
    assert list(map(str, client.take_losses())) == [
        f"the task host of slot 3 (process {first}) {killed}",
        f"the task host of slot 3 (process {second}) {killed}",
        f"the task host of slot 3 (process {third}) was killed by the kernel: the container's memory was used up",
    ]


def test_a_request_that_ends_every_host_is_given_up(make: Maker) -> None:
    with pytest.raises(RuntimeUnavailableError, match=r"application 'a': .*slot 3 was lost 3 times in one batch"):
        make().call(("exit",), "first")


def test_a_frozen_host_is_killed_and_replaced(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_SILENT_SECONDS", 1.0)
    client = make()
    process = pid(client)
    os.kill(process, signal.SIGSTOP)
    assert pid(client) != process
    assert "frozen" in str(client.take_losses()[0])
    wait_for_end(process)
    # And one that a new proxy finds frozen.
    frozen = pid(client)
    client.close()
    os.kill(frozen, signal.SIGSTOP)
    assert pid(client) != frozen
    wait_for_end(frozen)


# Before the process that was started forks the host, and in the host before it listens.
_FREEZE = "import os,signal;os.kill(os.getpid(),signal.SIGSTOP);"
_DIE = "import os;os._exit(1);"
FAULTY_STARTS = {
    "frozen": _FREEZE + BOOTSTRAP,
    "frozen behind the fork": BOOTSTRAP.replace("start=", _FREEZE + "start=", 1),
    "killed": _DIE + BOOTSTRAP,
    "killed behind the fork": BOOTSTRAP.replace("start=", _DIE + "start=", 1),
}


@pytest.mark.parametrize("fault", FAULTY_STARTS)
def test_a_host_that_is_lost_while_it_starts_is_replaced(
    make: Maker, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    client = make()
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "BOOTSTRAP", FAULTY_STARTS[fault])
        client.begin("first")
    assert client._starting is not None
    group = client._starting.pid
    monkeypatch.setattr(client_module, "_START_SECONDS", 2.0 if fault.startswith("frozen") else 60.0)
    assert pid(client) != group
    assert "did not start" in str(client.take_losses()[0])

    def is_gone() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone, "nothing of the first start is left")


def test_a_busy_host_is_not_frozen_keeps_its_lease_and_drops_what_nobody_waits_for(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_SILENT_SECONDS", 6.5)
    client = make(lease_seconds=1.0)
    first = client.call(("pid",), "first")[0]
    gone = make(client.spec.key)
    assert client._connection is not None
    send(client._connection, ("sleep", 8.0))
    # Spark ends a proxy whose request has not begun.
    connection = gone._connect("first")
    send(connection, ("exit",))
    connection.close()
    while isinstance(message := receive(client._connection), Busy):
        pass
    assert message.value[0] == first
    assert pid(client) == first


def test_errors_come_through_with_where_they_were_raised(make: Maker) -> None:
    client = make()
    with pytest.raises(ConfigError, match="no such thing") as caught:
        client.call(("raise", ConfigError("no such thing")), "first")
    assert "in handle" in caught.value.__notes__[0]
    with pytest.raises(PenstockError, match="UnpicklableError: it failed"):
        client.call(("raise unpicklable",), "first")
    assert pid(client)


def test_other_code_replaces_the_host(make: Maker) -> None:
    client = make()
    process = pid(client)
    other = make(client.spec.key, name="b")
    successor, name, _, _ = other.call(("pid",), "code changed")
    assert name == "b"
    assert successor != process
    wait_for_end(process)


def test_a_host_ends_with_its_lease(make: Maker) -> None:
    client = make(lease_seconds=0.2)
    process = pid(client)
    wait_for_end(process)
    wait_until(lambda: not client.place.lock.exists())
    assert not client.place.directory.exists()


def test_a_host_ends_with_the_process_it_belongs_to(make: Maker) -> None:
    with Child("-c", "input()") as owner:
        client = make(watched=ProcessId(owner.pid, started_at(owner.pid), "the executor's JVM"))
        process = pid(client)
        owner.kill()
    wait_for_end(process)
    wait_until(lambda: not client.place.lock.exists())
    assert not client.place.directory.exists()


def test_a_host_does_not_take_a_later_process_for_its_owner() -> None:
    reasons: SimpleQueue[str] = SimpleQueue()
    Life([ProcessId(os.getpid(), "1", "the executor's JVM")], reasons.put)
    assert reasons.get(timeout=60) == f"the executor's JVM ({os.getpid()}) has ended"


def test_a_host_that_is_never_used_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_module, "UNUSED_SECONDS", 0.01)
    me, reasons = ProcessId(os.getpid(), started_at(os.getpid())), SimpleQueue[str]()
    monkeypatch.setattr(place_module, "_LOOK_SECONDS", 0.01)
    was_used = threading.Event()
    used = Life([me], reasons.put, 60.0, has_place=was_used.wait)  # does not look before it was used
    used.begin_request()
    used.end_request()
    was_used.set()
    Life([me], reasons.put, 60.0)
    assert reasons.get(timeout=60) == "there was no batch for 0 s"
    assert reasons.empty()


def test_a_signal_ends_a_host(make: Maker) -> None:
    client = make()
    process = pid(client)
    os.kill(process, signal.SIGTERM)
    wait_for_end(process)
    assert not client.place.lock.exists()


def test_hosts_are_ended_and_waited_for(make: Maker) -> None:
    clients = [make(), make()]
    processes = [pid(each) for each in clients]
    end_hosts([*(each.spec.key for each in clients), "nobody"], "the test says so")
    assert not any(ProcessId(each).is_there() and started_at(each) for each in processes)


def test_hosts_that_cannot_end_are_killed_and_nothing_is_left(
    make: Maker, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_END_SECONDS", 1.0)
    frozen, killed = make(), make()
    process = pid(frozen)
    os.kill(process, signal.SIGSTOP)
    os.kill(pid(killed), signal.SIGKILL)
    end_hosts([frozen.spec.key, killed.spec.key, "nobody"], "the test says so")
    assert not ProcessId(process).is_there() or not started_at(process)
    assert list(short_tmp.iterdir()) == []


def test_what_a_killed_host_leaves_does_not_disturb_the_next(make: Maker) -> None:
    client = make()
    os.kill(process := pid(client), signal.SIGKILL)
    wait_for_end(process)
    client.close()
    assert client.place.socket.exists()
    assert stat.S_IMODE(client.place.directory.stat().st_mode) == 0o700
    assert pid(make(client.spec.key)) != process


@pytest.mark.parametrize("taken", ["the directory", "the lock", "both"])
def test_a_host_that_nobody_finds_ends_and_leaves_its_successor_alone(make: Maker, taken: str) -> None:
    client = make()
    process = pid(client)
    client.close()
    if taken != "the lock":
        shutil.rmtree(client.place.directory)
    if taken != "the directory":
        client.place.lock.unlink()
    if taken == "the lock":
        wait_for_end(process)
    successor = pid(client)
    assert successor != process
    wait_for_end(process)
    client.close()
    assert pid(client) == successor


# ---------------------------------------------------------------------- who is kept out


def refused(client: HostClient, match: str) -> None:
    with pytest.raises(RuntimeUnavailableError, match=match):
        client.call(("pid",), "first")


@pytest.mark.parametrize("how", ["open", "link", "file"])
def test_a_place_that_others_can_reach_is_refused(make: Maker, short_tmp: Path, how: str) -> None:
    client = make()
    directory = client.place.directory
    if how == "open":
        directory.mkdir()
        directory.chmod(0o755)
    elif how == "link":
        (short_tmp / "theirs").mkdir(0o700)
        directory.symlink_to(short_tmp / "theirs")
    else:
        directory.touch()
    expected = {"open": "mode 755, expected 700", "link": "is a symbolic link", "file": "is no directory"}[how]
    refused(client, expected)
    assert not client.place.lock.exists()
    directory.rmdir() if how == "open" else directory.unlink()
    (short_tmp / "theirs").rmdir() if how == "link" else None


def test_a_place_of_another_user_is_refused(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make()
    client.place.directory.mkdir(0o700)
    me = os.getuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: me + 1)
        refused(client, f"belongs to user {me}, and this is user {me + 1}")
    client.place.directory.rmdir()


def test_a_host_of_another_user_gets_nothing(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make()
    assert pid(client)
    client.close()
    with monkeypatch.context() as patched:
        patched.setattr(place_module, "peer_of", lambda connection: (77, os.getuid() + 1))
        refused(client, f"process 77 of user {os.getuid() + 1} is at the other end")


def test_a_host_of_another_release_is_named(make: Maker) -> None:
    client = make()
    client.place.directory.mkdir(0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(client.place.socket))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"penstock-host/0 ready\n")

        threading.Thread(target=answer, daemon=True).start()
        refused(client, f"process {os.getpid()} at .* is a task host of another release .*'penstock-host/0'")
    client.place.socket.unlink()
    client.place.directory.rmdir()


def test_a_path_too_long_for_a_socket_is_refused(make: Maker, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = short_tmp / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    refused(make(), r"would have 1\d\d bytes, and this system takes \d+: .*TMPDIR")
    assert list(deep.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))
    deep.rmdir()


def test_a_directory_that_cannot_be_written_is_refused(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", "/proc")
        client = make()
    refused(client, r"(a task host cannot make /proc|/proc cannot be written).*TMPDIR")


def test_a_full_disk_under_a_place_is_named(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", no_space)
        with pytest.raises(RuntimeUnavailableError, match=r"cannot make .*/socket: No space left.*full.*TMPDIR"):
            Place("k").listen()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_space)
        with pytest.raises(RuntimeUnavailableError, match=r"cannot make .*\.lock: No space left.*full.*TMPDIR"):
            Place("k").take()


def test_a_place_can_be_taken_once(short_tmp: Path) -> None:
    place: Any = Place("k")
    lock = place.take()
    assert place.is_taken()
    assert place.take() is None
    place.listen().close()
    place.leave(lock)
    os.close(lock)
    assert not place.is_taken()
    assert list(short_tmp.iterdir()) == []


def test_a_host_that_was_begun_is_the_one_that_is_called(make: Maker) -> None:
    client = make()
    client.begin("early")
    client.begin("again")
    process, _, reason, _ = client.call(("pid",), "first")
    assert reason == "early"
    client.close()
    client.begin("a host is there")
    assert pid(client) == process


def test_a_host_that_computes_is_not_frozen(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call in C that keeps Python's lock lets it give no sign."""
    monkeypatch.setattr(client_module, "_SILENT_SECONDS", 0.5)
    client = make()
    process = pid(client)
    assert client.call(("compute", 2.0), "first")[0] == process
    assert client._connection is not None
    send(client._connection, ("compute", 2.0))
    assert pid(make(client.spec.key)) == process, "a new proxy waits for it, too"
    assert client.take_losses() == []


def test_a_host_that_computes_for_too_long_is_killed(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_SILENT_SECONDS", 0.3)
    monkeypatch.setattr(client_module, "STUCK_SECONDS", 0.6)
    client = make()
    process = pid(client)
    with pytest.raises(RuntimeUnavailableError, match="no sign for 1 s, in which it computed, and was killed"):
        client.call(("compute", 100.0), "first")
    wait_for_end(process)
