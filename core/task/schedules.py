"""The schedules of a task: which punctuator is due when, and how a re-opened task finds each of them again."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import count
from typing import Any

from ..clock import Duration, duration_ms
from ..errors import ConfigError
from ..punctuation import PunctuationType, Punctuator

_log = logging.getLogger("penstock.task.task")
NEVER = 1 << 62
"""A time that no clock reaches."""
_LATEST = 9_999_999_999_999
"""The largest time of 13 digits, as the wall clock has them: a due time of that size is what room is made for."""
_KINDS = {kind.value[0]: kind for kind in PunctuationType}


class Schedule:
    """One schedule of a node, as `schedule` returns it.

    One that `init` made is a place: after it was cancelled, the next schedule of the same callback takes the place. So the handle
    that `init` of a re-opened task gets is as good as the one it got at first.
    """

    __slots__ = (
        "_owner", "node", "key", "method", "kind", "interval", "due", "punctuator", "order", "cancelled", "from_init", "is_kept",
    )  # fmt: skip

    def __init__(self, owner: Schedules, node: str, key: str) -> None:
        self._owner = owner
        self.node = node
        self.key = key
        self.method: str | None = None
        self.kind = PunctuationType.STREAM_TIME
        self.interval = 1
        self.due = 0
        self.punctuator: Punctuator = _nothing
        self.order = (0, 0)
        """Of two that are due at the same time the lower fires first. It begins with 0 for what `init` made, and was not made again later."""
        self.cancelled = False
        self.from_init = False
        self.is_kept = False
        """It was found in what the last commit saved, and `init` cannot change it."""

    def cancel(self) -> None:
        """Never fire again; idempotent."""
        self._owner.cancel(self)

    def set(
        self,
        kind: PunctuationType,
        interval: int,
        due: int,
        punctuator: Punctuator,
        method: str | None,
        order: tuple[int, int],
    ) -> None:
        """Make it a live schedule with these values."""
        self.kind, self.interval, self.due, self.punctuator, self.method = kind, interval, due, punctuator, method
        self.order, self.cancelled = order, False

    def to_text(self, rank: int, least: int) -> str:
        """Return it as it is saved: clock and due time; if it was made after `init` also interval, rank and, where the key does not say it, method."""
        text = f"{self.kind.value[0]}{max(self.due, least)}"
        if self.order[0] == 0:
            return text
        method = f"/{self.method}" if self.method is not None and self.key != f".{self.method}" else ""
        return f"{text}/{self.interval}/{rank}{method}"


class Schedules:
    """All schedules of one task.

    A schedule is saved under its node and what finds its callback: the name that it was given, the name of the processor's method with a dot
    before it, or nothing for another callback, which only `init` may have. `saved` is the `engine_state` of the last commit; `changed` is called
    when something must be saved that no record or firing shows.

    For each node in turn call `begin`, run the processor's `init`, and call `end`; then `end_all` once.
    """

    def __init__(self, saved: Mapping[str, Any], changed: Callable[[], None]) -> None:
        self._changed = changed
        self._saved: dict[str, dict[str, list[str | None]]] = {
            node: {key: list(texts) for key, texts in keys.items()} for node, keys in saved.get("timers", {}).items()
        }
        self._positional: Mapping[str, Mapping[str, list[int | None]]] = saved.get("due", {})
        self._parked: dict[str, dict[str, list[str]]] = {}
        self._all: list[Schedule] = []
        self._processors: dict[str, object] = {}
        self._named: dict[tuple[str, str], Punctuator] = {}
        self._claims: dict[str, deque[str | None]] = {}
        self._initialising = False
        self._counter = count()

    # ------------------------------------------------------------------ opening

    def begin(self, node: str, processor: object) -> None:
        """Note that `init` of a node's processor runs from now on."""
        self._processors[node] = processor
        self._claims = {key: deque(texts) for key, texts in self._saved.pop(node, {}).items()}
        self._initialising = True

    def end(self, node: str) -> None:
        """Note that `init` has returned: what was saved and it did not make again goes on if it was made after `init`, and else ends."""
        self._initialising = False
        for key, texts in self._claims.items():
            for text in filter(None, texts):
                if "/" not in text:
                    _log.info("node %r: its init no longer makes a schedule that was saved: it ends", node)
                elif not self._restore(node, key, text):
                    self._park(node, key, text)
        self._claims = {}

    def end_all(self) -> None:
        """Note that every node has been initialised: schedules of nodes that are gone are kept for a program that has them."""
        for node, keys in self._saved.items():
            for key, texts in keys.items():
                for text in texts:
                    if text is not None and "/" in text:
                        self._park(node, key, text)
        self._saved = {}

    def _restore(self, node: str, key: str, text: str) -> bool:
        """Make a schedule from what was saved of one that was made after `init`; return False if its callback is gone."""
        schedule = Schedule(self, node, key)
        punctuator = self._read(schedule, text)
        if punctuator is None:
            return False
        schedule.punctuator = punctuator
        self._all.append(schedule)
        return True

    def _read(self, schedule: Schedule, text: str) -> Punctuator | None:
        """Set what was saved of a schedule that was made after `init`, and return its callback; None if that is gone."""
        times, interval, rank, *method = text.split("/", 3)
        schedule.kind, schedule.due = _times(times)
        schedule.interval, schedule.order = int(interval), (1, int(rank))
        schedule.method = method[0] if method else schedule.key[1:] if schedule.key.startswith(".") else None
        # Higher than any rank: these come first.
        self._counter = count(max(next(self._counter), int(rank) + 1))
        if schedule.method is not None:
            found: Punctuator | None = getattr(self._processors[schedule.node], schedule.method, None)
            return found if callable(found) else None
        return self._named.get((schedule.node, schedule.key))

    def _park(self, node: str, key: str, text: str) -> None:
        self._parked.setdefault(node, {}).setdefault(key, []).append(text)
        _log.warning(
            "node %r: the program no longer has %s, which a schedule of every %s ms that was saved calls. It does not fire, and is kept: "
            "put the callback back under that name, and it goes on",
            node,
            _described(key, text),
            text.split("/")[1],
        )

    # ------------------------------------------------------------------ what processors ask for

    def add(
        self,
        node: str,
        interval: Duration,
        punctuator: Punctuator,
        clock: PunctuationType,
        start: int | None,
        name: str | None,
        *,
        now: int,
        room: Callable[[], int],
        firing: Schedule | None = None,
    ) -> Schedule:
        """Return the schedule that a processor of `node` asks for, with its first due time after what `clock` shows (`now`).

        `room` answers how many bytes all schedules may take, and `firing` is the one whose punctuator asks, if one does. Raises ConfigError for
        a wrong value, for too many, and for a punctuator that a re-opened task could not find again.
        """
        _check(node, punctuator, clock, start, name)
        every = duration_ms(interval, f"node {node!r}: punctuation interval")
        if every < 1:
            raise ConfigError(f"node {node!r}: a punctuation interval must be at least 1 ms, found {every} ms")
        method = _method_name(self._processors.get(node), punctuator)
        key = name if name is not None else "" if method is None else f".{method}"
        due = _first_due(clock, every, start, now)
        if (
            firing is not None
            and firing.node == node
            and due <= now
            and (firing.key == key or firing.punctuator == punctuator)
        ):
            # Or it would be due again as soon as it returns, for ever.
            due += ((now - due) // every + 1) * every
        if self._initialising:
            schedule = self._add_in_init(node, key, method, clock, every, due, punctuator)
            undo = schedule.cancel
        else:
            if method is None:
                punctuator = self._given(node, punctuator, name)
            schedule, undo = self._add_later(node, key, method, clock, every, due, punctuator)
        size = len(json.dumps(self.to_data(_LATEST), separators=(",", ":")))
        if size > (most := room()):
            undo()
            raise ConfigError(_too_many(node, sum(not each.cancelled for each in self._all), size, most))
        return schedule

    def _add_in_init(
        self,
        node: str,
        key: str,
        method: str | None,
        kind: PunctuationType,
        interval: int,
        due: int,
        punctuator: Punctuator,
    ) -> Schedule:
        own = [each for each in self._all if each.node == node and each.from_init]
        if _is_name(key):
            if (node, key) in self._named:
                raise ConfigError(
                    f"node {node!r}: its init makes two schedules with the name {key!r}; a name is one schedule of a node"
                )
            self._named[node, key] = punctuator
        schedule = Schedule(self, node, key)
        schedule.from_init = True
        schedule.set(kind, interval, due, punctuator, method, (0, next(self._counter)))
        self._all.append(schedule)
        found, text = self._claim(node, key, kind, sum(each.kind is kind for each in own))
        schedule.is_kept = found
        if not found:
            if kind is PunctuationType.WALL_CLOCK_TIME:
                # It counts from now: unless that is committed, a task that moves before the first record counts anew.
                self._changed()
        elif text is None:
            schedule.cancelled = True
        elif "/" in text:
            schedule.punctuator = self._read(schedule, text) or punctuator
        else:
            schedule.due = _times(text)[1]
        return schedule

    def _claim(self, node: str, key: str, kind: PunctuationType, position: int) -> tuple[bool, str | None]:
        """Return whether something was saved of the next schedule that `init` makes with this key, and what (None: that it was cancelled)."""
        positional = self._positional.get(node, {}).get(kind.value, [])
        if position < len(positional):
            due = positional[position]
            return True, None if due is None else f"{kind.value[0]}{due}"
        texts = self._claims.get(key)
        if not texts:
            return False, None
        text = texts.popleft()
        # With another clock it is another schedule.
        return (False, None) if text is not None and "/" not in text and _times(text)[0] is not kind else (True, text)

    def _add_later(
        self,
        node: str,
        key: str,
        method: str | None,
        kind: PunctuationType,
        interval: int,
        due: int,
        punctuator: Punctuator,
    ) -> tuple[Schedule, Callable[[], None]]:
        """Return a live schedule, and what takes the call back."""
        self._all = [each for each in self._all if each.from_init or not each.cancelled]
        own = [each for each in self._all if each.node == node and each.key == key]
        places = own if _is_name(key) else [each for each in own if each.from_init and each.cancelled]
        schedule = places[0] if places else Schedule(self, node, key)
        if not places:
            schedule.cancelled = True
            self._all.append(schedule)
        before = copy(schedule)
        schedule.set(kind, interval, due, punctuator, method, (1, next(self._counter)))
        self._changed()
        if _is_name(key):
            self._parked.get(node, {}).pop(key, None)

        def undo() -> None:
            schedule.set(before.kind, before.interval, before.due, before.punctuator, before.method, before.order)
            schedule.cancelled = before.cancelled

        return schedule, undo

    def _given(self, node: str, punctuator: Punctuator, name: str | None) -> Punctuator:
        """Return the callback that `init` gave under a name. Raises ConfigError when it gave none."""
        if name is not None and (node, name) in self._named:
            return self._named[node, name]
        named = "" if name is None else f" with the name {name!r}, to which init gives no callback"
        raise ConfigError(
            f"node {node!r}: schedules {punctuator!r} outside init{named}, and a re-opened task could not find that function again. Schedule a "
            "method of the processor; or have init schedule the function with a name (and cancel it there if it is not to run yet), and give "
            "schedule the same name here"
        )

    def cancel(self, schedule: Schedule) -> None:
        """End a schedule. `init` cannot end one that was saved: it did so when the task was opened first, and what came after counts."""
        if not schedule.cancelled and not (self._initialising and schedule.is_kept):
            schedule.cancelled = True
            self._changed()

    # ------------------------------------------------------------------ what is due

    def next_due(self, kind: PunctuationType) -> int:
        """Return when the next schedule of a clock is due (ms), `NEVER` when there is none."""
        return min((each.due for each in self._live(kind)), default=NEVER)

    def nodes(self, kind: PunctuationType) -> list[str]:
        """Return the nodes that have a live schedule of a clock."""
        return list(dict.fromkeys(each.node for each in self._live(kind)))

    def take_due(self, kind: PunctuationType, now: int) -> Schedule | None:
        """Return the schedule to fire first of those that are due at `now`, after its due time was moved past it; None if none is."""
        due = [each for each in self._live(kind) if each.due <= now]
        if not due:
            return None
        schedule = min(due, key=lambda each: (each.due, each.order))
        schedule.due += ((now - schedule.due) // schedule.interval + 1) * schedule.interval
        return schedule

    def _live(self, kind: PunctuationType) -> Iterator[Schedule]:
        return (each for each in self._all if each.kind is kind and not each.cancelled)

    # ------------------------------------------------------------------ saving

    def to_data(self, least: int = 0) -> dict[str, dict[str, list[str | None]]]:
        """Return what is to be saved: by node and key, first those of `init`, null for a cancelled one. Due times are at least `least`."""
        live = [each for each in self._all if not each.cancelled]
        later = sorted(each.order for each in live if each.order[0])
        ranks = {order: rank for rank, order in enumerate(later)}
        data: dict[str, dict[str, list[str | None]]] = {}
        for each in self._all:
            if each.from_init or not each.cancelled:
                text = None if each.cancelled else each.to_text(ranks.get(each.order, 0), least)
                data.setdefault(each.node, {}).setdefault(each.key, []).append(text)
        for node, keys in self._parked.items():
            for key, texts in keys.items():
                data.setdefault(node, {}).setdefault(key, []).extend(texts)
        return data


def _check(node: str, punctuator: Punctuator, clock: PunctuationType, start: int | None, name: str | None) -> None:
    if not callable(punctuator):
        raise ConfigError(f"node {node!r}: the punctuator {punctuator!r} is not callable")
    if not isinstance(clock, PunctuationType):
        raise ConfigError(f"node {node!r}: clock must be STREAM_TIME or WALL_CLOCK_TIME, found {clock!r}")
    if start is not None and (not isinstance(start, int) or start < 0):
        raise ConfigError(f"node {node!r}: start is in ms since the epoch, at least 0; found {start!r}")
    if name is not None and (not isinstance(name, str) or not name or name.startswith(".")):
        raise ConfigError(
            f"node {node!r}: the name of a schedule is text that does not begin with a dot, found {name!r}"
        )


def _first_due(kind: PunctuationType, interval: int, start: int | None, now: int) -> int:
    if kind is PunctuationType.STREAM_TIME:
        return start or 0
    if start is None:
        return now + interval
    missed = max(0, -(-(now - start) // interval))
    return start + missed * interval


def _method_name(processor: object, punctuator: Punctuator) -> str | None:
    """Return the name under which the processor has `punctuator` as a method; None if it has not."""
    function = getattr(punctuator, "__func__", None)
    if function is None or getattr(punctuator, "__self__", None) is not processor:
        return None
    # A name that begins with two underscores, or a decorated method, goes by another name than its function says.
    names = (name for each in type(processor).__mro__ for name, value in vars(each).items() if value is function)
    return next((name for name in names if getattr(type(processor), name) is function), None)


def _is_name(key: str) -> bool:
    """Return whether a key is a name that was given to `schedule`."""
    return key != "" and not key.startswith(".")


def _times(text: str) -> tuple[PunctuationType, int]:
    return _KINDS[text[0]], int(text[1:])


def _described(key: str, text: str) -> str:
    _, _, _, *method = text.split("/", 3)
    if method or key.startswith("."):
        return f"a method {method[0] if method else key[1:]!r} of that node's processor"
    return f"a callback that that node's init gives the name {key!r}"


def _too_many(node: str, many: int, size: int, most: int) -> str:
    return (
        f"node {node!r}: one schedule too many. The {many} of its task take {size} bytes where they are saved, with the task's positions, and there "
        f"is room for {most}. Cancel what is no longer needed; or keep in a store what is to be done and when, and let one punctuator go through it"
    )


def _nothing(now: int) -> None:
    """Do nothing: what a schedule calls before it is set."""
