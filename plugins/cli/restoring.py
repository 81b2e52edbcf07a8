"""How the verbs say how far state is restored."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .output import count

if TYPE_CHECKING:
    from penstock.plugins.runtime.local_state.restoring import RestoreProgress


def restoring_text(tasks: Collection[RestoreProgress]) -> str:
    """Return how far the state of tasks is restored; "" for none."""
    if not tasks:
        return ""
    shares = [each.share for each in tasks if each.share is not None]
    left = [each.seconds_left for each in tasks if each.seconds_left is not None]
    parts = [
        f"restoring {count(len(tasks), 'task')}",
        f"{sum(shares) / len(tasks):.0%}" if shares else "",
        f"{sum(each.entries_per_second for each in tasks):,.0f} entries/s",
        f"{max(left):,.0f} s to go" if left else "",
    ]
    return ", ".join(filter(None, parts))
