"""Beats: the driver's view of the heartbeats of the continuous mode, and of hosts that send none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from math import inf

from penstock import Log
from penstock.plugins.engine.host.claims import SlotLayout
from penstock.plugins.engine.host.heartbeats import HeartbeatReader
from penstock.plugins.engine.host.plan import SILENT, STUCK, STUCK_SECONDS
from penstock.plugins.engine.host.reports import SlotMessage
from penstock.plugins.engine.task.own_topics import HEARTBEATS
from penstock.support.repeats import Repeats

MISSING_SECONDS = 3.0
"""A host without a heartbeat for so long may be dead."""
_POLL_SECONDS = 0.5
_AGAIN_SECONDS, _BATCH_SECONDS = 5.0, 60.0
"""A batch is not asked for again so soon after the last time, and not while that one may still run."""

_log = logging.getLogger("penstock.spark")


class Beats:
    """Reads the heartbeats of one run, about twice a second.

    A slot is looked for once a batch has ended: from then on it has a host. `is_host` returns whether a heartbeat is of
    the host that has the slot: another process must not hide that this one is dead.
    """

    def __init__(
        self,
        log: Log,
        application_id: str,
        layout: SlotLayout,
        repeats: Repeats,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_host: Callable[[SlotMessage], bool] = lambda message: True,
    ) -> None:
        self._is_host = is_host
        self._log = log
        self._repeats = repeats
        self._application_id = application_id
        self._layout = layout
        self._clock = clock
        self._reader: HeartbeatReader | None = None
        self._seen: dict[int, float] = {}
        self._last: dict[int, SlotMessage] = {}
        self._watched_since: float | None = None
        self._next_poll = self._asked_at = -inf
        self._is_asked = False
        self._last_message_at = clock()
        self.since_last = 0.0
        """Seconds between the last two calls of `poll` that returned heartbeats."""

    def start(self) -> None:
        """Make the topic, and read from its present end on."""
        HEARTBEATS.make(self._application_id, self._log)
        self._reader = HeartbeatReader(self._log, self._application_id, self._layout.run)

    def note_batch(self) -> None:
        """Note that a batch has ended: the hosts were there, and what they said before it is read at the next poll."""
        now = self._clock()
        self._next_poll = -inf
        if self._watched_since is None:
            self._watched_since = now
        self._seen = dict.fromkeys(self._seen, now)
        self._last.clear()  # of hosts that may have been replaced
        self._is_asked = False

    def poll(self) -> list[SlotMessage]:
        """Return new heartbeats, if it is time to look for them."""
        now = self._clock()
        if self._reader is None or now < self._next_poll:
            return []
        self._next_poll = now + _POLL_SECONDS
        messages = self._reader.poll()
        for message in messages:
            if self._is_host(message):
                self._seen[message.slot] = now
                self._last[message.slot] = message
        if messages:
            self.since_last, self._last_message_at = now - self._last_message_at, now
        return messages

    def suspects(self, slots: Iterable[int]) -> dict[str, str] | None:
        """Return why hosts seem to be dead, by the slot's number as text; None if none does, or it was just said."""
        now = self._clock()
        pause = _BATCH_SECONDS if self._is_asked else _AGAIN_SECONDS
        if self._watched_since is None or now < self._asked_at + pause:
            return None
        found = {}
        for slot in slots:
            if now - self._seen.get(slot, self._watched_since) > MISSING_SECONDS:
                found[str(slot)] = SILENT
            elif (last := self._last.get(slot)) is not None and last.stuck_seconds > STUCK_SECONDS:
                found[str(slot)] = f"{STUCK} {last.host.process if last.host is not None else 0}"
                self._repeats.log(
                    _log, logging.WARNING, ("stuck", slot),
                    "application %r: the tasks of slot %d have made no turn for %.0f s (%s): their host is replaced",
                    self._application_id, slot, last.stuck_seconds, last.stuck_in,
                )  # fmt: skip
        if not found:
            return None
        self._asked_at, self._is_asked = now, True
        return found
