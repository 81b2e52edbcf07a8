"""The proxy's side: finds the task host of a slot, or starts it, and sends it requests; the protocol between them."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock import PenstockError, RuntimeUnavailableError
from penstock.plugins.engine.task.shipping import is_sent

from .place import LEASE_SECONDS, Place, ProcessId, check_peer, clock, cpu_seconds
from .reports import STUCK_SECONDS, Loss

PROTOCOL = "penstock-host/1"
_LENGTH = struct.Struct("!Q")
_LONGEST_LINE = 1024
END = "end"
"""The second word of a greeting that asks a host to end; after it comes the reason."""
_CHUNK = 1 << 20


class ClosedError(Exception):
    """The other end has closed the connection, or has ended."""


class SilentError(Exception):
    """The other end has sent nothing for too long, not even that it is busy."""


@dataclass(frozen=True)
class Busy:
    """The host's sign of life while it works on a request."""


@dataclass(frozen=True)
class HostAnswer:
    """The host's answer: a value, or the error that its engine raised."""

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of_error(cls, error: BaseException) -> HostAnswer:
        """Return an error as an answer; its traceback goes along as a note."""
        note = f"In the task host:\n{''.join(traceback.format_exception(error))}"
        try:
            if is_sent(type(error)):
                raise TypeError("the proxy may not have its class")
            portable: BaseException = pickle.loads(pickle.dumps(error))
        except Exception:
            portable = PenstockError(f"{type(error).__name__}: {error}")
        portable.add_note(note)
        return cls(error=portable)


def send_line(connection: socket.socket, *words: str) -> None:
    """Send the words of a greeting, as plain text: both ends must be able to read it whatever their release."""
    try:
        connection.sendall((" ".join(words) + "\n").encode())
    except OSError as error:
        raise ClosedError(str(error)) from error


def receive_line(connection: socket.socket) -> list[str]:
    """Return the words of a greeting."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
        line += bytes(_exactly(connection, 1))
    return line.decode(errors="replace").split()


def send(connection: socket.socket, message: Any) -> None:
    """Send one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        connection.sendall(_LENGTH.pack(len(data)))
        connection.sendall(data)
    except TimeoutError as error:
        raise SilentError("it does not read what it is sent") from error
    except OSError as error:
        raise ClosedError(str(error)) from error


