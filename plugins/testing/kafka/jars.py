"""What a Kafka broker needs for its start: its jars, which are fetched once, and files that are made once from them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock import RuntimeUnavailableError
from penstock.plugins.engine.task.class_archive import archive_options, digest, fitting_name
from penstock.plugins.engine.task.locations import user_cache
from penstock.support.file_lock import lock_open_file

from .process import (
    BrokerProcess,
    broker_properties,
    failed,
    free_ports,
    random_cluster_id,
    write_cluster_id,
    write_properties,
)

KAFKA_VERSION = "4.4.0"
JARS_VARIABLE = "PENSTOCK_KAFKA_JARS"
"""The environment variable that names another directory for the jars."""

_POM = Path(__file__).with_name("pom.xml")
_FETCH_SECONDS = 900
_INSTALL_JAVA = (
    "install a Java runtime of version 17 or later (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) and put "
    "`java` on PATH or set JAVA_HOME"
)


def java() -> str:
    """Return the command that starts Java; raises RuntimeUnavailableError with what to do when there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if found is None:
        where = f"JAVA_HOME is {home!r}, and there is no bin/java in it" if home else "there is no `java` on PATH"
        raise RuntimeUnavailableError(f"a Kafka broker needs Java, and {where}; {_INSTALL_JAVA}")
    return found


def jars_directory() -> Path:
    """Return where the jars are kept: `PENSTOCK_KAFKA_JARS`, or `penstock/kafka-<version>` in the user's cache."""
    chosen = os.environ.get(JARS_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    return user_cache() / f"kafka-{KAFKA_VERSION}"


def broker_jars() -> Path:
    """Return the directory of the broker's jars; the first call on a machine fetches them (40 MB, a minute at most).

    Several processes may call it at once: one fetches, the others wait. Raises RuntimeUnavailableError with what to do
    when they cannot be fetched.
    """
    return fetched_jars(_POM, jars_directory(), f"kafka_2.13-{KAFKA_VERSION}.jar")


def fetched_jars(pom: Path, directory: Path, proof: str) -> Path:
    """Return `directory`, filled with the jars of `pom` if the one named `proof` is missing; see `broker_jars`."""
    # Only a complete set is moved into place, so one jar is proof of all.
    if not (directory / proof).exists():
        with lock_beside(directory):
            if not (directory / proof).exists():
                _fetch(pom, directory, proof)
    return directory


@contextmanager
def lock_beside(directory: Path) -> Iterator[None]:
    """Hold a lock beside `directory`, which the kernel releases when this process dies."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_name(directory.name + ".lock").open("w") as file:
        lock_open_file(file.fileno(), wait=True)
        yield


def run_program(command: Sequence[str], **options: Any) -> tuple[int, str]:
    """Run a program to its end without input, with options of `subprocess.run`; return its exit code and its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options)
    return done.returncode, done.stdout + done.stderr


def _fetch(pom: Path, directory: Path, proof: str) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise RuntimeUnavailableError(
            f"{directory} has files, and {proof} is not among them: remove the directory, or set {JARS_VARIABLE} to "
            "another one"
        )
    commands = _commands(pom)
    failures = []
    for name, command in commands:
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=directory.name + ".") as work:
            filled = [each.replace("{work}", work) for each in command]
            code, said = run_program(filled, cwd=work, timeout=_FETCH_SECONDS)
            jars = Path(work) / "jars"
            if code == 0 and (jars / proof).exists():
                if directory.exists():
                    directory.rmdir()
                jars.rename(directory)
                return
            end = "\n".join(line for line in said.splitlines() if line.strip())[-2000:]
            failures.append(f"{name}:\n{end}")
    raise RuntimeUnavailableError(
        f"the jars of {proof} could not be fetched. A network is needed once (behind a mirror: install Maven, and "
        f"name the mirror in its settings.xml); or copy another machine's {directory}, and set {JARS_VARIABLE} to the "
        "copy.\n" + "\n".join(failures)
    )


def _commands(pom: Path) -> list[tuple[str, list[str]]]:
    """Return the ways to fetch, with {work} for a directory to work in: jars go to {work}/jars."""
    ways = []
    maven = shutil.which("mvn")
    if maven is not None:
        copy = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        scope = ["-DincludeScope=runtime", "-DoutputDirectory={work}/jars"]
        ways.append(("Maven", [maven, "-q", "-B", "-f", str(pom), copy, *scope]))
    ivy = _ivy()
    if ivy is not None:
        pattern = "{work}/jars/[artifact]-[revision](-[classifier]).[ext]"
        options = ["-confs", "runtime", "-types", "jar", "bundle", "-cache", "{work}/cache", "-retrieve", pattern]
        ways.append(("Ivy", [java(), "-jar", str(ivy), "-error", "-ivy", str(pom), *options]))
    if not ways:
        raise RuntimeUnavailableError(
            "the jars of a Kafka broker are fetched by Maven or by the Ivy among PySpark's jars, and neither is there: "
            "install one of them (Debian, Ubuntu: apt-get install maven; any: pip install pyspark)"
        )
    return ways


