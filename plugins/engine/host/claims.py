"""Claims: notes in the log about which executor has a slot, for attempts that Spark starts beside the first one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from penstock import Log
from penstock.plugins.engine.task import notes

WAIT_SECONDS = 30.0
_UNCLAIMED_SECONDS = 10.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Claim:
    """A note that an executor has a slot, valid in one run with that number of slots."""

    run: str
    slots: int
    executor: str


@dataclass(frozen=True)
class SlotLayout:
    """The run in which claims are valid, and its number of slots. `wait_seconds`: see `owner_elsewhere`."""

    run: str
    slots: int
    wait_seconds: float = WAIT_SECONDS


class Claims:
    """The claims of one layout.

    A host writes its slot's claim in batches whose plan names no owner; the driver deletes it when it orders a move. It
    is read only where a plan names no owner, and when Spark tries a task again.
    """

    def __init__(self, log: Log, application_id: str, layout: SlotLayout) -> None:
        self._log = log
        self._application_id = application_id
        self._layout = layout

    def write(self, slot: int, executor: str) -> None:
        """Record that `executor` (the text of an ExecutorIdentity) has the slot."""
        claim = Claim(self._layout.run, self._layout.slots, executor)
        notes.SLOT.of(slot).write(self._application_id, self._log, asdict(claim))

    def delete(self, slot: int) -> None:
        """Record that no executor has the slot."""
        notes.SLOT.of(slot).take_back(self._application_id, self._log)

    def owner(self, slot: int) -> str:
        """Return the executor that has the slot; "" if there is none in this run with this number of slots."""
        try:
            saved = notes.SLOT.of(slot).read(self._application_id, self._log)
            if saved is None:
                return ""
            claim = Claim(**saved)
        except (ValueError, TypeError):
            return ""  # another release wrote it
        return claim.executor if (claim.run, claim.slots) == (self._layout.run, self._layout.slots) else ""


def owner_elsewhere(
    slot: int,
    planned: str,
    own: str,
    attempt: int,
    claims: Callable[[], Claims],
    *,
    wait_seconds: float,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Return the executor that has the slot, if this one must leave the slot to it; "" if this one runs it.

    `planned`: the owner in the plan, "" if unknown. `own`: this executor. `attempt`: 0 for the first of Spark's task.
    `claims` opens the claims, where they are needed.

    A later attempt is a retry, or runs beside one that still works. It waits for at most `wait_seconds`, since Spark
    would end the attempt that does the work; a move deletes the claim, and this attempt goes ahead. Without a claim it
    waits a few seconds for the first attempt's.
    """
    if planned == own:
        return ""
    if planned and attempt == 0:
        return planned
    opened, waited = claims(), 0.0
    while True:
        owner = opened.owner(slot)
        if planned:
            # A claim of this executor is an old one: the plan is made by the driver, which knows better.
            if not owner:
                return ""
        elif owner == own or (not owner and (attempt == 0 or waited >= min(_UNCLAIMED_SECONDS, wait_seconds))):
            return ""
        elif owner and (attempt == 0 or waited >= wait_seconds):
            return owner
        if waited >= wait_seconds:
            return planned
        wait(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