def receive(connection: socket.socket) -> Any:
    """Return one message. Call it only after `check_peer`: unpickling runs code of the sender."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, done = memoryview(data), 0
    while done < count:
        try:
            received = connection.recv_into(view[done:], min(count - done, _CHUNK))
        except TimeoutError as error:
            raise SilentError("it sends nothing") from error
        except OSError as error:
            raise ClosedError(str(error)) from error
        if not received:
            raise ClosedError("it has closed the connection")
        done += received
    return data


_ROOT = Path("/sys/fs/cgroup")


def memory_kills(root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the kernel's count for this process's control group, of version 2 or 1; 0 where there is none."""
    try:
        groups = own.read_text().splitlines()
    except OSError:
        return 0
    for file in _files(root, groups):
        try:
            counts = dict(line.split() for line in file.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _files(root: Path, groups: list[str]) -> Iterator[Path]:
    """Yield the files that may have the count. Lines of `groups` are "NUMBER:CONTROLLERS:PATH"."""
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":
            directory, name = root, "memory.events"
        elif "memory" in controllers.split(","):
            directory, name = root / "memory", "memory.oom_control"
        else:
            continue
        yield directory / path.lstrip("/") / name
        # A container may see its own group as the root, but its path as the machine knows it.
        yield directory / name


BOOTSTRAP = (
    "import gc,json,os,sys;gc.disable();os.fork() and os._exit(0);start=json.loads(sys.stdin.buffer.readline());"
    "sys.path[:]=start['path'];from penstock.plugins.engine.host.process import main;main(start)"
)
"""The program of a host's interpreter: it must find modules where the process that starts it does.

The fork lets the process that started it go: a host that ends is then no zombie of a Spark worker.
"""
_START_SECONDS = 120.0
_SILENT_SECONDS = 60.0
"""A host that works says so every five seconds. One that is silent for so long, and computes nothing, is frozen, and is
killed."""
_WORKING_SHARE = 0.05
"""A silent host that takes more than this share of a processor computes: a call that keeps Python's lock lets nothing
else of its process run. The threads of clients take less.
"""
_MOST_STARTS = 3
_END_SECONDS = 12.0
"""Longer than a host takes to end in the middle of a batch."""
_PAUSE = 0.02


def nothing() -> None:
    """Do nothing."""


class HostLostError(Exception):
    """The host ended, or was killed because it was frozen, before it answered, or before it listened."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.text)
        self.loss = loss


@dataclass(frozen=True)
class HostSpec:
    """A host that can be found or started. `key` and `digest` are as in `Place` and of the cargo.

    `set_up` is called in a new host before the cargo is unpacked, for what the cargo needs of its surroundings. `role`:
    the host's name in messages; "": the task host of its slot.
    """

    key: str
    slot: int
    digest: str
    cargo: bytes
    title: str
    watched: Sequence[ProcessId]
    scope: str = ""
    set_up: Callable[[], None] = nothing
    lease_seconds: float = LEASE_SECONDS
    role: str = ""

    @property
    def name(self) -> str:
        """The host's name in messages."""
        return self.role or f"task host of slot {self.slot}"

    def starting_line(self, place: Place, reason: str) -> bytes:
        """Return the line that a host reads at its start."""
        start = {
            "path": sys.path,
            "top": place.top,
            "key": self.key,
            "slot": self.slot,
            "name": self.name,
            "scope": self.scope,
            "digest": self.digest,
            "reason": reason,
            "watched": [vars(each) for each in self.watched],
            "lease_seconds": self.lease_seconds,
        }
        return json.dumps(start).encode() + b"\n"


class HostClient:
    """A proxy's connection to one host, kept between batches. Used by one thread."""

    def __init__(self, spec: HostSpec) -> None:
        self.spec = spec
        self.place = Place(spec.key)
        self._connection: socket.socket | None = None
        self._process = 0
        self._memory_kills = 0
        self._silent_seconds = _SILENT_SECONDS
        self._losses: list[Loss] = []
        self._starting: subprocess.Popen[bytes] | None = None

    def call(self, request: Any, reason: str, silent_seconds: float | None = None) -> Any:
        """Return the host's answer to a request; start a host that is not there, for `reason`.

        One without a sign of life for `silent_seconds` (None: a minute) is frozen, and is killed; one that computes has
        `STUCK_SECONDS`. A host that is lost is started again, and gets the request again. Raises its engine's error,
        and RuntimeUnavailableError when no host can be started, or each one is lost.
        """
        self._silent_seconds = _SILENT_SECONDS if silent_seconds is None else silent_seconds
        lost: list[str] = []
        while True:
            try:
                answer = self._ask(request, "host lost" if lost else reason)
            except HostLostError as error:
                self.close()
                lost.append(str(error))
                self._losses.append(error.loss)
                if len(lost) >= _MOST_STARTS:
                    raise RuntimeUnavailableError(
                        f"{self.spec.title}: the {self.spec.name} was lost {len(lost)} times in one "
                        f"batch: {'; '.join(lost)}. What was committed stays. A processor may end its process, or the "
                        "host needs more memory than there is (for an executor of Spark: spark.executor.memoryOverhead)"
                    ) from error
                continue
            if answer.error is not None:
                raise answer.error
            return answer.value

    def begin(self, reason: str) -> None:
        """Begin to start the host if there is none, and do not wait: `call` will need it soon. Raises nothing."""
        if self._connection is None and self._starting is None:
            with contextlib.suppress(OSError, RuntimeUnavailableError):
                self.place.check()
                if not self.place.is_taken():
                    self._starting = self._spawn(reason)

    def take_losses(self) -> list[Loss]:
        """Return the losses of hosts since the last call."""
        losses, self._losses = self._losses, []
        return losses

    def close(self) -> None:
        """Close the connection; the host stays."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ------------------------------------------------------------------ inside

    def _ask(self, request: Any, reason: str) -> HostAnswer:
        if self._connection is None:
            self._connection = self._connect(reason)
        connection = self._connection
        connection.settimeout(self._silent_seconds)
        try:
            send(connection, request)
            message: object = Busy()
            while isinstance(message, Busy):
                self._wait_for_sign(connection)
                message = receive(connection)
        except ClosedError as error:
            killed = memory_kills() > self._memory_kills
            how = (
                "was killed by the kernel: the container's memory was used up" if killed else self.place.how_it_ended()
            )
            raise HostLostError(self._lost(how)) from error
        except SilentError as error:
            self._kill()
            raise HostLostError(self._lost(f"was frozen: {error}, and was killed")) from error
        assert isinstance(message, HostAnswer)
        self._memory_kills = memory_kills()
        return message

    def _wait_for_sign(self, connection: socket.socket) -> None:
        """Return when the host has sent something. Raises SilentError if it is frozen, or computes for too long."""
        poll, began, seconds = select.poll(), clock(), self._silent_seconds
        poll.register(connection, select.POLLIN)
        while True:
            before = cpu_seconds(self._process)
            if poll.poll(seconds * 1000):
                return
            after = cpu_seconds(self._process)
            if before is None or after is None or after - before <= _WORKING_SHARE * seconds:
                raise SilentError(f"it gave no sign for {seconds:.0f} s")
            if clock() - began > STUCK_SECONDS:
                raise SilentError(f"it gave no sign for {STUCK_SECONDS:.0f} s, in which it computed")

    def _lost(self, how: str) -> Loss:
        return Loss(f"the {self.spec.name} (process {self._process}) {how}", self._process)

    def _connect(self, reason: str) -> socket.socket:
        """Return a connection to a host with this code and these settings; start one if there is none."""
        self.place.check()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            connection = None if self._starting is not None else self._try_to_connect()
            if connection is not None:
                return connection
            if self._starting is not None or not self.place.is_taken():
                self._start(reason)
            if time.monotonic() > deadline:
                raise RuntimeUnavailableError(
                    f"{self.spec.title}: no {self.spec.name} answered within {_START_SECONDS:.0f} s "
                    f"(its place is {self.place.directory})"
                )
            time.sleep(_PAUSE)

    def _try_to_connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            self.place.check_directory()
            connection.settimeout(self._silent_seconds)
            connection.connect(os.fspath(self.place.socket))
            self._process = check_peer(connection)
            send_line(connection, PROTOCOL, self.spec.digest)
            self._wait_for_sign(connection)
            protocol, answer, *_ = [*receive_line(connection), "", ""]
            if protocol != PROTOCOL:
                raise RuntimeUnavailableError(
                    f"{self.spec.title}: process {self._process} at {self.place.socket} is a task host of another "
                    f"release of penstock (it says {protocol!r}, expected {PROTOCOL!r}): end that process"
                )
            if answer == "cargo":
                send(connection, (pickle.dumps(self.spec.set_up), self.spec.cargo))
            if answer in ("cargo", "ready"):
                self._memory_kills = memory_kills()
                return connection
        except SilentError:
            self._losses.append(self._lost("was frozen, and was killed"))
            self._kill()
        except (OSError, ClosedError):
            pass  # none is there, or it is ending
        except BaseException:
            connection.close()
            raise
        connection.close()
        return None

    def _start(self, reason: str) -> None:
        """Start a host, and wait until it listens, or says that another one has the place."""
        spec, process = self.spec, self._starting or self._spawn(reason)
        self._starting = None
        assert process.stdout is not None
        said, how = "", f"gave no sign for {_START_SECONDS:.0f} s, and was killed"
        if select.select([process.stdout], [], [], _START_SECONDS)[0]:
            said, how = process.stdout.readline().decode(errors="replace").strip(), "has ended"
        if not said:
            # The process may be frozen, or its child, whose id nobody here knows: they are one group.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
        if said.startswith("failed "):
            raise RuntimeUnavailableError(f"{spec.title}: {said.removeprefix('failed ')}")
        if said not in ("ready", "taken"):
            raise HostLostError(
                Loss(
                    f"the {spec.name} did not start: it {how} (what it said is in the log of the "
                    "executor, standard error)"
                )
            )

    def _spawn(self, reason: str) -> subprocess.Popen[bytes]:
        spec = self.spec
        shown = f"{spec.role}: {spec.title}" if spec.role else f"task host: {spec.title}, slot {spec.slot}"
        process = subprocess.Popen(
            [sys.executable, "-c", BOOTSTRAP, f"penstock {shown}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(spec.starting_line(self.place, reason))
            process.stdin.close()
        return process

    def _kill(self) -> None:
        if self._process:
            with contextlib.suppress(OSError):
                os.kill(self._process, signal.SIGKILL)


def end_hosts(keys: Iterable[str], reason: str, only: int = 0) -> None:
    """End the hosts of this machine that have these keys; nothing of them is left when this returns.

    `only`: the number of the process to end, if there may be a successor by now. A host gets some seconds to close its
    tasks. One that does not end, because it is frozen, is killed.
    """
    deadline = time.monotonic() + _END_SECONDS
    places = [Place(key) for key in keys]
    asked = [_ask_to_end(place, reason, deadline, only) for place in places]
    for place, (connection, process) in zip(places, asked, strict=True):
        with connection:
            if process and not _is_closed(connection, deadline):
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
                # The kernel ends the connections of a killed process a little before its locks.
                while place.is_taken() and time.monotonic() < deadline + _END_SECONDS:
                    time.sleep(_PAUSE)
        place.clear()


def _ask_to_end(place: Place, reason: str, deadline: float, only: int) -> tuple[socket.socket, int]:
    """Ask the host of a place to end; return the connection, and the host's process, 0 if there is none."""
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_END_SECONDS)
        try:
            place.check_directory()
            connection.connect(os.fspath(place.socket))
            process = check_peer(connection)
            if only not in (0, process):
                return connection, 0
            send_line(connection, PROTOCOL, END, reason)
            return connection, process
        except (OSError, ClosedError, RuntimeUnavailableError):
            # One that has the place and does not listen has just been started, or is ending.
            if not place.is_taken() or time.monotonic() > deadline:
                return connection, 0
        connection.close()
        time.sleep(_PAUSE)


def _is_closed(connection: socket.socket, deadline: float) -> bool:
    """Return whether the other end closes the connection before `deadline`, as an ending process does."""
    try:
        while True:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            if not connection.recv(1024):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
