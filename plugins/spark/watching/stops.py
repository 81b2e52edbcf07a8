"""Stops: which slots of the continuous mode have committed and stopped, when a run ends or gets another layout."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from penstock.plugins.engine.host.reports import SlotMessage

_log = logging.getLogger("penstock.spark")


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
        """Note that batches let the hosts stop from now on; again, it changes nothing."""
        if self._until is None:
            self._until = self._seconds() + self._lease_seconds

    def note(self, messages: Iterable[SlotMessage]) -> None:
        """Note what the slots said in a batch."""
        if self._until is not None:
            self._left.difference_update(each.slot for each in messages if each.stopped)

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
