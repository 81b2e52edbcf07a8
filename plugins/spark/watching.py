"""What the driver of a run on Spark reads beside its batches: heartbeats, servers of queries, stops."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from penstock import Lease, Log, LogError
from penstock.plugins.engine.host.claims import SlotLayout
from penstock.plugins.engine.host.continuous_engine import HeartbeatReader
from penstock.plugins.engine.host.executor_identity import host_name
from penstock.plugins.engine.host.reports import SILENT, STUCK, STUCK_SECONDS, SlotMessage
from penstock.plugins.engine.run.slots import Slots
from penstock.plugins.engine.task.own_topics import HEARTBEATS
from penstock.plugins.state.queries.noted_servers import TaskServer, note_task_servers
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
        """Record the end of a batch: the hosts were alive, and their earlier heartbeats are read at the next poll."""
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
        """Return why hosts seem to be dead, by slot number as text; None if none does, or it was just reported."""
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


class NotedServers:
    """The note of one query; the run takes it back.

    `own`: the URL of the driver's server, which has replicas. `tasks`: task ids by slot. It is written under the run's
    lease.
    """

    def __init__(self, application_id: str, lease: Lease, own: str, tasks: Mapping[int, Sequence[str]]) -> None:
        self._application_id = application_id
        self._lease = lease
        self._own = TaskServer(own, socket.gethostname())
        self._tasks = tasks
        self._noted: list[TaskServer] = []

    def write(self, slots: Slots) -> None:
        """Record the servers beside the slots' hosts, if they have changed."""
        found: dict[tuple[str, str], list[str]] = {}
        for slot, url in sorted(slots.servers.items()):
            if url:
                found.setdefault((url, host_name(slots.executors[slot])), []).extend(self._tasks[slot])
        servers = [*(TaskServer(*where, tuple(tasks)) for where, tasks in found.items()), self._own]
        if servers == self._noted:
            return
        try:
            note_task_servers(self._application_id, self._lease, servers)
            self._noted = servers
        except LogError as error:  # the next batch tries again; servers that do not answer are left alone
            _log.debug("the servers of queries could not be noted: %s", error)


class Stops:
    """The stop of one query.

    A batch may hand a slot to an executor that does not have it, so one stopping batch need not reach every host. The
    batches are repeated until each slot has said that it has stopped. A host that no batch reaches for `lease_seconds`
    has ended by itself. `seconds` is a clock that never goes back.
    """

    def __init__(
        self, application_id: str, slots: int, lease_seconds: float, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._application_id = application_id
        self._left = set(range(slots))
        self._lease_seconds = lease_seconds
        self._seconds = seconds
        self._until: float | None = None

    def begin(self) -> None:
        """Begin to let the hosts stop by batches; idempotent."""
        if self._until is None:
            self._until = self._seconds() + self._lease_seconds

    def note(self, messages: Iterable[SlotMessage]) -> None:
        """Record the slots' messages of a batch."""
        if self._until is not None:
            self._left.difference_update(message.slot for message in messages if message.stopped)

    def are_over(self) -> bool:
        """Return whether no host works any more."""
        if self._until is None:
            return False
        if self._left and self._seconds() >= self._until:
            _log.warning(
                "application %r: slot %s did not say within %.0f s that its tasks have stopped: the lease of its host "
                "is over",
                self._application_id, ", ".join(map(str, sorted(self._left))), self._lease_seconds,
            )  # fmt: skip
            self._left.clear()
        return not self._left
