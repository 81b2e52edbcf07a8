"""Heartbeats: what a host of the continuous mode says of itself once a second, through the log, to the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from penstock import Log, OffsetOutOfRangeError, OutputBatch, PenstockError, TopicPartition, World
from penstock.plugins.engine.task.own_topics import HEARTBEATS
from penstock.plugins.engine.task.reading import read_up_to

from .reports import SlotMessage

_INTERVAL_SECONDS = 1.0

_log = logging.getLogger("penstock.hosts")


class HeartbeatSender:
    """Sends a heartbeat once a second, in a thread of its own, whatever the host's tasks do.

    `make` returns the next one. `give_back` gets one that could not be sent: what it reports goes with the next.
    """

    def __init__(
        self,
        log: Log,
        application_id: str,
        make: Callable[[], SlotMessage],
        give_back: Callable[[SlotMessage], None],
        world: World,
    ) -> None:
        self._log = log
        self._topic = HEARTBEATS.of(application_id)
        self._make = make
        self._give_back = give_back
        self._ticker = world.ticker("penstock-heartbeats", _INTERVAL_SECONDS, self._send)

    def _send(self) -> None:
        message = self._make()
        try:
            self._log.append(OutputBatch(self._topic, [str(message.slot).encode()], [message.to_json().encode()], [0]))
        except Exception as error:
            self._give_back(message)
            if not isinstance(error, PenstockError):
                raise  # its ticker logs it
            _log.debug("a heartbeat could not be sent: %s", error)

    def close(self) -> None:
        """Send no more; what was not sent stays with its maker."""
        self._ticker.close()


class HeartbeatReader:
    """The driver's end: reads the heartbeats of one run, from now on."""

    def __init__(self, log: Log, application_id: str, run: str) -> None:
        self._log = log
        self._partition = TopicPartition(HEARTBEATS.of(application_id), 0)
        self._run = run
        self._next = log.end_offsets([self._partition])[self._partition]

    def poll(self) -> list[SlotMessage]:
        """Return the heartbeats that came since the last call.

        Those that the log has deleted are left out, and those of another form: another release may have sent them.
        """
        end = self._log.end_offsets([self._partition])[self._partition]
        if end < self._next:
            self._next = 0  # the topic was made again
        found: list[SlotMessage] = []
        with suppress(OffsetOutOfRangeError):  # it was made again meanwhile: the next call sees that
            for batch in read_up_to(self._log, self._partition, self._next, end):
                self._next = batch.next_offset
                found += [each for value in batch.values if value and (each := _read(value)) and each.run == self._run]
            self._next = end
        return found


def _read(value: bytes) -> SlotMessage | None:
    try:
        return SlotMessage.from_json(value.decode())
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        _log.debug("a message among the heartbeats is none: %s: %s", type(error).__name__, error)
        return None
