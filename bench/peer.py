"""The peer: the measured programs in Java Kafka Streams (`peers/`), as a command."""

from __future__ import annotations

import hashlib
import secrets
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from penstock.plugins.testing.kafka.jars import fetched_jars, jars_directory, java

PEER = "Java Kafka Streams"
_PEERS = Path(__file__).with_name("peers")
_SOURCE = _PEERS / "KafkaStreamsPeer.java"
STREAMS_VERSION = "4.4.0"
"""Of Java Kafka Streams, as in peers/pom.xml."""
_PROOF = f"kafka-streams-{STREAMS_VERSION}.jar"


def peer_command(
    bootstrap: str, program: str, source: str, guarantee: str, settings: Mapping[str, str] | None = None
) -> list[str]:
    """Return the command that runs a program with two threads. In it {out} and {dir} stand for the topic that it writes
    and the directory of its state. The first call on a machine fetches jars and compiles; it needs a JDK."""
    filled = {
        "application.id": f"peer-{secrets.token_hex(4)}",
        "bootstrap.servers": bootstrap,
        "state.dir": "{dir}",
        "num.stream.threads": "2",
        "processing.guarantee": "exactly_once_v2" if guarantee == "exactly_once" else guarantee,
        **(settings or {}),
    }
    options = ["-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{_jars()}/*:{_classes()}"]
    assigned = [f"{name}={value}" for name, value in filled.items()]
    return [java(), *options, "KafkaStreamsPeer", program, source, "{out}", *assigned]


def peer_is_there() -> bool:
    """Return whether its jars were fetched earlier, and a compiler is on this machine."""
    return (_directory() / _PROOF).exists() and _compiler().exists()


def _directory() -> Path:
    return jars_directory().with_name(_PROOF.removesuffix(".jar"))


def _jars() -> Path:
    return fetched_jars(_PEERS / "pom.xml", _directory(), _PROOF)


def _compiler() -> Path:
    return Path(java()).resolve().with_name("javac")


@cache
def _classes() -> Path:
    """Return the directory of the compiled program. Each version of the source has its own."""
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    classes = _directory().with_name(f"kafka-streams-peer-{version}")
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=classes.parent) as work:
            compiled = Path(work) / "classes"
            command = [str(_compiler()), "-nowarn", "-cp", f"{_jars()}/*", "-d", str(compiled), str(_SOURCE)]
            subprocess.run(command, check=True)
            # Whole or not at all: another process may be looking.
            compiled.rename(classes)
    return classes
