"""Files for the start of a broker, made once on a machine: the metadata of a new cluster, and an archive of classes.

Without them each new broker would run Kafka's tool for formatting, a Java program of its own, and load its classes from
jars: more than half of the time until it is ready.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock import RuntimeUnavailableError
from penstock.plugins.engine.task.class_archive import archive_options, digest, fitting_name
from penstock.plugins.engine.task.locations import user_cache

from .jars import java, lock_beside, run_program
from .process import BrokerProcess, failed, free_ports
from .properties import broker_properties, random_cluster_id, write_cluster_id, write_properties

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
