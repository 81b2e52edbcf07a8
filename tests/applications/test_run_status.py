"""The status of a run in the log: written, read, compacted, and safe from a driver that was frozen."""

from __future__ import annotations

import json
from dataclasses import replace

from penstock.log import Log
from penstock.plugins.engine.program.run_status import Event, RunStatus, SlotHost, StatusTopic, TaskStatus
from penstock.plugins.engine.task import own_topics
from penstock.plugins.logs.memory import MemoryLog
from penstock.record import TopicPartition

STATUS = RunStatus(
    "app",
    "root@node, process 7",
    "continuous",
    1_000,
    2_000,
    tasks=(TaskStatus("0_0", 0, "node", 8, True, records_in=5, openings={"first": 1}),),
    hosts=(SlotHost(0, "node", 8, 1, 2**20, 0.5, 30, 4),),
    nodes={"in": {"in": 5, "out": 5, "dropped": {"late": 1}}},
    events=(Event(1_500, "a host was lost"),),
)


def end(log: Log) -> int:
    partition = TopicPartition(own_topics.STATUS.of("app"), 0)
    return log.end_offsets([partition])[partition]


def test_what_is_read_is_what_was_written() -> None:
    log = MemoryLog()
    assert StatusTopic(log, "app").read() is None
    StatusTopic(log, "app").write(STATUS)
    assert StatusTopic(log, "app").read() == STATUS
    assert StatusTopic(log, "another").read() is None
    later = replace(STATUS, number=2, ended_ms=3_000, error="no")
    StatusTopic(log, "app").write(later)
    assert StatusTopic(log, "app").read() == later
    assert log.topics()[own_topics.STATUS.of("app")].internal


def test_the_topic_keeps_one_record_however_many_were_written() -> None:
    log = MemoryLog()
    topic = StatusTopic(log, "app")
    for at_ms in range(50):
        topic.write(replace(STATUS, written_ms=at_ms))
    log.maintain(10_000_000)
    partition = TopicPartition(own_topics.STATUS.of("app"), 0)
    batches = log.fetch(partition, 0, end(log), 1 << 20)
    assert sum(len(batch) for batch in batches) == 1
    found = topic.read()
    assert found is not None and found.written_ms == 49


def test_what_a_driver_that_was_frozen_writes_last_does_not_count() -> None:
    log = MemoryLog()
    StatusTopic(log, "app").write(STATUS)
    successor = replace(STATUS, number=2, written_ms=50_000)
    StatusTopic(log, "app").write(successor)
    StatusTopic(log, "app").write(replace(STATUS, written_ms=60_000, error="lost its lease"))
    assert StatusTopic(log, "app").read() == successor


def test_the_state_of_a_run() -> None:
    assert STATUS.state(2_000) == STATUS.state(22_000) == "running"
    assert STATUS.state(22_001) == "lost"
    ended = replace(STATUS, ended_ms=2_000)
    assert ended.state(10**9) == "stopped"
    assert replace(ended, error="no").state(10**9) == "failed"
    # The driver's clock may be ahead of ours.
    assert STATUS.state(0) == "running"


def test_the_status_of_another_release_has_other_fields() -> None:
    data = json.loads(STATUS.to_json())
    del data["phases"], data["tasks"][0]["restored"]
    data["new"] = data["tasks"][0]["new"] = 1
    assert RunStatus.from_json(json.dumps(data)) == STATUS
