"""The tests that every sink without transactions must pass; subclass `StagedSinkContract` to run them over yours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import cloudpickle

from penstock import (
    KeyValueStore,
    SinkError,
    SinkPlace,
    SinkRecord,
    SinkRefusedError,
    SinkUnavailableError,
    StagedSink,
    StagedWriter,
)

from .interruptions import interrupt_at, kill_at, steps_of
from .sink_target import PLACE, TOPIC_ID, SinkTarget, raised

_MOST_COMMITS = 10
_NO_WRITE = "`stage` returned no function, although the last commit has decided something"


class _Store:
    """The part of a KeyValueStore that a writer uses, and the content as of the last commit."""

    def __init__(self, committed: dict[str, bytes] | None = None) -> None:
        self.committed = committed or {}
        self._content = dict(self.committed)

    def get(self, key: str) -> bytes | None:
        return self._content.get(key)

    def put(self, key: str, value: bytes | None) -> None:
        self.put_all([(key, value)])

    def put_all(self, entries: Iterable[tuple[str, bytes | None]]) -> None:
        for key, value in entries:
            if value is None:
                self._content.pop(key, None)
            else:
                assert isinstance(key, str) and isinstance(value, bytes), f"{key!r}: {value!r}: expected str, bytes"
                self._content[key] = value

    def delete(self, key: str) -> bytes | None:
        return self._content.pop(key, None)

    def range(self, start: str | None = None, end: str | None = None) -> list[tuple[str, bytes]]:
        found = sorted(self._content.items())
        return [(key, value) for key, value in found if (start is None or start <= key) and (end is None or key < end)]

    def commit(self) -> None:
        self.committed = dict(self._content)


class StagedSinkContract(SinkTarget[StagedSink]):
    """The contract of a sink without transactions, as tests; run them in a test class of yours.

    The sink of `make_sink` writes at the latest `due_ms` after a record has come, and five records at once.
    Needs pytest (`pip install 'penstock-streams[testing]'`).
    """

    due_ms: ClassVar[int] = 1_000

    # ------------------------------------------------------------------ what is right

    def test_records_are_written_once_they_are_decided(self) -> None:
        """Records of some commits are all there when nothing is due any more, each once."""
        sink = self.make_sink()
        with _Task(sink) as task:
            for first in range(0, 30, 10):
                task.commit(self._records(first, 10))
            task.settle(self.due_ms)
        self._expect(sink, 30)

    def test_nothing_is_written_before_its_commit(self) -> None:
        """A first commit writes nothing: whether it counts is not known yet."""
        sink = self.make_sink()
        with _Task(sink) as task:
            write = task.stage(self._records(0, 30), self.due_ms)
            assert write is None, "the first commit wrote what no commit had decided"
        self._expect(sink, 0)

    def test_state_and_target_continue_in_another_process(self) -> None:
        """A writer that is opened at any commit, by a sink that was sent, continues there."""
        sink = self.make_sink()
        committed: dict[str, bytes] = {}
        for number in range(20):
            sent = cloudpickle.loads(cloudpickle.dumps(sink))
            with _Task(sent, committed, now=number * self.due_ms // 3) as task:
                task.commit(self._records(number, 1))
                committed = task.store.committed
        with _Task(sink, committed, now=20 * self.due_ms) as task:
            task.settle(self.due_ms)
        self._expect(sink, 20)
        assert str(sink) and "\n" not in str(sink) and str(sent) == str(sink), f"str(sink) is {str(sink)!r}"

    def test_each_place_has_records_of_its_own(self) -> None:
        """Partitions, sinks and applications share a target."""
        sink = self.make_sink()
        others = [replace(PLACE, partition=1), replace(PLACE, sink="b"), replace(PLACE, application_id="c")]
        for number, place in enumerate([PLACE, *others]):
            with _Task(sink, place=place) as task:
                records = [
                    record._replace(offset=record.offset - 5 * number) for record in self._records(5 * number, 5)
                ]
                task.commit(records)
                task.settle(self.due_ms)
        self._expect(sink, 20)

    # ------------------------------------------------------------------ failures

    def test_a_commit_that_does_not_count_leaves_nothing(self) -> None:
        """A commit fails after its write: the next process does the same again, also with other limits of a commit."""
        sink = self.make_sink()
        committed = self._decided(sink, 5)
        for count in (1, 3, 5):
            with _Task(sink, committed, now=self.due_ms) as task:
                task.commit(self._records(5, count), counts=False)
        self._finish(sink, committed, 5, 20)

    def test_an_interrupted_write_is_done_again(self) -> None:
        """A write that ends before any of its steps is done again, and each record is there once."""
        for step in self._steps():
            sink = self.make_sink()
            committed = self._decided(sink, 5)
            with _Task(sink, committed, now=self.due_ms) as task:
                interrupt_at(step, self._write(task))
            found = len(list(self.content(sink)))
            assert found in (0, 5), f"interrupted before step {step}, a reader finds {found} of 5 records"
            self._finish(sink, committed, 5, 20)

    def test_a_write_of_a_killed_process_is_done_again(self) -> None:
        """A process is killed before any step of a write: the next one does it again, and each record is there once."""
        if not self.outlives_processes:
            return
        for step in self._steps()[::2]:
            sink = self.make_sink()
            committed = self._decided(sink, 5)
            kill_at(step, partial(self._opened_write, sink, committed))
            found = len(list(self.content(sink)))
            assert found in (0, 5), f"killed before step {step}, a reader finds {found} of 5 records"
            self._finish(sink, committed, 5, 20)

    def test_a_zombie_writes_nothing_else(self) -> None:
        """A process that was frozen in front of its write writes after its successor has gone on."""
        sink = self.make_sink()
        committed = self._decided(sink, 5)
        with _Task(sink, committed, now=self.due_ms) as zombie:
            write = zombie.stage(self._records(5, 3), self.due_ms)
            assert write is not None, _NO_WRITE
            self._finish(sink, committed, 5, 30)
            write()
            self._expect(sink, 30)
            write()
            self._expect(sink, 30)

    def test_a_refused_record_changes_nothing(self) -> None:
        """All records that are refused are named, and the others can be staged without them."""
        if self.refused_value is None:
            return
        sink = self.make_sink()
        with _Task(sink) as task:
            task.commit(self._records(0, 2))
            before = dict(task.store.range())
            records = self._records(2, 5)
            for place in (1, 4):
                records[place] = records[place]._replace(value=self.refused_value)
            refused = raised(SinkRefusedError, lambda: task.stage(records, 0)).refusals
            assert sorted(refused) == [3, 6], f"refused: {sorted(refused)}, expected [3, 6]"
            assert dict(task.store.range()) == before, "a refusal changed the store"
            task.commit(self._records(2, 5))
            task.settle(self.due_ms)
        self._expect(sink, 7)

    def test_what_is_wrong_is_said_at_the_opening(self) -> None:
        """A target that a person has to repair is a SinkError."""
        for broken in self.broken_sinks():
            error = raised(SinkError, partial(broken.open, PLACE))
            assert not isinstance(error, SinkUnavailableError), f"{broken}: {error!r} would be tried for ever"

    # ------------------------------------------------------------------ helpers

    def _decided(self, sink: StagedSink, count: int) -> dict[str, bytes]:
        """Return the state after a commit that has decided what to write of `count` records."""
        with _Task(sink) as task:
            task.commit(self._records(0, count))
            task.commit([], self.due_ms)
            assert task.writer.due == 0, f"{self.due_ms} ms after a record, nothing was decided"
            return task.store.committed

    def _finish(self, sink: StagedSink, committed: dict[str, bytes], first: int, until: int) -> None:
        """Continue from a commit up to a number of records, and compare."""
        with _Task(sink, committed, now=self.due_ms) as task:
            task.commit(self._records(first, until - first))
            task.settle(self.due_ms)
        self._expect(sink, until)

    def _steps(self) -> list[int]:
        """Return the steps of a write before which it is to end."""
        sink = self.make_sink()
        with _Task(sink, self._decided(sink, 5), now=self.due_ms) as task:
            return steps_of(self._write(task))

    def _write(self, task: _Task) -> Callable[[], object]:
        """Return the write that the last commit has decided."""
        write: Callable[[], object] | None = task.stage(self._records(5, 2), 0)
        assert write is not None, _NO_WRITE
        return write

    def _opened_write(self, sink: StagedSink, committed: dict[str, bytes]) -> Callable[[], object]:
        return self._write(_Task(sink, committed, now=self.due_ms))

    def _expect(self, sink: StagedSink, count: int) -> None:
        self._expect_content(sink, self._records(0, count))


class _Task(closing[StagedWriter]):
    """A task with an open writer, from a commit on."""

    def __init__(
        self, sink: StagedSink, committed: dict[str, bytes] | None = None, *, place: SinkPlace = PLACE, now: int = 0
    ) -> None:
        self.writer = sink.open(place)
        super().__init__(self.writer)
        self.store = _Store(committed)
        self._now = now
        self.writer.begin(cast(KeyValueStore[str, bytes], self.store), TOPIC_ID)

    def __enter__(self) -> _Task:  # type: ignore[override]
        return self

    def stage(self, records: Sequence[SinkRecord], passed_ms: int) -> Any:
        """Do the first half of a commit, so many ms later."""
        self._now += passed_ms
        return self.writer.stage(records, self._now)

    def commit(self, records: Sequence[SinkRecord], passed_ms: int = 0, *, counts: bool = True) -> None:
        """Stage records, write, and commit."""
        write = self.stage(records, passed_ms)
        if write is not None:
            write()
        if counts:
            self.store.commit()

    def settle(self, due_ms: int) -> None:
        """Commit until nothing is due any more."""
        self._now += due_ms
        for _ in range(_MOST_COMMITS):
            if self.writer.due is None:
                return
            self.commit([])
        raise AssertionError(f"after {_MOST_COMMITS} commits without a record, something is still due")
