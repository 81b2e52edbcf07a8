"""A quiet application of two tasks: a record every tenth of a second. Nothing should be opened again."""

from __future__ import annotations

import statistics
import time
from typing import Any

from .result import Table
from .steady import SteadyApplication, load_average, opened

BATCHES = 1_600
_GAP = 0.1
_PATIENCE = 120.0
"""The longest time without a batch, in seconds."""


def quiet(batches: int = BATCHES, log: str = "local") -> Table:
    """Count tasks that were opened again with the reasons, and how often the application fenced itself."""
    with opened(2, log) as running:
        return Table("quiet", [measure(running, batches)])


def measure(running: SteadyApplication, batches: int) -> dict[str, Any]:
    """Write to both partitions in turns until there were so many batches."""
    before = len(running.batches)
    began = last = time.monotonic()
    sent = seen = 0
    while len(running.batches) < before + batches:
        running.append(sent % 2, [str(sent)])
        sent += 1
        # Not longer if a batch ends sooner: a batch may read several records.
        running.pass_time(max(0.0, began + sent * _GAP - time.monotonic()))
        if len(running.batches) > seen:
            seen, last = len(running.batches), time.monotonic()
        elif time.monotonic() > last + _PATIENCE:
            raise RuntimeError(f"no batch in {_PATIENCE:.0f} s, after {seen - before} of {batches}")
    measured = running.batches[before:]
    return {
        "name": "quiet",
        "log": running.log_name,
        "batches": len(measured),
        "records": sum(each.records for each in measured),
        "seconds_per_batch": round(statistics.median(each.seconds for each in measured), 3),
        **running.reopenings(),
        "fences": running.fences,
        "load_average": load_average(),
    }
