"""BrokerProcess: one Java process of a Kafka broker, which dies with the process that started it; and its settings."""

from __future__ import annotations

import base64
import os
import random
import re
import secrets
import signal
import socket
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from penstock import RuntimeUnavailableError
from penstock.support.file_lock import lock_open_file

_WATCH = """
exec 3<&0
( read -r line <&3 || { kill -KILL $$; test -z "$1" || rm -rf "$1"; } ) >/dev/null 2>&1 &
shift
exec "$@" </dev/null 3<&-
"""
"""Become the program "$2"..., with a watcher beside it that kills it when standard input ends without a line: when the
process at the other end has ended, also by SIGKILL. Then the directory "$1" goes as well. (PR_SET_PDEATHSIG would be
sent when the *thread* that started the broker ends, and exists on Linux only.)"""

START_SECONDS = 300.0
POLL_SECONDS = 0.05

_random = random.SystemRandom()


class Server(ABC):
    """Runs as long as a `with` block, and not at all when it cannot start."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and return when it is ready."""

    @abstractmethod
    def close(self) -> None:
        """Stop it, and remove its files."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class BrokerProcess:
    """A running broker: its signals and log."""

    def __init__(self, command: Sequence[str], log: Path, remove_if_orphaned: Path | None) -> None:
        self._log = log
        with log.open("ab") as output:
            self._log_start = output.tell()
            # In a session of its own: Ctrl-C goes to the starting process, which stops the broker in order.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "sh", str(remove_if_orphaned or ""), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the process exists, frozen or not."""
        return self._process.poll() is None

    def wait_until_ready(self, node_id: int, port: int) -> bool:
        """Return when the broker takes part in its cluster, or False when the process has ended.

        Raises RuntimeUnavailableError after five minutes.
        """
        deadline = time.monotonic() + START_SECONDS
        while node_id not in brokers_known_at(port):
            if not self.is_running():
                return False
            if time.monotonic() > deadline:
                raise failed(f"a Kafka broker was not ready after {START_SECONDS:.0f} s", self.log_of_this_start())
            time.sleep(POLL_SECONDS)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the JVM; after SIGSTOP it answers nothing any more."""
        self._process.send_signal(number)
        if number == signal.SIGSTOP and hasattr(os, "waitid"):
            # Until every thread has stopped, one of them may still answer.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self, number: signal.Signals, timeout_seconds: float) -> None:
        """End the process by a signal, and by SIGKILL when it takes longer than that."""
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None, "the watcher's process has no pipe"
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
        except BrokenPipeError:
            pass

    def log_of_this_start(self) -> str:
        """Return the broker's log lines since it was started."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")


def failed(what: str, said: str) -> RuntimeUnavailableError:
    """Return the error of a failed broker, with advice if known, and the end of its output."""
    old = " It needs Java 17 or later: install one, or set JAVA_HOME to it." * ("UnsupportedClassVersion" in said)
    locked = " Another broker runs on it: stop that one." * ("Failed to acquire lock" in said)
    return RuntimeUnavailableError(f"{what}.{old}{locked} The end of what it said:\n{said.strip()[-2000:]}")


def locked(directory: Path) -> IO[str] | None:
    """Return an open file that locks a broker's directory, None if it is locked: Kafka's own lock comes too late."""
    file = (directory / "lock").open("w")
    if lock_open_file(file.fileno()):
        return file
    file.close()
    return None


def free_ports(number: int) -> list[int]:
    """Return free ports of 127.0.0.1 that no outgoing connection is given while the broker is down."""
    low, high = 15_000, min(_first_ephemeral(), 60_000)
    if high - low < 1000:
        low, high = 10_000, 60_000
    found: list[int] = []
    while len(found) < number:
        port = _random.randrange(low, high)
        if port not in found and is_free(port):
            found.append(port)
    return found


def is_free(port: int) -> bool:
    """Return whether a broker could listen on a port of 127.0.0.1 now."""
    with socket.socket() as attempt:
        # As Java does: connections of an earlier broker that are still winding down are no obstacle.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def brokers_known_at(port: int, timeout_seconds: float = 2.0) -> set[int]:
    """Return the ids of the live brokers according to the one at `port`; none if it does not answer yet."""
    # Metadata, version 4: no topics, none made. The answer begins with a throttle time and the brokers.
    request = struct.pack(">hhihib", 3, 4, 1, -1, 0, 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_seconds) as connection:
            connection.settimeout(timeout_seconds)
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                _, _, _, brokers = struct.unpack(">iiii", _exactly(answer.read(16), 16))
                ids = set()
                for _ in range(brokers):
                    ids.add(struct.unpack(">i", _exactly(answer.read(4), 4))[0])
                    answer.read(struct.unpack(">h", _exactly(answer.read(2), 2))[0] + 4)
                    answer.read(max(struct.unpack(">h", _exactly(answer.read(2), 2))[0], 0))
                return ids
    except OSError:
        return set()


def _exactly(read: bytes, length: int) -> bytes:
    if len(read) != length:
        raise ConnectionResetError("the broker hung up")
    return read


def _first_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 49_152


HOST = "127.0.0.1"
CLUSTER_ID_FILE = "meta.properties"

_FOR_TESTS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # How often transactions that took too long are looked for.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # A killed broker can register again only after its last session has ended.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    # By default an idle controller writes twice a second that it is there, which takes a third of an idle broker's CPU.
    "metadata.max.idle.interval.ms": "0",
    # Tests write records with old timestamps, which the default retention of seven days would delete at once.
    "log.retention.ms": "-1",
    "log.segment.delete.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
}


def broker_properties(node_id: int, ports: Mapping[str, int], voters: str | None, data: Path) -> dict[str, str]:
    """Return a broker's settings: `ports` are those of its listeners, `voters` its controllers (None: itself)."""
    listeners = [f"{name}://{HOST}:{port}" for name, port in ports.items()]
    return {
        "process.roles": "broker" if voters else "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": voters or f"{node_id}@{HOST}:{ports['CONTROLLER']}",
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(listener for listener in listeners if not listener.startswith("CONTROLLER")),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
        **_FOR_TESTS,
        **replicated(1),
    }


def replicated(replicas: int) -> dict[str, str]:
    """Return the settings for so many replicas of each topic, Kafka's own included."""
    names = (
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "share.coordinator.state.topic.replication.factor",
    )
    return dict.fromkeys(names, str(replicas))


def asking_for(user: str, password: str) -> dict[str, str]:
    """Return the settings by which the listener SASL lets in one user, by PLAIN."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{quoted}";'
        ),
    }


def write_properties(file: Path, properties: Mapping[str, str]) -> None:
    """Write settings in Java's format, readable by this user only: a password may be among them."""
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in properties.items()))


def random_cluster_id() -> str:
    """Return a cluster's id, which is 16 bytes; the first one keeps it from looking like an option ("-...")."""
    return base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")


def write_cluster_id(data: Path, cluster_id: str, node_id: int) -> None:
    """Write which broker's a data directory is; a broker does not start without."""
    (data / CLUSTER_ID_FILE).write_text(f"version=1\ncluster.id={cluster_id}\nnode.id={node_id}\n")


def ports_in(file: Path) -> dict[str, int]:
    """Return the ports of an earlier broker by listener, from its settings; none, if there are no settings."""
    try:
        text = file.read_text()
    except OSError:
        return {}
    listeners = next((line for line in text.splitlines() if line.startswith("listeners=")), "")
    return {name: int(port) for name, port in re.findall(r"(\w+)://[^:]+:(\d+)", listeners)}
