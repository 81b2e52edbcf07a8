"""TaskProgress: the position of a task in its work. Every part of the task reads it, and no part keeps a copy."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Protocol

from ..record import Record, RecordBatch, RecordMetadata
from ..store.record_cache import RecordContext, SourceRecord

_new = tuple.__new__


class Front(NamedTuple):
    """How far everything in front of a task has been read: its inputs, and those of tasks whose topics it reads.

    `time`: the wall-clock time (ms) as of which all of it has been read; 0 where only its own inputs are known to have
    been read since the task was opened, -1 before that. `read`: number of input offsets read by upstream tasks with
    stores; it changes whenever something is read there whose results may come later. `is_last`: the run ends after it,
    so a task waits for no empty input.
    """

    time: int
    read: int = 0
    is_last: bool = False


class CurrentInput(Protocol):
    """The input partition that the current record was read from."""

    batch: RecordBatch | None

    def column_index(self, index: int) -> int:
        """Return the index of decoded record `index` in the batch's columns."""
        ...


Current = tuple[CurrentInput | None, SourceRecord | None, Record | None, int, Hashable]
"""The input and the source record of what is active, the record itself, the stream time, and the occasion."""


class TaskProgress:
    """The clocks of one task (ms), its current record, and requests since the last commit."""

    __slots__ = (
        "stream_time", "wall_clock", "commit_requested", "needs_attention", "must_end", "is_out_of_time", "is_firing",
        "has_changed", "input", "remaining", "last", "last_timestamp", "record", "flushed", "keeps_sources",
        "opened_at", "driver_clock", "front", "occasion", "time_of_all", "read_at",
    )  # fmt: skip

    def __init__(self, wall_clock_ms: int) -> None:
        self.stream_time = -1
        """The highest timestamp processed; -1 before the first record."""
        self.time_of_all = -1
        """The stream time as of the present commit; while records are in flight, that of the nodes behind them."""
        self.wall_clock = self.opened_at = self.driver_clock = wall_clock_ms
        """What the driver's clock showed when the task's was at `wall_clock`: less where it was set back."""
        self.read_at = -1
        """When the task last processed a record, by its wall clock."""
        self.front = Front(-1)
        self.occasion: Hashable = None
        """The active punctuator, timer or visited row, the same in all attempts; None: a record is active."""
        self.commit_requested = False
        """A processor asked for a commit after the current record."""
        self.needs_attention = False
        """The loop over records has to look at schedules and `must_end` before the next record."""
        self.must_end = False
        """The loop over records ends after the current one: a commit was requested, or the driver has no more time."""
        self.is_out_of_time = False
        """The driver has no more time: no further punctuator or timer is called for now."""
        self.is_firing = False
        """Punctuators or timers of the stream time are due that the driver had no time for; they precede any record."""
        self.has_changed = False
        """The next commit has to save a change that neither a record nor a store shows."""
        self.last_timestamp = -1
        """The timestamp of the last record of the last stretch of records; -1 before the first."""
        self.input: CurrentInput | None = None
        """Where the current record was read; None between records and in a punctuator."""
        self.record: Record | None = None
        """The record that a node with a record cache processes now."""
        self.flushed: SourceRecord | None = None
        """The source record that last wrote the entry which a record cache forwards now."""
        self.keeps_sources = False
        """Record caches keep the source record of each update with its content, and not its place alone."""
        # The iterator of the loop over records knows how far the loop is, so the loop counts nothing for each record.
        self.remaining: Iterator[Any] = iter(())
        self.last = -1

    def move_wall_clock(self, driver_ms: int) -> None:
        """Advance the wall clock towards the driver's (ms).

        It never goes back, because stores forget expired rows. After the driver's clock was set back, this clock runs
        at half speed until the driver's has caught up, so that schedules do not rest.
        """
        if driver_ms >= self.wall_clock:
            self.wall_clock = self.driver_clock = driver_ms
        else:
            half, odd = divmod(max(0, driver_ms - self.driver_clock), 2)
            self.wall_clock += half
            self.driver_clock = driver_ms - odd

    def note_driver_clock(self, driver_ms: int) -> None:
        """Record it if the driver's clock was set back, also where the task has nothing to do."""
        if driver_ms < self.driver_clock:
            self.move_wall_clock(driver_ms)

    def driver_time_of(self, wall_clock_ms: int) -> int:
        """Return the driver's clock reading at which the wall clock reaches a time (ms)."""
        since = self.driver_clock
        if since >= self.wall_clock:
            return wall_clock_ms
        return min(wall_clock_ms, since + max(0, 2 * (wall_clock_ms - self.wall_clock)))

    def own_front(self, front: Front) -> Front:
        """Convert a front from the driver's clock to the wall clock, which may be ahead.

        The result is never later than the wall clock. The front may be older than a setback of the driver's clock.
        """
        ahead = self.wall_clock - self.driver_clock
        if ahead <= 0 or front.time <= 0:
            return front
        return Front(min(front.time + ahead, self.wall_clock), front.read)

    def request_commit(self) -> None:
        """Request a commit after the current record."""
        self.commit_requested = self.must_end = self.needs_attention = True

    def end_soon(self) -> None:
        """End the loop after the current record or punctuator; any thread may call it."""
        # In this order: the loop clears `needs_attention` before it looks at the others.
        self.is_out_of_time = self.must_end = True
        self.needs_attention = True

    def begin(self) -> None:
        """Begin a stretch of work; it clears `end_soon`."""
        self.is_out_of_time, self.must_end = False, self.commit_requested

    def note_change(self) -> None:
        """Require a save with the next commit."""
        self.has_changed = True

    def take_change(self) -> bool:
        """Return whether the commit that is now made has to save something. It answers a request for one."""
        has_changed, self.has_changed = self.has_changed, False
        self.commit_requested = self.must_end = False
        return has_changed

    def current_index(self) -> int:
        """Return the index of the current record among the decoded ones of its input."""
        left: int = self.remaining.__length_hint__()  # type: ignore[attr-defined]
        return self.last - left

    def current_place(self) -> tuple[RecordBatch, int] | None:
        """Return the current record's batch and its index in the batch's columns; None without a current record."""
        current = self.input
        if current is None or current.batch is None:
            return None
        return current.batch, current.column_index(self.current_index())

    def current(self) -> Current:
        """Return what is active now, to make it active again after a record that had waited."""
        return self.input, self.flushed, self.record, self.stream_time, self.occasion

    def set_current(self, current: Current) -> None:
        """Make active again what `current` returned."""
        self.input, self.flushed, self.record, self.stream_time, self.occasion = current

    def set_occasion(self, occasion: Hashable) -> None:
        """Set the active punctuator, timer or row, so that each has attempts of its own; None after it."""
        self.occasion = occasion

    def source(self) -> SourceRecord | None:
        """Return the current record as it was read; None in a punctuator."""
        place = self.current_place()
        return self.flushed if place is None else source_at(*place)

    def record_metadata(self) -> RecordMetadata | None:
        """Return where the current record was read; None in a punctuator."""
        place = self.current_place()
        if place is None:
            return None if self.flushed is None else RecordMetadata(*self.flushed[:3])
        batch, column = place
        return RecordMetadata(batch.topic, batch.partition, batch.offsets[column])

    def record_context(self) -> RecordContext:
        """Return the record that a node with a record cache processes now."""
        current = self.input
        if self.keeps_sources or current is None or current.batch is None:
            source = self.source()
            if source is not None and not self.keeps_sources:
                source = SourceRecord(*source[:3])
        else:  # each put into a store with a record cache passes here
            batch, column = current.batch, current.column_index(self.current_index())
            source = _new(SourceRecord, (batch.topic, batch.partition, batch.offsets[column], None, None, (), -1))
        record = self.record
        if record is None:
            return RecordContext(self.stream_time, (), source)
        return _new(RecordContext, (record[2], record[3], source))


def source_at(batch: RecordBatch, column: int) -> SourceRecord:
    """Return a batch's record at an index of its columns."""
    return SourceRecord(
        batch.topic,
        batch.partition,
        batch.offsets[column],
        batch.keys[column],
        batch.values[column],
        batch.headers[column] if batch.headers is not None else (),
        batch.timestamps[column],
    )
