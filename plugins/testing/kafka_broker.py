"""KafkaBroker and KafkaCluster: real Kafka brokers, which a `with` block or a command line runs."""

from __future__ import annotations

import argparse
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from penstock import RuntimeUnavailableError

from .kafka.jars import STARTS_FAST, PreparedStart, broker_jars
from .kafka.process import (
    CLUSTER_ID_FILE,
    HOST,
    POLL_SECONDS,
    START_SECONDS,
    BrokerProcess,
    Server,
    asking_for,
    broker_properties,
    brokers_known_at,
    failed,
    free_ports,
    is_free,
    locked,
    ports_in,
    random_cluster_id,
    replicated,
    write_properties,
)

_START_ATTEMPTS = 5
_STOP_SECONDS = 30.0


class KafkaBroker(Server):
    """A real broker, which is its own controller, on free ports of 127.0.0.1: `with KafkaBroker() as broker: ...`.

    Needs Java 17 or later. The broker's jars are fetched once (see `jars.broker_jars`).

    `directory` keeps the data, the configuration and `broker.log` (None: a temporary one, which goes when the broker is
    closed). A broker on a directory with data continues with them, at the ports it had if they are free. `heap` and
    `jvm_options` are the JVM's, `options` are the broker's own settings and win over ours. With `credentials` (user,
    password) there is a second listener, `sasl_bootstrap`, that wants SASL/PLAIN. `port`: the one port that clients
    connect to, if it matters.

    Made for tests: topics are not made automatically, and keep records of any age; sessions of clients can be short.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        heap: str = "512m",
        jvm_options: Sequence[str] = STARTS_FAST,
        options: Mapping[str, str] | None = None,
        credentials: tuple[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self.directory = Path(directory or temporary_directory()).absolute()
        self.disposable = self.directory if directory is None else None
        """The directory that is deleted when the broker is closed, or its starting process dies."""
        self.node_id = 1
        self._jvm_options = (f"-Xmx{heap}", *jvm_options)
        self._options = dict(options or {})
        self._credentials = credentials
        self._wanted_port = port
        self._voters: str | None = None
        self._cluster_id = random_cluster_id()
        self._properties = self.directory / "server.properties"
        self._ports = ports_in(self._properties)
        self._ports_are_known = False
        self._process: BrokerProcess | None = None
        self._lock: IO[str] | None = None

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:PORT`, without authentication."""
        return f"{HOST}:{self._port('PLAINTEXT')}"

    @property
    def sasl_bootstrap(self) -> str:
        """`127.0.0.1:PORT`, where clients have to show the credentials (SASL_PLAINTEXT, PLAIN)."""
        return f"{HOST}:{self._port('SASL')}"

    @property
    def is_running(self) -> bool:
        """Whether the broker's process exists, frozen or not."""
        return self._process is not None and self._process.is_running()

    @property
    def pid(self) -> int | None:
        """The broker's process id, None when it does not run."""
        return self._process.pid if self._process is not None and self._process.is_running() else None

    def start(self) -> None:
        """Start the broker, and return when it is ready; raises RuntimeUnavailableError with the end of its log.

        Does nothing when it runs.
        """
        if self.is_running:
            return
        # A broker that ended by itself still has a watcher.
        self.kill()
        prepared = PreparedStart(broker_jars())
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = locked(self.directory)
        if self._lock is None:
            raise RuntimeUnavailableError(
                f"the Kafka broker in {self.directory} cannot start: another broker runs there; stop that one"
            )
        try:
            self._start(prepared)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker in order; its data and ports stay for `start`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker by SIGKILL; its data and ports stay for `start`."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the broker, if it runs, and start it with the same data at the same ports."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Halt the broker's process (SIGSTOP): connections stay open, and requests get no answer."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a frozen broker (SIGCONT)."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def close(self) -> None:
        """End the broker, and remove its directory if that is a temporary one."""
        if self.disposable is not None:
            self.kill()
            shutil.rmtree(self.disposable, ignore_errors=True)
        else:
            self.stop()

    @property
    def log(self) -> Path:
        """The file with the broker's output."""
        return self.directory / "broker.log"

    def known_brokers(self) -> set[int]:
        """Return the node ids of the live brokers according to this one; none if it does not answer."""
        return brokers_known_at(self._port("PLAINTEXT"))

    def join(self, controller: KafkaBroker, node_id: int) -> None:
        """Join another, started broker's cluster as number `node_id`, without being a controller."""
        self.node_id = node_id
        self._voters = f"{controller.node_id}@{HOST}:{controller._port('CONTROLLER')}"
        self._cluster_id = controller._cluster_id

    def _port(self, listener: str) -> int:
        if listener not in self._ports:
            raise RuntimeUnavailableError(
                f"this broker has no port for {listener}: start it first, with credentials for SASL"
            )
        return self._ports[listener]

    def _start(self, prepared: PreparedStart) -> None:
        for _ in range(_START_ATTEMPTS):
            self._choose_ports()
            self._write_properties()
            data = self.directory / "data"
            if not (data / CLUSTER_ID_FILE).exists():
                prepared.format(data, self._cluster_id, self.node_id, is_controller=self._voters is None)
            if self._started(prepared):
                self._ports_are_known = True
                return
        raise RuntimeUnavailableError(
            f"the Kafka broker in {self.directory} found its ports taken {_START_ATTEMPTS} times in a row; see "
            f"{self.log}"
        )

    def _end(self, number: signal.Signals) -> None:
        self._end_process(number)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _end_process(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(number, _STOP_SECONDS)
            self._process = None

    def _listeners(self) -> list[str]:
        listeners = ["PLAINTEXT"]
        if self._credentials is not None:
            listeners.append("SASL")
        if self._voters is None:
            listeners.append("CONTROLLER")
        return listeners

    def _choose_ports(self) -> None:
        names = self._listeners()
        taken = [port for port in self._ports.values() if not is_free(port)]
        if taken and self._ports_are_known:
            raise RuntimeUnavailableError(
                f"the Kafka broker in {self.directory} cannot start again: another program took its port {taken[0]} of "
                f"{HOST}; end that process"
            )
        if taken or set(names) != set(self._ports):
            self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        if self._wanted_port is not None and self._ports["PLAINTEXT"] != self._wanted_port:
            if not is_free(self._wanted_port):
                raise RuntimeUnavailableError(
                    f"port {self._wanted_port} of {HOST} is taken: end the program that has it, or choose another port"
                )
            self._ports["PLAINTEXT"] = self._wanted_port

    def _write_properties(self) -> None:
        properties = broker_properties(self.node_id, self._ports, self._voters, self.directory / "data")
        if self._credentials is not None:
            properties |= asking_for(*self._credentials)
        write_properties(self._properties, {**properties, **self._options})

    def _started(self, prepared: PreparedStart) -> bool:
        """Start the process and wait until it is ready; return False if one of its ports is taken."""
        process = BrokerProcess(prepared.command(self._jvm_options, self._properties), self.log, self.disposable)
        self._process = process
        if process.wait_until_ready(self.node_id, self._port("PLAINTEXT")):
            return True
        self._end_process(signal.SIGKILL)
        said = process.log_of_this_start()
        if re.search("BindException|failed to bind", said):
            return False
        raise failed(f"the Kafka broker in {self.directory} ended at its start", said)


def temporary_directory() -> Path:
    """Return a directory that does not exist yet; `start` creates it."""
    return Path(tempfile.gettempdir()) / f"penstock-kafka-{secrets.token_hex(8)}"


class KafkaCluster(Server):
    """Several brokers, each topic replicated to all of them: `with KafkaCluster(2) as cluster: ...`.

    The first broker is the only controller: kill another one. Partitions led by a dead broker move after three seconds.
    A producer's write is answered by the replicas that are alive. `options` are settings of each broker.
    """

    def __init__(
        self,
        brokers: int = 2,
        directory: str | Path | None = None,
        *,
        heap: str = "512m",
        jvm_options: Sequence[str] = STARTS_FAST,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = Path(directory or temporary_directory()).absolute()
        chosen = {**replicated(brokers), **(options or {})}
        self.brokers = [
            KafkaBroker(self.directory / f"broker-{number}", heap=heap, jvm_options=jvm_options, options=chosen)
            for number in range(1, brokers + 1)
        ]
        """In the order of their node ids, which start at 1."""
        if directory is None:
            for broker in self.brokers:
                broker.disposable = self.directory

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, with commas."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start the brokers that do not run, and return when all are ready."""
        first = self.brokers[0]
        first.start()
        for number, broker in enumerate(self.brokers[1:], start=2):
            broker.join(first, number)
            broker.start()
        deadline = time.monotonic() + START_SECONDS
        while not all(len(broker.known_brokers()) == len(self.brokers) for broker in self.brokers):
            if time.monotonic() > deadline:
                raise RuntimeUnavailableError(
                    f"the Kafka brokers in {self.directory} did not find each other in {START_SECONDS:.0f} s; see "
                    "the broker.log of each"
                )
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End all brokers in order, the controller last."""
        for broker in reversed(self.brokers):
            broker.stop()

    def close(self) -> None:
        """End all brokers, and remove their directory if that is a temporary one."""
        for broker in reversed(self.brokers):
            broker.close()


def main() -> int:
    """Run a broker, or several, until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.testing.kafka_broker",
        description="Runs a Kafka broker on 127.0.0.1 until Ctrl-C, and says at which port: 'ready: 127.0.0.1:PORT'.",
    )
    parser.add_argument("--directory", type=Path, help="where the data is kept (default: a temporary directory)")
    parser.add_argument(
        "--port", type=int, help="which port it listens at (default: a free one); only of a single broker"
    )
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many brokers (default: 1)")
    parser.add_argument("--heap", default="512m", help="of each broker's JVM (default: 512m)")
    parser.add_argument(
        "--option", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of the brokers"
    )
    parser.add_argument("--for-load", action="store_true", help="have the JVM compile for throughput: starts slower")
    arguments = parser.parse_args()
    if arguments.port is not None and arguments.brokers != 1:
        parser.error("--port is for a single broker")
    given: dict[str, Any] = {
        "directory": arguments.directory,
        "heap": arguments.heap,
        "jvm_options": () if arguments.for_load else STARTS_FAST,
        "options": dict(arguments.option),
    }
    kafka: KafkaBroker | KafkaCluster
    if arguments.brokers == 1:
        kafka = KafkaBroker(port=arguments.port, **given)
    else:
        kafka = KafkaCluster(arguments.brokers, **given)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    try:
        with kafka:
            print(f"ready: {kafka.bootstrap}", flush=True)
            while not ended.wait(1.0):
                pass  # a signal that comes just before a wait does not interrupt it
    except RuntimeUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
