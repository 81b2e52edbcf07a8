"""An application that was resharded goes on as one that always had that number of partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import FencedError, TaskId, TopicPartition
from penstock.plugins.engine.task.process_resources import ProcessResources
from penstock.plugins.engine.task.task_worker import TaskWorker
from penstock.plugins.state.transfer.reshard import accept

from .programs import every_kind
from .runs import lease, new_log, outputs, produce, resharded, run

KEYS = [f"key {number}" for number in range(23)]
CHANGELOGS = ["directory:changes", "topic:"]


def rounds(first: int, last: int) -> list[tuple[str, str, int]]:
    """Return records in which all keys go on together."""
    return [(key, f"{number},", number * 7) for number in range(first, last) for key in KEYS]


@pytest.mark.parametrize("changelog", CHANGELOGS)
def test_every_kind_of_store_from_4_to_7_to_3(tmp_path: Path, changelog: str) -> None:
    log = new_log({"in": 4, "in7": 7, "in3": 3, "out": 1})
    for before, topic, count, first in (("", "in", 4, 0), ("in", "in7", 7, 10), ("in7", "in3", 3, 20)):
        if before:
            app = every_kind(tmp_path, changelog, topic)
            rows = resharded(app, log, count, sources={before: topic}).rows
            assert len(rows) == count and all(rows.values())
            assert accept(app, log, lease(app, log))
        produce(log, topic, rounds(first, first + 8))
        run(every_kind(tmp_path, changelog, topic), log)
        produce(log, topic, rounds(first + 8, first + 10))  # these are processed before the next change
    run(every_kind(tmp_path, changelog, "in3"), log)

    always = new_log({"in": 3, "out": 1})
    produce(always, "in", rounds(0, 30))
    run(every_kind(tmp_path / "always", changelog), always)
    assert outputs(log) == outputs(always)


@pytest.mark.parametrize("given_up", [False, True])
def test_a_host_of_the_old_layout_that_wakes_after_it_opens_nothing(tmp_path: Path, given_up: bool) -> None:
    log = new_log({"in": 2, "in3": 3, "out": 1})
    produce(log, "in", rounds(0, 2))
    old, new = (every_kind(tmp_path, "directory:changes", topic) for topic in ("in", "in3"))
    prepared = run(old, log)
    late = TaskWorker(prepared, TaskId(0, 0), [TopicPartition("in", 0)], log, resources=ProcessResources())
    resharded(new, log, 3, sources={"in": "in3"})
    if given_up:
        accept(new, log, lease(new, log))
    before = outputs(log)
    with pytest.raises(FencedError, match="of an earlier epoch"):
        late.run_batch(log.end_offsets(late.partitions), 0)
    late.close()
    assert outputs(log) == before
