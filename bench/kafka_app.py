"""`python -m bench.kafka_app PROGRAM INPUT OUTPUT BOOTSTRAP DIRECTORY GUARANTEE CHANGELOG`: a measured program on Spark
and Kafka, until its input is read."""

from __future__ import annotations

import secrets
import sys

from penstock import Application, Processor, Record, Topology, key_value_store
from penstock.plugins.spark.runner import run
from penstock.settings.topology_builder import TopologyBuilder

from .dsl_programs import dsl_program
from .programs import Count, WindowedCount, windowed_counts


class FilterMap(Processor):
    """Keeps events above a limit, and what is wanted of them."""

    def process(self, record: Record) -> None:
        """Look at one record."""
        event = record.value
        if event["v"] >= 10.0:
            user = event["user"]
            kept = {"user": user, "doubled": event["v"] * 2, "kind": event["kind"]}
            self.context.forward(Record(user, kept, record.timestamp))


class Split(Processor):
    """Forwards each word of a line under itself."""

    def process(self, record: Record) -> None:
        """Split one line."""
        forward, timestamp = self.context.forward, record.timestamp
        for word in record.value.split(" "):
            forward(Record(word, word, timestamp))


def topology(program: str, source: str, target: str) -> Topology | TopologyBuilder:
    """Return one of the measured programs over its topics."""
    if program.startswith("dsl-") or program.endswith("-join"):
        return dsl_program(program, source, target, "bench-other")
    counts = key_value_store("counts", key_serde="str")
    if program == "count":
        made = Topology().add_source("in", source).add_processor("count", Count, "in", stores=[counts])
        return made.add_sink("out", target, "count")
    if program == "windowed-count":
        made = (
            Topology().add_source("in", source).add_processor("count", WindowedCount, "in", stores=[windowed_counts()])
        )
        return made.add_sink("out", target, "count")
    if program == "filter-map":
        made = Topology().add_source("in", source, value_serde="json").add_processor("map", FilterMap, "in")
        return made.add_sink("out", target, "map", value_serde="json")
    return (
        Topology()
        .add_source("in", source)
        .add_processor("split", Split, "in")
        .add_repartition("words", "split")
        .add_processor("count", Count, "words", stores=[counts])
        .add_sink("out", target, "count")
    )


def main() -> None:
    """Run one program."""
    program, source, target, bootstrap, directory, guarantee, changelog = sys.argv[1:]
    application = Application(
        f"bench-{secrets.token_hex(4)}",
        topology(program, source, target),
        log=f"kafka:{bootstrap}",
        data_dir=directory,
        processing_guarantee=guarantee,
        changelog=changelog,
        statestore_cache_max_bytes=0,
    )
    summary = run(application, "available_now", master="local[2]")
    print({phase: round(seconds, 2) for phase, seconds in summary.phases.items()}, flush=True)


if __name__ == "__main__":
    main()
