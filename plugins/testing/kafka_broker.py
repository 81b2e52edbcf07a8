"""Real Kafka brokers for tests, demos and benchmarks: started on loopback, and gone when who started them is.

>>> with KafkaBroker() as broker:  # doctest: +SKIP
...     Application("clicks", topology, Settings(log=f"kafka:{broker.bootstrap}"))

`python -m penstock.plugins.testing.kafka_broker --directory D` runs one until Ctrl-C.
"""

from __future__ import annotations

import argparse
import base64
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from penstock.errors import RuntimeUnavailableError

from .kafka_jars import broker_jars, java
from .kafka_process import BrokerProcess, brokers_known_at, free_ports, is_free

_HOST = "127.0.0.1"
_START_ATTEMPTS = 5
_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_JVM = (
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)


class KafkaBroker:
    """A real broker, which is its own controller, on free ports of 127.0.0.1: `with KafkaBroker() as broker: ...`.

    Needs Java 17 or later. The broker's jars are fetched once (see `kafka_jars.broker_jars`).

    `directory` keeps the data, the configuration and `broker.log` (None: a temporary one, which goes when the broker is
    closed). A broker on a directory with data goes on with them, at the ports it had if they are free. `heap` is the
    JVM's, `options` are the broker's own settings and win over ours. With `credentials` (user, password) there is a
    second listener, `sasl_bootstrap`, that wants SASL/PLAIN.

    Made for tests: topics are not made automatically; transactions and groups of dead clients are given up soon.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        heap: str = "512m",
        options: Mapping[str, str] | None = None,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        self.directory = Path(directory or tempfile.mkdtemp(prefix="penstock-kafka-")).absolute()
        self._disposable = self.directory if directory is None else None
        self.node_id = 1
        self._heap = heap
        self._options = dict(options or {})
        self._credentials = credentials
        self._voters = ""
        self._cluster_id = _random_id()
        self._ports = _ports_in(self.directory / "server.properties")
        self._process: BrokerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:PORT`, without authentication."""
        return f"{_HOST}:{self._port('PLAINTEXT')}"

    @property
    def sasl_bootstrap(self) -> str:
        """`127.0.0.1:PORT`, where clients have to show the credentials (SASL_PLAINTEXT, PLAIN)."""
        return f"{_HOST}:{self._port('SASL')}"

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is there, frozen or not."""
        return self._process is not None and self._process.is_running()

    @property
    def pid(self) -> int | None:
        """The broker's process id, None when it does not run."""
        return self._process.pid if self._process is not None and self._process.is_running() else None

    def start(self) -> None:
        """Start the broker, and return when it takes part; raises RuntimeUnavailableError with the end of its log.

        Does nothing when it runs.
        """
        if self.is_running:
            return
        jars = broker_jars()
        self.directory.mkdir(parents=True, exist_ok=True)
        for _ in range(_START_ATTEMPTS):
            self._choose_ports()
            self._write_properties()
            self._format(jars)
            if self._started(jars):
                return
            # Somebody was faster on one of the ports.
            self._ports = {}
        raise RuntimeUnavailableError(f"Kafka found its ports taken {_START_ATTEMPTS} times in a row; see {self.log}")

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
        """Halt the broker's process (SIGSTOP): connections stay open, and nothing answers."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen broker go on."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def close(self) -> None:
        """End the broker, and remove its directory if that is a temporary one."""
        if self._disposable is not None:
            self.kill()
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self.stop()

    @property
    def log(self) -> Path:
        """The file with what the broker said."""
        return self.directory / "broker.log"

    def _port(self, listener: str) -> int:
        if listener not in self._ports:
            raise RuntimeUnavailableError(
                f"this broker has no port for {listener}: start it first, with credentials for SASL"
            )
        return self._ports[listener]

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(number, _STOP_SECONDS)
            self._process = None

    def _join(self, controller: KafkaBroker, node_id: int) -> None:
        """Be another one's broker number `node_id`, and no controller."""
        self.node_id = node_id
        self._voters = controller._voter
        self._cluster_id = controller._cluster_id

    def _listeners(self) -> list[str]:
        listeners = ["PLAINTEXT"]
        if self._credentials is not None:
            listeners.append("SASL")
        if not self._voters:
            listeners.append("CONTROLLER")
        return listeners

    def _choose_ports(self) -> None:
        names = self._listeners()
        if set(names) != set(self._ports) or not all(is_free(port) for port in self._ports.values()):
            self._ports = dict(zip(names, free_ports(len(names)), strict=True))

    @property
    def _voter(self) -> str:
        return f"{self.node_id}@{_HOST}:{self._ports['CONTROLLER']}"

    def _write_properties(self) -> None:
        listeners = [f"{name}://{_HOST}:{port}" for name, port in self._ports.items()]
        properties = {
            "process.roles": "broker" if self._voters else "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": self._voters or self._voter,
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(each for each in listeners if not each.startswith("CONTROLLER")),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            **_FOR_TESTS,
            **_replicated(1),
        }
        if self._credentials is not None:
            user, password = (each.replace("\\", "\\\\").replace('"', '\\"') for each in self._credentials)
            login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";'
            properties["listener.name.sasl.sasl.enabled.mechanisms"] = "PLAIN"
            properties["listener.name.sasl.plain.sasl.jaas.config"] = login
        properties |= self._options
        lines = [f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in properties.items()]
        (self.directory / "server.properties").write_text("".join(lines))

    def _format(self, jars: Path) -> None:
        if (self.directory / "data" / "meta.properties").exists():
            return
        tool = [*self._java(jars), "kafka.tools.StorageTool", "format", "-t", self._cluster_id]
        done = subprocess.run(
            [*tool, "-c", str(self.directory / "server.properties")],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise self._failed("could not format its directory", done.stdout + done.stderr)

    def _java(self, jars: Path) -> list[str]:
        return [java(), f"-Xmx{self._heap}", *_JVM, "-cp", f"{jars}/*"]

    def _started(self, jars: Path) -> bool:
        """Start the process and wait until it takes part; False when it found one of its ports taken."""
        command = [*self._java(jars), "kafka.Kafka", str(self.directory / "server.properties")]
        process = BrokerProcess(command, self.log, self._disposable)
        self._process = process
        deadline = time.monotonic() + _START_SECONDS
        while self.node_id not in brokers_known_at(self._ports["PLAINTEXT"]):
            if not process.is_running():
                self._end(signal.SIGKILL)
                said = process.log_of_this_start()
                if re.search("BindException|failed to bind", said):
                    return False
                raise self._failed("ended at its start", said)
            if time.monotonic() > deadline:
                self._end(signal.SIGKILL)
                raise self._failed(f"was not ready after {_START_SECONDS:.0f} s", process.log_of_this_start())
            time.sleep(0.05)
        return True

    def _failed(self, what: str, said: str) -> RuntimeUnavailableError:
        old = " It needs Java 17 or later: install one, or set JAVA_HOME to it." * ("UnsupportedClassVersion" in said)
        locked = " Another broker runs on it: stop that one." * ("Failed to acquire lock" in said)
        return RuntimeUnavailableError(
            f"the Kafka broker in {self.directory} {what}.{old}{locked} The end of what it said:\n{said.strip()[-2000:]}"
        )


_FOR_TESTS = {
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A killed broker is let in again only when its last session has ended.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "1",
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
}


def _replicated(replicas: int) -> dict[str, str]:
    names = (
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "share.coordinator.state.topic.replication.factor",
    )
    return dict.fromkeys(names, str(replicas))


class KafkaCluster:
    """Several brokers, each topic replicated to all of them: `with KafkaCluster(2) as cluster: ...`.

    The first broker is the only controller: kill another one. What a dead broker led moves after three seconds. A
    producer's write is answered by the replicas that are alive. `options` are settings of each broker.
    """

    def __init__(
        self,
        brokers: int = 2,
        directory: str | Path | None = None,
        *,
        heap: str = "512m",
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = Path(directory or tempfile.mkdtemp(prefix="penstock-kafka-")).absolute()
        chosen = {
            **_replicated(brokers),
            **(options or {}),
        }
        self.brokers = [
            KafkaBroker(self.directory / f"broker-{number}", heap=heap, options=chosen)
            for number in range(1, brokers + 1)
        ]
        """In the order of their node ids, which start at 1."""
        if directory is None:
            for broker in self.brokers:
                broker._disposable = self.directory

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, with commas."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start the brokers that do not run, and return when all take part."""
        first = self.brokers[0]
        first.start()
        for number, broker in enumerate(self.brokers[1:], start=2):
            broker._join(first, number)
            broker.start()

    def stop(self) -> None:
        """End all brokers in order, the controller last."""
        for broker in reversed(self.brokers):
            broker.stop()

    def close(self) -> None:
        """End all brokers, and remove their directory if that is a temporary one."""
        for broker in reversed(self.brokers):
            broker.close()


def _random_id() -> str:
    """Return a cluster id that no command line takes for an option."""
    return "p" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]


def _ports_in(properties: Path) -> dict[str, int]:
    """Return the ports of an earlier broker by listener."""
    try:
        text = properties.read_text()
    except OSError:
        return {}
    listeners = next((line for line in text.splitlines() if line.startswith("listeners=")), "")
    return {name: int(port) for name, port in re.findall(r"(\w+)://[^:]+:(\d+)", listeners)}


def main() -> int:
    """Run a broker, or several, until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.plugins.testing.kafka_broker",
        description="Runs a Kafka broker on 127.0.0.1 until Ctrl-C, and says at which port: 'ready: 127.0.0.1:PORT'.",
    )
    parser.add_argument("--directory", type=Path, help="where the data is kept (default: a temporary directory)")
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many brokers (default: 1)")
    parser.add_argument("--heap", default="512m", help="of each broker's JVM (default: 512m)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="a setting of the brokers")
    arguments = parser.parse_args()
    options = dict(each.split("=", 1) for each in arguments.option)
    kafka: KafkaBroker | KafkaCluster
    if arguments.brokers == 1:
        kafka = KafkaBroker(arguments.directory, heap=arguments.heap, options=options)
    else:
        kafka = KafkaCluster(arguments.brokers, arguments.directory, heap=arguments.heap, options=options)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    try:
        with kafka:
            print(f"ready: {kafka.bootstrap}", flush=True)
            ended.wait()
    except RuntimeUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
