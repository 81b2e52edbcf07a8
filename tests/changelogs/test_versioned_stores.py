"""Versioned stores through both changelogs: another host restores every version that is not gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Application, Processor, Record, Topology, versioned_store
from penstock.plugins.engine.program.preparation import prepare
from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.testing.contracts.log_tests import read
from penstock.record import TopicPartition
from penstock.support.names import changelog_topic

from .test_windowed_stores import run, worker


class Keep(Processor):
    """Puts each value at the record's time; an empty one is a deletion."""

    def process(self, record: Record) -> None:
        self.context.get_store("s").put(record.key, record.value or None, record.timestamp)


def make(directory: Path, changelog: str, history: str = "50ms") -> Application:
    store = versioned_store("s", history_retention=history, key_serde="str", value_serde="str")
    topology = Topology().add_source("in", "in").add_processor("keep", Keep, "in", stores=[store])
    location = "topic:" if changelog == "topic" else f"directory:{directory.parent / 'changelog'}"
    given: Any = {"log": "memory:x", "changelog": location, "data_dir": str(directory)}
    return Application("app", topology, **given)


def contents(task: Any) -> dict[str, list[Any]]:
    store = task.task.stores["s"]
    found = {}
    for key in ("", "a", "a\0", "__penstock.versions"):
        with store.get(key, 0, 2**63 - 1) as versions:
            found[key] = [store.get(key), *versions]
    return found


@pytest.mark.parametrize("changelog", ["topic", "directory"])
def test_another_host_has_the_same_versions(tmp_path: Path, changelog: str) -> None:
    log = MemoryLog()
    log.create_topic("in", 1)
    application = make(tmp_path / "one", changelog)
    prepare(application, log)
    first = worker(application, log)
    run(first, log, [("", "x", 0), ("", "y", 20), ("", "between", 10), ("a\0", "z", 1)])
    run(first, log, [("__penstock.versions", "v", 0), ("a", "x", 40), ("", "", 0), ("a", "", 50), ("a", "w", 45)])
    expected = contents(first)
    assert [version.timestamp for _, version in expected[""][1:]] == [20, 10]
    second = worker(make(tmp_path / "two", changelog), log)
    second.run_batch({}, 0)
    assert contents(second) == expected
    run(second, log, [("a\0", "q", 95), ("a", "late", 44)])
    expected = contents(second)
    assert [version.timestamp for _, version in expected["a"][1:]] == [45]
    second.close()
    # What is gone does not come back with a longer history.
    third = worker(make(tmp_path / "three", changelog, "1h"), log)
    third.run_batch({}, 0)
    assert contents(third) == expected
    third.close()
    first.close()


def test_a_topic_changelog_has_the_records_of_kafka_streams(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create_topic("in", 1)
    application = make(tmp_path / "one", "topic")
    prepare(application, log)
    task = worker(application, log)
    run(task, log, [("a\0", "x", 5), ("a\0", "y", 7), ("a\0", "", 9)])
    task.close()
    topic = changelog_topic("app", "s")
    found = [(each.key, each.value, each.timestamp) for each in read(log, TopicPartition(topic, 0))]
    assert found[1:] == [(b"a\0", b"x", 5), (b"a\0", b"y", 7), (b"a\0", None, 9)]
    assert found[0][0] == b"__penstock.versions"
    assert log.topics()[topic].config["min.compaction.lag.ms"] == str(50 + 86_400_000)
