"""The part of `ChangelogContract` about two calls at once: one is stopped at its steps while the other is made."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import ChangelogError, DeltaChangelog

from .changelog_children import ChangelogSide, act_when_told, task_of
from .changelog_tests import ChangelogTests, restored
from .races import Race, thread_as

_CASES = [
    *((*calls, "another process") for calls in (
        ("appends", "cleans"), ("cleans", "appends"), ("snapshots", "cleans"), ("cleans", "snapshots"),
        ("appends", "appends"), ("appends", "snapshots"), ("snapshots", "appends"), ("snapshots", "snapshots"),
        ("restores", "snapshots"), ("restores", "cleans"), ("proves", "appends"), ("proves", "snapshots"),
        ("destroys", "appends"), ("appends", "destroys"),
    )),
    *((*calls, "another thread") for calls in (
        ("appends", "snapshots"), ("snapshots", "appends"), ("appends", "cleans"), ("cleans", "appends"),
    )),
]  # fmt: skip
"""What is stopped, what is done meanwhile, and by whom; functions of these names are in `changelog_children`."""


class RaceTests(ChangelogTests):
    """Two calls at once end as one after the other does, in one of the two orders, whatever comes between."""

    races: ClassVar[int] = 12
    """In how many places of a call another one is made, and also wherever it has freed a lock (0: none)."""

    @pytest.mark.parametrize(("held", "other", "by"), _CASES, ids=lambda name: str(name).replace(" ", "-"))
    def test_two_calls_at_once(self, tmp_path: Path, held: str, other: str, by: str) -> None:
        """Another process is a zombie or a successor, and its grace period has just begun; a thread has the object."""
        if not self.races:
            pytest.skip("`races` of this suite is 0")
        opener, location = type(self).changelog, self.location(tmp_path)
        shared: dict[int, DeltaChangelog] = {}
        with ExitStack() as stack:
            if by == "another process":
                work = opener, location, other
                theirs = stack.enter_context(self.children().started(act_when_told, *work))
            else:
                theirs = stack.enter_context(thread_as(ChangelogSide(opener, location, shared), other, ChangelogError))
            ours = stack.enter_context(thread_as(ChangelogSide(opener, location, shared), held, ChangelogError))
            what = f"{by} did what {other!r} does beside what {held!r} does"
            Race(ours, theirs, partial(self._look, location)).check(self.races, what, ChangelogError)

    def _look(self, location: str, number: int) -> dict[str, Any]:
        """Return what a new object finds."""
        log = type(self).changelog(location, "application", task_of(number))
        found: dict[str, Any] = {"proven": log.proven(), "beginnings": log.beginnings(), "kept": log.kept("2-v")}
        for version in ("0-v", "2-v", "3-one", "3-two"):
            try:
                found[version] = restored(log, version, None, {})
            except ChangelogError:
                found[version] = "ChangelogError"
        log.close()
        return found
