"""A small application, run in a JVM that archives the classes it loads.

`python -m penstock.plugins.spark.warmup DIRECTORY ARCHIVE`.
"""

from __future__ import annotations

import sys
from typing import Any

from penstock import Application, OutputBatch, Topology
from penstock.plugins.engine.task.locations import open_log

from .runner import run
from .sessions import JAVA_OPTIONS, make_session


def main(directory: str, archive: str) -> None:
    """Run it, and wait until the JVM has ended."""
    # The processors do not matter: they run in Python, not in the JVM.
    topology = Topology().add_source("in", "in").add_sink("out", "out", "in")
    application = Application("warmup", topology, data_dir=directory)
    log = open_log(application.settings)
    for topic in ("in", "out"):
        log.create_topic(topic, 2)
    session = make_session(
        "local[2]", {"spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archive}"}
    )
    # The second run uses the checkpoint of the first.
    for _ in range(2):
        log.append(OutputBatch("in", [b"a", b"b"], [b"", b""], [1, 2]))
        run(application, session=session)
    log.close()
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
