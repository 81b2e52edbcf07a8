"""RenewalPlanner: plans the batches of the continuous mode, which move no records."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock import Clock, SystemClock
from penstock.plugins.engine.host.reports import SlotPlan

from ..slots import slots
from .control import LONGEST_REST, Control, ControlFile, PlannedApplication, Rests
from .planner import Offset

RENEWAL_SECONDS = 20.0
"""Seconds between two batches. Each costs the tail of the latency a little."""
LEASE_SECONDS = 60.0
"""Seconds without a batch after which a host of the continuous mode ends."""


_STOP_AGAIN_SECONDS = 1.0
"""Seconds between two batches that let the hosts stop: one may hand a slot to an executor that does not have it."""


class RenewalPlanner:
    """Plans a batch at the start, every `RENEWAL_SECONDS`, when the runner asks for one or moves a slot, and to stop.

    Each renews the leases of the hosts, and starts a host that is missing. The last ones let them commit and stop, once
    a second until the runner ends the query.
    """

    def __init__(
        self,
        plan: PlannedApplication,
        clock: Clock | None = None,
        wait: Callable[[float], None] = time.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock or SystemClock()
        self._seconds = seconds
        self._directory = plan.control
        self._control = ControlFile(plan.control)
        # Only the control file can make a batch urgent, and each question of Spark's costs it some milliseconds of CPU.
        self._rests = Rests(self._control, wait, seconds, LONGEST_REST)
        self._slots = slots(plan.tasks, plan.parallelism)
        self._planned: Control | None = None
        self._owners: dict[str, str] = {}
        self._renew_at = 0.0

    def first(self) -> Offset:
        """Return the offset before the first batch."""
        return {"seq": 0, "clock_ms": 0}

    def next(self, start: Offset, max_records: int | None) -> Offset:
        """Return the offset of the next batch, or `start` when there is nothing to do."""
        control = self._control.read()
        is_wanted = self._is_wanted(control)
        self._owners = dict(control.owners)
        if not is_wanted:
            self._rests.rest(0.0, None)
            return start
        self._rests.end()
        is_asked_for = self._planned is not None and control.renewal != self._planned.renewal
        self._planned = control
        self._renew_at = self._seconds() + (_STOP_AGAIN_SECONDS if control.stopping else RENEWAL_SECONDS)
        return {
            "seq": start["seq"] + 1,
            "clock_ms": self._clock.now_ms(),
            "owners": dict(control.owners),
            "suspects": dict(control.suspects) if is_asked_for else {},
            "stopping": control.stopping,
            "settled_in": self._directory if control.unopened == [] else "",
        }

    def _is_wanted(self, control: Control) -> bool:
        before = self._planned
        if before is None:
            return not control.stopping
        if control.stopping and not before.stopping:
            return True
        # Compared with the last look, not with the last batch: owners are known only after the first one.
        moved = any(control.owners.get(number) != owner for number, owner in self._owners.items())
        return moved or control.renewal != before.renewal or self._seconds() >= self._renew_at

    def latest(self) -> Offset:
        """Return an offset without positions: these are in the hosts' heartbeats."""
        return self.first()

    def plans(self, end: Offset) -> list[SlotPlan]:
        """Return the plans of the batch that ends at `end`: one for every slot."""
        owners, suspects = end.get("owners", {}), end.get("suspects", {})
        now = self._control.peek()
        return [
            SlotPlan(
                number,
                owners.get(str(number), ""),
                end["clock_ms"],
                {task: {} for task in tasks},
                stopping=end.get("stopping", False),
                suspect=suspects.get(str(number), ""),
                is_settled=end.get("settled_in") == self._directory,
                standbys=now.standbys.get(str(number), ()),
                **now.of_tasks(),
            )
            for number, tasks in self._slots.items()
        ]
