"""HostStatus: what a task host takes of its machine. Loss: a host that was lost, as the proxy that met it tells."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_REFRESH_SECONDS = 2.0


@dataclass(frozen=True)
class HostStatus:
    """A task host as of its last answer.

    `token` is new for each host process. `open_tasks`: how many tasks it has open. `rss_bytes`: its memory.
    `cpu_seconds`: its CPU time since it started. `descriptors` and `threads` are -1 where the system does not say.
    """

    token: str
    slot: int
    process: int
    open_tasks: int = 0
    rss_bytes: int = 0
    cpu_seconds: float = 0.0
    descriptors: int = -1
    threads: int = -1


class Meter:
    """Measures this process; what is expensive to measure is up to two seconds old."""

    def __init__(self) -> None:
        self._measured_at = -_REFRESH_SECONDS
        self._counts = (-1, -1)

    def status(self, token: str, slot: int, open_tasks: int) -> HostStatus:
        """Return the status now."""
        now = time.monotonic()
        if now >= self._measured_at + _REFRESH_SECONDS:
            self._measured_at = now
            self._counts = _descriptors(), _threads()
        used = os.times()
        return HostStatus(token, slot, os.getpid(), open_tasks, _rss(), used.user + used.system, *self._counts)


def _rss() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


def _descriptors() -> int:
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory)) - 1
        except OSError:
            continue
    return -1


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


@dataclass(frozen=True)
class Loss:
    """A lost host, in words. `process`: its number, 0 for one that never listened.

    Several proxies may meet the loss of one host: each of Spark's workers has a connection of its own.
    """

    text: str
    process: int = 0

    def __str__(self) -> str:
        return self.text
