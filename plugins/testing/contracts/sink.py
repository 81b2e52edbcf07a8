"""The tests that every sink must pass; subclass `SinkContract` to run them over yours."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

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

from .interruptions import Interrupted, call_at_step, was_interrupted

_PLACE = SinkPlace("contract", "target", "contract-target-repartition", 0)
_ID = "an id"
_MOST_STEPS = 40
"""Number of steps of a write before which it is interrupted, spread over all of them."""


def _at(offset: int) -> SinkPosition:
    return SinkPosition(_ID, offset)


class SinkContract:
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

    outlives_processes: ClassVar[bool] = True
    """Whether the target is outside of this process: then processes are killed in the middle of a write."""
    refused_value: Any = None
    """A value that the target refuses, if there is one: one that does not fit a type, or breaks a constraint."""

    def make_sink(self) -> Sink:
        """Return a sink to a target without records and positions; called once in each test."""
        raise NotImplementedError("make_sink: return a sink to an empty target")

    def content(self, sink: Sink) -> Iterable[tuple[Any, Any]]:
        """Return the key and value of each record that the target has, read without the sink's writers."""
        raise NotImplementedError("content: return what the target has")

    def value(self, number: int) -> Any:
        """Return a value that the target takes, another one for each number."""
        return number

    def restart(self) -> None:
        """Stop and start the target, if the test can do that."""

    def broken_sinks(self) -> Iterable[Sink]:
        """Return sinks that a person has to repair, for instance with a column that the table lacks."""
        return ()

    def away_sink(self) -> Sink | None:
        """Return a sink to a target that is away; None: there is none."""
        return None

    # ------------------------------------------------------------------ what is right

    def test_a_position_is_written_with_the_records(self) -> None:
        """A new target has no position. A write adds records and position, and the next writer continues there."""
        sink = self.make_sink()
        writer = sink.open(_PLACE)
        assert writer.position is None, f"a new target has the position {writer.position}, expected None"
        writer.write(self._records(0, 5), None, _at(5))
        writer.write(self._records(7, 3), _at(5), _at(10))  # offsets 5 and 6 have no records
        self._expect(sink, self._records(0, 5) + self._records(7, 3), _at(10))
        writer.close()
        writer.close()
        after = sink.open(_PLACE)
        after.write(self._records(10, 2), after.position, _at(12))
        after.close()
        self._expect(sink, self._records(0, 5) + self._records(7, 5), _at(12))

    def test_many_records_are_one_write(self) -> None:
        """A write of thousands of records counts as one."""
        sink = self.make_sink()
        writer = sink.open(_PLACE)
        writer.write(self._records(0, 3_000), None, _at(3_000))
        writer.close()
        self._expect(sink, self._records(0, 3_000), _at(3_000))

    def test_each_place_has_a_position_of_its_own(self) -> None:
        """Partitions, topics, sinks and applications share a target, and no position."""
        sink = self.make_sink()
        others = [
            replace(_PLACE, partition=1), replace(_PLACE, topic="other"), replace(_PLACE, sink="other"),
            replace(_PLACE, application_id="other"),
        ]  # fmt: skip
        expected: list[SinkRecord] = []
        for number, place in enumerate([_PLACE, *others]):
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
        writer = sink.open(_PLACE)
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
        zombie, successor = sink.open(_PLACE), sink.open(_PLACE)
        successor.write(self._records(0, 3), None, _at(3))
        self._expect_raised(SinkMovedError, lambda: zombie.write(self._records(0, 5), None, _at(5)))
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
            writers = [sink.open(_PLACE), sink.open(_PLACE)]
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

        def interrupt() -> None:
            raise Interrupted

        for step in self._steps():
            sink = self.make_sink()
            self._write(sink, self._records(0, 3), None, _at(3))
            writer = sink.open(_PLACE)
            try:
                call_at_step(step, interrupt, partial(writer.write, self._records(3, 4), _at(3), _at(7)))
            except BaseException as error:
                if not was_interrupted(error):
                    raise
            writer.close()
            self._expect_all_or_nothing(sink, f"interrupted before step {step}")

    def test_a_killed_process_leaves_all_or_nothing(self) -> None:
        """A process that is killed before any step of a write has written all, with the position, or nothing."""
        if not self.outlives_processes:
            return

        def kill() -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        for step in self._steps()[::2]:
            sink = self.make_sink()
            self._write(sink, self._records(0, 3), None, _at(3))
            child = os.fork()
            if child == 0:
                try:
                    writer = sink.open(_PLACE)
                    call_at_step(step, kill, partial(writer.write, self._records(3, 4), _at(3), _at(7)))
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            self._expect_all_or_nothing(sink, f"killed before step {step}")

    def test_what_is_wrong_is_said_at_the_opening(self) -> None:
        """A target that a person has to repair is a SinkError; one that is away is a SinkUnavailableError."""
        for broken in self.broken_sinks():
            error = self._expect_raised(SinkError, partial(broken.open, _PLACE))
            assert not isinstance(error, SinkUnavailableError), f"{broken}: {error!r} would be tried again for ever"
        away = self.away_sink()
        if away is not None:
            self._expect_raised(SinkUnavailableError, lambda: away.open(_PLACE))

    # ------------------------------------------------------------------ helpers

    def _records(self, first: int, count: int) -> list[SinkRecord]:
        return [
            SinkRecord(f"key {number}", self.value(number), number, (), number)
            for number in range(first, first + count)
        ]

    def _write(
        self, sink: Sink, records: Sequence[SinkRecord], follows: SinkPosition | None, ends: SinkPosition
    ) -> None:
        writer = sink.open(_PLACE)
        try:
            writer.write(records, follows, ends)
        finally:
            writer.close()

    def _steps(self) -> list[int]:
        """Return the steps of a write before which it is to end."""
        sink, count = self.make_sink(), 0
        self._write(sink, self._records(0, 3), None, _at(3))
        writer = sink.open(_PLACE)
        count = call_at_step(-1, lambda: None, lambda: writer.write(self._records(3, 4), _at(3), _at(7)))
        writer.close()
        return list(range(1, count + 1, max(1, count // _MOST_STEPS)))

    def _expect_refusal(
        self,
        sink: Sink,
        kind: type[SinkError],
        records: Sequence[SinkRecord],
        follows: SinkPosition | None,
        ends: SinkPosition,
    ) -> None:
        self._expect_raised(kind, lambda: self._write(sink, records, follows, ends))

    def _expect_raised(self, kind: type[SinkError], call: Callable[[], object]) -> SinkError:
        try:
            call()
        except kind as error:
            return error
        except Exception as error:
            raise AssertionError(f"expected {kind.__name__}, and it raised {error!r}") from error
        raise AssertionError(f"expected {kind.__name__}, and it raised nothing")

    def _expect(self, sink: Sink, records: Sequence[SinkRecord], position: SinkPosition) -> None:
        expected = sorted((repr(record.key), repr(record.value)) for record in records)
        found = sorted((repr(key), repr(value)) for key, value in self.content(sink))
        assert found == expected, (
            f"the target has {len(found)} records, expected {len(expected)}; not expected: "
            f"{[each for each in found if each not in expected][:5]}, lacking: "
            f"{[each for each in expected if each not in found][:5]}"
        )
        self._expect_position(sink, _PLACE, position)

    def _expect_position(self, sink: Sink, place: SinkPlace, position: SinkPosition) -> None:
        writer: SinkWriter = sink.open(place)
        found = writer.position
        writer.close()
        assert found == position, f"the position of {place} is {found}, expected {position}"

    def _expect_all_or_nothing(self, sink: Sink, when: str) -> None:
        writer = sink.open(_PLACE)
        position = writer.position
        writer.close()
        assert position in (_at(3), _at(7)), f"{when}, the position is {position}"
        self._expect(sink, self._records(0, 3 if position == _at(3) else 7), position)
