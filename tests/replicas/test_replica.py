"""A replica shows committed versions only, one after the other, whatever happens to the task and to itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.plugins.logs.memory import MemoryLog
from penstock.plugins.state.copies import Replica
from penstock.plugins.testing.contracts.expectations import run_histories
from penstock.record import RecordBatch, TopicPartition
from penstock.stores.memory import MemoryBackend

from .every_kind import Writer, application, checked

ROWS = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["", "1", "2", "long" * 20])), max_size=8)


class BusyLog(MemoryLog):
    """A log whose task commits while another one reads its changelog."""

    meanwhile: Callable[[], object] | None = None

    def fetch(self, partition: TopicPartition, offset: int, end: int, max_bytes: int) -> list[RecordBatch]:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None and partition.topic.endswith("-changelog"):
            meanwhile()
        return super().fetch(partition, offset, end, 200)


class Histories(RuleBasedStateMachine):
    """A task and its replica; `changelog` is what a subclass runs with."""

    changelog = "directory:changes"

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory()
        self.root = Path(self.directory.name)
        self.log = BusyLog()
        self.writer = Writer(application(self.root, self.changelog), self.log)
        self.open_replica()

    def open_replica(self, stores: list[str] | None = None) -> None:
        self.replica = Replica(self.writer.application, "0_0", self.log, self.root / "replica", stores=stores)
        self.check = checked(self.replica, self.writer)

    @rule(rows=ROWS)
    def commit(self, rows: list[tuple[str, str]]) -> None:
        self.writer.commit(rows)

    @rule()
    def catch_up(self) -> None:
        assert self.replica.catch_up(self.check)
        last = self.log.last_commit("app", "0_0", self.replica._saved.partitions)
        assert self.replica.version == (None if last is None else last.version)
        assert self.replica.commit == last
        assert self.replica.behind() == 0

    @rule(rows=ROWS)
    def catch_up_while_the_task_commits(self, rows: list[tuple[str, str]]) -> None:
        def commit() -> None:
            self.check()
            self.writer.commit(rows)
            self.writer.snapshot_and_clean(snapshot=True)

        between = self.check
        if self.changelog.startswith("topic"):
            self.log.meanwhile = commit
        else:
            calls = iter([commit])
            between = lambda: next(calls, self.check)()  # noqa: E731
        assert self.replica.catch_up(between)
        self.log.meanwhile = None

    @rule(stores=st.sampled_from([None, None, ["plain"], ["plain", "windows"], ["lists"]]))
    def the_replica_restarts(self, stores: list[str] | None) -> None:
        before, kept = self.replica.version, set(self.replica.layout)
        self.replica.close()
        self.open_replica(stores)
        assert self.replica.version == (before if kept >= set(self.replica.layout) else None)

    @rule()
    def the_replicas_disk_is_lost(self) -> None:
        self.replica.close()
        MemoryBackend.forget(self.root / "replica")
        self.open_replica()

    @rule(clean=st.booleans())
    def the_task_restarts(self, clean: bool) -> None:
        self.writer.restart(clean=clean)

    @rule(snapshot=st.booleans())
    def clean(self, snapshot: bool) -> None:
        self.writer.snapshot_and_clean(snapshot=snapshot)

    @rule()
    def orphan(self) -> None:
        self.writer.orphan()

    @precondition(lambda self: self.changelog.startswith("directory"))
    @rule()
    def tear(self) -> None:
        self.writer.tear()
        self.writer.restart(clean=False)

    @invariant()
    def only_what_was_committed(self) -> None:
        if hasattr(self, "check"):
            self.check()

    def teardown(self) -> None:
        if hasattr(self, "replica"):
            self.replica.close()
            self.writer.worker.close()
            MemoryBackend.forget(self.root)
            self.directory.cleanup()


class TopicHistories(Histories):
    changelog = "topic:"


@pytest.mark.parametrize("machine", [Histories, TopicHistories])
def test_only_committed_versions_and_never_back(machine: type[Histories]) -> None:
    run_histories(machine, examples=15, steps=20)
