"""Punctuators: calls scheduled functions and timers when they are due."""

from __future__ import annotations

from collections.abc import Callable

from ..clock import Duration, PunctuationType, Punctuator, Times
from ..support.callbacks import check_result
from .failures import RECORD_ERRORS, Failures
from .in_flight import InFlight
from .progress import TaskProgress
from .schedule import Schedule
from .schedules import NEVER, Schedules
from .timers import Timers

_TIMERS_WAIT_MS = 60_000
"""How long timers that were overdue when the task was opened wait for the records that wait, at most."""
_LOOK_MS = 50
"""Milliseconds until a held schedule is checked again."""


class Punctuators:
    """The punctuators of one task. `room` returns how many bytes of the engine's state schedules may take.

    What was overdue by the wall clock when the task was opened is held until the records that waited then are
    processed: they may change what it finds. A schedule is held for one interval at most, timers for a minute.
    `idle_ms` returns how long the task itself may wait with these records for an empty input (ms), 0 when it does not:
    what became due within that time is not held. A task that stays open calls it while the records wait, too.
    What nodes behind records in flight have scheduled by stream time is called when these have been handed on.
    """

    def __init__(
        self,
        schedules: Schedules,
        progress: TaskProgress,
        failures: Failures,
        room: Callable[[], int],
        idle_ms: Callable[[], int],
        in_flight: InFlight,
    ) -> None:
        self._schedules = schedules
        self._progress = progress
        self._failures = failures
        self._room = room
        self._idle_ms = idle_ms
        self._firing: Schedule | None = None
        self._in_flight = in_flight
        self.called = 0
        """How many punctuators were called."""
        self.timers = Timers(
            failures.outside_records,
            self._attend,
            lambda: progress.is_out_of_time,
            progress.set_occasion,
            in_flight,
        )
        self.let_go: Callable[[], object] = lambda: None
        """Lets records go that wait in batches; called before each punctuator."""
        self.let_all_go: Callable[[], object] = lambda: None
        """Lets go what waits in batches and record caches; called before each schedule for which silence counts."""
        self.stream_due = NEVER
        """The stream time (ms) at which the loop over records has to call `fire`."""

    def fire(self, kind: PunctuationType, now: int) -> bool:
        """Call every punctuator of a clock that is due at `now` (ms), the earliest first, and then the timers.

        Return whether any was due. Where the driver has no more time after one of them, the others are called later.
        """
        fired, progress = False, self._progress
        # One is called in any case: else a driver that never has time would call none.
        behind, passed = self._in_flight.behind, self._in_flight.time

        def stream_time_of(schedule: Schedule) -> int:
            return min(now, passed) if schedule.node in behind else now

        clock = self._wall_clock_of if kind is PunctuationType.WALL_CLOCK_TIME else stream_time_of
        while not (fired and progress.is_out_of_time):
            if fired:
                self.let_go()
            if kind is PunctuationType.WALL_CLOCK_TIME and self._schedules.next_due(kind, self._due_if_settled) <= now:
                self.let_all_go()
            taken = self._schedules.take_due(kind, clock)
            if taken is None:
                break
            schedule, time = taken
            fired = progress.has_changed = True
            self.called += 1
            self._firing = schedule
            progress.set_occasion((schedule.node, schedule.key))
            stream_time = self._in_flight.show_time(schedule.node)
            try:
                check_result(schedule.punctuator(time), "the punctuator")
            except RECORD_ERRORS as error:
                self._failures.outside_records(schedule.node, error)
            finally:
                self._in_flight.end_showing(stream_time)
                progress.set_occasion(None)
                self._firing = None
        are_held = kind is PunctuationType.WALL_CLOCK_TIME and self._are_timers_held()
        if not (are_held or (fired and progress.is_out_of_time)):
            fired |= self.timers.fire(kind, now)
        self.look_ahead()
        if kind is PunctuationType.STREAM_TIME:
            progress.is_firing = progress.is_out_of_time and self.stream_due <= now
        return fired

    def _wall_clock_of(self, schedule: Schedule) -> int:
        """Return the time of the wall clock that a schedule sees; -1 while it is held."""
        progress = self._progress
        if schedule.waits:
            return -1 if self._in_flight.holds(schedule.node) else progress.front.time
        return -1 if self._is_held(schedule.due, schedule.interval) else progress.wall_clock

    def _due_if_settled(self, schedule: Schedule) -> int:
        """Return when a schedule is due that waited for everything in front to be read; NEVER for others."""
        return schedule.due if schedule.waits and schedule.due <= self._wall_clock_of(schedule) else NEVER

    def _is_held(self, due: int, most_ms: int) -> bool:
        progress = self._progress
        if progress.front.time >= 0 or progress.wall_clock >= progress.opened_at + most_ms:
            return False
        return due <= progress.opened_at - self._idle_ms()

    def _are_timers_held(self) -> bool:
        return self._is_held(self.timers.next_due(PunctuationType.WALL_CLOCK_TIME), _TIMERS_WAIT_MS)

    @property
    def are_waiting(self) -> bool:
        """Whether a wall-clock schedule is due that waits until the inputs in front of the task are read."""
        now = self._progress.wall_clock
        return self._schedules.next_due(PunctuationType.WALL_CLOCK_TIME, _due_if_it_waits) <= now

    def next_call(self) -> int:
        """Return when (ms) the next call by the wall clock may be due: held schedules are checked again in a while."""
        wall_clock, kind = self._progress.wall_clock, PunctuationType.WALL_CLOCK_TIME
        again = wall_clock + _LOOK_MS

        def due_of(schedule: Schedule) -> int:
            is_held = schedule.due <= wall_clock and self._wall_clock_of(schedule) < schedule.due
            return again if is_held else schedule.due

        timers = again if self._are_timers_held() else self.timers.next_due(kind)
        return min(self._schedules.next_due(kind, due_of), timers)

    def postpone(self, now: int) -> None:
        """Keep stream-time punctuators that are due at `now` for the next `fire`: the driver's time is used up."""
        self.look_ahead()
        self._progress.is_firing = self.stream_due <= now

    def look_ahead(self) -> None:
        """Set `stream_due`, after schedules have changed."""
        behind = self._in_flight.behind
        if not (self._schedules or self.timers):
            self.stream_due = NEVER
            return
        if not behind:
            self.stream_due = min(self._schedules.next_due(PunctuationType.STREAM_TIME), self.timers.stream_due)
            return
        passed = self._in_flight.time

        def due_of(schedule: Schedule) -> int:
            return NEVER if schedule.node in behind and schedule.due > passed else schedule.due

        schedules = self._schedules.next_due(PunctuationType.STREAM_TIME, due_of)
        self.stream_due = min(schedules, self.timers.next_stream_due())

    def _attend(self) -> None:
        self._progress.needs_attention = True

    def next_due(self, kind: PunctuationType) -> int:
        """Return when the next punctuator or timer of a clock is due (ms), `NEVER` when there is none."""
        return min(self._schedules.next_due(kind), self.timers.next_due(kind))

    def nodes(self, kind: PunctuationType) -> list[str]:
        """Return the nodes that have a punctuator or a timer of a clock."""
        return list(dict.fromkeys([*self._schedules.nodes(kind), *self.timers.nodes(kind)]))

    def schedule(
        self,
        node: str,
        interval: Duration | Times,
        punctuator: Punctuator,
        clock: PunctuationType,
        start: int | None,
        name: str | None,
    ) -> Schedule:
        """Return the schedule that a node requests; in a re-opened task `init` gets its saved state."""
        progress = self._progress
        now = progress.stream_time if clock is PunctuationType.STREAM_TIME else progress.wall_clock
        schedule = self._schedules.add(
            node, interval, punctuator, clock, start, name, now=now, room=self._room, firing=self._firing
        )
        progress.needs_attention = True
        return schedule


def _due_if_it_waits(schedule: Schedule) -> int:
    return schedule.due if schedule.waits else NEVER
