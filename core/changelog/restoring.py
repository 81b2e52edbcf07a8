"""RestoreEvent: the argument of the functions in the settings `restore_listener` and `standby_listener`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class RestorePhase(Enum):
    """Kafka Streams: `onRestoreStart`, `onBatchRestored`, `onRestoreEnd` and `onRestoreSuspended`."""

    START = "start"
    BATCH = "batch"
    END = "end"
    SUSPENDED = "suspended"


@dataclass(frozen=True)
class RestoreEvent:
    """A step of bringing the stores of a task on one backend to a version.

    `restored`: entries written so far. `done` of `total`: amount of history read, in bytes (`directory:`) or records
    (`topic:`); `total` is 0 where that is unknown. `reason`: why it was suspended.
    """

    phase: RestorePhase
    task_id: str
    stores: tuple[str, ...]
    version: str
    restored: int = 0
    done: int = 0
    total: int = 0
    reason: str = ""


RestoreListener = Callable[[RestoreEvent], object]
"""Called by the thread that restores: it should return soon. What it raises is logged."""