def _ivy() -> Path | None:
    package = importlib.util.find_spec("pyspark")
    homes = [Path(package.origin).parent] if package is not None and package.origin is not None else []
    if os.environ.get("SPARK_HOME"):
        homes.append(Path(os.environ["SPARK_HOME"]))
    return next((jar for home in homes for jar in sorted((home / "jars").glob("ivy-*.jar"))), None)


_METADATA = "__cluster_metadata-0"
_ARCHIVE = "classes.jsa"
_STOP_SECONDS = 120.0
_JVM = (
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
STARTS_FAST = ("-XX:TieredStopAtLevel=1",)
"""JVM options of a broker that starts in two seconds instead of three, and is slower under load later."""


class PreparedStart:
    """The files, for this Java and these jars; the first one on a machine makes them, which takes ten seconds.

    Several processes may do so at once: one makes them, the others wait. Raises RuntimeUnavailableError with what to do
    when they cannot be made.
    """

    def __init__(self, jars: Path) -> None:
        self._java = java()
        self._jars = jars
        # The path is part of what an archive is valid for.
        name = f"kafka-start-{digest(str(jars))}-{fitting_name(self._java, jars)}"
        self._directory = user_cache() / name
        if self._directory.exists():
            return
        try:
            with lock_beside(self._directory):
                if not self._directory.exists():
                    self._make()
        except OSError as error:
            raise RuntimeUnavailableError(
                f"what a Kafka broker needs for its start could not be written to {self._directory}: {error}; let the "
                "user's cache directory (XDG_CACHE_HOME, ~/.cache) be writable"
            ) from error

    def command(self, jvm_options: Sequence[str], properties: Path) -> list[str]:
        """Return the command that runs a broker with these settings."""
        return self._command(
            [*archive_options(self._directory / _ARCHIVE), *jvm_options], "kafka.Kafka", str(properties)
        )

    def format(self, data: Path, cluster_id: str, node_id: int, *, is_controller: bool) -> None:
        """Make the data directory of a new broker; its cluster's first metadata are the controller's."""
        data.mkdir(parents=True, exist_ok=True)
        if is_controller:
            shutil.copytree(self._directory / _METADATA, data / _METADATA, dirs_exist_ok=True)
        write_cluster_id(data, cluster_id, node_id)

    def _command(self, options: Sequence[str], *program: str) -> list[str]:
        return [self._java, *_JVM, *options, "-cp", f"{self._jars}/*", *program]

    def _make(self) -> None:
        """Format a directory, and run a broker in it that archives the classes it has loaded, at its end."""
        of_other_jars = self._directory.name.rpartition("-")[0]
        with tempfile.TemporaryDirectory(dir=self._directory.parent, prefix=self._directory.name + ".") as work:
            made = Path(work) / "made"
            made.mkdir()
            properties, data = Path(work) / "server.properties", Path(work) / "data"
            [port, controller] = free_ports(2)
            ports = {"PLAINTEXT": port, "CONTROLLER": controller}
            write_properties(properties, broker_properties(1, ports, None, data))
            tool = ["kafka.tools.StorageTool", "format", "-t", random_cluster_id(), "-c", str(properties)]
            code, said = run_program(self._command(STARTS_FAST, *tool))
            if code != 0:
                raise failed("the first start of a Kafka broker could not format a directory", said)
            shutil.copytree(data / _METADATA, made / _METADATA)
            options = [*STARTS_FAST, f"-XX:ArchiveClassesAtExit={made / _ARCHIVE}"]
            process = BrokerProcess(
                self._command(options, "kafka.Kafka", str(properties)), Path(work) / "broker.log", None
            )
            try:
                if not process.wait_until_ready(1, port):
                    raise failed(
                        "the first Kafka broker of this machine ended at its start", process.log_of_this_start()
                    )
            finally:
                # A Java that has no archives makes none; everything works without one.
                process.end(signal.SIGTERM, _STOP_SECONDS)
            os.rename(made, self._directory)
        # Those for jars that are no longer there: no JVM can use them, and each is large.
        for old in self._directory.parent.glob(f"{of_other_jars}-*"):
            if old.is_dir() and old != self._directory:
                shutil.rmtree(old, ignore_errors=True)
