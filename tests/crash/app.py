"""The program that is killed: answers each input with a random token, and counts inputs by colour behind a repartition topic."""

from __future__ import annotations

import os
import secrets
from typing import Any

from penstock import Application, Processor, Record, Topology, key_value_store

INPUT, ANSWERS, COUNTS = "requests", "answers", "colours"
PARTITIONS = 4
TRANSACTION_SECONDS = 10


class Answer(Processor):
    """Draws a token for each input, keeps it under the input's id, and answers with it."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.tokens = context.get_store("tokens")

    def process(self, record: Record) -> None:
        token = secrets.token_hex(8)
        number, _, colour = record.value.partition(" ")
        self.tokens.put(number, token)
        self.context.forward(record.with_value(f"{number} {token}"), to="answers")
        self.context.forward(record.with_key(colour).with_value(number), to="by-colour-filter")


class Count(Processor):
    """Counts by key."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_store("counts")

    def process(self, record: Record) -> None:
        count = (self.counts.get(record.key) or 0) + 1
        self.counts.put(record.key, count)
        self.context.forward(record.with_value(f"{count} {record.value}"))


def make_application(
    data_dir: str, log: str = "local:log", guarantee: str = "exactly_once", changelog: str = "directory"
) -> Application:
    topology = (
        Topology()
        .add_source("requests", INPUT)
        .add_processor("answer", Answer, "requests", stores=[key_value_store("tokens", key_serde="str")])
        .add_sink("answers", ANSWERS, "answer")
        .add_repartition("by-colour", "answer", partitions=2)
        .add_processor("count", Count, "by-colour", stores=[key_value_store("counts", key_serde="str")])
        .add_sink("colours", COUNTS, "count")
    )
    return Application(
        "crash",
        topology,
        data_dir=data_dir,
        log=log,
        processing_guarantee=guarantee,
        changelog=f"{changelog}:changelog",
        # Several commits a batch, so that a kill meets more than the end of one.
        commit_interval="50ms",
        fetch_bytes=4_000,
        # A worker is not to be frozen for a minute until Kafka gives its transaction up.
        clients={"producer.transaction.timeout.ms": str(TRANSACTION_SECONDS * 1000)} if log.startswith("kafka") else {},
    )


def application() -> Application:
    """Return the application that the harness names."""
    return make_application(
        *(os.environ[name] for name in ("CRASH_DIRECTORY", "CRASH_LOG", "CRASH_GUARANTEE", "CRASH_CHANGELOG"))
    )
