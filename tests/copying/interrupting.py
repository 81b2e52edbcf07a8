"""Listeners that end a copy after some commits, or act when it waits."""

from __future__ import annotations

from collections.abc import Callable

from penstock.copying import CopySummary


class Interrupted(Exception):
    """The end of a copy in a test."""


def ends_after(commits: int) -> Callable[[CopySummary, str], None]:
    """Return a listener that ends the copy after so many commits."""
    left = [commits]

    def ended(summary: CopySummary, reason: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise Interrupted

    return ended


class Stop(Exception):
    """The end of a copy that follows its source."""


def when_idle(*acts: Callable[[], object]) -> Callable[[CopySummary, str], None]:
    """Return a listener that acts each time that a copy waits, and then ends it."""
    left = list(acts)
    seen = [-1]

    def listen(summary: CopySummary, reason: str) -> None:
        if seen[0] == summary.total:
            if not left:
                raise Stop
            left.pop(0)()
        seen[0] = summary.total

    return listen
