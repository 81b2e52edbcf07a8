"""The part of `LogContract` about two calls at once: one is stopped at each of its steps while the other is made."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from penstock import LeaseTakenError, Log, ManualClock, UnknownTopicError

from .child import Step, answer
from .log_children import INPUTS, act_as, act_when_told, application_of, topic_of
from .log_processes import ProcessTests
from .log_tests import everything

Outcome = tuple[list[str], dict[str, Any]]
"""What each of the two calls returned or raised, and then a commit or renewal of each; and what is there at the end."""

_RULE = "two calls at once must end as one after the other"
_LEAST_PATIENCE = 0.03
_ROUND_MS = 1_000_000
"""By how much the clock is ahead in the next round: leases of the one before have expired."""
RACES = (
    ("commits", "opens"), ("opens", "commits"), ("opens", "opens"), ("commits", "forgets"), ("forgets", "commits"),
    ("forgets", "opens"), ("opens", "forgets"), ("sets positions", "commits"), ("commits", "sets positions"),
    ("sets positions", "looks"), ("commits", "commits another task"), ("commits", "appends"), ("appends", "commits"),
    ("appends", "appends"), ("counts", "counts"), ("counts", "notes"), ("notes", "counts"), ("leads", "leads"),
    ("renews late", "leads late"), ("leads late", "renews late"), ("notes late", "leads late"),
    ("leads late", "notes late"), ("releases late", "leads late"), ("leads late", "releases late"),
    ("creates", "creates"), ("ensures", "ensures"), ("creates", "deletes"), ("deletes", "creates"),
    ("deletes", "appends to it"), ("appends to it", "deletes"),
)  # fmt: skip
"""What is stopped, and what is done meanwhile; functions of these names are in `log_children`."""
_CASES = [
    (held, other, by)
    for held, other in RACES
    for by in ("another thread", "another process")
    # Threads have one clock: what is late for one of them is late for both.
    if by == "another process" or not f"{held} {other}".count("late")
]


class RaceTests(ProcessTests):
    """Two calls at once end as one after the other does, in one of the two orders, whatever comes between."""

    races: ClassVar[int] = 12
    """In how many places of a call another one is made, at most (0: none)."""

    @pytest.mark.parametrize(("held", "other", "by"), _CASES, ids=lambda name: str(name).replace(" ", "-"))
    def test_two_calls_at_once(self, tmp_path: Path, clock: ManualClock, held: str, other: str, by: str) -> None:
        """The log is thread-safe, and other processes use it: a zombie, a successor, a reset, another driver."""
        if not self.races:
            pytest.skip("`races` of this suite is 0")
        with self._race(tmp_path, clock, held, other, by) as race:
            allowed = [race.run(None), race.run(None, is_other_first=True)]
            race.patience = max(_LEAST_PATIENCE, 5 * race.seconds)
            closed = 0
            for place in _spread(race.steps, self.races):
                # Where a lock is held, the other one waits: the neighbours of such a step add nothing.
                closed -= 1
                if closed > 0:
                    continue
                where = f"what {held!r} does was stopped before {place}, and {by} did what {other!r} does"
                try:
                    found = race.run(place)
                except Exception as error:
                    raise AssertionError(f"{where}; then it raised {error!r}; {_RULE}") from error
                closed = 3 if race.waited else 0
                assert any(_agree(found, each) for each in allowed), (
                    f"{where}: found {found}; in this order it is {allowed[0]}, in the other {allowed[1]}; {_RULE}"
                )

    @contextmanager
    def _race(self, directory: Path, clock: ManualClock, held: str, other: str, by: str) -> Iterator[_Race]:
        with ExitStack() as stack:
            log = stack.enter_context(closing(self._prepared(directory, clock)))
            if by == "another process":
                work = self.open_log, (directory, clock.now_ms()), other
                theirs = stack.enter_context(self.children().started(act_when_told, *work))
            else:
                theirs = stack.enter_context(_thread(log, clock, other))
            ours = stack.enter_context(_thread(log, clock, held))
            yield _Race(log, clock, ours, theirs)


class _Race:
    """One side is stopped, and the other acts; each is a connection to a thread or a process."""

    def __init__(self, log: Log, clock: ManualClock, held: Connection, other: Connection) -> None:
        self._log = log
        self._clock = clock
        self._held = held
        self._other = other
        self._number = 0
        self.steps: list[Step] = []
        """Those of the held call."""
        self.seconds = 0.0
        """How long a round takes."""
        self.patience = 60.0
        """Seconds that the other call gets to show that it waits for the held one."""
        self.waited = False

    def run(self, place: Step | None, *, is_other_first: bool = False) -> Outcome:
        """Let both act, the other one while the held one is stopped at a step; without one, one after the other."""
        self._number += 1
        began = time.monotonic()
        for each, name in ((self._held, b"-one"), (self._other, b"-two")):
            each.send((name, self._number, _ROUND_MS * self._number))
            assert answer(each) == "ready", "the side is not ready"
        sides = [self._held, self._other]
        for side in sides[::-1] if is_other_first else sides:
            side.send(place if side is self._held else None)
            if place is None:
                assert side.poll(60), "a call did not end within a minute"
            elif side is self._held:
                first = answer(side)
                is_stopped = first == "stopped"
        if place is not None:
            self.waited = is_stopped and not self._other.poll(self.patience)
            if is_stopped:
                self._held.send("go on")
                first = answer(self._held)
        else:
            first = answer(self._held)
            self.steps = first[1]
        outcomes = [first[0], answer(self._other)[0]]
        for side in sides:
            side.send("go on")
            outcomes.append(answer(side))
        self.seconds = time.monotonic() - began
        return outcomes, self._look()

    def _look(self) -> dict[str, Any]:
        log, number = self._log, self._number
        name = application_of(number)
        return {
            "outputs": sorted(each.value or b"" for each in everything(log, "out") if each.key == b"%d" % number),
            "positions": [log.committed(name, INPUTS)[each] for each in INPUTS],
            "commits": [_version(log, name, task, each) for task, each in zip(("0_0", "0_1"), INPUTS, strict=True)],
            "note": log.get_meta(name, "note"),
            "topic": self._topic(topic_of(number)),
            "lease": self._lease(name),
        }

    def _topic(self, name: str) -> object:
        try:
            return self._log.topic(name).partitions, len(everything(self._log, name))
        except UnknownTopicError:
            return None

    def _lease(self, name: str) -> str:
        try:
            self._log.lease(name, "looks", 10).release()
        except LeaseTakenError as error:
            return next(each for each in ("one", "two") if each in str(error))
        return "free"


def _version(log: Log, name: str, task: str, partition: Any) -> str | None:
    commit = log.last_commit(name, task, [partition])
    return None if commit is None else commit.version


def _agree(found: Outcome, expected: Outcome) -> bool:
    """Return whether two outcomes are one; the outcome of a call that raised LogError itself is unknown."""
    calls = zip(found[0], expected[0], strict=True)
    return found[1] == expected[1] and all(one in (two, "LogError") for one, two in calls)


def _spread(places: Sequence[Step], most: int) -> Sequence[Step]:
    return places[:: -(-len(places) // most)] if places else []


@contextmanager
def _thread(log: Log, clock: ManualClock, side: str) -> Iterator[Connection]:
    """Let a thread act as a side of a race."""
    ours, theirs = Pipe()
    thread = Thread(target=act_as, args=(theirs, log, clock, side), daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(60)
