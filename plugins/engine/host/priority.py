"""priority: tasks leave the processors to the server of queries, where both want them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from penstock import World

NICE = 5
"""How much nicer than other processes: of a processor that another one wants, too, tasks get a quarter."""
_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES, _AGAIN_SECONDS = 120, 0.25


def give_way(world: World) -> None:
    """Lower the priority of this thread, of those that it starts from now on, and of the session of this process.

    Other threads, and the processes that they start, keep theirs. Only a process that is alone in its session may call
    this.
    """
    os.nice(NICE)
    pool = world.threads(1, "penstock-priority")
    pool.submit(_lower_session, world)
    pool.shutdown(wait=False)


def _lower_session(world: World) -> None:
    # Linux may divide the processors among sessions first. It lets one process of all users change the share of its
    # session in a tenth of a second.
    with suppress(OSError):
        for _ in range(_TRIES):
            try:
                _AUTOGROUP.write_text(str(NICE))
                return
            except BlockingIOError:
                world.sleep(_AGAIN_SECONDS)
