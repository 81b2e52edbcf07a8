"""HostCompanion: what a task host has beside its tasks, such as a server of their stores and copies of other tasks."""

from __future__ import annotations

from collections.abc import Callable

from penstock import Application

from .engine import HostInfo
from .plan import SlotPlan


class HostCompanion:
    """What a task host has beside its tasks, from its start to `close`. The host's one thread calls all methods."""

    def take(self, plan: SlotPlan) -> None:
        """Do what a plan says, before its tasks work."""

    def url(self, most_seconds: float) -> str:
        """Return the URL of the server of queries, "" for none; wait up to so many seconds until it is known."""
        return ""

    def close(self) -> None:
        """End it."""


OpensCompanion = Callable[[Application, HostInfo], HostCompanion]
"""Opens a companion in a host. It is pickled by name, so the hosts that have none import none."""
