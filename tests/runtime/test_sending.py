"""Outputs that are sent ahead of their commit, and commits that the log lost: over the log in memory, which is taught
the first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.errors import IncompatibleStateError
from penstock.log import Commit, TaskCommitter
from penstock.plugins.engine.task import task_worker as worker_module
from penstock.plugins.logs.memory import MemoryLog
from penstock.record import OutputBatch, TopicPartition

from .faults import INPUTS, application, new_log, new_worker, produce, produced


class Sending(TaskCommitter):
    """Keeps what is sent until the commit, and counts; refuses a commit that comes too late, as Kafka does."""

    streams_outputs: ClassVar[bool] = True
    within: ClassVar[float] = float("inf")
    sent: ClassVar[list[int]] = []
    commits: ClassVar[int] = 0
    expired: ClassVar[bool] = False

    def __init__(self, inner: TaskCommitter) -> None:
        self._inner = inner
        self._waiting: list[OutputBatch] = []

    @property
    def committed(self) -> Commit | None:
        return self._inner.committed

    @property
    def commit_within(self) -> float:
        return type(self).within

    def is_current(self) -> bool:
        return self._inner.is_current()

    def expires(self) -> bool:
        return type(self).expired

    def send(self, outputs: Sequence[OutputBatch]) -> None:
        type(self).sent.append(sum(map(len, outputs)))
        self._waiting += outputs

    def commit(self, commit: Commit, outputs: Sequence[OutputBatch]) -> None:
        type(self).commits += 1
        self._inner.commit(commit, [*self._waiting, *outputs])
        self._waiting = []

    def close(self) -> None:
        self._inner.close()


class SendingLog(MemoryLog):
    def open_committer(self, application_id: str, task_id: str, partitions: Sequence[TopicPartition]) -> TaskCommitter:
        return Sending(super().open_committer(application_id, task_id, partitions))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> SendingLog:
    monkeypatch.setattr(worker_module, "_SENT_BYTES", 1_000)
    monkeypatch.setattr(worker_module, "_CHUNK", 50)
    for name, value in {"within": float("inf"), "sent": [], "commits": 0, "expired": False}.items():
        monkeypatch.setattr(Sending, name, value)
    made = SendingLog()
    new_log(made)
    return made


def feed(log: SendingLog, count: int) -> None:
    produce(log, "a", [(f"k{n % 7}", f"v{n}", 1 + n) for n in range(count)])


def test_what_is_sent_ahead_is_there_once_and_in_order(log: SendingLog, tmp_path: Path) -> None:
    plain = new_log(MemoryLog())
    for each in (log, plain):
        feed(each, 500)  # type: ignore[arg-type]
        task = new_worker(application(tmp_path / type(each).__name__), each)
        report = task.run_batch(each.end_offsets(INPUTS), 0)
        assert report.records_out == len(produced(each))
        task.close()
    assert len(Sending.sent) > 3 and Sending.commits == 2, "the first opening, and one commit at the end"
    assert produced(log) == produced(plain)


def test_what_was_sent_is_committed_before_it_is_too_late(log: SendingLog, tmp_path: Path) -> None:
    Sending.within = 0.0
    feed(log, 500)
    task = new_worker(application(tmp_path), log)
    task.run_batch(log.end_offsets(INPUTS), 0)
    assert Sending.commits > 4
    task.close()


def test_what_was_sent_and_not_committed_counts_for_nothing(log: SendingLog, tmp_path: Path) -> None:
    feed(log, 300)
    produce(log, "a", [("k1", "v", -5)])  # a timestamp that no source takes
    task = new_worker(application(tmp_path), log)
    with pytest.raises(Exception, match="timestamp"):
        task.run_batch(log.end_offsets(INPUTS), 0)
    assert Sending.sent and produced(log) == []
    assert set(log.committed("app", INPUTS).values()) == {0}
    task.close()


def test_a_commit_that_the_log_would_forget_is_made_again(log: SendingLog, tmp_path: Path) -> None:
    task = new_worker(application(tmp_path), log)
    task.run_batch({}, 0)
    before = Sending.commits
    task.run_batch({}, 0)
    assert Sending.commits == before
    Sending.expired = True
    report = task.run_batch({}, 0)
    assert Sending.commits == before + 1
    assert report.positions == dict.fromkeys(INPUTS, 0)
    task.close()


def test_a_log_that_lost_a_commit_is_refused(tmp_path: Path, log: SendingLog) -> None:
    """Spark knows a later commit than the log has. No other process can take one back: each log fences."""
    feed(log, 20)
    task = new_worker(application(tmp_path), log)
    early = task.run_batch({INPUTS[0]: 5}, 0)
    late = task.run_batch(log.end_offsets(INPUTS), 0)
    known = Commit(late.positions, late.version)
    task.close()
    log.open_committer("app", "0_0", INPUTS).commit(Commit(early.positions, early.version), [])
    with pytest.raises(IncompatibleStateError, match="older than one that was made before"):
        new_worker(application(tmp_path), log).run_batch(log.end_offsets(INPUTS), 0, known)
