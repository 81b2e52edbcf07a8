"""A reset of an application that reads what it writes to an ordinary topic: each record counts once afterwards, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock import Application, ConfigError, Processor, Record, Topology
from penstock.plugins.engine.program.plan import plan
from penstock.plugins.engine.program.reset import (
    Destination,
    plan_reset,
    reset,
    shift_by,
    to_earliest,
    to_latest,
    to_offsets,
)
from penstock.plugins.logs.memory import MemoryLog
from penstock.record import OutputBatch, TopicPartition

from ..backups.counting import Tasks, counting, expected, send
from ..processes import opened_workers

SENT = [("a", "u"), ("b", "v"), ("a", "w"), ("c", "u")]
BETWEEN = [TopicPartition("between", 0), TopicPartition("between", 1)]


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    """Tasks that have processed everything but what waits in the first partition of the topic between them."""
    made = Tasks(counting(tmp_path, through="between"), MemoryLog())
    send(made.log, SENT)
    for task in ("0_0", "0_1", "1_1"):
        made.process(task)
    yield made
    made.close()


def carry_out(tasks: Tasks, destination: Destination, topics: Sequence[str] | None = None) -> Tasks:
    """Reset the application while a task commits, then start it again."""
    plan = plan_reset(tasks.application, tasks.log, destination, topics)
    send(tasks.log, [("c", "x")])
    tasks.process("0_1")
    tasks.process("0_0")
    reset(tasks.application, tasks.log, plan, lambda: None)
    tasks.close()
    again = Tasks(tasks.application, tasks.log)
    again.finish()
    again.close()
    return again


def test_what_it_writes_again_is_not_read_twice(tasks: Tasks, tmp_path: Path) -> None:
    again = carry_out(tasks, to_earliest)
    assert again.content(tmp_path / "content") == expected([*SENT, ("c", "x")])


@pytest.mark.parametrize("destination", [to_latest, shift_by(-1)])
def test_it_is_passed_over_wherever_the_others_go(tasks: Tasks, destination: Destination) -> None:
    plan = plan_reset(tasks.application, tasks.log, destination)
    assert plan.passed_over == {"between"}
    ends = tasks.log.end_offsets(BETWEEN)
    assert {TopicPartition(each.topic, each.partition): each.then for each in plan.moves if each.is_passed_over} == ends


def test_where_it_is_named_it_goes_there(tasks: Tasks) -> None:
    plan = plan_reset(tasks.application, tasks.log, to_earliest, ["between"])
    assert not plan.passed_over
    assert {each.then for each in plan.moves if each.topic == "between"} == {0}
    at = plan_reset(tasks.application, tasks.log, to_offsets({BETWEEN[0]: 0}))
    assert [each.then for each in at.moves if each.topic == "between"] == [
        0,
        tasks.log.end_offsets(BETWEEN)[BETWEEN[1]],
    ]
    with pytest.raises(ConfigError, match="it reads: words:0, words:1, between:0, between:1"):
        plan_reset(tasks.application, tasks.log, to_offsets({TopicPartition("none", 0): 0}))


class Attempt(Processor):
    """Writes a result for each attempt; the first three fail, and are sent to the topic for retries."""

    def process(self, record: Record) -> None:
        self.context.forward(record, "out")
        if int(record.value) < 3:
            self.context.forward(record.with_value(str(int(record.value) + 1)), "again")


def retrying(directory: Path, *named: str) -> Application:
    topology = Topology().add_source("in", "orders", key_serde="str", value_serde="str")
    topology.add_source("retries", "retries", key_serde="str", value_serde="str")
    topology.add_processor("attempt", Attempt, ["in", "retries"])
    topology.add_sink("out", "out", "attempt", key_serde="str", value_serde="str")
    topology.add_sink("again", "retries", "attempt", key_serde="str", value_serde="str")
    return Application("shop", topology, log="memory:x", data_dir=str(directory), intermediate_topics=named)


@pytest.mark.parametrize(("named", "results"), [((), 10), (("retries",), 4)])
def test_a_topic_for_retries(tmp_path: Path, named: tuple[str, ...], results: int) -> None:
    """What reads it writes it: only the setting says that nobody else does, and plans say that it is missing."""
    log, application, out = MemoryLog(), retrying(tmp_path, *named), TopicPartition("out", 0)
    for topic in ("orders", "retries", "out"):
        log.create_topic(topic, 1)
    log.append(OutputBatch("orders", [b"k"], [b"0"], [1]))

    def run() -> int:
        before = log.end_offsets([out])[out]
        with opened_workers(application, log) as (worker,):
            at = -1
            while at != (at := log.end_offsets([out])[out]):
                worker.run_batch(log.end_offsets(worker.partitions), 0)
        return at - before

    assert run() == 4
    planned = plan_reset(application, log, to_earliest)
    assert planned.passed_over == {*named}
    assert planned.circular == (() if named else ("retries",))
    assert plan(application, log).circular_topics == planned.circular
    assert [each.is_intermediate for each in plan(application, log).inputs] == [False, bool(named)]
    assert plan_reset(application, log, to_earliest, ["retries"]).circular == ()
    reset(application, log, planned, lambda: None)
    assert run() == results


def test_a_topic_that_the_setting_names_in_vain(tmp_path: Path) -> None:
    log = MemoryLog()
    for topic in ("orders", "retries", "out"):
        log.create_topic(topic, 1)
    refused = plan(retrying(tmp_path, "retrys"), log).refusal
    assert (
        refused == "setting 'intermediate_topics': 'shop' reads no topic 'retrys'; did you mean 'retries' or 'orders'?"
    )
