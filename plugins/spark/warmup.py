"""What a JVM does that archives its classes: the work of a small application. `python -m penstock.plugins.spark.warmup DIRECTORY ARCHIVE`."""

from __future__ import annotations

import sys
from typing import Any

from penstock import Application, OutputBatch, Processor, Record, Topology, key_value_store
from penstock.plugins.runtime.locations import open_log

from .launching import JAVA_OPTIONS
from .runner import run
from .session import make_session


class _Count(Processor):
    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(count))


def main(directory: str, archive: str) -> None:
    """Run it, and wait until the JVM has ended."""
    topology = (
        Topology()
        .add_source("in", "in")
        .add_processor("count", _Count, "in", stores=[key_value_store("counts")])
        .add_sink("out", "out", "count", value_serde="int")
    )
    application = Application("warmup", topology, data_dir=directory)
    log = open_log(application.settings)
    for topic in ("in", "out"):
        log.create_topic(topic, 2)
    session = make_session(
        "local[2]", {"spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archive}"}
    )
    # The second run goes on from the checkpoint of the first.
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
