"""Waiting for a condition, in every test that waits for one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from penstock.log import Log
from penstock.record import TopicPartition

_PATIENCE = 3


def wait_until(condition: Callable[[], Any], what: str = "it is so", seconds: float = 60.0) -> Any:
    """Return what `condition` answers once it is true; fail after `seconds`, which only a broken program takes.

    A machine that others use, too, may need several times as long.
    """
    seconds *= _PATIENCE
    deadline = (looked := time.monotonic()) + seconds
    while not (found := condition()):
        now = time.monotonic()
        assert now < deadline, f"waited {seconds:g} s until {what}"
        # A look may read a whole topic: it takes a small part of a core from the program that is waited for.
        time.sleep(min(max(0.02, 4 * (now - looked)), 0.5))
        looked = time.monotonic()
    return found


def readable_end(log: Log, partition: TopicPartition) -> int:
    """Return a partition's end, once all before it can be read: a transaction's records can be a moment after it."""
    end = log.end_offsets([partition], stable=False)[partition]
    wait_until(lambda: log.end_offsets([partition])[partition] >= end, f"all of {partition} can be read")
    return end
