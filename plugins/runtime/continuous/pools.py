"""Pools: the threads beside the one that runs a loop's tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

_MANY, _FEW = 16, 2


class Pools:
    """Pools by what their threads do; `make` makes one (size, name).

    Commits and fences wait for the log. `rest` fills global stores and cleans up.
    """

    def __init__(self, make: Callable[[int, str], Executor]) -> None:
        self.commits = make(_MANY, "penstock-commits")
        self.fences = make(_MANY, "penstock-fences")
        self.restores = make(_MANY, "penstock-restores")
        self.rest = make(_FEW, "penstock-rest")

    def close(self) -> None:
        """Begin nothing more; wait for nothing."""
        for pool in (self.commits, self.fences, self.restores, self.rest):
            pool.shutdown(wait=False, cancel_futures=True)
