"""The settings of a Kafka broker that is made for tests."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

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
        "advertised.listeners": ",".join(each for each in listeners if not each.startswith("CONTROLLER")),
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
