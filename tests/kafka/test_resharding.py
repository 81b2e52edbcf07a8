"""An application on a real broker gets more partitions, with a topic that grows, and fewer, with a new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from penstock import Application, Log, LogError, Topology, key_value_store
from penstock.plugins.engine.program.lease import LeaseKeeper
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.state.transfer.reshard import accept, plan_reshard, reshard, undo
from penstock.plugins.testing.kafka_broker import KafkaBroker
from tests.reshard.programs import Append
from tests.reshard.runs import outputs, produce, run, settings

from .clients import QUIET
from .names import fresh_name

pytestmark = pytest.mark.broker
KEYS = ["a", "bb", "ccc", "dddd", "eeeee"]


def application(broker: KafkaBroker, name: str, topic: str, directory: Path) -> Application:
    """Return one with a repartition topic and a store behind it, in a changelog topic."""
    topology = Topology().add_source("in", topic).add_repartition("again", "in")
    topology.add_processor("keep", Append, "again", stores=[key_value_store("kept")])
    topology.add_sink("out", f"{name}-out", "keep")
    return Application(name, topology, **{**settings(directory, "topic:"), "log": f"kafka:{broker.bootstrap}"})


@contextmanager
def leased(log: Log, application_id: str) -> Iterator[LeaseKeeper]:
    lease = LeaseKeeper(log, application_id)
    try:
        yield lease
    finally:
        lease.release()


def test_from_2_to_3_to_2(broker: KafkaBroker, tmp_path: Path) -> None:
    name = fresh_name("reshard")
    first, second = f"{name}-in", f"{name}-new"
    app, last = (application(broker, name, topic, tmp_path) for topic in (first, second))
    with closing(open_log(app.settings)) as log:
        for topic, partitions in ((first, 2), (second, 2), (f"{name}-out", 1)):
            log.create_topic(topic, partitions)
        produce(log, first, [(key, f"{number},", 1) for number in range(3) for key in KEYS])
        run(app, log)
        produce(log, first, [(key, "3,", 1) for key in KEYS])

        admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
        admin.create_partitions([NewPartitions(first, 3)])[first].result()
    with closing(open_log(app.settings)) as log:
        with leased(log, name) as lease:
            with pytest.raises(LogError, match="is already run by"):
                log.lease(name, "another", 1_000)
            done = reshard(plan_reshard(app, log, 3), log, lease)
            assert done.id == f"{name}-layout-2"
            assert {task: rows for task, rows in done.rows.items() if rows} and sum(done.rows.values()) == len(KEYS)
            undo(app, log, lease)
            assert reshard(plan_reshard(app, log, 3), log, lease).id == f"{name}-layout-3"
            accept(app, log, lease)
        assert not [
            topic for topic in log.topics() if topic.startswith((f"{name}-again", f"{name}-kept", f"{name}-layout-2"))
        ]
        produce(log, first, [(key, "4,", 1) for key in KEYS])
        run(app, log)
        with leased(log, name) as lease:
            reshard(plan_reshard(last, log, 2, sources={first: second}), log, lease)
        produce(log, second, [(key, "5,", 1) for key in KEYS])
        run(last, log)
        texts = [b"0,", b"0,1,", b"0,1,2,", b"0,1,2,3,", b"0,1,2,3,4,", b"0,1,2,3,4,5,"]
        found = outputs(log, f"{name}-out")
        assert {key: [value for value, _ in sent] for key, sent in found.items()} == {
            key.encode(): texts for key in KEYS
        }
