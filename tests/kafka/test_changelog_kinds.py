"""Versioned and list stores, LRU maps and headers in changelog topics of a real broker: another host restores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import (
    Application,
    Processor,
    Record,
    Topology,
    ValueTimestampHeaders,
    key_value_store,
    list_store,
    lru_map,
    versioned_store,
)
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.kafka.log import KafkaLog
from penstock.plugins.testing.kafka_broker import KafkaBroker
from penstock.program.nodes import TaskId
from penstock.record import OutputBatch, TopicPartition
from penstock.support.names import changelog_topic

from .names import fresh_name


class Keep(Processor):
    """Keeps each record in every store; in the versioned one an empty value is a deletion."""

    def process(self, record: Record) -> None:
        versions, lists, recent, headers = map(self.context.get_store, ("versions", "lists", "recent", "headers"))
        versions.put(record.key, record.value or None, record.timestamp - 1)  # a log has no records of time 0
        lists.add(record.key, record.value)
        recent.put(record.key, record.value)
        headers.put(record.key, ValueTimestampHeaders(*record[1:]))


def make(broker: KafkaBroker, name: str, directory: Path) -> Application:
    serdes: Any = {"key_serde": "str", "value_serde": "str"}
    stores = [
        versioned_store("versions", history_retention="1h", **serdes),
        list_store("lists", **serdes),
        lru_map("recent", max_entries=2, **serdes),
        key_value_store("headers", headers=True, **serdes),
    ]
    topology = Topology().add_source("in", f"{name}-in").add_processor("keep", Keep, "in", stores=stores)
    given: Any = {"log": f"kafka:{broker.bootstrap}", "changelog": "topic:", "data_dir": str(directory)}
    return Application(name, topology, **given)


def contents(application: Application, log: KafkaLog, source: TopicPartition) -> dict[str, Any]:
    """Run the task to the end of its input on this host; return what its stores have."""
    worker = TaskWorker(application, TaskId(0, 0), [source], log, resources=ProcessResources())
    try:
        worker.run_batch(log.end_offsets([source]), 0)
        assert worker.task is not None
        stores: Any = worker.task.stores
        found: dict[str, Any] = {
            key: [(key, *version) for _, version in stores["versions"].get(key, 0, 10**6)] for key in "abc"
        }
        return found | {name: list(stores[name].all()) for name in ("lists", "recent", "headers")}
    finally:
        worker.close()


def test_another_host_restores_every_kind(broker: KafkaBroker, tmp_path: Path) -> None:
    name = fresh_name("kinds")
    application = make(broker, name, tmp_path / "one")
    log = open_log(application.settings)
    assert isinstance(log, KafkaLog)
    source = TopicPartition(f"{name}-in", 0)
    log.create_topic(source.topic, 1)
    prepare(application, log)
    rows = [("a", "1", 0), ("b", "2", 0), ("a", "3", 10), ("a", "4", 5), ("c", "5", 7), ("b", "", 0), ("c", "", 9)]
    headers: Any = [(("h", value.encode()),) for _, value, _ in rows]
    keys: list[bytes | None] = [key.encode() for key, _, _ in rows]
    log.append(
        OutputBatch(
            source.topic, keys, [value.encode() for _, value, _ in rows], [at + 1 for _, _, at in rows], headers
        )
    )
    expected = contents(application, log, source)
    assert expected["a"] == [("a", "3", 10, -1), ("a", "4", 5, 10), ("a", "1", 0, 5)]
    assert (expected["b"], expected["c"]) == ([], [("c", "5", 7, 9)])
    assert [key for key, _ in expected["recent"]] == ["b", "c"]
    assert [value for key, value in expected["lists"] if key == "a"] == ["1", "3", "4"]
    assert contents(make(broker, name, tmp_path / "two"), log, source) == expected
    config = log.topics()[changelog_topic(name, "versions")].config
    assert config["min.compaction.lag.ms"] == str(3_600_000 + 86_400_000)
    log.close()
