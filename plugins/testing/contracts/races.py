"""Two calls at once: one is stopped at a step while another thread or process makes the other one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, Pipe
from threading import Thread
from typing import Any, Protocol

from .child import Step, act_in_steps, answer

Outcome = tuple[list[str], Any]
"""What each of the two calls returned or raised, and what each did afterwards; and what is there at the end."""

_RULE = "two calls at once must end as one after the other"
_LEAST_PATIENCE = 0.03
_FREES = re.compile("release|unlock|flock|lockf")
"""In the names of functions that free a lock. Between two locks there may be one step, and many where one is held."""


class Side(Protocol):
    """What a side of races does. Each method but these two gets ready, and returns the call that is raced."""

    afterwards: Callable[[], object]
    """Called when both calls have ended: it shows, for instance, who has a task now."""

    def begin(self, name: str, number: int) -> None:
        """Begin the race of a number, as "one", which is stopped, or "two"."""
        ...

    def end(self) -> None:
        """Free what the race before has opened."""
        ...


def act_as(connection: Connection, side: Side, call: str, error: type[Exception]) -> None:
    """For each race: get ready, act, wait where that is to be stopped, and send the outcome and the steps.

    `error` is the type that the interface raises; other ones are in the outcome with their message.
    """

    def outcome_of(act: Callable[[], object]) -> str:
        try:
            return repr(act())
        except error as raised:
            return type(raised).__name__
        except Exception as raised:
            return f"{type(raised).__name__}: {raised}"

    def stop() -> None:
        connection.send("stopped")
        connection.recv()

    while True:
        try:
            side.begin(*connection.recv())
            act = getattr(side, call.replace(" ", "_"))()
            connection.send("ready")
            place = connection.recv()
        except (EOFError, OSError):
            side.end()
            return
        outcomes: list[str] = []
        places = [] if place is None else [place]
        steps: list[Step] = []
        act_in_steps(partial(_keep, outcomes, outcome_of, act), places, stop, steps)
        # The last step is the end of the call: what stops there ends as one call after the other does.
        connection.send((outcomes[0], steps[:-1]))
        connection.recv()
        connection.send(outcome_of(side.afterwards))


def _keep(outcomes: list[str], outcome_of: Callable[[Callable[[], object]], str], act: Callable[[], object]) -> None:
    outcomes.append(outcome_of(act))


@contextmanager
def thread_as(side: Side, call: str, error: type[Exception]) -> Iterator[Connection]:
    """Let a thread of this process act as a side."""
    ours, theirs = Pipe()
    thread = Thread(target=act_as, args=(theirs, side, call, error), daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(60)


class Race:
    """Lets two sides act at once, each a connection to a thread or a process; `look` returns what is there then."""

    def __init__(self, held: Connection, other: Connection, look: Callable[[int], Any]) -> None:
        self._held = held
        self._other = other
        self._look = look
        self._number = 0
        self._steps: list[Step] = []
        self._waited = False
        self._patience = 60.0
        """Seconds that the other call gets to show that it waits for the held one."""

    def check(self, most: int, what: str, error: type[Exception]) -> None:
        """Stop one call at about `most` of its steps, and where it has just freed a lock.

        Raises AssertionError where the outcome is that of no order.
        """
        allowed = []
        # The held call begins when the other has not: its steps are those of the order in which it is first. That
        # order is the second here, when no step is one of a first call alone.
        for is_other_first in (True, False):
            began = time.monotonic()
            allowed.append(self._run(None, is_other_first=is_other_first))
            self._patience = max(_LEAST_PATIENCE, 5 * (time.monotonic() - began))
        closed = number = 0
        firsts = sum(each.time == 1 for each in self._steps)
        for before, place in zip([None, *self._steps], self._steps):
            number += place.time == 1
            if before is None or not _FREES.search(before.called):
                if place.time > 1 or (number - 1) % -(-firsts // most):
                    continue
                # Where a lock is held, the other one waits: the neighbours of such a step add nothing.
                closed -= 1
                if closed > 0:
                    continue
            where = f"{what}, which came when the first was before {place}"
            try:
                found = self._run(place)
            except Exception as raised:
                raise AssertionError(f"{where}; then it raised {raised!r}; {_RULE}") from raised
            closed = 3 if self._waited else 0
            assert any(_agree(found, each, error.__name__) for each in allowed), (
                f"{where}: found {found}; in this order it is {allowed[1]}, in the other {allowed[0]}; {_RULE}"
            )

    def _run(self, place: Step | None, *, is_other_first: bool = False) -> Outcome:
        """Let both act, the other one while the held one is stopped at a step; without one, one after the other."""
        self._number += 1
        sides = [self._held, self._other]
        for each, name in zip(sides, ("one", "two"), strict=True):
            each.send((name, self._number))
            ready = answer(each)
            assert ready == "ready", f"a side that gets ready answers {ready!r}"
        if place is None:
            for side in sides[::-1] if is_other_first else sides:
                side.send(None)
                assert side.poll(60), "a call did not end within a minute"
        else:
            self._held.send(place)
            assert self._held.poll(60), "a call did not end within a minute"
            first = answer(self._held)
            self._other.send(None)
            self._waited = first == "stopped" and not self._other.poll(self._patience)
            if first == "stopped":
                self._held.send("go on")
        if place is None or first == "stopped":
            first = answer(self._held)
        self._steps = first[1] if place is None else self._steps
        outcomes = [first[0], answer(self._other)[0]]
        for side in sides:
            side.send("go on")
            outcomes.append(answer(side))
        return outcomes, self._look(self._number)


def _agree(found: Outcome, expected: Outcome, unknown: str) -> bool:
    """Return whether two outcomes are one; the outcome of a call that raised the `unknown` error itself is unknown."""
    calls: Sequence[tuple[str, str]] = list(zip(found[0], expected[0], strict=True))
    return found[1] == expected[1] and all(one in (two, unknown) for one, two in calls)
