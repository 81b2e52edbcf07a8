"""`python -m bench.kafka_app PROGRAM INPUT OUTPUT BOOTSTRAP DIRECTORY MASTER TRIGGER SETTINGS`: a measured program on
Kafka; SETTINGS is an object of JSON, MASTER is Spark's, or "embedded" for the embedded engine."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from penstock import Application, Processor, Record, Topology, key_value_store, run
from penstock.settings.application import TopologyBuilder

from .dsl_programs import dsl_program
from .programs import Count, EchoingCount, WindowedCount, windowed_counts

MASTER = "local[2]"
EMBEDDED = "embedded"


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


class SplitTimed(Processor):
    """Forwards the first word of a line, the time at which it was sent, under each of the others."""

    def process(self, record: Record) -> None:
        """Split one line."""
        sent, *words = record.value.split(" ")
        for word in words:
            self.context.forward(Record(word, sent, record.timestamp))


def program_command(
    bootstrap: str, program: str, source: str, trigger: str, settings: Mapping[str, Any], master: str = MASTER
) -> list[str]:
    """Return the command that runs a program. In it {out} and {dir} stand for the topic that it writes and a
    directory."""
    places = [source, "{out}", bootstrap, "{dir}"]
    return [sys.executable, "-m", "bench.kafka_app", program, *places, master, trigger, json.dumps(settings)]


def topology(program: str, source: str, target: str) -> Topology | TopologyBuilder:
    """Return one of the measured programs over its topics."""
    if program.startswith("dsl-") or program.endswith("-join"):
        return dsl_program(program, source, target, "bench-other")
    counts = key_value_store("counts", key_serde="str")
    # Outputs of the programs for latency end with the time at which their input was sent.
    timed = program.startswith("latency-")
    counting, splitting = (EchoingCount, SplitTimed) if timed else (Count, Split)
    if program in ("count", "latency-count"):
        made = Topology().add_source("in", source).add_processor("count", counting, "in", stores=[counts])
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
        .add_processor("split", splitting, "in")
        .add_repartition("words", "split")
        .add_processor("count", counting, "words", stores=[counts])
        .add_sink("out", target, "count")
    )


def main() -> None:
    """Run one program."""
    program, source, target, bootstrap, directory, master, trigger, settings = sys.argv[1:]
    application = Application(
        f"bench-{secrets.token_hex(4)}",
        topology(program, source, target),
        log=f"kafka:{bootstrap}",
        data_dir=directory,
        statestore_cache_max_bytes=0,
        **json.loads(settings),
    )
    engine = {"engine": EMBEDDED} if master == EMBEDDED else {"engine": "spark", "master": master}
    summary = run(application, trigger, **engine)
    print({phase: round(seconds, 2) for phase, seconds in summary.phases.items()}, flush=True)


if __name__ == "__main__":
    main()
