"""The settings of batches, which their planner alone reads."""

from __future__ import annotations

from penstock import Setting
from penstock.settings.types import DURATION, optional, whole_number

MAX_RECORDS_PER_BATCH = Setting(
    "max_records_per_batch",
    optional(whole_number()),
    None,
    "The most records a batch plans to read over all partitions (None: only its time is limited).",
)
PUNCTUATION_INTERVAL = Setting(
    "punctuation_interval",
    DURATION,
    "1s",
    "How often the wall clock ticks when there is no data; only applications with wall-clock punctuators notice.",
)
