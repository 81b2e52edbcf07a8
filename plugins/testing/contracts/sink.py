"""The tests that every sink must pass; subclass `SinkContract` to run them over yours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

import cloudpickle

from penstock import (
    Sink,
    SinkError,
    SinkMovedError,
    SinkPlace,
    SinkPosition,
    SinkRecord,
    SinkRefusedError,
    SinkUnavailableError,
    SinkWriter,
)

from .interruptions import interrupt_at, kill_at, steps_of
from .sink_target import PLACE, TOPIC_ID, SinkTarget, raised


def _at(offset: int) -> SinkPosition:
    return SinkPosition(TOPIC_ID, offset)


class SinkContract(SinkTarget[Sink]):
    """The contract of a sink, as tests; run them in a test class of yours.

    >>> from penstock.testing import MemorySink
    >>> class TestMemorySink(SinkContract):
    ...     outlives_processes = False
    ...     def make_sink(self):
    ...         made = MemorySink("contract", refuses=lambda record: "no" if record.value == "refused" else "")
    ...         made.forget()
    ...         return made
    ...     def content(self, sink):
    ...         return [(record.key, record.value) for record in sink.records]
    ...     refused_value = "refused"

    Needs pytest (`pip install 'penstock-streams[testing]'`).
    """

    def restart(self) -> None:
        """Stop and start the target, if the test can do that."""

    def away_sink(self) -> Sink | None:
        """Return a sink to a target that is away; None: there is none."""
        return None

    # ------------------------------------------------------------------ what is right

    def test_a_position_is_written_with_the_records(self) -> None:
        """A new target has no position. A write adds records and position, and the next writer continues there."""
        sink = self.make_sink()
        writer = sink.open(PLACE)
        assert writer.position is None, f"a new target has the position {writer.position}, expected None"
        writer.write(self._records(0, 5), None, _at(5))
        writer.write(self._records(7, 3), _at(5), _at(10))  # offsets 5 and 6 have no records
        self._expect(sink, self._records(0, 5) + self._records(7, 3), _at(10))
        writer.close()
        writer.close()
        after = sink.open(PLACE)
        after.write(self._records(10, 2), after.position, _at(12))
        after.close()
        self._expect(sink, self._records(0, 5) + self._records(7, 5), _at(12))

    def test_many_records_are_one_write(self) -> None:
        """A write of thousands of records counts as one."""
        sink = self.make_sink()
        writer = sink.open(PLACE)
        writer.write(self._records(0, 3_000), None, _at(3_000))
        writer.close()
        self._expect(sink, self._records(0, 3_000), _at(3_000))

    def test_each_place_has_a_position_of_its_own(self) -> None:
        """Partitions, topics, sinks and applications share a target, and no position."""
        sink = self.make_sink()
        others = [
            replace(PLACE, partition=1), replace(PLACE, topic="other"), replace(PLACE, sink="other"),
            replace(PLACE, application_id="other"),
        ]  # fmt: skip
        expected: list[SinkRecord] = []
        for number, place in enumerate([PLACE, *others]):
            writer = sink.open(place)
            assert writer.position is None, f"{place} has the position of another place, {writer.position}"
            records = self._records(100 * number, 2)
            writer.write(records, None, _at(100 * number + 2))
            writer.close()
            expected += records
        self._expect(sink, expected, _at(2))
        for number, place in enumerate(others, 1):
            self._expect_position(sink, place, _at(100 * number + 2))

    def test_a_sink_is_sent_to_other_processes(self) -> None:
        """A pickled sink has the same target, and its text names that in one line."""
        sink = self.make_sink()
        self._write(sink, self._records(0, 2), None, _at(2))
        sent = cloudpickle.loads(cloudpickle.dumps(sink))
        self._write(sent, self._records(2, 2), _at(2), _at(4))
        self._expect(sink, self._records(0, 4), _at(4))
        assert str(sink) and "\n" not in str(sink) and str(sent) == str(sink), f"str(sink) is {str(sink)!r}"

    def test_a_write_outlives_a_restart_of_the_target(self) -> None:
        """When `write` has returned, records and position are durable; an open writer may fail after the restart."""
        sink = self.make_sink()
        writer = sink.open(PLACE)
        writer.write(self._records(0, 5), None, _at(5))
        self.restart()
        self._expect(sink, self._records(0, 5), _at(5))
        try:
            writer.write(self._records(5, 2), _at(5), _at(7))
        except SinkUnavailableError:
            self._expect(sink, self._records(0, 5), _at(5))
        else:
            self._expect(sink, self._records(0, 7), _at(7))
        writer.close()

    # ------------------------------------------------------------------ zombies, replays, other orders

    def test_a_write_that_follows_another_position_changes_nothing(self) -> None:
        """A zombie, a replay, writes in another order: each finds another position than the one that it follows."""
        sink = self.make_sink()
        self._write(sink, self._records(0, 5), None, _at(5))
        for follows in (None, _at(0), _at(4), _at(6), SinkPosition("another id", 5)):
            self._expect_refusal(sink, SinkMovedError, self._records(5, 2), follows, _at(7))
            self._expect(sink, self._records(0, 5), _at(5))
        self._write(sink, self._records(5, 2), _at(5), _at(7))
        self._expect(sink, self._records(0, 7), _at(7))

    def test_a_zombie_finds_that_the_position_has_moved(self) -> None:
        """A writer that was opened before another one has written writes nothing, and says so."""
        sink = self.make_sink()
        zombie, successor = sink.open(PLACE), sink.open(PLACE)
        successor.write(self._records(0, 3), None, _at(3))
        raised(SinkMovedError, lambda: zombie.write(self._records(0, 5), None, _at(5)))
        zombie.close()
        self._expect(sink, self._records(0, 3), _at(3))
        successor.write(self._records(3, 2), _at(3), _at(5))
        successor.close()
        self._expect(sink, self._records(0, 5), _at(5))

    def test_of_two_writers_at_a_time_one_writes(self) -> None:
        """Where both follow the same position, the other one raises SinkMovedError."""
        sink = self.make_sink()
        follows: SinkPosition | None = None
        for number in range(0, 50, 10):
            writers = [sink.open(PLACE), sink.open(PLACE)]
            records, ends = self._records(number, 10), _at(number + 10)
            with ThreadPoolExecutor(2) as threads:
                started = [threads.submit(each.write, records, follows, ends) for each in writers]
            errors = [each.exception() for each in started]
            failed = [error for error in errors if error is not None]
            assert len(failed) == 1 and isinstance(failed[0], (SinkMovedError, SinkUnavailableError)), (
                f"two writers wrote from {follows} at a time, and raised {errors}; expected SinkMovedError of one"
            )
            for each in writers:
                each.close()
            follows = ends
            self._expect(sink, self._records(0, number + 10), ends)

    # ------------------------------------------------------------------ failures in the middle

    def test_a_refused_record_changes_nothing(self) -> None:
        """Where the target refuses a record, none of its write is there; the others can be written without it."""
        if self.refused_value is None:
            return
        sink = self.make_sink()
        self._write(sink, self._records(0, 2), None, _at(2))
        for count, place in ((3, 0), (5, 2), (5, 4), (100, 50), (100, 99)):
            records = self._records(2, count)
            records[place] = records[place]._replace(value=self.refused_value)
            self._expect_refusal(sink, SinkRefusedError, records, _at(2), _at(2 + count))
            self._expect(sink, self._records(0, 2), _at(2))
        self._write(sink, self._records(2, 3), _at(2), _at(5))
        self._expect(sink, self._records(0, 5), _at(5))

    def test_an_interrupted_write_is_all_or_nothing(self) -> None:
        """A write that ends before any of its steps has written all, with the position, or nothing."""
        for step in self._steps():
            sink = self.make_sink()
            self._write(sink, self._records(0, 3), None, _at(3))
            writer = sink.open(PLACE)
            interrupt_at(step, partial(writer.write, self._records(3, 4), _at(3), _at(7)))
            writer.close()
            self._expect_all_or_nothing(sink, f"interrupted before step {step}")

    def test_a_killed_process_leaves_all_or_nothing(self) -> None:
        """A process that is killed before any step of a write has written all, with the position, or nothing."""
        if not self.outlives_processes:
            return
        for step in self._steps()[::2]:
            sink = self.make_sink()
            self._write(sink, self._records(0, 3), None, _at(3))
            kill_at(step, partial(self._opened_write, sink))
            self._expect_all_or_nothing(sink, f"killed before step {step}")

    def test_what_is_wrong_is_said_at_the_opening(self) -> None:
        """A target that a person has to repair is a SinkError; one that is away is a SinkUnavailableError."""
        for broken in self.broken_sinks():
            error = raised(SinkError, partial(broken.open, PLACE))
            assert not isinstance(error, SinkUnavailableError), f"{broken}: {error!r} would be tried again for ever"
        away = self.away_sink()
        if away is not None:
            raised(SinkUnavailableError, lambda: away.open(PLACE))

    # ------------------------------------------------------------------ helpers

    def _write(
        self, sink: Sink, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition
    ) -> None:
        writer = sink.open(PLACE)
        try:
            writer.write(records, follows, ends)
        finally:
            writer.close()

    def _steps(self) -> list[int]:
        """Return the steps of a write before which it is to end."""
        sink = self.make_sink()
        self._write(sink, self._records(0, 3), None, _at(3))
        with closing(sink.open(PLACE)) as writer:
            return steps_of(partial(writer.write, self._records(3, 4), _at(3), _at(7)))

    def _opened_write(self, sink: Sink) -> Callable[[], object]:
        return partial(sink.open(PLACE).write, self._records(3, 4), _at(3), _at(7))

    def _expect_refusal(
        self,
        sink: Sink,
        kind: type[SinkError],
        records: Sequence[SinkRecord],
        follows: SinkPosition | None,
        ends: SinkPosition,
    ) -> None:
        raised(kind, lambda: self._write(sink, records, follows, ends))

    def _expect(self, sink: Sink, records: Sequence[SinkRecord], position: SinkPosition) -> None:
        self._expect_content(sink, records)
        self._expect_position(sink, PLACE, position)

    def _expect_position(self, sink: Sink, place: SinkPlace, position: SinkPosition) -> None:
        writer: SinkWriter = sink.open(place)
        found = writer.position
        writer.close()
        assert found == position, f"the position of {place} is {found}, expected {position}"

    def _expect_all_or_nothing(self, sink: Sink, when: str) -> None:
        writer = sink.open(PLACE)
        position = writer.position
        writer.close()
        assert position in (_at(3), _at(7)), f"{when}, the position is {position}"
        self._expect(sink, self._records(0, 3 if position == _at(3) else 7), position)
