"""Queries of an application on a real broker, with its changelog in topics and in a directory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from penstock import Application, OutputBatch, TopicPartition, Topology, key_value_store
from penstock.client import Client
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.queries import Queries

from ..queries.served import served
from ..spark import apps
from ..waiting import wait_until
from .names import fresh_name

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("changelog", ["topic:", "directory:changelog"])
def test_a_run_on_kafka_answers(broker: KafkaBroker, tmp_path: Path, changelog: str) -> None:
    name = fresh_name("asked")
    keys = [f"k{number}" for number in range(7)]
    partitions = [TopicPartition(f"{name}-in", number) for number in range(2)]
    topology = (
        Topology()
        .add_source("in", f"{name}-in")
        .add_processor("count", apps.Count, "in", stores=[key_value_store("counts", key_serde="str")])
        .add_sink("out", f"{name}-out", "count")
    )
    application = Application(
        name, topology, log=f"kafka:{broker.bootstrap}", changelog=changelog, data_dir=str(tmp_path), engine="embedded",
        commit_interval="100ms",
    )  # fmt: skip
    with closing(KafkaLog(broker.bootstrap)) as log:
        for topic in ("in", "out"):
            log.create_topic(f"{name}-{topic}", 2)

        def put(rounds: int) -> dict[TopicPartition, int]:
            chosen: list[bytes | None] = [key.encode() for key in keys * rounds]
            log.append(OutputBatch(f"{name}-in", chosen, [b"v"] * len(chosen), [1] * len(chosen)))
            return dict(log.end_offsets(partitions))

        ends = put(10)
        with application.start() as running:
            assert running.store("counts", at_least=ends, wait="60s").get_many(keys) == [10] * 7
            with (
                Queries.from_changelog(application, directory=tmp_path / "far") as far,
                served(far) as url,
                Client(url) as client,
                client.store("counts", wait="30s").changes("k3") as changes,
                running.store("counts", wait="30s").changes(prefix="k") as here,
            ):
                ends = put(1)
                assert next(changes).value == 11
                found = dict(next(here) for _ in keys)
                assert found == dict.fromkeys(keys, 11)
                entry = client.store("counts", at_least=ends, wait="30s").get("k3")
                assert entry is not None and entry.value == 11
                wait_until(lambda: all(each.behind == 0 for each in far.lags("counts")))
