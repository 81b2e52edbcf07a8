"""The part of `LogContract` about two calls at once: one is stopped at each of its steps while the other is made."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import LeaseTakenError, Log, LogError, ManualClock, UnknownTopicError

from .log_children import INPUTS, LogSide, act_when_told, application_of, topic_of
from .log_processes import ProcessTests
from .log_tests import everything
from .races import Race, thread_as

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
    """In how many places of a call another one is made, and also wherever it has freed a lock (0: none)."""

    @pytest.mark.parametrize(("held", "other", "by"), _CASES, ids=lambda name: str(name).replace(" ", "-"))
    def test_two_calls_at_once(self, tmp_path: Path, clock: ManualClock, held: str, other: str, by: str) -> None:
        """The log is thread-safe, and other processes use it: a zombie, a successor, a reset, another driver."""
        if not self.races:
            pytest.skip("`races` of this suite is 0")
        what = f"{by} did what {other!r} does beside what {held!r} does"
        with ExitStack() as stack:
            log = stack.enter_context(closing(self._prepared(tmp_path, clock)))
            if by == "another process":
                work = self.open_log, (tmp_path, clock.now_ms()), other
                theirs = stack.enter_context(self.children().started(act_when_told, *work))
            else:
                theirs = stack.enter_context(thread_as(LogSide(log, clock), other, LogError))
            ours = stack.enter_context(thread_as(LogSide(log, clock), held, LogError))
            Race(ours, theirs, _Look(log)).check(self.races, what, LogError)


class _Look:
    """What is there after a race."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __call__(self, number: int) -> dict[str, Any]:
        log, name = self._log, application_of(number)
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
