"""The settings that only Spark's driver reads."""

from __future__ import annotations

from penstock.settings.settings import Setting
from penstock.settings.types import DURATION, optional, whole_number

MAX_RECORDS_PER_BATCH = Setting(
    "max_records_per_batch",
    optional(whole_number()),
    None,
    "The most records a batch plans to read over all partitions (None: only its time is limited).",
)
PARALLELISM = Setting(
    "parallelism",
    optional(whole_number()),
    None,
    "Spark partitions that tasks are spread over (None: as many as there are cores, at most one a task).",
)
PUNCTUATION_INTERVAL = Setting(
    "punctuation_interval",
    DURATION,
    "1s",
    "How often the wall clock ticks when there is no data; only applications with wall-clock punctuators notice.",
)
