"""What real Kafka Streams answers to cases of the topology `steps`: kafka_streams/Recorder.java. It needs a JDK."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from penstock.plugins.testing.kafka.jars import fetched_jars, jars_directory, java

Case = dict[str, Any]

_FOLDER = Path(__file__).with_name("kafka_streams")
_SOURCE = _FOLDER / "Recorder.java"
_PROOF = "kafka-streams-test-utils-4.4.0.jar"


def recorded(cases: list[Case]) -> list[dict[str, Any]]:
    """Return for each case what Kafka Streams makes of it: `describe` and `expected`, or why it `refused` the program.

    The first call on a machine fetches jars and compiles.
    """
    with tempfile.TemporaryDirectory() as work:
        given, found = Path(work) / "given.json", Path(work) / "found.json"
        given.write_text(json.dumps(cases))
        options = ["-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        classpath = f"{_jars()}/*:{_classes()}"
        subprocess.run([java(), *options, "-cp", classpath, "Recorder", given, found, work], check=True)
        results: list[dict[str, Any]] = json.loads(found.read_text())
    return results


def recorder_is_there() -> bool:
    """Return whether its jars were fetched earlier, and a compiler is on this machine."""
    return (_directory() / _PROOF).exists() and _compiler().exists()


def _directory() -> Path:
    return jars_directory().with_name(_PROOF.removesuffix(".jar"))


def _jars() -> Path:
    return fetched_jars(_FOLDER / "pom.xml", _directory(), _PROOF)


def _compiler() -> Path:
    return Path(java()).resolve().with_name("javac")


def _classes() -> Path:
    """Return the directory of the compiled program. Each version of the source has its own."""
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    classes = _directory().with_name(f"conformance-recorder-{version}")
    if not classes.exists():
        classes.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=classes.parent) as work:
            compiled = Path(work) / "classes"
            command = [str(_compiler()), "-nowarn", "-cp", f"{_jars()}/*", "-d", str(compiled), str(_SOURCE)]
            subprocess.run(command, check=True)
            # Whole or not at all: another process may be looking.
            compiled.rename(classes)
    return classes
