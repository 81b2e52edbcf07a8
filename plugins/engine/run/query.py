"""Query: the tasks of an application as one engine runs them, from a start to a stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from penstock.task.visits import Visit

from .order import Trigger
from .planning.control import Control, Orders
from .progress import EndedBatch
from .slots import Slots


class Query(ABC):
    """Runs the tasks of a prepared application. All methods are called by one thread, that of the run.

    `orders` is where its planner finds what it has to do; at first that is `control`.
    """

    slots: Slots
    visits: Sequence[Visit] = ()
    """The visits that tasks make."""

    def __init__(self, orders: Orders, control: Control) -> None:
        self._orders = orders
        self._control, self._control_lock = control, threading.Lock()
        self._orders.write(control)

    @abstractmethod
    def start(self, trigger: Trigger) -> None:
        """Start to run the tasks; returns at once."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether the query still runs."""

    @abstractmethod
    def poll(self) -> list[EndedBatch]:
        """Return the batches that ended since the last call. Raises what a task failed with."""

    def set_control(self, **changes: Any) -> None:
        """Change the orders to the planner, fields of `Control`. Any thread may call it."""
        with self._control_lock:
            changed = replace(self._control, **changes)
            if changed != self._control:
                self._control = changed
                self._orders.write(changed)

    def pause(self, subtopologies: Collection[int]) -> None:
        """Let the tasks of these sub-topologies process nothing, and those of all others work."""
        self.slots.paused = frozenset(subtopologies)
        self.set_control(paused=sorted(subtopologies), next_tick=self.slots.next_tick())

    def visit(self, visits: Sequence[Visit]) -> None:
        """Let tasks make these visits, and no others."""
        self.visits = visits
        self.set_control(visits=[list(each) for each in visits])

    def drained_step(self) -> int:
        """Return the last step of a test that was processed to its end; -1 before the first."""
        return self._orders.read_drained()

    @abstractmethod
    def drain(self) -> None:
        """Begin no more work, and let tasks commit what they have; returns at once."""

    @abstractmethod
    def is_at_rest(self) -> bool:
        """Return, after `drain`, whether no task works any more."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the query; what is not committed does not count."""

    @abstractmethod
    def close(self) -> None:
        """Stop the query and remove what it left on this host; idempotent."""

    @property
    def moves(self) -> Counter[str]:
        """How many slots have moved, by reason."""
        return Counter()

    @property
    def is_outgrown(self) -> bool:
        """Whether the tasks could be spread over more processes: a new start with more slots is worth its price."""
        return False
