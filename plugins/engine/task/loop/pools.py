"""Pools: the threads beside the one that runs a loop's tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock import World

_MANY, _FEW = 16, 2

_log = logging.getLogger("penstock.worker")


class Pools:
    """Pools by what their threads do.

    Commits and fences wait for the log. `rest` fills global stores and cleans up.
    """

    def __init__(self, world: World) -> None:
        self.commits = world.threads(_MANY, "penstock-commits")
        self.fences = world.threads(_MANY, "penstock-fences")
        self.restores = world.threads(_MANY, "penstock-restores")
        self.rest = world.threads(_FEW, "penstock-rest")

    def do(self, what: str, call: Callable[[], object]) -> None:
        """Do something that nobody waits for; an error is only logged."""
        self.rest.submit(_logged, what, call)

    def close(self) -> None:
        """Begin nothing more; wait for nothing."""
        for pool in (self.commits, self.fences, self.restores, self.rest):
            pool.shutdown(wait=False, cancel_futures=True)


def _logged(what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        _log.warning("%s: %s", what, error)
