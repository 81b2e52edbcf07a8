"""Life: ends a task host when its executor ends, when nobody has renewed its lease, or when its place is gone."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

LEASE_SECONDS = 150.0
"""Seconds without a batch after which a host ends."""
UNUSED_SECONDS = 60.0
"""Seconds in which a new host must get its first request; its query may have ended while it started."""
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Process:
    """A process; `started` tells it from a later one with the same number ("" where the system does not say)."""

    pid: int
    started: str = ""
    name: str = "a process"

    def is_there(self) -> bool:
        """Return whether it still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return not self.started or started_at(self.pid) == self.started


def started_at(pid: int) -> str:
    """Return when a process started, as text that no later process with its number has; "" if that is not known."""
    fields = _stat(pid)
    return "" if not fields or fields[0] == "Z" else fields[19]


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time that a process has taken; None where the system does not say."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else None


def _stat(pid: int) -> list[str]:
    """Return what Linux says of a process, from its state on; empty where it says nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The name of the program is in parentheses and may contain anything.
    return text.rpartition(")")[2].split()


def clock() -> float:
    """Return seconds on a clock that also counts while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Life:
    """Watches the processes that the host must not outlive, its lease and its place; calls `end` once, with the reason.

    `has_place` returns whether proxies can find the host. One that cannot be found has to end: the next proxy starts
    another host for the same slot.

    A thread of its own watches, so that a host ends though its engine is busy. (A parent-death signal would not do:
    it comes when the thread that started the host ends, and idle Spark workers end after a minute.)
    """

    def __init__(
        self,
        watched: Sequence[Process],
        end: Callable[[str], None],
        lease_seconds: float = LEASE_SECONDS,
        has_place: Callable[[], bool] = lambda: True,
    ) -> None:
        self._watched = watched
        self._end = end
        self._lease_seconds = lease_seconds
        self._lease_now = min(lease_seconds, UNUSED_SECONDS)
        self._has_place = has_place
        self._users = 0
        self._renewed = clock()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="penstock-life", daemon=True).start()

    def begin_request(self) -> None:
        """Renew the lease; it does not run out while requests are served."""
        with self._lock:
            self._users += 1

    def end_request(self) -> None:
        """Let the lease run from now on."""
        with self._lock:
            self._users -= 1
            self._renewed, self._lease_now = clock(), self._lease_seconds

    def _watch(self) -> None:
        poll = select.poll()
        files = []
        for each in self._watched:
            try:
                file = os.pidfd_open(each.pid)
            except (AttributeError, OSError):
                continue  # looked at once a second below
            files.append(file)
            poll.register(file, select.POLLIN)
        while True:
            # A number may have been given to another process before it was opened here: look at each as well.
            gone = next((each for each in self._watched if not each.is_there()), None)
            if gone is not None:
                self._end(f"{gone.name} ({gone.pid}) has ended")
                return
            if not self._has_place():
                self._end("its socket or its lock file was removed")
                return
            with self._lock:
                is_over = not self._users and clock() > self._renewed + self._lease_now
            if is_over:
                self._end(f"there was no batch for {self._lease_now:.0f} s")
                return
            poll.poll((_LOOK_SECONDS if len(files) < len(self._watched) else 5 * _LOOK_SECONDS) * 1000)
