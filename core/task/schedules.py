"""The schedules of a task: which punctuator is due when, and how a re-opened task finds each of them again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import count
from typing import Any, cast

from ..clock import Duration, PunctuationType, Punctuator, Times, duration_ms
from ..errors import ConfigError
from ..program.wrapping import innermost
from .saved_schedules import SavedNames, SavedSchedules, Texts
from .schedule import NEVER as NEVER
from .schedule import (
    TIMES_INTERVAL_MS,
    Request,
    Schedule,
    check_request,
    first_due,
    is_name,
    method_name,
    next_time,
    read_times,
    too_many,
)

_LATEST = 9_999_999_999_999
"""The largest time of 13 digits, as the wall clock has them. To count room, due times are taken to be that long."""


class Schedules:
    """All schedules of one task.

    A schedule is saved under its node's name, or the first of its `names`, and the key of its `Request`. `saved` is the
    `engine_state` of the last commit.
    `changed` is called when something must be saved that no record or firing shows.

    For each node in turn call `begin`, run the processor's `init`, and call `end`; then `end_all` once.
    """

    def __init__(self, saved: Mapping[str, Any], changed: Callable[[], None], names: SavedNames | None = None) -> None:
        self._changed = changed
        self.saved = SavedSchedules(saved, names or {})
        self._all: list[Schedule] = []
        self._processors: dict[str, object] = {}
        self._named: dict[tuple[str, str], Punctuator] = {}
        self._initialising = False
        self._counter = count()

    # ------------------------------------------------------------------ opening

    def begin(self, node: str, processor: object) -> None:
        """Begin the `init` of a node's processor.

        Methods are looked up on the innermost processor, without its wrappers.
        """
        self._processors[node] = innermost(processor)
        self.saved.begin(node)
        self._initialising = True

    def end(self, node: str) -> None:
        """End the node's `init`.

        A saved schedule that `init` did not make again continues if it was made after `init`; else it ends.
        """
        self._initialising = False
        for key, text in self.saved.end(node):
            if not self._restore(node, key, text):
                self.saved.keep(node, key, text)

    def end_all(self) -> None:
        """End the initialization of all nodes. Schedules of removed nodes are kept for a later program."""
        self.saved.end_all()

    def _restore(self, node: str, key: str, text: str) -> bool:
        """Make a schedule again that was made after `init`; return False if its callback is gone."""
        schedule = Schedule(self.cancel, node, key)
        punctuator = self._read(schedule, text)
        if punctuator is None:
            return False
        schedule.punctuator = punctuator
        self._all.append(schedule)
        return True

    def _read(self, schedule: Schedule, text: str) -> Punctuator | None:
        """Set a schedule to the saved text of one made after `init`; return its callback, None if that is gone."""
        times, interval, rank, *method = text.split("/", 3)
        schedule.kind, schedule.due = read_times(times)
        schedule.interval, schedule.order, schedule.times = int(interval), (1, int(rank)), None
        schedule.method = method[0] if method else schedule.key[1:] if schedule.key.startswith(".") else None
        # Higher than any rank: these come first.
        self._counter = count(max(next(self._counter), int(rank) + 1))
        if schedule.method is not None:
            found: Punctuator | None = getattr(self._processors[schedule.node], schedule.method, None)
            return found if callable(found) else None
        return self._named.get((schedule.node, schedule.key))

    # ------------------------------------------------------------------ what processors ask for

    def add(
        self,
        node: str,
        interval: Duration | Times,
        punctuator: Punctuator,
        clock: PunctuationType,
        start: int | None,
        name: str | None,
        *,
        now: int,
        room: Callable[[], int],
        firing: Schedule | None = None,
    ) -> Schedule:
        """Return the schedule that a processor of `node` asks for. `now` is the time that `clock` shows.

        `room` returns how many bytes all schedules may take. `firing` is the schedule whose punctuator asks, if one
        does. Raises ConfigError for a wrong value, for too many, and for a punctuator that a re-opened task could not
        find again.
        """
        check_request(node, punctuator, clock, start, name)
        times = self._times(node, interval, start)
        every = TIMES_INTERVAL_MS
        if times is None:
            every = duration_ms(cast(Duration, interval), f"node {node!r}: punctuation interval", may_be_negative=True)
        if every < 1:
            raise ConfigError(f"node {node!r}: a punctuation interval must be at least 1 ms, found {every} ms")
        method = method_name(self._processors.get(node), punctuator)
        key = name if name is not None else "" if method is None else f".{method}"
        due = first_due(clock, every, start, now) if times is None else next_time(node, times, now)
        if (
            firing is not None
            and firing.node == node
            and due <= now
            and (firing.key == key or firing.punctuator == punctuator)
        ):
            # Or it would be due again as soon as it returns, for ever.
            due += ((now - due) // every + 1) * every
        if method is None and not self._initialising:
            punctuator = self._callback(node, punctuator, name)
        request = Request(node, key, method, clock, every, due, punctuator, times)
        if self._initialising:
            schedule = self._add_in_init(request, now)
            undo = schedule.cancel
        else:
            schedule, undo = self._add_later(request)
        size = len(json.dumps(self.to_data(_LATEST), separators=(",", ":")))
        if size > (most := room()):
            undo()
            raise ConfigError(too_many(node, sum(not each.cancelled for each in self._all), size, most))
        return schedule

    def _times(self, node: str, interval: Duration | Times, start: int | None) -> Times | None:
        """Return the interval if it is Times. Raises ConfigError where these cannot be."""
        if not callable(getattr(interval, "next_after", None)):
            return None
        if start is not None:
            raise ConfigError(f"node {node!r}: {interval!r} says when it is due, so the schedule takes no start")
        if not self._initialising:
            raise ConfigError(
                f"node {node!r}: schedules {interval!r} outside init, and a re-opened task could not find these times "
                "again: schedule them in init, and cancel them there or later"
            )
        return cast(Times, interval)

    def _add_in_init(self, request: Request, now: int) -> Schedule:
        node, key, kind = request.node, request.key, request.kind
        if is_name(key):
            if (node, key) in self._named:
                raise ConfigError(
                    f"node {node!r}: its init makes two schedules with the name {key!r}; a name is one schedule of a "
                    "node"
                )
            self._named[node, key] = request.punctuator
        schedule = Schedule(self.cancel, node, key)
        schedule.from_init = True
        schedule.set(request, (0, next(self._counter)))
        self._all.append(schedule)
        found, text = self.saved.claim(key, kind)
        schedule.is_kept = found
        if not found:
            if kind is PunctuationType.WALL_CLOCK_TIME:
                # It counts from now: unless that is committed, a task that moves before the first record counts anew.
                self._changed()
        elif text is None:
            schedule.cancelled = True
        elif "/" in text:
            schedule.punctuator = self._read(schedule, text) or request.punctuator
        else:
            due, times = read_times(text)[1], request.times
            if times is None or due <= now or next_time(node, times, due - 1) == due:
                schedule.due = due  # else it was due at other times before, and this is none any more
        return schedule

    def _add_later(self, request: Request) -> tuple[Schedule, Callable[[], None]]:
        """Return a live schedule, and a function that takes the call back."""
        node, key = request.node, request.key
        self._all = [each for each in self._all if each.from_init or not each.cancelled]
        own = [each for each in self._all if each.node == node and each.key == key]
        places = own if is_name(key) else [each for each in own if each.from_init and each.cancelled]
        schedule = places[0] if places else Schedule(self.cancel, node, key)
        if not places:
            schedule.cancelled = True
            self._all.append(schedule)
        before = copy(schedule)
        schedule.set(request, (1, next(self._counter)))
        self._changed()
        if is_name(key):
            self.saved.forget(node, key)

        def undo() -> None:
            values = Request(
                node, key, before.method, before.kind, before.interval, before.due, before.punctuator, before.times
            )
            schedule.set(values, before.order)
            schedule.cancelled = before.cancelled

        return schedule, undo

    def _callback(self, node: str, punctuator: Punctuator, name: str | None) -> Punctuator:
        """Return the callback that `init` gave under a name. Raises ConfigError if it gave none."""
        if name is not None and (node, name) in self._named:
            return self._named[node, name]
        named = "" if name is None else f" with the name {name!r}, to which init gives no callback"
        raise ConfigError(
            f"node {node!r}: schedules {punctuator!r} outside init{named}, and a re-opened task could not find that "
            "function again. Schedule a method of the processor; or have init schedule the function with a name (and "
            "cancel it there if it is not to run yet), and give schedule the same name here"
        )

    def cancel(self, schedule: Schedule) -> None:
        """End a schedule.

        `init` cannot end a saved one: it did that when the task was first opened, and later calls count.
        """
        if not schedule.cancelled and not (self._initialising and schedule.is_kept):
            schedule.cancelled = True
            self._changed()

    # ------------------------------------------------------------------ what is due

    def __bool__(self) -> bool:
        """Return whether there was any schedule."""
        return bool(self._all)

    def next_due(self, kind: PunctuationType, due_of: Callable[[Schedule], int] = lambda each: each.due) -> int:
        """Return when the next schedule of a clock is due (ms), or `NEVER`. `due_of`: one schedule's due time."""
        return min(map(due_of, self._live(kind)), default=NEVER)

    def nodes(self, kind: PunctuationType) -> list[str]:
        """Return the nodes that have a live schedule of a clock."""
        return list(dict.fromkeys(each.node for each in self._live(kind)))

    def take_due(self, kind: PunctuationType, time_of: Callable[[Schedule], int]) -> tuple[Schedule, int] | None:
        """Return the first schedule that is due and the time of its clock, its due time moved past that; None if none.

        `time_of` returns the time (ms) that the clock of a schedule shows.
        """
        due = [each for each in self._live(kind) if each.due <= time_of(each)]
        if not due:
            return None
        # Those that wait for what is in front of them come last, and of a chain in one task the first one first.
        schedule = min(due, key=lambda each: (each.waits, 0 if each.waits else each.due, each.order))
        now = time_of(schedule)
        schedule.pass_by(now)
        return schedule, now

    def _live(self, kind: PunctuationType) -> Iterator[Schedule]:
        return (each for each in self._all if each.kind is kind and not each.cancelled)

    # ------------------------------------------------------------------ saving

    def to_data(self, least: int = 0) -> Texts:
        """Return the schedules to save, by node and key: those of `init` first, None for a cancelled one.

        Due times are at least `least`.
        """
        live = [each for each in self._all if not each.cancelled]
        later = sorted(each.order for each in live if each.order[0])
        ranks = {order: rank for rank, order in enumerate(later)}
        data: Texts = {}
        for each in self._all:
            if each.from_init or not each.cancelled:
                text = None if each.cancelled else each.to_text(ranks.get(each.order, 0), least)
                data.setdefault(self.saved.name(each.node), {}).setdefault(each.key, []).append(text)
        self.saved.add_to(data)
        return data
