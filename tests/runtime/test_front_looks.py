"""What the looks at the log find for `idle` in the continuous mode, where a log is truncated or a leader is away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from penstock import LogError, TopicPartition
from penstock.plugins.engine.task.fronts import Fronts
from penstock.plugins.engine.task.loop import looks
from penstock.plugins.logs.memory import MemoryLog
from penstock.task.progress import Front

from .faults import produced
from .test_overdue import AGAIN, Stage, closed_windows, sums_of_counts

pytestmark = pytest.mark.usefixtures("always_looks")

IN, OTHER, BEHIND = TopicPartition("in", 0), TopicPartition("in", 1), TopicPartition(AGAIN, 0)


@pytest.fixture
def always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(looks, "_AGAIN_SECONDS", 0.0)


def test_windows_close_where_the_log_ends_before_what_a_look_has_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an unclean election of a leader: the records that the task had still to read are gone."""
    stage = Stage(closed_windows(), tmp_path, key_serde="str")
    stage.put(1_000, 1)
    stage.put(12_000, 1)
    with stage.started() as loops:
        stage.turn(loops, stage.has_read_all)
        task = loops[0]._tasks["0_0"].task
        assert task is not None
        with monkeypatch.context() as patch:
            patch.setattr(loops[0]._follower, "poll", lambda seconds, most: [])
            stage.put(13_000, 5)
            stage.wall += 30_000
            stage.turn(loops, lambda: task.inputs.are_settling)
        _truncate(stage.log, IN, 5)
        stage.turn(loops, lambda: [each[0] for each in produced(stage.log)] == ["0", "10000"])


def _truncate(log: MemoryLog, of: TopicPartition, count: int) -> None:
    partition = log._topics[of.topic].partitions[of.partition]
    partition.end -= count
    for column in partition.offsets, partition.keys, partition.values, partition.timestamps:
        del column[-count:]


def test_tasks_behind_a_truncated_log_wait_no_longer() -> None:
    fronts = Fronts({0: [], 1: [0]}, {0: [IN], 1: [BEHIND]}, [])
    fronts.look(1_000, {IN: 10, BEHIND: 0}, {IN: 4})
    fronts.look(2_000, {IN: 6, BEHIND: 0}, {IN: 6})
    assert fronts.fronts[1] == Front(1_000)


class LeaderAway(MemoryLog):
    """A log of which no broker leads some partitions."""

    away: frozenset[TopicPartition] = frozenset()

    def end_offsets(self, partitions: Sequence[TopicPartition], *, stable: bool = True) -> Mapping[TopicPartition, int]:
        if found := self.away.intersection(partitions):
            raise LogError(f"no leader: {sorted(found)}")
        return super().end_offsets(partitions, stable=stable)


@pytest.mark.parametrize("behind", [False, True])
def test_windows_close_although_another_partition_has_no_leader(tmp_path: Path, behind: bool) -> None:
    """Those that read what comes from there wait for it, for a minute."""
    program = sums_of_counts("20s") if behind else closed_windows()
    log = LeaderAway()
    stage = Stage(program, tmp_path, log, partitions=2, key_serde="str")
    stage.put(1_000, 1)
    stage.put(12_000, 1)
    own = ["0_0", "1_0"] if behind else ["0_0"]
    with stage.started(names=own) as loops:
        stage.turn(loops, lambda: stage.has_read_all(IN))
        log.away = frozenset([OTHER])

        def are_closed() -> bool:
            stage.wall += 1_000
            return [each[0] for each in produced(stage.log)] == ["0", "10000"]

        began = stage.wall
        stage.turn(loops, are_closed)
        assert not behind or stage.wall - began >= 60_000
