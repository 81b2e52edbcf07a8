"""Where a new application starts: at the first record, at the end, or at the first that is at most so old."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Application, OutputBatch, TaskId, Topology
from penstock.log import Log
from penstock.plugins.engine.program.lag import find_lag, offset_resets
from penstock.plugins.engine.program.preparation import resolve
from penstock.plugins.engine.run.planning.planner import Lags
from penstock.plugins.engine.task.locations import open_log
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.logs.memory import MemoryLog
from penstock.record import TopicPartition

from ..rotation import examples

IN = TopicPartition("in", 0)
TIMES = st.lists(st.integers(0, 100), max_size=6)
RESETS = st.sampled_from(["earliest", "latest", "0ms", "20ms", "50ms", timedelta(milliseconds=200)])


def expected(times: list[int], reset: object, now: int) -> list[int]:
    """The rule, from its words."""
    if reset in ("earliest", "latest"):
        return times if reset == "earliest" else []
    age = reset // timedelta(milliseconds=1) if isinstance(reset, timedelta) else int(str(reset).removesuffix("ms"))
    first = next((index for index, time in enumerate(times) if time >= now - age), len(times))
    return times[first:]


def copying(reset: object, *, by_setting: bool, directory: Path = Path("not there")) -> Application:
    setting: Any = {"offset_reset": reset}
    topology = Topology().add_source("s", "in", **({} if by_setting else setting)).add_sink("out", "out", "s")
    return Application("app", topology, data_dir=str(directory), **(setting if by_setting else {}))


def put(log: Log, topic: str, times: list[int]) -> None:
    if times:
        log.append(OutputBatch(topic, [b"k"] * len(times), [b"v"] * len(times), times))


def times_in(log: Log, topic: str) -> list[int]:
    partition = TopicPartition(topic, 0)
    start, end = 0, log.end_offsets([partition])[partition]
    found: list[int] = []
    while start < end:
        for batch in log.fetch(partition, start, end, 1 << 20):
            found += batch.timestamps
            start = batch.next_offset
    return found


def check(log: Log, app: Application, times: list[int], reset: object, now: int, later: list[int]) -> None:
    log.create_topic("in", 1)
    log.create_topic("out", 1)
    put(log, "in", times)
    assignment = resolve(app, log)
    mine = expected(times, reset, now)
    assert [each.lag for each in find_lag(app, assignment, log, now)] == [len(mine)]
    lags = Lags(log, "app", [IN], [], offset_resets(app, assignment), lambda: now, lambda: 0.0)
    lags.look(everything=True)
    assert sum(lags.ends[each] - position for each, position in lags.behind.items()) == len(mine)
    worker = TaskWorker(app, TaskId(0, 0), [IN], log, resources=ProcessResources())
    worker.run_batch(dict(log.end_offsets([IN])), now)
    put(log, "in", later)
    # The position was committed: how old later records are does not matter.
    worker.run_batch(dict(log.end_offsets([IN])), now + 1_000)
    worker.close()
    assert times_in(log, "out") == mine + later


@given(TIMES, RESETS, st.integers(0, 150), TIMES, st.booleans())
@settings(max_examples=examples(60))
def test_it_starts_at_the_first_record_that_is_new_enough(
    times: list[int], reset: object, now: int, later: list[int], by_setting: bool
) -> None:
    check(MemoryLog(), copying(reset, by_setting=by_setting), times, reset, now, later)


def test_in_the_local_log(tmp_path: Path) -> None:
    app = copying("50ms", by_setting=False, directory=tmp_path)
    with closing(open_log(app.settings)) as log:
        check(log, app, [10, 60, 40, 90], "50ms", 100, [5, 200])


def test_what_is_in_a_repartition_topic_is_read_from_its_start(tmp_path: Path) -> None:
    topology = Topology().add_source("s", "in", offset_reset="earliest").add_repartition("by-key", "s")
    topology.add_sink("out", "out", "by-key")
    for reset in ("latest", "1ms"):
        app = Application("app", topology, data_dir=str(tmp_path / reset), offset_reset=reset)
        log = MemoryLog()
        for name in ("in", "out", "app-by-key-repartition"):
            log.create_topic(name, 1, internal=name.startswith("app"))
        put(log, "in", [1, 2])
        # The second task opens when the first has written.
        for task, topic in ((TaskId(0, 0), "in"), (TaskId(1, 0), "app-by-key-repartition")):
            partition = TopicPartition(topic, 0)
            worker = TaskWorker(app, task, [partition], log, resources=ProcessResources())
            worker.run_batch(dict(log.end_offsets([partition])), 1_000)
            worker.close()
        assert times_in(log, "out") == [1, 2]


@pytest.mark.parametrize("wrong", ["first", "3", 5, timedelta(seconds=-1), "by_duration:PT1H"])
def test_what_is_no_place_to_start(wrong: object) -> None:
    for by_setting in (True, False):
        with pytest.raises(Exception, match="offset_reset.*: expected 'earliest', 'latest', or how far back in time"):
            copying(wrong, by_setting=by_setting)
