"""Claims: notes in the log about which executor has a slot, for attempts that Spark starts beside the first one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from penstock.log import Log

WAIT_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_LAYOUT = "slots"


@dataclass(frozen=True)
class Claim:
    """A note that an executor has a slot, valid in one run with that number of slots."""

    run: str
    slots: int
    executor: str


class Claims:
    """The claims of one run. `run` is a name of the run, `slots` its number of slots.

    A host writes the claim of its slot when it opens. The driver deletes it when it orders a move. Only attempts that
    are not Spark's first one read it, so a batch costs the log nothing.
    """

    def __init__(self, log: Log, application_id: str, run: str, slots: int) -> None:
        self._log = log
        self._application_id = application_id
        self._run = run
        self._slots = slots

    def write(self, slot: int, executor: str) -> None:
        """Note that `executor` (the text of an ExecutorIdentity) has the slot."""
        claim = Claim(self._run, self._slots, executor)
        self._log.put_meta(self._application_id, _key(slot), json.dumps(asdict(claim)).encode())

    def delete(self, slot: int) -> None:
        """Note that no executor has the slot."""
        self._log.put_meta(self._application_id, _key(slot), b"")

    def owner(self, slot: int) -> str:
        """Return the executor that has the slot; "" if there is none in this run with this number of slots."""
        saved = self._log.get_meta(self._application_id, _key(slot))
        if not saved:
            return ""
        try:
            claim = Claim(**json.loads(saved))
        except (ValueError, TypeError):
            return ""  # another release wrote it
        return claim.executor if (claim.run, claim.slots) == (self._run, self._slots) else ""

    def write_layout(self, owners: Mapping[int, str]) -> None:
        """Note the number of slots and which executor has which, for people and tools; nothing here reads it."""
        note = {"run": self._run, "slots": self._slots, "owners": {str(slot): owners[slot] for slot in sorted(owners)}}
        self._log.put_meta(self._application_id, _LAYOUT, json.dumps(note).encode())


def owner_elsewhere(
    slot: int,
    planned: str,
    own: str,
    attempt: int,
    claims: Claims | None,
    *,
    wait_seconds: float = WAIT_SECONDS,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Return the executor that has the slot, if this one must leave the slot to it; "" if this one runs it.

    `planned`: the owner in the plan, "" if there is none. `own`: this executor. `attempt`: 0 for the first attempt of
    Spark's task. `claims`: None where Spark has one executor only.

    A later attempt is a retry, or a speculative one beside an attempt that still runs. It reads the claim. While
    another executor has the slot it waits, for at most `wait_seconds`: if it answered first, Spark would end the
    attempt that does the work. When the driver orders a move meanwhile, the claim is gone and this attempt goes ahead.
    """
    if planned == own or claims is None:
        return ""
    if attempt == 0:
        return planned
    waited = 0.0
    while (owner := claims.owner(slot)) not in ("", own):
        if waited >= wait_seconds:
            return owner
        wait(_LOOK_SECONDS)
        waited += _LOOK_SECONDS
    return ""


def _key(slot: int) -> str:
    return f"slot-{slot}"
